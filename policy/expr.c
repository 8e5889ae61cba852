/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expressions are compiled to a postfix program, constants folded on the way, so that an evaluation
 * is one loop over a few operations on a fixed stack. Source: docs/hookspec.md, "Expressions".
 */
#include "policy/expr.h"

#include "policy/nearest.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum op_kind {
    OP_CONST,
    OP_GRID, /* .imm: axis */
    OP_BLOCK,
    OP_SHARED,
    OP_OCC,
    OP_PARAM,
    OP_NEG,
    OP_ADD, /* from here on: two operands */
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_MOD,
    OP_MIN,
    OP_MAX,
    OP_CEIL_DIV,
};

struct op {
    uint8_t kind;
    uint8_t n_bytes;   /* OP_PARAM: width of the integer that is read */
    uint8_t is_signed; /* OP_PARAM */
    union {
        int64_t imm;
        struct expr_ref ref;
    };
};

/* A product of dimensions nests one level deeper than its factors: expr_product(). */
#define STACK_MAX (EXPR_MAX_DEPTH * 2 + 4)

struct expr {
    uint32_t n_ops;
    uint32_t uses;
    struct op ops[];
};

/* Return: 0, EXPR_E_OVERFLOW or EXPR_E_DIVIDE. */
static int apply(uint8_t kind, int64_t a, int64_t b, int64_t *out)
{
    switch (kind) {
    case OP_ADD: return __builtin_add_overflow(a, b, out) ? EXPR_E_OVERFLOW : 0;
    case OP_SUB: return __builtin_sub_overflow(a, b, out) ? EXPR_E_OVERFLOW : 0;
    case OP_MUL: return __builtin_mul_overflow(a, b, out) ? EXPR_E_OVERFLOW : 0;
    case OP_MIN: *out = a < b ? a : b; return 0;
    case OP_MAX: *out = a > b ? a : b; return 0;
    default: break;
    }
    if (b == 0)
        return EXPR_E_DIVIDE;
    if (b == -1) { /* INT64_MIN / -1 traps on x86, and so does its remainder */
        *out = 0;
        return kind == OP_MOD || !__builtin_sub_overflow((int64_t)0, a, out) ? 0 : EXPR_E_OVERFLOW;
    }
    *out = kind == OP_MOD ? a % b : a / b;
    if (kind == OP_CEIL_DIV && a % b != 0 && (a < 0) == (b < 0))
        (*out)++; /* C truncates towards zero, which is upwards for a negative quotient only */
    return 0;
}

static int read_param(const struct op *op, const struct expr_env *env, int64_t *out)
{
    uint64_t u = 0; /* the device, and every host that has one, is little-endian */
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first bytes are the low ones");
    if (!env->param || env->param(env->param_ctx, op->ref, &u, op->n_bytes) != 0)
        return EXPR_E_PARAM;
    if (op->is_signed) {
        unsigned shift = 64 - 8 * op->n_bytes;
        *out = (int64_t)(u << shift) >> shift;
        return 0;
    }
    if (u > INT64_MAX)
        return EXPR_E_OVERFLOW;
    *out = (int64_t)u;
    return 0;
}

int expr_eval(const struct expr *e, const struct expr_env *env, int64_t *out)
{
    int64_t stack[STACK_MAX];
    size_t top = 0; /* the parser has checked that it stays within the stack */
    for (uint32_t i = 0; i < e->n_ops; i++) {
        const struct op *op = &e->ops[i];
        int rc = 0;
        switch (op->kind) {
        case OP_CONST: stack[top++] = op->imm; break;
        case OP_GRID: stack[top++] = env->grid[op->imm]; break;
        case OP_BLOCK: stack[top++] = env->block[op->imm]; break;
        case OP_SHARED:
            if (env->shared_bytes > INT64_MAX)
                return EXPR_E_OVERFLOW;
            stack[top++] = (int64_t)env->shared_bytes;
            break;
        case OP_OCC: stack[top++] = env->occ; break;
        case OP_PARAM: rc = read_param(op, env, &stack[top++]); break;
        case OP_NEG: rc = apply(OP_SUB, 0, stack[top - 1], &stack[top - 1]); break;
        default:
            /* two operands */
            top--;
            rc = apply(op->kind, stack[top - 1], stack[top], &stack[top - 1]);
        }
        if (rc)
            return rc;
    }
    *out = stack[0];
    return 0;
}

