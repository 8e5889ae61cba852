/* SPDX-License-Identifier: Apache-2.0 */
/* PTX text to IR: one pass, recursive descent; labels and callees are bound as they are named. */
#include "ir.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_IR_BYTES (1u << 30) /* a hostile text must not eat the machine */
#define MAX_REGS     200000
#define MAX_DEPTH    64

/* ------------------------------------------------------------------------- memory, errors */

struct chunk {
    struct chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

_Noreturn void ir_fail(struct module_ir *m, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(m->message, sizeof m->message, fmt, ap);
    va_end(ap);
    m->status = status;
    longjmp(m->on_error, 1);
}

void *ir_alloc(struct module_ir *m, size_t n)
{
    n = (n + 15) & ~(size_t)15;
    struct chunk *c = m->chunks;
    if (n > MAX_IR_BYTES || m->n_allocated + n > MAX_IR_BYTES)
        ir_fail(m, PTX_E_MEMORY, "the module is too large");
    if (!c || c->size - c->used < n) {
        size_t size = n > 1u << 18 ? n : 1u << 18;
        c = calloc(1, sizeof *c + size);
        if (!c)
            ir_fail(m, PTX_E_MEMORY, "no memory");
        c->size = size;
        c->next = m->chunks;
        m->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += n;
    m->n_allocated += n;
    return p;
}

char *ir_strndup(struct module_ir *m, const char *s, size_t n)
{
    char *p = ir_alloc(m, n + 1);
    memcpy(p, s, n);
    return p;
}

void ir_free(struct module_ir *m)
{
    while (m->chunks) {
        struct chunk *next = m->chunks->next;
        free(m->chunks);
        m->chunks = next;
    }
}

/* ------------------------------------------------------------------------- types */

static const struct {
    const char *name;
    unsigned n_bytes;
} types[T_COUNT] = {
    [T_NONE] = { "", 0 },      [T_PRED] = { "pred", 1 },   [T_B8] = { "b8", 1 },
    [T_B16] = { "b16", 2 },    [T_B32] = { "b32", 4 },     [T_B64] = { "b64", 8 },
    [T_B128] = { "b128", 16 }, [T_U8] = { "u8", 1 },       [T_U16] = { "u16", 2 },
    [T_U32] = { "u32", 4 },    [T_U64] = { "u64", 8 },     [T_S8] = { "s8", 1 },
    [T_S16] = { "s16", 2 },    [T_S32] = { "s32", 4 },     [T_S64] = { "s64", 8 },
    [T_F16] = { "f16", 2 },    [T_BF16] = { "bf16", 2 },   [T_F32] = { "f32", 4 },
    [T_F64] = { "f64", 8 },    [T_F16X2] = { "f16x2", 4 }, [T_BF16X2] = { "bf16x2", 4 },
};

unsigned type_bytes(enum type type)
{
    return types[type].n_bytes;
}

enum type type_named(const char *word, size_t n)
{
    for (enum type t = T_PRED; t < T_COUNT; t++)
        if (strlen(types[t].name) == n && !memcmp(types[t].name, word, n))
            return t;
    return T_NONE;
}

/* ------------------------------------------------------------------------- tokens */

enum token {
    TOK_END,
    TOK_WORD,
    TOK_DIRECTIVE,
    TOK_INT,
    TOK_FLOAT,
    TOK_DOUBLE,
    TOK_STRING,
    TOK_PUNCT
};

struct parser {
    struct module_ir *m;
    const char *at, *end;
    int line;
    enum token token;
    const char *text; /* of the token */
    size_t n;
    uint64_t value; /* TOK_INT; TOK_FLOAT, TOK_DOUBLE: bits */
    struct scope *scope;
    struct function_ir *f;
    int depth;
};

static _Noreturn void syntax(struct parser *p, const char *expected)
{
    int n = p->n > 40 ? 40 : (int)p->n;
    if (p->token == TOK_END)
        ir_fail(p->m, PTX_E_SYNTAX, "line %d: the text ends, expected %s", p->line, expected);
    ir_fail(p->m, PTX_E_SYNTAX, "line %d: found '%.*s', expected %s", p->line, n, p->text,
            expected);
}

/* Not <ctype.h>: the application may have set any locale. */
static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || digit(c) || c == '_' || c == '$' ||
           c == '%';
}

static bool blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || !c;
}

static void skip_blank(struct parser *p)
{
    while (p->at < p->end) {
        if (*p->at == '\n') {
            p->line++;
            p->at++;
        } else if (blank(*p->at)) {
            p->at++;
        } else if (p->end - p->at >= 2 && p->at[0] == '/' && p->at[1] == '/') {
            while (p->at < p->end && *p->at != '\n')
                p->at++;
        } else if (p->end - p->at >= 2 && p->at[0] == '/' && p->at[1] == '*') {
            p->at += 2;
            while (p->end - p->at >= 2 && !(p->at[0] == '*' && p->at[1] == '/'))
                p->line += *p->at++ == '\n';
            p->at = p->end - p->at >= 2 ? p->at + 2 : p->end;
        } else {
            return;
        }
    }
}

