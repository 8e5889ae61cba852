/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From tokens to a program: a recursive descent over the grammar of docs/hookspec.md, "Expressions".
 */
#include "core/any.h"
#include "core/err.h"
#include "policy/expr.h"

#include "policy/expr_code.h"
#include "policy/expr_lex.h"
#include "policy/nearest.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct parser {
    struct lexer lex;
    const struct expr_var *vars;
    size_t n_vars;
    struct code_builder b;
    unsigned depth;
};

static int put(struct parser *p, size_t offset, struct op op)
{
    int rc = expr_emit(&p->b, op);
    if (rc == EXPR_E_OVERFLOW)
        return lex_fail(&p->lex, offset, "found a value that does not fit in 64 bits");
    if (rc == EXPR_E_DIVIDE)
        return lex_fail(&p->lex, offset, "found a division by zero");
    if (rc == -E2BIG)
        return lex_fail(&p->lex, offset, "found more than %u operations; expected fewer",
                        EXPR_MAX_OPS);
    return rc;
}

static int parse_sum(struct parser *p);

/* `[N]`, N a constant expression from 0 to @max */
static int parse_index(struct parser *p, const char *what, uint32_t max, uint32_t *out)
{
    TRY(lex_take_sign(&p->lex, '[', what));
    size_t at = p->lex.start;
    uint32_t before = p->b.n_ops, depth = p->b.depth;
    TRY(parse_sum(p));
    struct op *op = &p->b.ops[before];
    if (p->b.n_ops != before + 1 || op->kind != OP_CONST)
        return lex_fail(&p->lex, at,
                        "found an index that depends on the launch; expected a constant");
    if (op->imm < 0 || op->imm > max)
        return lex_fail(&p->lex, at, "found index %lld; expected 0 to %u", (long long)op->imm, max);
    *out = (uint32_t)op->imm;
    p->b.n_ops = before;
    p->b.depth = depth;
    return lex_take_sign(&p->lex, ']', "\"]\"");
}

/* `arg[I]`, `arg[I][OFFSET]` or `param[OFFSET]`, the name being the token */
static int parse_place(struct parser *p, struct expr_ref *ref)
{
    bool is_arg = lex_at_name(&p->lex, "arg");
    uint32_t value = 0;
    TRY(lex_next(&p->lex));
    *ref = (struct expr_ref){ .arg = -1 };
    if (!is_arg)
        return parse_index(p, "\"[\" and a byte offset", EXPR_MAX_OFFSET, &ref->offset);
    int rc = parse_index(p, "\"[\" and a parameter index", EXPR_MAX_ARG, &value);
    ref->arg = (int32_t)value;
    if (!rc && lex_at_sign(&p->lex, '['))
        rc = parse_index(p, "\"[\" and a byte offset", EXPR_MAX_OFFSET, &ref->offset);
    return rc;
}

static const char *const axis_names[] = { "x", "y", "z" };
static const char *const type_names[] = { "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64" };

/* `.NAME`, NAME one of @names; *@out is its index */
static int parse_member(struct parser *p, const char *const *names, size_t n, const char *what,
                        size_t *out)
{
    TRY(lex_take_sign(&p->lex, '.', what));
    for (size_t i = 0; i < n; i++)
        if (lex_at_name(&p->lex, names[i])) {
            *out = i;
            return lex_next(&p->lex);
        }
    char was[64], hint[64] = "";
    if (p->lex.token == TOKEN_NAME)
        nearest_hint(p->lex.text + p->lex.start, p->lex.at - p->lex.start, names, n, hint,
                     sizeof hint);
    return lex_fail(&p->lex, p->lex.start, "found %s; expected %s%s",
                    lex_found(&p->lex, was, sizeof was), what, hint);
}