unsigned expr_uses(const struct expr *e)
{
    return e->uses;
}

int expr_is_constant(const struct expr *e)
{
    return e->uses == 0;
}

int64_t expr_constant(const struct expr *e)
{
    /* What uses nothing was folded, whatever its form. */
    return e->n_ops == 1 && e->ops[0].kind == OP_CONST ? e->ops[0].imm : 0;
}

static bool op_same(const struct op *a, const struct op *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == OP_PARAM)
        return a->n_bytes == b->n_bytes && a->is_signed == b->is_signed &&
               a->ref.arg == b->ref.arg && a->ref.offset == b->ref.offset;
    return a->imm == b->imm;
}

int expr_same(const struct expr *a, const struct expr *b)
{
    if (!a || !b)
        return a == b;
    if (a->n_ops != b->n_ops)
        return 0;
    for (uint32_t i = 0; i < a->n_ops; i++)
        if (!op_same(&a->ops[i], &b->ops[i]))
            return 0;
    return 1;
}

void expr_free(struct expr *e)
{
    free(e);
}

/* ------------------------------------------------------------------------------------- building */

struct builder {
    struct op *ops;
    uint32_t n_ops, max_ops;
    uint32_t uses;
    uint32_t depth, deepest; /* of the evaluation stack */
};

static int emit(struct builder *b, struct op op)
{
    bool binary = op.kind >= OP_ADD;
    struct op *last = b->n_ops ? &b->ops[b->n_ops - 1] : NULL;
    if (op.kind == OP_NEG && last->kind == OP_CONST)
        return apply(OP_SUB, 0, last->imm, &last->imm);
    /* If the last operation pushes a constant, it is the whole right operand; the same for the left. */
    if (binary && last->kind == OP_CONST && b->ops[b->n_ops - 2].kind == OP_CONST) {
        int64_t value = 0;
        int rc = apply(op.kind, b->ops[b->n_ops - 2].imm, last->imm, &value);
        if (rc)
            return rc;
        b->n_ops--;
        b->depth--;
        b->ops[b->n_ops - 1].imm = value;
        return 0;
    }
    if ((op.kind == OP_DIV || op.kind == OP_MOD || op.kind == OP_CEIL_DIV) &&
        last->kind == OP_CONST && last->imm == 0)
        return EXPR_E_DIVIDE;
    if (b->n_ops == b->max_ops)
        return -E2BIG;
    b->ops[b->n_ops++] = op;
    if (binary)
        b->depth--;
    else if (op.kind != OP_NEG)
        b->depth++;
    if (b->depth > b->deepest)
        b->deepest = b->depth;
    if (op.kind == OP_OCC)
        b->uses |= EXPR_USES_OCC;
    else if (op.kind > OP_CONST && op.kind < OP_NEG)
        b->uses |= EXPR_USES_LAUNCH;
    return 0;
}

static int build(const struct builder *b, struct expr **out)
{
    struct expr *e = calloc(1, sizeof *e + b->n_ops * sizeof e->ops[0]);
    if (!e)
        return -ENOMEM;
    e->n_ops = b->n_ops;
    e->uses = b->uses;
    memcpy(e->ops, b->ops, b->n_ops * sizeof e->ops[0]);
    *out = e;
    return 0;
}