/* strtod() with a decimal point, whatever the application's locale uses */
static double decimal(const char *text, char **end)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double d = c ? strtod_l(text, end, c) : strtod(text, end);
    if (c)
        freelocale(c);
    return d;
}

static void number(struct parser *p)
{
    char buffer[64];
    size_t n = 0;
    const char *s = p->at;
    while (s + n < p->end && n < sizeof buffer - 1 &&
           (word_char(s[n]) || s[n] == '.' ||
            ((s[n] == '+' || s[n] == '-') && n && (s[n - 1] == 'e' || s[n - 1] == 'E') &&
             !(s[0] == '0' && n > 1 && (s[1] == 'x' || s[1] == 'X'))))) {
        buffer[n] = s[n];
        n++;
    }
    buffer[n] = 0;
    p->text = s;
    p->n = n;
    p->at += n;
    char *end = buffer;
    errno = 0;
    if (buffer[0] == '0' && (buffer[1] == 'f' || buffer[1] == 'F')) {
        p->token = TOK_FLOAT;
        p->value = strtoull(buffer + 2, &end, 16);
    } else if (buffer[0] == '0' && (buffer[1] == 'd' || buffer[1] == 'D')) {
        p->token = TOK_DOUBLE;
        p->value = strtoull(buffer + 2, &end, 16);
    } else if (strpbrk(buffer, ".eE") &&
               !(buffer[0] == '0' && (buffer[1] == 'x' || buffer[1] == 'X'))) {
        double d = decimal(buffer, &end);
        p->token = TOK_DOUBLE;
        memcpy(&p->value, &d, sizeof d);
    } else {
        p->token = TOK_INT;
        int base = buffer[0] == '0' && (buffer[1] == 'b' || buffer[1] == 'B') ? 2 : 0;
        p->value = strtoull(buffer + (base == 2 ? 2 : 0), &end, base);
        if (*end == 'U' || *end == 'u')
            end++;
    }
    if (*end || errno || end == buffer)
        syntax(p, "a number");
}

static void next(struct parser *p)
{
    skip_blank(p);
    p->text = p->at;
    p->n = 0;
    if (p->at == p->end) {
        p->token = TOK_END;
        return;
    }
    char c = *p->at;
    if (digit(c)) {
        number(p);
        return;
    }
    if (c == '"') {
        p->token = TOK_STRING;
        for (p->at++; p->at < p->end && *p->at != '"' && *p->at != '\n'; p->at++)
            ;
        if (p->at == p->end || *p->at != '"')
            syntax(p, "a closing quote");
        p->at++;
    } else if (c == '.' || word_char(c)) {
        p->token = c == '.' ? TOK_DIRECTIVE : TOK_WORD;
        p->at++;
        while (p->at < p->end &&
               (word_char(*p->at) ||
                (p->token == TOK_WORD && (*p->at == '.' || *p->at == ':') && p->at + 1 < p->end &&
                 (*p->at == '.' ? word_char(p->at[1]) : p->at[1] == ':'))))
            p->at += *p->at == ':' ? 2 : 1; /* "tex::op" is one word, "label:" is not */
    } else {
        p->token = TOK_PUNCT;
        p->at++;
    }
    p->n = (size_t)(p->at - p->text);
}

static bool is(const struct parser *p, const char *text)
{
    return p->token != TOK_END && strlen(text) == p->n && !memcmp(p->text, text, p->n);
}

static bool accept(struct parser *p, const char *text)
{
    if (!is(p, text))
        return false;
    next(p);
    return true;
}

static void expect(struct parser *p, const char *text)
{
    if (!accept(p, text))
        syntax(p, text);
}

static char *take_word(struct parser *p, const char *what)
{
    if (p->token != TOK_WORD)
        syntax(p, what);
    char *s = ir_strndup(p->m, p->text, p->n);
    next(p);
    return s;
}

static uint64_t take_int(struct parser *p)
{
    if (p->token != TOK_INT)
        syntax(p, "an integer");
    uint64_t v = p->value;
    next(p);
    return v;
}

/* ------------------------------------------------------------------------- scopes */

#define BUCKETS 256

static unsigned bucket(const char *name)
{
    unsigned h = 5381;
    for (; *name; name++)
        h = h * 33 + (unsigned char)*name;
    return h % BUCKETS;
}