static int parse_call(struct parser *p)
{
    uint8_t kind = lex_at_name(&p->lex, "min")   ? OP_MIN
                   : lex_at_name(&p->lex, "max") ? OP_MAX
                                                 : OP_CEIL_DIV;
    size_t start = p->lex.start;
    unsigned n = 0;
    int rc = lex_next(&p->lex);
    if (!rc)
        rc = lex_take_sign(&p->lex, '(', "\"(\"");
    while (!rc) {
        rc = parse_sum(p);
        if (!rc && ++n > 1)
            rc = put(p, start, (struct op){ .kind = kind });
        if (rc || !lex_at_sign(&p->lex, ','))
            break;
        rc = kind == OP_CEIL_DIV && n == 2
                 ? lex_expected(&p->lex, "\")\": ceil_div takes two values")
                 : lex_next(&p->lex);
    }
    if (!rc && n < 2)
        rc = lex_expected(&p->lex, "\",\" and a second value");
    return rc ? rc : lex_take_sign(&p->lex, ')', "\",\" or \")\"");
}

/* What expressions mean something by, so that no variable may be called so. */
static const char *const words[] = { "grid",  "block", "shared", "occ",     "arg",
                                     "param", "min",   "max",    "ceil_div" };

int expr_is_reserved(const char *name)
{
    return ANY(i, sizeof words / sizeof *words, !strcmp(words[i], name));
}

static int unknown_name(struct parser *p)
{
    const char *names[sizeof words / sizeof *words + 64];
    size_t n = 0;
    for (; n < sizeof words / sizeof *words; n++)
        names[n] = words[n];
    for (size_t i = 0; i < p->n_vars && n < sizeof names / sizeof *names; i++)
        names[n++] = p->vars[i].name;
    char was[64], hint[96] = "";
    nearest_hint(p->lex.text + p->lex.start, p->lex.at - p->lex.start, names, n, hint, sizeof hint);
    return lex_fail(&p->lex, p->lex.start,
                    "found %s; expected a variable of vars:, grid, block, shared, occ, "
                    "arg, param, min, max or ceil_div%s",
                    lex_found(&p->lex, was, sizeof was), hint);
}

/* `grid.x` and its like */
static int parse_axis(struct parser *p, uint8_t kind)
{
    size_t start = p->lex.start, member = 0;
    TRY(lex_next(&p->lex));
    TRY(parse_member(p, axis_names, 3, "\".x\", \".y\" or \".z\"", &member));
    return put(p, start, (struct op){ .kind = kind, .imm = (int64_t)member });
}

/* `arg[0].i32` and its like */
static int parse_param(struct parser *p)
{
    struct op op = { .kind = OP_PARAM };
    struct expr_ref ref;
    size_t start = p->lex.start, member = 0;
    int rc = parse_place(p, &ref);
    if (!rc)
        rc = parse_member(p, type_names, 8, "a type: .i8 .i16 .i32 .i64 .u8 .u16 .u32 .u64",
                          &member);
    if (rc)
        return rc;
    op.ref = ref;
    op.n_bytes = (uint8_t)(1u << (member & 3));
    op.is_signed = member < 4;
    return put(p, start, op);
}

static int parse_variable(struct parser *p)
{
    size_t start = p->lex.start, i = 0;
    while (i < p->n_vars && !lex_at_name(&p->lex, p->vars[i].name))
        i++;
    if (i == p->n_vars)
        return unknown_name(p);
    TRY(lex_next(&p->lex));
    return put(p, start, (struct op){ .kind = OP_CONST, .imm = p->vars[i].value });
}

static int parse_name(struct parser *p)
{
    const struct lexer *x = &p->lex;
    size_t start = x->start;
    if (lex_at_name(x, "min") || lex_at_name(x, "max") || lex_at_name(x, "ceil_div"))
        return parse_call(p);
    if (lex_at_name(x, "grid") || lex_at_name(x, "block"))
        return parse_axis(p, lex_at_name(x, "grid") ? OP_GRID : OP_BLOCK);
    if (lex_at_name(x, "arg") || lex_at_name(x, "param"))
        return parse_param(p);
    if (!lex_at_name(x, "shared") && !lex_at_name(x, "occ"))
        return parse_variable(p);
    struct op op = { .kind = lex_at_name(x, "occ") ? OP_OCC : OP_SHARED };
    TRY(lex_next(&p->lex));
    return put(p, start, op);
}

/* `(SUM)` */
static int parse_group(struct parser *p)
{
    TRY(lex_next(&p->lex));
    TRY(parse_sum(p));
    return lex_take_sign(&p->lex, ')', "an operator or \")\"");
}

static int parse_value(struct parser *p);