int expr_product(const struct expr *const *factors, size_t n_factors, int64_t scale,
                 struct expr **out)
{
    size_t n = 1;
    for (size_t i = 0; i < n_factors; i++)
        n += factors[i]->n_ops + 1;
    struct op *ops = calloc(n, sizeof *ops);
    if (!ops)
        return -ENOMEM;
    struct builder b = { .ops = ops, .max_ops = (uint32_t)n };
    int rc = 0;
    /* Constants first, so that they fold into one. */
    rc = emit(&b, (struct op){ .kind = OP_CONST, .imm = scale });
    for (int constants = 1; constants >= 0; constants--)
        for (size_t i = 0; i < n_factors && !rc; i++) {
            const struct expr *f = factors[i];
            if (!!expr_is_constant(f) != constants)
                continue;
            for (uint32_t k = 0; k < f->n_ops && !rc; k++)
                rc = emit(&b, f->ops[k]);
            if (!rc)
                rc = emit(&b, (struct op){ .kind = OP_MUL });
        }
    if (!rc)
        rc = build(&b, out);
    free(ops);
    return rc;
}

/* -------------------------------------------------------------------------------------- parsing */

enum token {
    TOKEN_END,
    TOKEN_NUMBER,
    TOKEN_NAME,
    TOKEN_SIGN, /* one character, in .sign */
};

struct parser {
    const char *text;
    size_t n, at;
    enum token token;
    size_t start; /* of the token */
    char sign;
    int64_t number;
    const struct expr_var *vars;
    size_t n_vars;
    struct builder b;
    unsigned depth;
    struct expr_error *error;
};

static int fail(struct parser *p, size_t offset, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(struct parser *p, size_t offset, const char *fmt, ...)
{
    p->error->offset = offset;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->error->msg, sizeof p->error->msg, fmt, ap);
    va_end(ap);
    return EXPR_E_SYNTAX;
}

static bool is_name_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int digit_value(char c, int base)
{
    int v = is_digit(c)              ? c - '0'
            : (c >= 'a' && c <= 'f') ? c - 'a' + 10
            : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                     : 99;
    return v < base ? v : -1;
}

static int next_number(struct parser *p)
{
    int base = 10;
    if (p->text[p->at] == '0' && p->at + 1 < p->n && (p->text[p->at + 1] | 32) == 'x') {
        base = 16;
        p->at += 2;
        if (p->at == p->n || digit_value(p->text[p->at], 16) < 0)
            return fail(p, p->start, "found \"0x\" without digits; expected a hexadecimal number");
    }
    int64_t v = 0;
    for (; p->at < p->n && digit_value(p->text[p->at], base) >= 0; p->at++)
        if (__builtin_mul_overflow(v, (int64_t)base, &v) ||
            __builtin_add_overflow(v, (int64_t)digit_value(p->text[p->at], base), &v))
            return fail(p, p->start, "found a number above 9223372036854775807");
    if (p->at < p->n && (is_name_start(p->text[p->at]) || is_digit(p->text[p->at])))
        return fail(p, p->at, "found '%c' in a number; expected digits", p->text[p->at]);
    p->number = v;
    p->token = TOKEN_NUMBER;
    return 0;
}

static int next(struct parser *p)
{
    while (p->at < p->n && strchr(" \t\r\n", p->text[p->at]) && p->text[p->at])
        p->at++;
    p->start = p->at;
    if (p->at == p->n) {
        p->token = TOKEN_END;
        return 0;
    }
    char c = p->text[p->at];
    if (is_digit(c))
        return next_number(p);
    if (is_name_start(c)) {
        while (p->at < p->n && (is_name_start(p->text[p->at]) || is_digit(p->text[p->at])))
            p->at++;
        p->token = TOKEN_NAME;
        return 0;
    }
    if (c && strchr("+-*/%()[].,", c)) {
        p->at++;
        p->token = TOKEN_SIGN;
        p->sign = c;
        return 0;
    }
    if (c > ' ' && c < 127)
        return fail(p, p->at,
                    "found '%c', which no expression holds; expected + - * / %% ( ) , a "
                    "number or a name",
                    c);
    return fail(p, p->at, "found a byte 0x%02x, which no expression holds", (unsigned char)c);
}