static void scope_init(struct module_ir *m, struct scope *scope, struct scope *up)
{
    scope->up = up;
    scope->buckets = ir_alloc(m, BUCKETS * sizeof *scope->buckets);
}

static struct symbol *find(const struct scope *scope, const char *name)
{
    unsigned b = bucket(name);
    for (; scope; scope = scope->up)
        for (struct symbol *s = scope->buckets[b]; s; s = s->next)
            if (!strcmp(s->name, name))
                return s;
    return NULL;
}

static struct symbol *declare(struct parser *p, struct scope *scope, const char *name,
                              enum symbol_kind kind)
{
    struct symbol *s = ir_alloc(p->m, sizeof *s);
    unsigned b = bucket(name);
    s->name = name;
    s->kind = kind;
    s->global = s->argument = -1;
    s->next = scope->buckets[b];
    scope->buckets[b] = s;
    return s;
}

/* ------------------------------------------------------------------------- declarations */

static enum type take_type(struct parser *p)
{
    enum type t = p->token == TOK_DIRECTIVE ? type_named(p->text + 1, p->n - 1) : T_NONE;
    if (t == T_NONE)
        syntax(p, "a type such as .b32");
    next(p);
    return t;
}

static void new_reg(struct parser *p, const char *name, enum type type)
{
    if (p->f->n_regs >= MAX_REGS)
        ir_fail(p->m, PTX_E_UNSUPPORTED, "line %d: more than %d registers", p->line, MAX_REGS);
    struct symbol *s = declare(p, p->scope, name, SYM_REG);
    s->type = type;
    s->index = p->f->n_regs;
    size_t n = p->f->n_regs, cap = p->f->cap_regs;
    IR_PUSH(p->m, p->f->regs, n, cap, s);
    p->f->n_regs = (unsigned)n;
    p->f->cap_regs = (unsigned)cap;
}

/* .reg .b32 %r<5>, %a; */
static void reg_declaration(struct parser *p)
{
    enum type type = take_type(p);
    do {
        char *name = take_word(p, "a register's name");
        if (accept(p, "<")) {
            uint64_t n = take_int(p);
            expect(p, ">");
            if (n > MAX_REGS)
                syntax(p, "fewer registers");
            for (uint64_t i = 0; i < n; i++) {
                char full[300];
                int len = snprintf(full, sizeof full, "%s%llu", name, (unsigned long long)i);
                if (len >= (int)sizeof full)
                    syntax(p, "a shorter name");
                new_reg(p, ir_strndup(p->m, full, (size_t)len), type);
            }
        } else {
            new_reg(p, name, type);
        }
    } while (accept(p, ","));
    expect(p, ";");
}

static size_t align_up(size_t n, size_t align)
{
    return (n + align - 1) & ~(align - 1);
}

/* The part of a declaration after its state space: .align N .v4 .type name[n][m] */
struct declaration {
    char *name;
    enum type type;
    size_t size, align;
    bool open; /* name[] */
};

static struct declaration take_declaration(struct parser *p)
{
    struct declaration d = { .align = 0 };
    size_t lanes = 1;
    bool pointee =
        false; /* what follows .ptr describes what the parameter points to: hints, not its own layout */
    for (;;) {
        if (accept(p, ".align")) {
            size_t align = take_int(p);
            if (!align || align > 4096 || (align & (align - 1)))
                syntax(p, "a power of two");
            if (!pointee)
                d.align = align;
        } else if (accept(p, ".v2"))
            lanes = 2;
        else if (accept(p, ".v4"))
            lanes = 4;
        else if (accept(p, ".ptr"))
            pointee = true;
        else if (accept(p, ".global") || accept(p, ".const") || accept(p, ".shared") ||
                 accept(p, ".local") || accept(p, ".generic"))
            ;
        else if (p->token == TOK_DIRECTIVE && type_named(p->text + 1, p->n - 1) != T_NONE)
            d.type = take_type(p);
        else
            break;
    }
    if (d.type == T_NONE)
        syntax(p, "a type such as .b8");
    d.name = take_word(p, "a variable's name");
    size_t count = lanes;
    while (accept(p, "[")) {
        if (accept(p, "]")) {
            d.open = true;
            continue;
        }
        uint64_t n = take_int(p);
        if (__builtin_mul_overflow(count, n, &count) || count > 1u << 30)
            syntax(p, "a smaller array");
        expect(p, "]");
    }
    size_t natural = type_bytes(d.type) * lanes;
    if (!d.align)
        d.align = natural ? natural : 1;
    d.size = d.open && count == lanes ? 0 : count * type_bytes(d.type);
    if (d.size > 1u << 30)
        syntax(p, "a smaller array");
    return d;
}

static void put_bytes(unsigned char *to, size_t size, size_t at, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n && at + i < size; i++)
        to[at + i] = (unsigned char)(i < 8 ? value >> (8 * i) : 0);
}