static int parse_negative(struct parser *p)
{
    size_t start = p->lex.start;
    TRY(lex_next(&p->lex));
    TRY(parse_value(p));
    return put(p, start, (struct op){ .kind = OP_NEG });
}

static int parse_number(struct parser *p)
{
    size_t start = p->lex.start;
    struct op op = { .kind = OP_CONST, .imm = p->lex.number };
    TRY(lex_next(&p->lex));
    return put(p, start, op);
}

static int parse_value(struct parser *p)
{
    if (p->depth >= EXPR_MAX_DEPTH)
        return lex_fail(&p->lex, p->lex.start,
                        "found more than %u nested parentheses; expected fewer", EXPR_MAX_DEPTH);
    p->depth++;
    int rc = p->lex.token == TOKEN_NUMBER ? parse_number(p)
             : p->lex.token == TOKEN_NAME ? parse_name(p)
             : lex_at_sign(&p->lex, '(')  ? parse_group(p)
             : lex_at_sign(&p->lex, '-')
                 ? parse_negative(p)
                 : lex_expected(&p->lex, "a number, a name, \"-\" or \"(\"");
    p->depth--;
    return rc;
}

static int parse_term(struct parser *p)
{
    int rc = parse_value(p);
    while (!rc &&
           (lex_at_sign(&p->lex, '*') || lex_at_sign(&p->lex, '/') || lex_at_sign(&p->lex, '%'))) {
        uint8_t kind = p->lex.sign == '*' ? OP_MUL : p->lex.sign == '/' ? OP_DIV : OP_MOD;
        size_t start = p->lex.start;
        rc = lex_next(&p->lex);
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
    while (!rc && (lex_at_sign(&p->lex, '+') || lex_at_sign(&p->lex, '-'))) {
        uint8_t kind = p->lex.sign == '+' ? OP_ADD : OP_SUB;
        size_t start = p->lex.start;
        rc = lex_next(&p->lex);
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
    *p = (struct parser){ .lex = { .text = text, .n = n_text, .error = error },
                          .vars = vars,
                          .n_vars = n_vars };
    p->b.ops = ops;
    p->b.max_ops = EXPR_MAX_OPS;
    if (n_text > EXPR_MAX_TEXT)
        return lex_fail(&p->lex, EXPR_MAX_TEXT, "found %zu characters; expected at most %u", n_text,
                        EXPR_MAX_TEXT);
    return lex_next(&p->lex);
}

int expr_parse(const char *text, size_t n_text, const struct expr_var *vars, size_t n_vars,
               struct expr_error *error, struct expr **out)
{
    struct parser p;
    struct op ops[EXPR_MAX_OPS];
    int rc = parser_init(&p, ops, text, n_text, vars, n_vars, error);
    if (!rc)
        rc = parse_sum(&p);
    if (!rc && p.lex.token != TOKEN_END)
        rc = lex_expected(&p.lex, "an operator or the end");
    if (!rc && p.b.deepest > STACK_MAX - 4)
        rc = lex_fail(&p.lex, 0, "found too many pending operands; expected fewer parentheses");
    return rc ? rc : expr_build(&p.b, out);
}

int expr_parse_ref(const char *text, size_t n_text, const struct expr_var *vars, size_t n_vars,
                   struct expr_error *error, struct expr_ref *out)
{
    static const char *const places[] = { "arg", "param" };
    struct parser p;
    struct op ops[EXPR_MAX_OPS];
    struct expr_ref ref;
    TRY(parser_init(&p, ops, text, n_text, vars, n_vars, error));
    if (!lex_at_name(&p.lex, "arg") && !lex_at_name(&p.lex, "param")) {
        char was[64], hint[64] = "";
        if (p.lex.token == TOKEN_NAME)
            nearest_hint(p.lex.text + p.lex.start, p.lex.at - p.lex.start, places, 2, hint,
                         sizeof hint);
        return lex_fail(&p.lex, p.lex.start,
                        "found %s; expected arg[INDEX], arg[INDEX][OFFSET] or "
                        "param[OFFSET]%s",
                        lex_found(&p.lex, was, sizeof was), hint);
    }
    int rc = parse_place(&p, &ref);
    if (!rc && p.lex.token != TOKEN_END)
        rc = lex_expected(&p.lex, "the end: additions to the address belong in offset:");
    if (!rc)
        *out = ref;
    return rc;
}