/* What the token is, in words, for messages. */
static const char *found(const struct parser *p, char *buffer, size_t n)
{
    if (p->token == TOKEN_END)
        snprintf(buffer, n, "the end");
    else
        snprintf(buffer, n, "\"%.*s\"", (int)(p->at - p->start > 40 ? 40 : p->at - p->start),
                 p->text + p->start);
    return buffer;
}

static int expected(struct parser *p, const char *what)
{
    char was[64];
    return fail(p, p->start, "found %s; expected %s", found(p, was, sizeof was), what);
}

static bool at_sign(const struct parser *p, char sign)
{
    return p->token == TOKEN_SIGN && p->sign == sign;
}

static int take_sign(struct parser *p, char sign, const char *what)
{
    return at_sign(p, sign) ? next(p) : expected(p, what);
}

static bool at_name(const struct parser *p, const char *name)
{
    return p->token == TOKEN_NAME && strlen(name) == p->at - p->start &&
           !memcmp(name, p->text + p->start, p->at - p->start);
}

static int put(struct parser *p, size_t offset, struct op op)
{
    int rc = emit(&p->b, op);
    if (rc == EXPR_E_OVERFLOW)
        return fail(p, offset, "found a value that does not fit in 64 bits");
    if (rc == EXPR_E_DIVIDE)
        return fail(p, offset, "found a division by zero");
    if (rc == -E2BIG)
        return fail(p, offset, "found more than %u operations; expected fewer", EXPR_MAX_OPS);
    return rc;
}

static int parse_sum(struct parser *p);

/* `[N]`, N a constant expression from 0 to @max */
static int parse_index(struct parser *p, const char *what, uint32_t max, uint32_t *out)
{
    int rc = take_sign(p, '[', what);
    if (rc)
        return rc;
    size_t at = p->start;
    uint32_t before = p->b.n_ops, depth = p->b.depth;
    rc = parse_sum(p);
    if (rc)
        return rc;
    struct op *op = &p->b.ops[before];
    if (p->b.n_ops != before + 1 || op->kind != OP_CONST)
        return fail(p, at, "found an index that depends on the launch; expected a constant");
    if (op->imm < 0 || op->imm > max)
        return fail(p, at, "found index %lld; expected 0 to %u", (long long)op->imm, max);
    *out = (uint32_t)op->imm;
    p->b.n_ops = before;
    p->b.depth = depth;
    return take_sign(p, ']', "\"]\"");
}

/* `arg[I]`, `arg[I][OFFSET]` or `param[OFFSET]`, the name being the token */
static int parse_place(struct parser *p, struct expr_ref *ref)
{
    bool is_arg = at_name(p, "arg");
    uint32_t value = 0;
    int rc = next(p);
    if (rc)
        return rc;
    *ref = (struct expr_ref){ .arg = -1 };
    if (!is_arg)
        return parse_index(p, "\"[\" and a byte offset", EXPR_MAX_OFFSET, &ref->offset);
    rc = parse_index(p, "\"[\" and a parameter index", EXPR_MAX_ARG, &value);
    ref->arg = (int32_t)value;
    if (!rc && at_sign(p, '['))
        rc = parse_index(p, "\"[\" and a byte offset", EXPR_MAX_OFFSET, &ref->offset);
    return rc;
}

static const char *const axis_names[] = { "x", "y", "z" };
static const char *const type_names[] = { "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64" };

/* `.NAME`, NAME one of @names; *@out is its index */
static int parse_member(struct parser *p, const char *const *names, size_t n, const char *what,
                        size_t *out)
{
    int rc = take_sign(p, '.', what);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++)
        if (at_name(p, names[i])) {
            *out = i;
            return next(p);
        }
    char was[64], hint[64] = "";
    if (p->token == TOKEN_NAME)
        nearest_hint(p->text + p->start, p->at - p->start, names, n, hint, sizeof hint);
    return fail(p, p->start, "found %s; expected %s%s", found(p, was, sizeof was), what, hint);
}