static struct symbol *global_named(struct parser *p, const char *name)
{
    struct symbol *s = find(&p->m->scope, name);
    if (!s || s->global < 0)
        ir_fail(p->m, PTX_E_SYNTAX, "line %d: %s is no number and no variable", p->line, name);
    return s;
}

/* = {1, {2, 3}, symbol+4, generic(symbol)} */
static void initialiser(struct parser *p, unsigned char *to, size_t size, size_t *at,
                        enum type type, int global)
{
    size_t unit = type_bytes(type);
    if (++p->depth > MAX_DEPTH)
        syntax(p, "fewer braces");
    if (accept(p, "{")) {
        while (!accept(p, "}")) {
            initialiser(p, to, size, at, type, global);
            accept(p, ",");
        }
    } else {
        bool negative = accept(p, "-");
        if (p->token == TOK_INT || p->token == TOK_FLOAT || p->token == TOK_DOUBLE) {
            uint64_t v = p->value;
            if (p->token == TOK_DOUBLE && type == T_F32) {
                double d;
                memcpy(&d, &v, sizeof d);
                float f = (float)(negative ? -d : d);
                v = 0;
                memcpy(&v, &f, sizeof f);
            } else if (negative) {
                v = p->token == TOK_INT     ? -v
                    : p->token == TOK_FLOAT ? v ^ 0x80000000u
                                            : v ^ (1ull << 63);
            }
            next(p);
            put_bytes(to, size, *at, v, unit);
        } else {
            bool generic = accept(p, "generic") && (expect(p, "("), true);
            char *name = take_word(p, "a number or the name of a variable");
            if (generic)
                expect(p, ")");
            if (unit != 8 || *at + 8 > size)
                syntax(p, "a 64-bit variable for an address");
            struct symbol *function = find(&p->m->scope, name);
            if (function && function->kind == SYM_FUNC) {
                function->address_taken = true;
                put_bytes(to, size, *at, FUNCTION_ADDRESS(function->index), 8);
                *at += unit;
                p->depth--;
                return;
            }
            int64_t addend = accept(p, "+") ? (int64_t)take_int(p) : 0;
            struct ptx_fixup fix = { .global = global,
                                     .at = *at,
                                     .target = global_named(p, name)->global,
                                     .addend = addend };
            IR_PUSH(p->m, p->m->fixups, p->m->n_fixups, p->m->cap_fixups, fix);
        }
        *at += unit;
    }
    p->depth--;
}

static void global_declaration(struct parser *p, bool constant, bool external)
{
    struct module_ir *m = p->m;
    struct declaration d = take_declaration(p);
    struct symbol *s = declare(p, &m->scope, d.name, SYM_VAR);
    s->space = constant ? SPACE_CONST : SPACE_GLOBAL;
    s->type = d.type;
    s->global = (int)m->n_globals;
    struct ptx_global g = {
        .name = d.name, .size = d.size, .align = d.align, .constant = constant, .external = external
    };
    IR_PUSH(m, m->globals, m->n_globals, m->cap_globals, g);
    if (accept(p, "=")) {
        if (d.open && !d.size)
            syntax(p, "the array's size before an initialiser");
        unsigned char *init = ir_alloc(m, d.size + 16);
        size_t filled = 0;
        initialiser(p, init, d.size, &filled, d.type, s->global);
        m->globals[s->global].init = init;
    }
    s->size = d.size;
    expect(p, ";");
}

static void shared_declaration(struct parser *p, bool external)
{
    struct declaration d = take_declaration(p);
    struct symbol *s = declare(p, p->f ? p->scope : &p->m->scope, d.name, SYM_VAR);
    s->space = SPACE_SHARED;
    s->size = d.size;
    s->type = d.type;
    s->external = external || (d.open && !d.size);
    if (s->external) {
        if (d.align > p->m->extern_align)
            p->m->extern_align = d.align;
    } else if (p->f && p->f->is_kernel) {
        s->of_kernel = true;
        s->offset = align_up(p->f->shared_bytes, d.align);
        p->f->shared_bytes = s->offset + d.size;
    } else {
        /* any function may name it */
        s->offset = align_up(p->m->shared_bytes, d.align);
        p->m->shared_bytes = s->offset + d.size;
    }
    expect(p, ";");
}

/* .local, or the .param variables of a call sequence */
static void local_declaration(struct parser *p, enum space space)
{
    struct declaration d = take_declaration(p);
    struct symbol *s = declare(p, p->scope, d.name, SYM_VAR);
    size_t *block = space == SPACE_LOCAL ? &p->f->local_bytes : &p->f->frame_params;
    s->space = space;
    s->size = d.size;
    s->type = d.type;
    s->offset = align_up(*block, d.align > 16 ? d.align : 16);
    *block = s->offset + d.size;
    if (*block > (space == SPACE_LOCAL ? 512u << 10
                                       : 64u << 10)) /* the ISA's bound; these lie on C's stack */
        syntax(p, "less memory");
    expect(p, ";");
}

/* ------------------------------------------------------------------------- operands */

static struct symbol *label_named(struct parser *p, const char *name)
{
    struct symbol *s = find(p->scope, name);
    if (!s) {
        /* labels may be used before they are placed; they belong to the function's outermost scope */
        struct scope *scope = p->scope;
        while (scope->up && scope->up != &p->m->scope)
            scope = scope->up;
        s = declare(p, scope, name, SYM_LABEL);
        s->index = p->f->n_labels++;
        s->offset = 0; /* set once the label was found */
    }
    return s;
}

static struct operand take_operand(struct parser *p);

static struct operand vector_operand(struct parser *p);

static struct operand memory_operand(struct parser *p)
{
    struct operand o = { .kind = O_MEM };
    if (p->token == TOK_INT) {
        o.value = (int64_t)take_int(p);
    } else {
        char *name = take_word(p, "an address");
        o.sym = find(p->scope, name);
        if (!o.sym || (o.sym->kind != SYM_REG && o.sym->kind != SYM_VAR))
            ir_fail(p->m, PTX_E_SYNTAX, "line %d: %s is no register or variable", p->line, name);
        if (accept(p, "+")) {
            bool negative = accept(p, "-");
            o.value = (int64_t)take_int(p);
            o.value = negative ? -o.value : o.value;
        } else if (accept(p, "-")) {
            o.value = -(int64_t)take_int(p);
        }
        if (accept(p, ",")) { /* [texture, {x, y}] */
            expect(p, "{");
            struct operand at = vector_operand(p);
            o.parts = at.parts;
            o.n_parts = at.n_parts;
        }
    }
    expect(p, "]");
    return o;
}

static struct operand vector_operand(struct parser *p)
{
    struct operand o = { .kind = O_VEC, .parts = ir_alloc(p->m, 8 * sizeof *o.parts) };
    if (++p->depth > MAX_DEPTH)
        syntax(p, "fewer braces");
    do {
        if (o.n_parts == 8)
            syntax(p, "at most eight parts");
        o.parts[o.n_parts++] = take_operand(p);
    } while (accept(p, ","));
    expect(p, "}");
    p->depth--;
    return o;
}

static struct operand word_operand(struct parser *p)
{
    char *name = take_word(p, "an operand");
    struct operand o = { .kind = O_SYM };
    if (!strcmp(name, "_")) {
        o.kind = O_SINK;
        return o;
    }
    struct symbol *s = find(p->scope, name);
    if (!s && name[0] == '%') {
        o.kind = O_SPECIAL;
        o.word = name + 1;
        return o;
    }
    if (!s) {
        /* %v.x of a vector register has no symbol of that name; neither has WARP_SZ */
        if (!strcmp(name, "WARP_SZ")) {
            o.kind = O_INT;
            o.value = 32;
            return o;
        }
        s = label_named(p, name);
    }
    o.sym = s;
    o.kind = s->kind == SYM_REG ? O_REG : O_SYM;
    s->address_taken = s->kind == SYM_FUNC;
    if (accept(p, "|")) {
        char *second = take_word(p, "a predicate");
        o.other = find(p->scope, second);
        if (strcmp(second, "_") && (!o.other || o.other->kind != SYM_REG))
            syntax(p, "a predicate");
    }
    if (o.kind == O_SYM && accept(p, "[")) {
        /* name[3]: the address of that element */
        o.value = (int64_t)(take_int(p) * type_bytes(s->type));
        expect(p, "]");
    }
    if (o.kind == O_SYM && accept(p, "+"))
        o.value += (int64_t)take_int(p);
    return o;
}

static struct operand take_operand(struct parser *p)
{
    struct operand o = { 0 };
    if (accept(p, "["))
        return memory_operand(p);
    if (accept(p, "{"))
        return vector_operand(p);
    if (accept(p, "!")) {
        o = word_operand(p);
        o.negated = true;
        return o;
    }
    bool negative = accept(p, "-");
    switch (p->token) {
    case TOK_INT:
        o.kind = O_INT;
        o.value = (int64_t)(negative ? -p->value : p->value);
        next(p);
        return o;
    case TOK_FLOAT:
    case TOK_DOUBLE:
        o.kind = p->token == TOK_FLOAT ? O_F32 : O_F64;
        o.value = (int64_t)(p->value ^ (!negative               ? 0
                                        : p->token == TOK_FLOAT ? 0x80000000u
                                                                : 1ull << 63));
        next(p);
        return o;
    default:
        o = word_operand(p);
        o.negated = negative;
        return o;
    }
}