static int parse_call(struct parser *p)
{
    uint8_t kind = at_name(p, "min") ? OP_MIN : at_name(p, "max") ? OP_MAX : OP_CEIL_DIV;
    size_t start = p->start;
    unsigned n = 0;
    int rc = next(p);
    if (!rc)
        rc = take_sign(p, '(', "\"(\"");
    while (!rc) {
        rc = parse_sum(p);
        if (!rc && ++n > 1)
            rc = put(p, start, (struct op){ .kind = kind });
        if (rc || !at_sign(p, ','))
            break;
        rc = kind == OP_CEIL_DIV && n == 2 ? expected(p, "\")\": ceil_div takes two values")
                                           : next(p);
    }
    if (!rc && n < 2)
        rc = expected(p, "\",\" and a second value");
    return rc ? rc : take_sign(p, ')', "\",\" or \")\"");
}

static int unknown_name(struct parser *p)
{
    static const char *const words[] = { "grid",  "block", "shared", "occ",     "arg",
                                         "param", "min",   "max",    "ceil_div" };
    const char *names[sizeof words / sizeof *words + 64];
    size_t n = 0;
    for (; n < sizeof words / sizeof *words; n++)
        names[n] = words[n];
    for (size_t i = 0; i < p->n_vars && n < sizeof names / sizeof *names; i++)
        names[n++] = p->vars[i].name;
    char was[64], hint[96] = "";
    nearest_hint(p->text + p->start, p->at - p->start, names, n, hint, sizeof hint);
    return fail(p, p->start,
                "found %s; expected a variable of vars:, grid, block, shared, occ, "
                "arg, param, min, max or ceil_div%s",
                found(p, was, sizeof was), hint);
}

static int parse_name(struct parser *p)
{
    size_t start = p->start, member = 0;
    if (at_name(p, "min") || at_name(p, "max") || at_name(p, "ceil_div"))
        return parse_call(p);
    if (at_name(p, "grid") || at_name(p, "block")) {
        uint8_t kind = at_name(p, "grid") ? OP_GRID : OP_BLOCK;
        int rc = next(p);
        if (!rc)
            rc = parse_member(p, axis_names, 3, "\".x\", \".y\" or \".z\"", &member);
        return rc ? rc : put(p, start, (struct op){ .kind = kind, .imm = (int64_t)member });
    }
    if (at_name(p, "arg") || at_name(p, "param")) {
        struct op op = { .kind = OP_PARAM };
        struct expr_ref ref;
        int rc = parse_place(p, &ref);
        if (!rc)
            rc = parse_member(p, type_names, 8, "a type: .i8 .i16 .i32 .i64 .u8 .u16 .u32 .u64",
                              &member);
        op.ref = ref;
        op.n_bytes = (uint8_t)(1u << (member & 3));
        op.is_signed = member < 4;
        return rc ? rc : put(p, start, op);
    }
    struct op op = { .kind = OP_CONST };
    if (at_name(p, "shared")) {
        op.kind = OP_SHARED;
    } else if (at_name(p, "occ")) {
        op.kind = OP_OCC;
    } else {
        size_t i = 0;
        while (i < p->n_vars && !at_name(p, p->vars[i].name))
            i++;
        if (i == p->n_vars)
            return unknown_name(p);
        op.imm = p->vars[i].value;
    }
    int rc = next(p);
    return rc ? rc : put(p, start, op);
}