/* ------------------------------------------------------------------------- instructions */

static void split_opcode(struct parser *p, struct instruction *i)
{
    char *copy = ir_strndup(p->m, i->opcode, strlen(i->opcode));
    char *save = NULL;
    for (char *part = strtok_r(copy, ".", &save); part; part = strtok_r(NULL, ".", &save)) {
        if (i->n_parts == MAX_PARTS)
            ir_fail(p->m, PTX_E_UNSUPPORTED, "line %d: too many parts in %s", p->line, i->opcode);
        i->part[i->n_parts++] = part;
    }
    if (!i->n_parts)
        syntax(p, "an instruction");
}

static void push(struct parser *p, struct instruction *i)
{
    if (i->n_parts && (!strcmp(i->part[0], "bar") || !strcmp(i->part[0], "barrier")) &&
        !(i->n_parts > 1 && !strcmp(i->part[1], "warp")))
        p->f->has_barrier = true;
    IR_PUSH(p->m, p->f->body, p->f->n_body, p->f->cap_body, i);
}

/*
 * , (a, b) and, where a register says which function, the name of a prototype or list of targets. Which functions those
 * may be follows from the arguments and from whose addresses are taken.
 */
static void call_arguments(struct parser *p, struct instruction *i)
{
    size_t n = 0, cap = 0;
    bool more = accept(p, ",");
    if (more && accept(p, "(")) {
        while (!accept(p, ")")) {
            struct operand o = take_operand(p);
            IR_PUSH(p->m, i->call_arguments, n, cap, o);
            if (n > 1024)
                syntax(p, "fewer arguments");
            if (!is(p, ")"))
                expect(p, ",");
        }
        i->n_call_arguments = (unsigned)n;
        more = accept(p, ",");
    }
    if (more && !i->is_indirect)
        syntax(p, ";");
    if (i->is_indirect && !more)
        syntax(p, "a prototype");
    if (more)
        take_word(p, "a prototype");
}

/* call (ret), function, (a, b); */
static void call_operands(struct parser *p, struct instruction *i)
{
    if (accept(p, "(")) {
        i->call_return = take_operand(p);
        expect(p, ")");
        expect(p, ",");
    } else {
        i->call_return.kind = O_SINK;
    }
    char *name = take_word(p, "a function's name");
    struct symbol *s = find(p->scope, name);
    i->is_indirect = s && s->kind == SYM_REG && s->type >= T_B64 && type_bytes(s->type) == 8;
    i->call_target = (struct operand){ .kind = O_REG, .sym = s };
    i->callee = i->is_indirect ? NULL : find(&p->m->scope, name);
    if (!i->is_indirect && (!i->callee || i->callee->kind != SYM_FUNC))
        ir_fail(p->m, PTX_E_UNSUPPORTED, "kernel %s, line %d: %s: %s is no known function",
                p->f->name, i->line, i->opcode, name);
    call_arguments(p, i);
    expect(p, ";");
}

static void instruction(struct parser *p, struct symbol *guard, bool negated)
{
    struct instruction *i = ir_alloc(p->m, sizeof *i);
    i->line = p->line;
    i->guard = guard;
    i->guard_negated = negated;
    i->opcode = take_word(p, "an instruction");
    split_opcode(p, i);
    if (!strcmp(i->part[0], "call")) {
        call_operands(p, i);
        push(p, i);
        return;
    }
    while (!accept(p, ";")) {
        if (i->n_operands == MAX_OPERANDS)
            syntax(p, "at most eight operands");
        i->operand[i->n_operands++] = take_operand(p);
        if (!is(p, ";"))
            expect(p, ",");
    }
    push(p, i);
}

static void skip_line(struct parser *p)
{
    int line = p->line;
    while (p->token != TOK_END && p->line == line)
        next(p);
}

static void skip_statement(struct parser *p)
{
    while (p->token != TOK_END && !is(p, ";"))
        next(p);
    expect(p, ";");
}

static void place_label(struct parser *p, char *name)
{
    struct symbol *s = label_named(p, name);
    if (s->kind != SYM_LABEL || s->offset)
        ir_fail(p->m, PTX_E_SYNTAX, "line %d: label %s is defined twice", p->line, name);
    s->offset = 1;
    struct instruction *i = ir_alloc(p->m, sizeof *i);
    i->line = p->line;
    i->label = s;
    push(p, i);
}