static int parse_value(struct parser *p)
{
    size_t start = p->start;
    if (p->depth >= EXPR_MAX_DEPTH)
        return fail(p, p->start, "found more than %u nested parentheses; expected fewer",
                    EXPR_MAX_DEPTH);
    p->depth++;
    int rc;
    if (p->token == TOKEN_NUMBER) {
        struct op op = { .kind = OP_CONST, .imm = p->number };
        rc = next(p);
        if (!rc)
            rc = put(p, start, op);
    } else if (p->token == TOKEN_NAME) {
        rc = parse_name(p);
    } else if (at_sign(p, '(')) {
        rc = next(p);
        if (!rc)
            rc = parse_sum(p);
        if (!rc)
            rc = take_sign(p, ')', "an operator or \")\"");
    } else if (at_sign(p, '-')) {
        rc = next(p);
        if (!rc)
            rc = parse_value(p);
        if (!rc)
            rc = put(p, start, (struct op){ .kind = OP_NEG });
    } else {
        rc = expected(p, "a number, a name, \"-\" or \"(\"");
    }
    p->depth--;
    return rc;
}

static int parse_term(struct parser *p)
{
    int rc = parse_value(p);
    while (!rc && (at_sign(p, '*') || at_sign(p, '/') || at_sign(p, '%'))) {
        uint8_t kind = p->sign == '*' ? OP_MUL : p->sign == '/' ? OP_DIV : OP_MOD;
        size_t start = p->start;
        rc = next(p);
        if (!rc)
            rc = parse_value(p);
        if (!rc)
            rc = put(p, start, (struct op){ .kind = kind });
    }
    return rc;
}

static int parse_sum(struct parser *p)
{
    int rc = parse_term(p);
    while (!rc && (at_sign(p, '+') || at_sign(p, '-'))) {
        uint8_t kind = p->sign == '+' ? OP_ADD : OP_SUB;
        size_t start = p->start;
        rc = next(p);
        if (!rc)
            rc = parse_term(p);
        if (!rc)
            rc = put(p, start, (struct op){ .kind = kind });
    }
    return rc;
}

static int parser_init(struct parser *p, struct op *ops, const char *text, size_t n_text,
                       const struct expr_var *vars, size_t n_vars, struct expr_error *error)
{
    *p = (struct parser){
        .text = text, .n = n_text, .vars = vars, .n_vars = n_vars, .error = error
    };
    p->b.ops = ops;
    p->b.max_ops = EXPR_MAX_OPS;
    if (n_text > EXPR_MAX_TEXT)
        return fail(p, EXPR_MAX_TEXT, "found %zu characters; expected at most %u", n_text,
                    EXPR_MAX_TEXT);
    return next(p);
}

int expr_parse(const char *text, size_t n_text, const struct expr_var *vars, size_t n_vars,
               struct expr_error *error, struct expr **out)
{
    struct parser p;
    struct op ops[EXPR_MAX_OPS];
    int rc = parser_init(&p, ops, text, n_text, vars, n_vars, error);
    if (!rc)
        rc = parse_sum(&p);
    if (!rc && p.token != TOKEN_END)
        rc = expected(&p, "an operator or the end");
    if (!rc && p.b.deepest > STACK_MAX - 4)
        rc = fail(&p, 0, "found too many pending operands; expected fewer parentheses");
    return rc ? rc : build(&p.b, out);
}

int expr_parse_ref(const char *text, size_t n_text, const struct expr_var *vars, size_t n_vars,
                   struct expr_error *error, struct expr_ref *out)
{
    static const char *const words[] = { "arg", "param" };
    struct parser p;
    struct op ops[EXPR_MAX_OPS];
    struct expr_ref ref;
    int rc = parser_init(&p, ops, text, n_text, vars, n_vars, error);
    if (rc)
        return rc;
    if (!at_name(&p, "arg") && !at_name(&p, "param")) {
        char was[64], hint[64] = "";
        if (p.token == TOKEN_NAME)
            nearest_hint(p.text + p.start, p.at - p.start, words, 2, hint, sizeof hint);
        return fail(&p, p.start,
                    "found %s; expected arg[INDEX], arg[INDEX][OFFSET] or "
                    "param[OFFSET]%s",
                    found(&p, was, sizeof was), hint);
    }
    rc = parse_place(&p, &ref);
    if (!rc && p.token != TOKEN_END)
        rc = expected(&p, "the end: additions to the address belong in offset:");
    if (!rc)
        *out = ref;
    return rc;
}