/* name: .branchtargets a, b; */
static void branch_targets(struct parser *p, char *name)
{
    struct symbol *s = declare(p, p->scope, name, SYM_TARGETS);
    s->targets = ir_alloc(p->m, 1024 * sizeof *s->targets);
    do {
        if (s->n_targets == 1024)
            syntax(p, "at most 1024 targets");
        char *target = take_word(p, "a label");
        s->targets[s->n_targets] = label_named(p, target);
        if (s->targets[s->n_targets++]->kind != SYM_LABEL)
            ir_fail(p->m, PTX_E_SYNTAX, "line %d: %s is no label", p->line, target);
    } while (accept(p, ","));
    expect(p, ";");
}

static void statement(struct parser *p);

static void block(struct parser *p)
{
    struct scope inner;
    if (++p->depth > MAX_DEPTH)
        syntax(p, "fewer braces");
    scope_init(p->m, &inner, p->scope);
    struct scope *kept = ir_alloc(p->m, sizeof inner);
    *kept = inner;
    p->scope = kept;
    while (!accept(p, "}"))
        statement(p);
    p->scope = kept->up;
    p->depth--;
}

static void directive(struct parser *p)
{
    if (accept(p, ".reg"))
        reg_declaration(p);
    else if (accept(p, ".local"))
        local_declaration(p, SPACE_LOCAL);
    else if (accept(p, ".param"))
        local_declaration(p, SPACE_PARAM);
    else if (accept(p, ".shared"))
        shared_declaration(p, false);
    else if (is(p, ".loc") || is(p, ".file"))
        skip_line(p);
    else if (is(p, ".pragma"))
        skip_statement(p);
    else
        syntax(p, "a statement");
}

static void statement(struct parser *p)
{
    if (accept(p, ";"))
        return;
    if (accept(p, "{")) {
        block(p);
    } else if (accept(p, "@")) {
        bool negated = accept(p, "!");
        char *name = take_word(p, "a predicate");
        struct symbol *s = find(p->scope, name);
        if (!s || s->kind != SYM_REG || s->type != T_PRED)
            ir_fail(p->m, PTX_E_SYNTAX, "line %d: %s is no predicate", p->line, name);
        instruction(p, s, negated);
    } else if (p->token == TOK_DIRECTIVE) {
        directive(p);
    } else if (p->token == TOK_WORD) {
        const char *after = p->at;
        while (after < p->end && (*after == ' ' || *after == '\t'))
            after++;
        if (after < p->end && *after == ':') {
            char *name = take_word(p, "a label");
            expect(p, ":");
            if (accept(p, ".branchtargets"))
                branch_targets(p, name);
            else if (is(p, ".callprototype") || is(p, ".calltargets"))
                skip_statement(p);
            else
                place_label(p, name);
        } else {
            instruction(p, NULL, false);
        }
    } else {
        syntax(p, "a statement");
    }
}

/* ------------------------------------------------------------------------- functions */

static struct symbol *parameter(struct parser *p, struct function_ir *f, struct scope *scope)
{
    if (!accept(p, ".param") && !accept(p, ".reg"))
        syntax(p, ".param");
    struct declaration d = take_declaration(p);
    struct symbol *s = declare(p, scope, d.name, SYM_VAR);
    s->space = SPACE_PARAM;
    s->type = d.type;
    s->size = d.size ? d.size : type_bytes(d.type);
    s->align = d.align;
    s->argument = (int)f->n_params;
    return s;
}

static void parameters(struct parser *p, struct function_ir *f, struct scope *scope)
{
    size_t cap = 0, n = 0;
    if (!accept(p, "("))
        return;
    while (!accept(p, ")")) {
        struct symbol *s = parameter(p, f, scope);
        IR_PUSH(p->m, f->params, n, cap, s);
        f->n_params = (unsigned)n;
        accept(p, ",");
        if (n > 4096)
            syntax(p, "fewer parameters");
    }
    f->param_info = ir_alloc(p->m, (n + 1) * sizeof *f->param_info);
    for (unsigned i = 0; i < n; i++) {
        struct symbol *s = f->params[i];
        s->offset = align_up(f->params_bytes, s->align);
        f->params_bytes = s->offset + s->size;
        f->param_info[i] = (struct ptx_param_info){ s->offset, s->size, s->align };
        s->kernel_param = f->is_kernel;
        if (f->is_kernel)
            s->argument = -1;
    }
}

static unsigned tuning(struct parser *p)
{
    unsigned product = 1;
    do {
        uint64_t n = take_int(p);
        product = n && n <= 65536 && product <= 65536 ? product * (unsigned)n : 0;
    } while (accept(p, ","));
    return product;
}

static void function_attributes(struct parser *p, struct function_ir *f)
{
    for (;;) {
        if (accept(p, ".maxntid") || accept(p, ".reqntid"))
            f->max_threads = tuning(p);
        else if (accept(p, ".minnctapersm") || accept(p, ".maxnctapersm") ||
                 accept(p, ".maxnreg") || accept(p, ".reqnctapercluster") ||
                 accept(p, ".maxclusterrank"))
            tuning(p);
        else if (accept(p, ".noreturn") || accept(p, ".explicitcluster"))
            ;
        else if (is(p, ".pragma"))
            skip_statement(p);
        else
            return;
    }
}

/* A name without a declaration was taken for a label further down: by now the label must exist. */
static void check_names(struct parser *p, const struct function_ir *f, const struct instruction *i,
                        const struct symbol *s)
{
    if (s && s->kind == SYM_LABEL && !s->offset)
        ir_fail(p->m, PTX_E_SYNTAX, "kernel %s, line %d: %s: nothing is called %s", f->name,
                i->line, i->opcode, s->name);
    for (unsigned t = 0; s && s->kind == SYM_TARGETS && t < s->n_targets; t++)
        check_names(p, f, i, s->targets[t]);
}

/* The number keeps it unique, the rest is for debuggers and profilers. */
static char *name_for_c(struct module_ir *m, const char *name)
{
    char text[128];
    snprintf(text, sizeof text, "%u_%s", m->n_functions++, name);
    for (char *c = text; *c; c++)
        *c = word_char(*c) && *c != '$' && *c != '%' ? *c : '_';
    return ir_strndup(m, text, strlen(text));
}

static void function(struct parser *p, bool is_kernel)
{
    struct module_ir *m = p->m;
    struct function_ir *f = ir_alloc(m, sizeof *f);
    struct scope *scope = ir_alloc(m, sizeof *scope);
    scope_init(m, scope, &m->scope);
    f->is_kernel = is_kernel;
    f->line = p->line;
    if (!is_kernel && accept(p, "(")) {
        f->result = parameter(p, f, scope);
        f->result->argument = -2;
        expect(p, ")");
    }
    f->name = take_word(p, "a function's name");
    parameters(p, f, scope);
    function_attributes(p, f);
    struct symbol *s = find(&m->scope, f->name);
    if (!s) {
        s = declare(p, &m->scope, f->name, SYM_FUNC);
        s->index = ++m->n_function_names;
    } else if (s->kind != SYM_FUNC || s->function->has_body)
        ir_fail(m, PTX_E_SYNTAX, "line %d: %s is declared twice", f->line, f->name);
    s->function = f;
    f->symbol = s;
    if (accept(p, ";"))
        return; /* a declaration; the definition follows, or lies elsewhere */
    expect(p, "{");
    f->has_body = true;
    p->f = f;
    p->scope = scope;
    block(p);
    p->scope = &m->scope;
    p->f = NULL;
    for (size_t i = 0; i < f->n_body; i++)
        for (unsigned o = 0; o < f->body[i]->n_operands; o++)
            check_names(p, f, f->body[i], f->body[i]->operand[o].sym);
    f->c_name = name_for_c(m, f->name);
    *m->last_function = f;
    m->last_function = &f->next;
}

static void module_statement(struct parser *p)
{
    bool external = false;
    while (accept(p, ".visible") || accept(p, ".weak") || accept(p, ".common") ||
           (is(p, ".extern") && (external = true)))
        if (external && is(p, ".extern"))
            next(p);
    if (accept(p, ".version")) {
        if (p->token != TOK_DOUBLE)
            syntax(p, "a version such as 7.5");
        next(p);
    } else if (accept(p, ".target")) {
        do
            next(p);
        while (accept(p, ","));
    } else if (accept(p, ".address_size")) {
        if (!is(p, "64"))
            ir_fail(p->m, PTX_E_UNSUPPORTED, "line %d: only 64-bit addresses", p->line);
        next(p);
    } else if (accept(p, ".entry"))
        function(p, true);
    else if (accept(p, ".func"))
        function(p, false);
    else if (accept(p, ".global"))
        global_declaration(p, false, external);
    else if (accept(p, ".const"))
        global_declaration(p, true, external);
    else if (accept(p, ".shared"))
        shared_declaration(p, external);
    else if (is(p, ".file") || is(p, ".loc"))
        skip_line(p);
    else if (is(p, ".pragma") || is(p, ".alias"))
        skip_statement(p);
    else if (accept(p, ".section")) {
        while (p->token != TOK_END && !is(p, "{"))
            next(p);
        while (p->token != TOK_END && !is(p, "}"))
            next(p);
        expect(p, "}");
    } else
        syntax(p, "a directive such as .entry");
}

void ptx_parse(struct module_ir *m, const char *text, size_t n)
{
    struct parser p = { .m = m, .at = text, .end = text + n, .line = 1, .scope = &m->scope };
    scope_init(m, &m->scope, NULL);
    m->last_function = &m->functions;
    next(&p);
    if (!is(&p, ".version"))
        syntax(&p, ".version");
    while (p.token != TOK_END)
        module_statement(&p);
}
