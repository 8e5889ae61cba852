/* SPDX-License-Identifier: Apache-2.0 */
/*
 * IR to C. A register is a C local; a kernel is a function that runs the threads of one block, one
 * after another. A thread that must wait saves its live registers and the others go on; it resumes
 * at a label when rt.h's schedule() says so. Whatever is not known here fails the module by name.
 */
#include "ir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct emitter {
    struct module_ir *m;
    struct function_ir *f;
    const struct instruction *i;
    struct text *out;
    bool pausable;
    unsigned n_waits;
    char *scratch; /* expressions of one instruction; reset for each */
    size_t n_scratch;
};

#define SCRATCH (64u << 10)

static void put(struct emitter *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct emitter *e, const char *fmt, ...)
{
    struct text *t = e->out;
    for (;;) {
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(t->data ? t->data + t->n : NULL, t->cap - t->n, fmt, ap);
        va_end(ap);
        if (t->n + (size_t)n < t->cap) {
            t->n += (size_t)n;
            return;
        }
        size_t cap = t->cap * 2 + (size_t)n + 4096;
        char *data = cap > 1u << 30 ? NULL : realloc(t->data, cap);
        if (!data)
            ir_fail(e->m, PTX_E_MEMORY, "no memory for the translation");
        t->data = data;
        t->cap = cap;
    }
}

/* A formatted string that lives until the next instruction. */
static const char *say(struct emitter *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static const char *say(struct emitter *e, const char *fmt, ...)
{
    char *at = e->scratch + e->n_scratch;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(at, SCRATCH - e->n_scratch, fmt, ap);
    va_end(ap);
    if (n < 0 || e->n_scratch + (size_t)n + 1 > SCRATCH)
        ir_fail(e->m, PTX_E_UNSUPPORTED, "kernel %s, line %d: %s is too long", e->f->name, e->i->line, e->i->opcode);
    e->n_scratch += (size_t)n + 1;
    return at;
}

static _Noreturn void unsupported(struct emitter *e)
{
    ir_fail(e->m, PTX_E_UNSUPPORTED, "kernel %s, line %d: %s is not supported", e->f->name, e->i->line, e->i->opcode);
}

/* ------------------------------------------------------------------------- opcode parts */

static bool has(const struct emitter *e, const char *part)
{
    for (unsigned k = 1; k < e->i->n_parts; k++)
        if (!strcmp(e->i->part[k], part))
            return true;
    return false;
}

static bool op_is(const struct emitter *e, const char *op)
{
    return !strcmp(e->i->part[0], op);
}

/* The n-th type among the parts; T_NONE if there are fewer. */
static enum type nth_type(const struct emitter *e, unsigned n)
{
    for (unsigned k = 1; k < e->i->n_parts; k++) {
        enum type t = type_named(e->i->part[k], strlen(e->i->part[k]));
        if (t != T_NONE && !n--)
            return t;
    }
    return T_NONE;
}

static enum type the_type(struct emitter *e)
{
    enum type t = nth_type(e, 0);
    if (t == T_NONE)
        unsupported(e);
    return t;
}

static void need(struct emitter *e, unsigned n)
{
    if (e->i->n_operands < n)
        ir_fail(e->m, PTX_E_SYNTAX, "kernel %s, line %d: %s needs %u operands", e->f->name, e->i->line, e->i->opcode, n);
}

/* Parts that change nothing here: hints about caches, uniformity and the like. */
static bool harmless(const char *part)
{
    static const char *const words[] = {
        "full", "approx", "uni", "sync", "aligned", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "rn", "weak",
        "volatile", "relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "cluster", "global", "shared",
        "param", "local", "const", "v2", "v4", "v8", "to", "u64", "L1", "mmio", "entry", "func", "sc", "noftz",
    };
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
        if (!strcmp(part, words[k]))
            return true;
    return !strncmp(part, "L1::", 4) || !strncmp(part, "L2::", 4) || !strncmp(part, "level::", 7) ||
           !strncmp(part, "cluster", 7) || !strncmp(part, "param::", 7) || !strncmp(part, "shared::", 8);
}

/* Every part of the opcode must be a type, harmless, or one that the emitting code looks at. */
static void only(struct emitter *e, const char *known)
{
    for (unsigned k = 1; k < e->i->n_parts; k++) {
        const char *part = e->i->part[k];
        size_t n = strlen(part);
        bool ok = type_named(part, n) != T_NONE || harmless(part);
        for (const char *at = known; !ok && (at = strstr(at, part)); at++)
            ok = (at == known || at[-1] == ' ') && (!at[n] || at[n] == ' ');
        if (!ok)
            unsupported(e);
    }
}

static bool is_float(enum type t)
{
    return t == T_F32 || t == T_F64;
}

static bool is_small_float(enum type t)
{
    return t == T_F16 || t == T_BF16;
}

static bool is_pair(enum type t)
{
    return t == T_F16X2 || t == T_BF16X2;
}

static bool is_signed(enum type t)
{
    return t >= T_S8 && t <= T_S64;
}

static const char *ctype(enum type t)
{
    static const char *const names[T_COUNT] = {
        [T_NONE] = "u64",  [T_PRED] = "u8", [T_B8] = "u8",   [T_B16] = "u16",   [T_B32] = "u32",    [T_B64] = "u64",
        [T_B128] = "u128", [T_U8] = "u8",   [T_U16] = "u16", [T_U32] = "u32",   [T_U64] = "u64",    [T_S8] = "s8",
        [T_S16] = "s16",   [T_S32] = "s32", [T_S64] = "s64", [T_F16] = "u16",   [T_BF16] = "u16",   [T_F32] = "float",
        [T_F64] = "double", [T_F16X2] = "u32", [T_BF16X2] = "u32",
    };
    return names[t];
}

/* The C type that a register of PTX type @t is kept in: unsigned bits, or a float. */
static const char *storage(enum type t)
{
    static const char *const by_size[] = {[1] = "u8", [2] = "u16", [4] = "u32", [8] = "u64", [16] = "u128"};
    return t == T_F32 ? "float" : t == T_F64 ? "double" : by_size[type_bytes(t)];
}

/* ------------------------------------------------------------------------- reading operands */

static const char *special(struct emitter *e, const char *word)
{
    static const struct {
        const char *name, *expr;
    } table[] = {
        {"tid.x", "T->x"}, {"tid.y", "T->y"}, {"tid.z", "T->z"},
        {"ntid.x", "E->block[0]"}, {"ntid.y", "E->block[1]"}, {"ntid.z", "E->block[2]"},
        {"ctaid.x", "E->block_at[0]"}, {"ctaid.y", "E->block_at[1]"}, {"ctaid.z", "E->block_at[2]"},
        {"nctaid.x", "E->grid[0]"}, {"nctaid.y", "E->grid[1]"}, {"nctaid.z", "E->grid[2]"},
        {"laneid", "(T->linear & 31)"}, {"warpid", "(T->linear >> 5)"},
        {"nwarpid", "((E->block[0] * E->block[1] * E->block[2] + 31) >> 5)"},
        {"smid", "0u"}, {"nsmid", "1u"}, {"gridid", "0ull"},
        {"clock", "(u32)now_ns()"}, {"clock_hi", "(u32)(now_ns() >> 32)"}, {"clock64", "now_ns()"},
        {"globaltimer", "now_ns()"}, {"globaltimer_lo", "(u32)now_ns()"}, {"globaltimer_hi", "(u32)(now_ns() >> 32)"},
        {"lanemask_eq", "(1u << (T->linear & 31))"}, {"lanemask_lt", "((1u << (T->linear & 31)) - 1)"},
        {"lanemask_le", "((2u << (T->linear & 31)) - 1)"}, {"lanemask_gt", "~((2u << (T->linear & 31)) - 1)"},
        {"lanemask_ge", "~((1u << (T->linear & 31)) - 1)"},
        {"dynamic_smem_size", "(u32)E->dynamic_shared"}, {"total_smem_size", "(u32)E->n_shared"},
        {"cluster_ctaid.x", "0u"}, {"cluster_nctaid.x", "1u"}, {"cluster_ctarank", "0u"}, {"cluster_nctarank", "1u"},
    };
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++)
        if (!strcmp(table[k].name, word))
            return table[k].expr;
    ir_fail(e->m, PTX_E_UNSUPPORTED, "kernel %s, line %d: %s: %%%s is no known register", e->f->name, e->i->line,
            e->i->opcode, word);
}

/* The address of a variable within its own state space. */
static const char *address_of(struct emitter *e, const struct symbol *s)
{
    if (s->kind == SYM_FUNC || s->kind != SYM_VAR)
        unsupported(e);
    switch (s->space) {
    case SPACE_SHARED:
        return s->external ? "E->static_shared" : say(e, "%zuull", s->offset + (s->of_kernel ? e->f->shared_base : 0));
    case SPACE_LOCAL:
        return say(e, "(local_at + %zuull)", s->offset);
    case SPACE_PARAM:
        if (!s->kernel_param)
            unsupported(e);
        return say(e, "(PARAM_BASE + %zuull)", s->offset);
    default:
        return say(e, "E->globals[%d]", s->global);
    }
}

/* @expr of storage type @from as a value of PTX type @to */
static const char *convert_bits(struct emitter *e, const char *expr, enum type from, enum type to)
{
    if (is_float(to)) {
        if (from == to)
            return expr;
        if (is_float(from))
            return to == T_F64 ? say(e, "f64b((u64)b32f(%s))", expr) : say(e, "f32b((u32)b64f(%s))", expr);
        return to == T_F32 ? say(e, "f32b((u32)%s)", expr) : say(e, "f64b((u64)%s)", expr);
    }
    if (from == T_F32)
        return say(e, "((%s)b32f(%s))", ctype(to), expr);
    if (from == T_F64)
        return say(e, "((%s)b64f(%s))", ctype(to), expr);
    return say(e, "((%s)%s)", ctype(to), expr);
}

static const char *immediate(struct emitter *e, const struct operand *o, enum type t)
{
    unsigned long long bits = (unsigned long long)o->value;
    if (t == T_PRED)
        return o->value ? "1" : "0";
    if (o->kind == O_INT)
        return is_float(t) ? say(e, "((%s)%lldll)", ctype(t), (long long)o->value)
                           : say(e, "((%s)0x%llxull)", ctype(t), bits);
    if (o->kind == O_F32)
        return t == T_F32   ? say(e, "f32b(0x%llxu)", bits)
               : t == T_F64 ? say(e, "(double)f32b(0x%llxu)", bits)
                            : say(e, "((%s)0x%llxu)", ctype(t), bits);
    return t == T_F64   ? say(e, "f64b(0x%llxull)", bits)
           : t == T_F32 ? say(e, "(float)f64b(0x%llxull)", bits)
                        : say(e, "((%s)0x%llxull)", ctype(t), bits);
}

/* A register whose NaNs are made canonical where their bits can be seen, not where they arise (live.c). */
static const char *seen(struct emitter *e, const struct symbol *s)
{
    const char *name = say(e, "r%u", s->index);
    return !s->lazy_nan ? name : say(e, s->type == T_F32 ? "cn(%s)" : "cnd(%s)", name);
}

/* The value of an operand as a C expression of type ctype(@t). */
static const char *read_as(struct emitter *e, const struct operand *o, enum type t)
{
    const char *x;
    switch (o->kind) {
    case O_REG:
        if (t == T_PRED)
            return o->negated ? say(e, "(!r%u)", o->sym->index) : say(e, "r%u", o->sym->index);
        x = convert_bits(e, seen(e, o->sym), o->sym->type, t);
        break;
    case O_INT:
    case O_F32:
    case O_F64:
        return immediate(e, o, t);
    case O_SPECIAL:
        x = say(e, "((%s)%s)", ctype(t), special(e, o->word));
        break;
    case O_SYM:
        x = say(e, "((%s)(%s + %lldll))", ctype(t), address_of(e, o->sym), (long long)o->value);
        break;
    default:
        unsupported(e);
    }
    return o->negated ? say(e, "(-%s)", x) : x;
}

static const char *arg(struct emitter *e, unsigned n, enum type t)
{
    need(e, n + 1);
    return read_as(e, &e->i->operand[n], t);
}

/* The same for arithmetic, to which any NaN is as good as another. */
static const char *raw_arg(struct emitter *e, unsigned n, enum type t)
{
    need(e, n + 1);
    const struct operand *o = &e->i->operand[n];
    if (o->kind != O_REG || o->sym->type != t || o->negated || !is_float(t))
        return read_as(e, o, t);
    return say(e, "r%u", o->sym->index);
}

/* The register takes @expr, a value of C type ctype(@t); signed values extend, as PTX asks of ld and cvt. */
static void write_to(struct emitter *e, const struct operand *o, enum type t, const char *expr)
{
    if (o->kind == O_SINK)
        return;
    if (o->kind != O_REG)
        unsupported(e);
    enum type have = o->sym->type;
    if (have == T_PRED)
        put(e, "r%u = (%s) != 0;", o->sym->index, expr);
    else if (have == t || (!is_float(have) && !is_float(t)))
        put(e, "r%u = (%s)(%s);", o->sym->index, storage(have), expr);
    else if (is_float(have))
        put(e, "r%u = %s;", o->sym->index,
            convert_bits(e, say(e, "(%s)", expr), is_float(t) ? t : T_B64, have));
    else
        put(e, "r%u = (%s)%s(%s);", o->sym->index, storage(have), t == T_F32 ? "b32f" : "b64f", expr);
}

static void result(struct emitter *e, enum type t, const char *expr)
{
    need(e, 1);
    write_to(e, &e->i->operand[0], t, expr);
}

/* ------------------------------------------------------------------------- memory */

static enum space space_of(const struct emitter *e)
{
    for (unsigned k = 1; k < e->i->n_parts; k++) {
        const char *p = e->i->part[k];
        if (!strcmp(p, "global"))
            return SPACE_GLOBAL;
        if (!strcmp(p, "const"))
            return SPACE_CONST;
        if (!strncmp(p, "shared", 6))
            return SPACE_SHARED;
        if (!strcmp(p, "local"))
            return SPACE_LOCAL;
        if (!strncmp(p, "param", 5))
            return SPACE_PARAM;
    }
    return SPACE_GENERIC;
}

/* A C pointer to @n bytes at a memory operand. */
static const char *pointer(struct emitter *e, const struct operand *o, enum space space, unsigned n)
{
    static const char *const at[] = {[SPACE_GENERIC] = "AT_GENERIC", [SPACE_GLOBAL] = "AT_GLOBAL",
                                     [SPACE_CONST] = "AT_GLOBAL",    [SPACE_SHARED] = "AT_SHARED",
                                     [SPACE_LOCAL] = "AT_LOCAL",     [SPACE_PARAM] = "AT_PARAM"};
    const struct symbol *s = o->sym;
    if (o->kind != O_MEM)
        unsupported(e);
    if (s && s->kind == SYM_VAR && s->space == SPACE_PARAM) {
        if (o->value < 0 || (size_t)o->value + n > s->size)
            ir_fail(e->m, PTX_E_SYNTAX, "kernel %s, line %d: %s: outside %s", e->f->name, e->i->line, e->i->opcode, s->name);
        if (s->argument == -2)
            return say(e, "(void *)(R + %lld)", (long long)o->value);
        if (s->argument >= 0)
            return say(e, "(void *)(A%d + %lld)", s->argument, (long long)o->value);
        if (s->kernel_param)
            return say(e, "(void *)(P + %zu)", s->offset + (size_t)o->value);
        return say(e, "(void *)(C + %zu)", s->offset + (size_t)o->value);
    }
    const char *base;
    if (!s)
        base = "0ull";
    else if (s->kind == SYM_REG)
        base = type_bytes(s->type) == 4 ? say(e, "(u64)(u32)r%u", s->index) : say(e, "(u64)r%u", s->index);
    else {
        base = address_of(e, s);
        if (space == SPACE_GENERIC)
            base = s->space == SPACE_SHARED  ? say(e, "(SHARED_BASE + %s)", base)
                   : s->space == SPACE_LOCAL ? say(e, "(LOCAL_BASE + %s)", base)
                                             : base;
    }
    if (s && s->kind == SYM_REG && type_bytes(s->type) == 4)
        return say(e, "%s((u64)(u32)(r%u + %lldu), %u)", at[space], s->index, (long long)(uint32_t)o->value, n);
    return say(e, "%s(%s + %lldll, %uull)", at[space], base, (long long)o->value, n);
}

static const char *order_of(const struct emitter *e)
{
    if (has(e, "acquire"))
        return "__ATOMIC_ACQUIRE";
    if (has(e, "release"))
        return "__ATOMIC_RELEASE";
    if (has(e, "acq_rel"))
        return "__ATOMIC_ACQ_REL";
    return has(e, "sc") ? "__ATOMIC_SEQ_CST" : "__ATOMIC_RELAXED";
}

static bool strong(const struct emitter *e)
{
    return has(e, "relaxed") || has(e, "acquire") || has(e, "release") || has(e, "volatile") || has(e, "mmio");
}

static unsigned lanes(const struct operand *o)
{
    return o->kind == O_VEC ? o->n_parts : 1;
}

static const struct operand *lane(const struct operand *o, unsigned k)
{
    return o->kind == O_VEC ? &o->parts[k] : o;
}

static void check_lanes(struct emitter *e, const struct operand *o)
{
    unsigned want = has(e, "v2") ? 2 : has(e, "v4") ? 4 : has(e, "v8") ? 8 : 1;
    if (lanes(o) != want)
        ir_fail(e->m, PTX_E_SYNTAX, "kernel %s, line %d: %s takes %u registers", e->f->name, e->i->line, e->i->opcode, want);
}

static void emit_ld(struct emitter *e)
{
    only(e, "");
    need(e, 2);
    enum type t = nth_type(e, 0);
    const struct operand *dst = &e->i->operand[0], *src = &e->i->operand[1];
    enum space space = space_of(e);
    if (t == T_NONE)
        unsupported(e);
    check_lanes(e, dst);
    const char *type = ctype(t);
    unsigned n = type_bytes(t);
    if (space == SPACE_PARAM && src->sym && src->sym->kind == SYM_VAR) {
        put(e, "{ const u8 *p = %s;", pointer(e, src, space, n * lanes(dst)));
        for (unsigned k = 0; k < lanes(dst); k++) {
            put(e, " %s v%u; memcpy(&v%u, p + %u, %u);", type, k, k, k * n, n);
            write_to(e, lane(dst, k), t, say(e, "v%u", k));
        }
        put(e, " }\n");
        return;
    }
    put(e, "{ const void *p = %s;", pointer(e, src, space, n * lanes(dst)));
    for (unsigned k = 0; k < lanes(dst); k++) {
        if (strong(e) && n <= 8) {
            const char *bits = storage(n == 1 ? T_B8 : n == 2 ? T_B16 : n == 4 ? T_B32 : T_B64);
            put(e, " %s b%u = __atomic_load_n((const %s *)p + %u, %s); %s v%u; memcpy(&v%u, &b%u, %u);", bits, k, bits, k,
                has(e, "acquire") ? "__ATOMIC_ACQUIRE" : "__ATOMIC_RELAXED", type, k, k, k, n);
        } else {
            put(e, " %s v%u = LD(%s, p, %u);", type, k, type, k);
        }
    }
    for (unsigned k = 0; k < lanes(dst); k++)
        write_to(e, lane(dst, k), t, say(e, "v%u", k));
    put(e, " }\n");
}

static void emit_st(struct emitter *e)
{
    only(e, "");
    need(e, 2);
    enum type t = nth_type(e, 0);
    const struct operand *dst = &e->i->operand[0], *src = &e->i->operand[1];
    enum space space = space_of(e);
    if (t == T_NONE)
        unsupported(e);
    check_lanes(e, src);
    unsigned n = type_bytes(t);
    if (e->pausable && (space == SPACE_GLOBAL || space == SPACE_GENERIC))
        put(e, "PAUSE(); ");
    if (space == SPACE_PARAM) {
        put(e, "{ u8 *p = %s;", pointer(e, dst, space, n * lanes(src)));
        for (unsigned k = 0; k < lanes(src); k++)
            put(e, " %s v%u = %s; memcpy(p + %u, &v%u, %u);", ctype(t), k, read_as(e, lane(src, k), t), k * n, k, n);
    } else {
        put(e, "{ void *p = %s;", pointer(e, dst, space, n * lanes(src)));
        for (unsigned k = 0; k < lanes(src); k++) {
            const char *v = read_as(e, lane(src, k), t);
            if (strong(e) && n <= 8) {
                const char *bits = storage(n == 1 ? T_B8 : n == 2 ? T_B16 : n == 4 ? T_B32 : T_B64);
                put(e, " %s v%u = %s; %s b%u; memcpy(&b%u, &v%u, %u); __atomic_store_n((%s *)p + %u, b%u, %s);", ctype(t), k,
                    v, bits, k, k, k, n, bits, k, k, has(e, "release") ? "__ATOMIC_RELEASE" : "__ATOMIC_RELAXED");
            } else {
                put(e, " ST(%s, p, %u, %s);", ctype(t), k, v);
            }
        }
    }
    put(e, " }\n");
}

/* atom.OP and red.OP, without a result */
static void emit_atom(struct emitter *e)
{
    bool red = op_is(e, "red");
    unsigned at = red ? 0 : 1;
    enum type t = the_type(e);
    static const char *const ops[] = {"add", "and", "or", "xor", "exch", "cas", "min", "max", "inc", "dec"};
    const char *op = NULL;
    only(e, "add and or xor exch cas min max inc dec");
    for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++)
        if (has(e, ops[k]))
            op = ops[k];
    need(e, at + 2);
    if (!op || has(e, "v2") || has(e, "v4") || has(e, "v8") || t == T_B128)
        unsupported(e);
    unsigned bits = type_bytes(t) * 8;
    enum type raw = bits == 16 ? T_B16 : bits == 32 ? T_B32 : T_B64;
    const char *suffix;
    if (is_float(t) || is_small_float(t) || is_pair(t)) {
        if (strcmp(op, "add"))
            unsupported(e);
        suffix = say(e, "%s", t == T_F32 ? "f32" : t == T_F64 ? "f64" : t == T_F16 ? "f16" : t == T_BF16 ? "bf16" : t == T_F16X2 ? "f16x2" : "bf16x2");
    } else if (!strcmp(op, "min") || !strcmp(op, "max")) {
        suffix = say(e, "%c%u", is_signed(t) ? 's' : 'u', bits);
    } else {
        suffix = say(e, "b%u", bits);
    }
    if (bits < 16)
        unsupported(e);
    if (e->pausable)
        put(e, "PAUSE(); ");
    const char *b = arg(e, at + 1, raw);
    const char *c = e->i->n_operands > at + 2 ? arg(e, at + 2, raw) : "0";
    put(e, "{ %s v = atom_%s_%s(%s, %s, %s, %s);", ctype(raw), op, suffix,
        pointer(e, &e->i->operand[at], space_of(e), bits / 8), b, c, order_of(e));
    if (red)
        put(e, " (void)v;");
    else
        result(e, raw, "v");
    put(e, " }\n");
}

static void emit_cvta(struct emitter *e)
{
    only(e, "");
    enum space space = space_of(e);
    const char *base = space == SPACE_SHARED ? "SHARED_BASE" : space == SPACE_LOCAL ? "LOCAL_BASE" : "0ull";
    need(e, 2);
    const struct operand *o = &e->i->operand[1];
    const char *x = read_as(e, o, T_U64);
    result(e, T_U64, say(e, has(e, "to") ? "%s - %s" : "%s + %s", x, base));
}

static void emit_isspacep(struct emitter *e)
{
    only(e, "");
    const char *x = arg(e, 1, T_U64);
    switch (space_of(e)) {
    case SPACE_SHARED:
        result(e, T_PRED, say(e, "%s - SHARED_BASE < WINDOW", x));
        break;
    case SPACE_LOCAL:
        result(e, T_PRED, say(e, "%s - LOCAL_BASE < WINDOW", x));
        break;
    case SPACE_PARAM:
        result(e, T_PRED, say(e, "%s - PARAM_BASE < WINDOW", x));
        break;
    case SPACE_GLOBAL:
        result(e, T_PRED, say(e, "%s - SHARED_BASE >= 3 * WINDOW", x));
        break;
    default:
        unsupported(e);
    }
}

/* ------------------------------------------------------------------------- moves */

/* mov, with packing {a, b} and unpacking */
static void emit_mov(struct emitter *e)
{
    only(e, "");
    need(e, 2);
    enum type t = the_type(e);
    const struct operand *dst = &e->i->operand[0], *src = &e->i->operand[1];
    unsigned bits = type_bytes(t) * 8;
    if (src->kind == O_VEC) {
        unsigned each = bits / src->n_parts;
        enum type part = each == 8 ? T_B8 : each == 16 ? T_B16 : each == 32 ? T_B32 : T_B64;
        put(e, "{ %s v = 0;", t == T_B128 ? "u128" : "u64");
        for (unsigned k = 0; k < src->n_parts; k++)
            put(e, " v |= (%s)%s << %u;", t == T_B128 ? "u128" : "u64", read_as(e, &src->parts[k], part), k * each);
        write_to(e, dst, t == T_B128 ? T_B128 : T_B64, "v");
        put(e, " }\n");
    } else if (dst->kind == O_VEC) {
        unsigned each = bits / dst->n_parts;
        enum type part = each == 8 ? T_B8 : each == 16 ? T_B16 : each == 32 ? T_B32 : T_B64;
        put(e, "{ %s v = %s;", t == T_B128 ? "u128" : "u64", read_as(e, src, t == T_B128 ? t : bits == 64 ? T_B64 : bits == 32 ? T_B32 : T_B16));
        for (unsigned k = 0; k < dst->n_parts; k++)
            write_to(e, &dst->parts[k], part, say(e, "(%s)(v >> %u)", ctype(part), k * each));
        put(e, " }\n");
    } else if (dst->kind == O_REG && dst->sym->lazy_nan && src->kind == O_REG) {
        put(e, "r%u = r%u;\n", dst->sym->index, src->sym->index);
    } else {
        result(e, t, read_as(e, src, t));
    }
}

/* ------------------------------------------------------------------------- arithmetic */

static const char *rounding(struct emitter *e)
{
    return has(e, "rz") ? "FE_TOWARDZERO" : has(e, "rm") ? "FE_DOWNWARD" : has(e, "rp") ? "FE_UPWARD" : NULL;
}

/* f32 and f64 results: flush, saturate, canonical NaN */
static const char *finish_float(struct emitter *e, enum type t, const char *expr)
{
    const struct operand *dst = &e->i->operand[0];
    if (dst->kind != O_REG || dst->sym->type != t || !dst->sym->lazy_nan)
        expr = say(e, t == T_F32 ? "cn(%s)" : "cnd(%s)", expr);
    if (has(e, "ftz") && t == T_F32)
        expr = say(e, "ftz(%s)", expr);
    if (has(e, "relu"))
        expr = say(e, t == T_F32 ? "max_f32(%s, 0.0f)" : "max_f64(%s, 0.0)", expr);
    if (has(e, "sat"))
        expr = say(e, t == T_F32 ? "sat(%s)" : "satd(%s)", expr);
    return expr;
}

static const char *float_arg(struct emitter *e, unsigned n, enum type t)
{
    const char *x = raw_arg(e, n, t);
    return has(e, "ftz") && t == T_F32 ? say(e, "ftz(%s)", x) : x;
}

static const char *c_operator(const char *op)
{
    return !strcmp(op, "add") ? "+" : !strcmp(op, "sub") ? "-" : !strcmp(op, "mul") ? "*" : "/";
}

static const char *widen(struct emitter *e, enum type t, const char *bits)
{
    return say(e, t == T_F16 || t == T_F16X2 ? "h2f(%s)" : "bf2f(%s)", bits);
}

/* One f16 or bf16 operation on bit patterns, computed wider: exact before the one rounding. */
static const char *small_op(struct emitter *e, enum type t, const char *op, const char *a, const char *b, const char *c)
{
    bool half = t == T_F16 || t == T_F16X2;
    if (has(e, "ftz") && half) {
        a = say(e, "ftzh(%s)", a);
        b = b ? say(e, "ftzh(%s)", b) : NULL;
        c = c ? say(e, "ftzh(%s)", c) : NULL;
    }
    if (!strcmp(op, "neg"))
        return say(e, "(u16)(%s ^ 0x8000)", a);
    if (!strcmp(op, "abs"))
        return say(e, "(u16)(%s & 0x7fff)", a);
    bool flush = half && has(e, "ftz");
    if (flush) {
        a = say(e, "hftz(%s)", a);
        b = b ? say(e, "hftz(%s)", b) : NULL;
        c = c ? say(e, "hftz(%s)", c) : NULL;
    }
    const char *x = widen(e, t, a), *y = b ? widen(e, t, b) : NULL, *z = c ? widen(e, t, c) : NULL, *v;
    if (!strcmp(op, "fma"))
        v = say(e, "fma_odd((double)%s, (double)%s, (double)%s)", x, y, z);
    else if (!strcmp(op, "min") || !strcmp(op, "max"))
        v = say(e, "%s%s_f32(%s, %s)", op, has(e, "NaN") ? "nan" : "", x, y);
    else if (!strcmp(op, "ex2"))
        v = say(e, "exp2f(%s)", x);
    else if (!strcmp(op, "tanh"))
        v = say(e, "tanhf(%s)", x);
    else
        v = say(e, "(%s %s %s)", x, c_operator(op), y);
    if (has(e, "relu"))
        v = say(e, "max_f64(%s, 0.0)", v);
    if (has(e, "sat"))
        v = say(e, "satd(%s)", v);
    v = say(e, half ? "d2h(%s)" : "d2bf(%s)", v);
    return flush ? say(e, "hftz(%s)", v) : v;
}

static void emit_small(struct emitter *e, enum type t, const char *op, unsigned n)
{
    only(e, "ftz sat relu NaN rn fma");
    if (is_pair(t)) {
        put(e, "{ u32 a = %s, b = %s, c = %s; (void)b; (void)c; u32 lo = ", arg(e, 1, T_B32), n > 1 ? arg(e, 2, T_B32) : "0",
            n > 2 ? arg(e, 3, T_B32) : "0");
        put(e, "%s, hi = %s;", small_op(e, t, op, "(u16)a", "(u16)b", "(u16)c"),
            small_op(e, t, op, "(u16)(a >> 16)", "(u16)(b >> 16)", "(u16)(c >> 16)"));
        result(e, T_B32, "lo | hi << 16");
        put(e, " }\n");
        return;
    }
    result(e, t, small_op(e, t, op, arg(e, 1, T_B16), n > 1 ? arg(e, 2, T_B16) : NULL, n > 2 ? arg(e, 3, T_B16) : NULL));
}

static bool any_small(enum type t)
{
    return is_small_float(t) || is_pair(t);
}

static void emit_float_binary(struct emitter *e, enum type t, const char *op)
{
    only(e, "ftz sat rz rm rp full approx rn");
    const char *a = float_arg(e, 1, t), *b = float_arg(e, 2, t), *mode = rounding(e);
    const char *x = mode ? say(e, "rnd_%s_%s(%s, %s, %s, 0)", op, t == T_F32 ? "f32" : "f64", mode, a, b)
                         : say(e, "(%s %s %s)", a, c_operator(op), b);
    result(e, t, finish_float(e, t, x));
}

static enum type unsigned_of(enum type t)
{
    switch (type_bytes(t)) {
    case 1: return T_U8;
    case 2: return T_U16;
    case 4: return T_U32;
    case 8: return T_U64;
    default: return T_B128;
    }
}

static enum type twice(struct emitter *e, enum type t)
{
    switch (t) {
    case T_U16: return T_U32;
    case T_S16: return T_S32;
    case T_U32: return T_U64;
    case T_S32: return T_S64;
    case T_U64: case T_S64: return T_B128;
    default: unsupported(e);
    }
}

/* add.cc, addc, sub.cc, subc, mad.cc: CF is the kernel's own local */
static void emit_carry(struct emitter *e, bool subtract)
{
    enum type t = unsigned_of(the_type(e));
    bool in = op_is(e, "addc") || op_is(e, "subc"), out = has(e, "cc");
    only(e, "cc");
    put(e, "{ %s a = %s, b = %s, s; u32 c0 = %s, k1, k2;", ctype(t), arg(e, 1, t), arg(e, 2, t), in ? "CF" : "0");
    put(e, " k1 = __builtin_%s_overflow(a, b, &s); k2 = __builtin_%s_overflow(s, (%s)c0, &s);", subtract ? "sub" : "add",
        subtract ? "sub" : "add", ctype(t));
    put(e, out ? " CF = k1 | k2;" : " (void)k1; (void)k2;");
    result(e, t, "s");
    put(e, " }\n");
}

static void emit_add_sub(struct emitter *e)
{
    const char *op = e->i->part[0];
    enum type t = the_type(e);
    if (!strcmp(op, "addc") || !strcmp(op, "subc") || has(e, "cc")) {
        emit_carry(e, op[0] == 's');
    } else if (any_small(t)) {
        emit_small(e, t, op, 2);
    } else if (is_float(t)) {
        emit_float_binary(e, t, op);
    } else if (has(e, "sat") && t == T_S32) {
        only(e, "sat");
        result(e, t, say(e, "clamp_s32((s64)%s %s (s64)%s)", arg(e, 1, t), c_operator(op), arg(e, 2, t)));
    } else {
        only(e, "");
        enum type u = unsigned_of(t);
        result(e, u, say(e, "(%s)(%s %s %s)", ctype(u), arg(e, 1, u), c_operator(op), arg(e, 2, u)));
    }
}

/* lo, hi or wide product of integers as an unsigned expression; *type is its type */
static const char *product(struct emitter *e, enum type t, enum type *type)
{
    enum type w = twice(e, t);
    const char *wide = w == T_B128 ? (is_signed(t) ? "s128" : "u128") : ctype(w);
    const char *a = arg(e, 1, t), *b = arg(e, 2, t);
    if (has(e, "wide")) {
        *type = w;
        if (w == T_B128)
            unsupported(e);
        return say(e, "(%s)((%s)%s * (%s)%s)", ctype(w), wide, a, wide, b);
    }
    *type = unsigned_of(t);
    if (has(e, "hi"))
        return say(e, "(%s)((%s)((%s)%s * (%s)%s) >> %u)", ctype(*type), wide, wide, a, wide, b, type_bytes(t) * 8);
    /* u64: u16 operands promoted to int would overflow it */
    return say(e, "(%s)((u64)%s * (u64)%s)", ctype(*type), a, b);
}

static void emit_mul(struct emitter *e)
{
    enum type t = the_type(e), p;
    if (any_small(t)) {
        emit_small(e, t, "mul", 2);
    } else if (is_float(t)) {
        emit_float_binary(e, t, "mul");
    } else {
        only(e, "lo hi wide");
        const char *x = product(e, t, &p);
        result(e, p, x);
    }
}

static void emit_mul24(struct emitter *e)
{
    enum type t = the_type(e);
    only(e, "lo hi sat");
    bool mad = op_is(e, "mad24");
    const char *cut = is_signed(t) ? "((s64)((s32)(%s << 8) >> 8))" : "((s64)(%s & 0xffffff))";
    char a[300], b[300];
    snprintf(a, sizeof a, cut, arg(e, 1, T_U32));
    snprintf(b, sizeof b, cut, arg(e, 2, T_U32));
    const char *x = say(e, has(e, "hi") ? "(u32)((%s * %s) >> 16)" : "(u32)(%s * %s)", a, b);
    if (mad && has(e, "sat"))
        unsupported(e);
    result(e, T_U32, mad ? say(e, "%s + %s", x, arg(e, 3, T_U32)) : x);
}

static void emit_fma(struct emitter *e)
{
    enum type t = the_type(e);
    if (any_small(t)) {
        emit_small(e, t, "fma", 3);
        return;
    }
    only(e, "ftz sat rz rm rp rn");
    const char *a = float_arg(e, 1, t), *b = float_arg(e, 2, t), *c = float_arg(e, 3, t), *mode = rounding(e);
    const char *x = mode ? say(e, "rnd_fma_%s(%s, %s, %s, %s)", t == T_F32 ? "f32" : "f64", mode, a, b, c)
                         : say(e, "%s(%s, %s, %s)", t == T_F32 ? "fmaf" : "fma", a, b, c);
    result(e, t, finish_float(e, t, x));
}

static void emit_mad(struct emitter *e)
{
    enum type t = the_type(e), p;
    bool carry_in = op_is(e, "madc");
    if (is_float(t) || any_small(t)) {
        emit_fma(e); /* PTX ISA: mad.f32 for sm_20 and later is fma */
        return;
    }
    only(e, "lo hi wide cc sat");
    const char *x = product(e, t, &p);
    if (has(e, "sat")) {
        if (t != T_S32 || !has(e, "hi"))
            unsupported(e);
        result(e, t, say(e, "clamp_s32((s64)(s32)%s + (s64)%s)", x, arg(e, 3, t)));
    } else if (carry_in || has(e, "cc")) {
        enum type u = unsigned_of(t);
        put(e, "{ %s a = %s, b = %s, s; u32 c0 = %s, k1, k2;", ctype(u), x, arg(e, 3, u), carry_in ? "CF" : "0");
        put(e, " k1 = __builtin_add_overflow(a, b, &s); k2 = __builtin_add_overflow(s, (%s)c0, &s);", ctype(u));
        put(e, has(e, "cc") ? " CF = k1 | k2;" : " (void)k1; (void)k2;");
        result(e, u, "s");
        put(e, " }\n");
    } else {
        result(e, p, say(e, "(%s)(%s + %s)", ctype(p), x, arg(e, 3, p)));
    }
}

static void emit_div_rem(struct emitter *e)
{
    const char *op = e->i->part[0];
    enum type t = the_type(e);
    if (is_float(t)) {
        emit_float_binary(e, t, op);
        return;
    }
    only(e, "");
    result(e, t, say(e, "%s_%c%u(%s, %s)", op, is_signed(t) ? 's' : 'u', type_bytes(t) * 8, arg(e, 1, t), arg(e, 2, t)));
}

static void emit_min_max(struct emitter *e)
{
    const char *op = e->i->part[0];
    enum type t = the_type(e);
    if (any_small(t)) {
        emit_small(e, t, op, 2);
    } else if (is_float(t)) {
        only(e, "ftz NaN");
        const char *x = say(e, "%s%s_%s(%s, %s)", op, has(e, "NaN") ? "nan" : "", t == T_F32 ? "f32" : "f64",
                            float_arg(e, 1, t), float_arg(e, 2, t));
        if (e->i->n_operands > 3)
            x = say(e, "%s%s_%s(%s, %s)", op, has(e, "NaN") ? "nan" : "", t == T_F32 ? "f32" : "f64", x, float_arg(e, 3, t));
        result(e, t, x);
    } else {
        only(e, "relu");
        const char *a = arg(e, 1, t), *b = arg(e, 2, t);
        const char *x = say(e, "(%s %s %s ? %s : %s)", a, op[1] == 'i' ? "<" : ">", b, a, b);
        result(e, t, has(e, "relu") ? say(e, "(%s > 0 ? %s : 0)", x, x) : x);
    }
}

static void emit_neg_abs(struct emitter *e)
{
    const char *op = e->i->part[0];
    enum type t = the_type(e);
    if (any_small(t)) {
        emit_small(e, t, op, 1);
    } else if (is_float(t)) {
        only(e, "ftz");
        const char *x = arg(e, 1, t);
        if (has(e, "ftz") && t == T_F32)
            x = say(e, "ftz(%s)", x);
        result(e, t, op[0] == 'n' ? say(e, "(-%s)", x) : say(e, t == T_F32 ? "fabsf(%s)" : "fabs(%s)", x));
    } else if (op[0] == 'n') {
        only(e, "");
        enum type u = unsigned_of(t);
        result(e, u, say(e, "(%s)(0 - %s)", ctype(u), arg(e, 1, u)));
    } else {
        only(e, "");
        result(e, unsigned_of(t), say(e, "abs_s%u(%s)", type_bytes(t) * 8, arg(e, 1, t)));
    }
}

static void emit_unary_float(struct emitter *e)
{
    static const struct {
        const char *op, *f32, *f64;
    } table[] = {
        {"rcp", "1.0f / %s", "1.0 / %s"},
        {"sqrt", "sqrtf(%s)", "sqrt(%s)"},
        {"rsqrt", "(float)(1.0 / sqrt((double)%s))", "1.0 / sqrt(%s)"},
        {"ex2", "exp2f(%s)", NULL},
        {"lg2", "log2f(%s)", NULL},
        {"sin", "sinf(%s)", NULL},
        {"cos", "cosf(%s)", NULL},
        {"tanh", "tanhf(%s)", NULL},
    };
    enum type t = the_type(e);
    if (any_small(t)) {
        emit_small(e, t, e->i->part[0], 1);
        return;
    }
    only(e, "ftz rz rm rp rn");
    const char *mode = rounding(e), *name = t == T_F32 ? "f32" : "f64";
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        if (!op_is(e, table[k].op))
            continue;
        const char *x = float_arg(e, 1, t), *fmt = t == T_F32 ? table[k].f32 : table[k].f64;
        if (!fmt || !is_float(t))
            unsupported(e);
        if (mode && op_is(e, "rcp"))
            x = say(e, "rnd_div_%s(%s, 1, %s, 0)", name, mode, x);
        else if (mode && op_is(e, "sqrt"))
            x = say(e, "rnd_sqrt_%s(%s, %s, 0, 0)", name, mode, x);
        else {
            char *text = (char *)say(e, "%*s", (int)(strlen(x) + strlen(fmt) + 1), "");
            const char *hole = strstr(fmt, "%s");
            sprintf(text, "%.*s%s%s", (int)(hole - fmt), fmt, x, hole + 2);
            x = say(e, "(%s)", text);
        }
        result(e, t, finish_float(e, t, x));
        return;
    }
    unsupported(e);
}

static void emit_testp_copysign(struct emitter *e)
{
    enum type t = the_type(e);
    if (op_is(e, "copysign")) {
        only(e, "");
        /* PTX: the sign of a goes on b */
        result(e, t, say(e, t == T_F32 ? "copysignf(%s, %s)" : "copysign(%s, %s)", arg(e, 2, t), arg(e, 1, t)));
        return;
    }
    only(e, "finite infinite number notanumber normal subnormal");
    const char *x = arg(e, 1, t);
    const char *fmt = has(e, "finite")       ? "isfinite(%s)"
                      : has(e, "infinite")   ? "isinf(%s)"
                      : has(e, "number")     ? "!isnan(%s)"
                      : has(e, "notanumber") ? "isnan(%s)"
                      : has(e, "normal")     ? "isnormal(%s)"
                                             : "(fpclassify(%s) == FP_SUBNORMAL)";
    char text[400];
    snprintf(text, sizeof text, fmt, x);
    result(e, T_PRED, say(e, "%s", text));
}

/* ------------------------------------------------------------------------- bits */

static void emit_logic(struct emitter *e)
{
    const char *op = e->i->part[0];
    enum type t = the_type(e);
    only(e, "");
    const char *a = arg(e, 1, t);
    if (!strcmp(op, "not"))
        result(e, t, t == T_PRED ? say(e, "!%s", a) : say(e, "(%s)~%s", ctype(t), a));
    else if (!strcmp(op, "cnot"))
        result(e, t, say(e, "(%s)(%s == 0)", ctype(t), a));
    else
        result(e, t, say(e, "(%s)(%s %s %s)", ctype(t), a, op[0] == 'a' ? "&" : op[0] == 'o' ? "|" : "^", arg(e, 2, t)));
}

static void emit_shift(struct emitter *e)
{
    enum type t = the_type(e);
    bool arithmetic = is_signed(t) && op_is(e, "shr");
    only(e, "");
    enum type u = arithmetic ? t : unsigned_of(t);
    result(e, u, say(e, "%s_%s%u(%s, %s)", e->i->part[0], op_is(e, "shl") ? "b" : arithmetic ? "s" : "u", type_bytes(t) * 8,
                     arg(e, 1, u), arg(e, 2, T_U32)));
}

static void emit_bits(struct emitter *e)
{
    enum type t = nth_type(e, 0);
    unsigned n = type_bytes(t) * 8;
    only(e, "shiftamt l r clamp wrap f4e b4e rc8 ecl ecr rc16 lo hi");
    if (op_is(e, "popc") || op_is(e, "clz"))
        result(e, T_U32, say(e, "%s%u(%s)", e->i->part[0], n, arg(e, 1, t)));
    else if (op_is(e, "brev"))
        result(e, t, say(e, "brev%u(%s)", n, arg(e, 1, t)));
    else if (op_is(e, "bfind")) {
        const char *a = arg(e, 1, t);
        const char *x = is_signed(t) ? say(e, "(u%u)(%s < 0 ? ~%s : %s)", n, a, a, a) : a;
        result(e, T_U32, say(e, "bfind(%s, %u, %d)", x, n, has(e, "shiftamt")));
    } else if (op_is(e, "bfe"))
        result(e, unsigned_of(t), say(e, "(u%u)bfe_%c(%s, %s, %s, %u)", n, is_signed(t) ? 's' : 'u', arg(e, 1, unsigned_of(t)),
                                      arg(e, 2, T_U32), arg(e, 3, T_U32), n));
    else if (op_is(e, "bfi"))
        result(e, t, say(e, "(u%u)bfi(%s, %s, %s, %s, %u)", n, arg(e, 1, t), arg(e, 2, t), arg(e, 3, T_U32), arg(e, 4, T_U32), n));
    else if (op_is(e, "bmsk"))
        result(e, T_U32, say(e, "bmsk(%s, %s, %d)", arg(e, 1, T_U32), arg(e, 2, T_U32), has(e, "wrap")));
    else if (op_is(e, "prmt"))
        result(e, T_U32, say(e, "prmt(%s, %s, %s, %d)", arg(e, 1, T_U32), arg(e, 2, T_U32), arg(e, 3, T_U32),
                             has(e, "f4e") ? 1 : has(e, "b4e") ? 2 : has(e, "rc8") ? 3 : has(e, "ecl") ? 4 : has(e, "ecr") ? 5 : has(e, "rc16") ? 6 : 0));
    else if (op_is(e, "lop3"))
        result(e, T_U32, say(e, "lop3(%s, %s, %s, %s)", arg(e, 1, T_U32), arg(e, 2, T_U32), arg(e, 3, T_U32), arg(e, 4, T_U32)));
    else if (op_is(e, "shf"))
        result(e, T_U32, say(e, "shf_%s(%s, %s, %s, %d)", has(e, "l") ? "l" : "r", arg(e, 1, T_U32), arg(e, 2, T_U32),
                             arg(e, 3, T_U32), has(e, "wrap")));
    else if (op_is(e, "dp4a"))
        result(e, T_U32, say(e, "dp4a(%s, %s, %s, %d, %d)", arg(e, 1, T_U32), arg(e, 2, T_U32), arg(e, 3, T_U32),
                             is_signed(nth_type(e, 0)), is_signed(nth_type(e, 1))));
    else if (op_is(e, "dp2a"))
        result(e, T_U32, say(e, "dp2a(%s, %s, %s, %d, %d, %d)", arg(e, 1, T_U32), arg(e, 2, T_U32), arg(e, 3, T_U32),
                             is_signed(nth_type(e, 0)), is_signed(nth_type(e, 1)), has(e, "hi")));
    else if (op_is(e, "sad"))
        result(e, unsigned_of(t), say(e, "sad_%c%u(%s, %s, %s)", is_signed(t) ? 's' : 'u', n, arg(e, 1, t), arg(e, 2, t), arg(e, 3, unsigned_of(t))));
    else
        unsupported(e);
}

/* ------------------------------------------------------------------------- comparison */

static const char *comparison(struct emitter *e, const char *cmp, enum type t, const char *a, const char *b)
{
    static const struct {
        const char *name, *op;
        bool unordered;
    } table[] = {
        {"eq", "==", false}, {"ne", "!=", false}, {"lt", "<", false},  {"le", "<=", false}, {"gt", ">", false},
        {"ge", ">=", false}, {"lo", "<", false},  {"ls", "<=", false}, {"hi", ">", false},  {"hs", ">=", false},
        {"equ", "==", true}, {"neu", "!=", true}, {"ltu", "<", true},  {"leu", "<=", true}, {"gtu", ">", true},
        {"geu", ">=", true},
    };
    bool floating = is_float(t);
    if (!strcmp(cmp, "num"))
        return say(e, "(%s == %s && %s == %s)", a, a, b, b);
    if (!strcmp(cmp, "nan"))
        return say(e, "(%s != %s || %s != %s)", a, a, b, b);
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        if (strcmp(table[k].name, cmp))
            continue;
        const char *x = say(e, "(%s %s %s)", a, table[k].op, b);
        if (floating && table[k].unordered)
            return say(e, "(%s || %s != %s || %s != %s)", x, a, a, b, b);
        if (floating && !strcmp(cmp, "ne"))
            return say(e, "(%s && %s == %s && %s == %s)", x, a, a, b, b);
        return x;
    }
    unsupported(e);
}

static const char *comparison_name(struct emitter *e)
{
    static const char *const names[] = {"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        if (has(e, names[k]))
            return names[k];
    unsupported(e);
}

/* f16 and bf16 bit patterns compare as f32: exact. */
static const char *compare_small(struct emitter *e, enum type t, const char *a, const char *b)
{
    bool flush = has(e, "ftz") && (t == T_F16 || t == T_F16X2);
    return comparison(e, comparison_name(e), T_F32, widen(e, t, flush ? say(e, "hftz(%s)", a) : a),
                      widen(e, t, flush ? say(e, "hftz(%s)", b) : b));
}

/* Half @k of a packed pair */
static const char *half_of(struct emitter *e, unsigned n, unsigned k)
{
    return say(e, "(u16)(%s >> %u)", arg(e, n, T_B32), 16 * k);
}

static const char *compare(struct emitter *e, enum type t, unsigned first)
{
    const char *name = comparison_name(e);
    if (is_pair(t))
        unsupported(e);
    if (is_small_float(t))
        return compare_small(e, t, arg(e, first, T_B16), arg(e, first + 1, T_B16));
    if (is_float(t))
        return comparison(e, name, t, float_arg(e, first, t), float_arg(e, first + 1, t));
    return comparison(e, name, t, arg(e, first, t), arg(e, first + 1, t));
}

static const char *boolean_operator(const struct emitter *e)
{
    return has(e, "and") ? "&" : has(e, "or") ? "|" : "^";
}

/* setp on pairs: p is what the lower halves say, q the upper */
static void emit_setp_pair(struct emitter *e, enum type t)
{
    const struct operand *dst = &e->i->operand[0];
    put(e, "{ u8 lo = %s, hi = %s;", compare_small(e, t, half_of(e, 1, 0), half_of(e, 2, 0)),
        compare_small(e, t, half_of(e, 1, 1), half_of(e, 2, 1)));
    if (e->i->n_operands > 3)
        put(e, " u8 c = %s; lo = lo %s c; hi = hi %s c;", arg(e, 3, T_PRED), boolean_operator(e), boolean_operator(e));
    write_to(e, dst, T_PRED, "lo");
    if (dst->other)
        put(e, " r%u = hi;", dst->other->index);
    put(e, " }\n");
}

static void emit_setp(struct emitter *e)
{
    only(e, "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz");
    enum type t = the_type(e);
    const struct operand *dst = &e->i->operand[0];
    if (is_pair(t)) {
        emit_setp_pair(e, t);
        return;
    }
    put(e, "{ u8 q = %s;", compare(e, t, 1));
    const char *p = "q", *not_p = "!q";
    if (e->i->n_operands > 3) {
        const char *op = boolean_operator(e);
        put(e, " u8 c = %s;", arg(e, 3, T_PRED));
        p = say(e, "q %s c", op);
        not_p = say(e, "!q %s c", op);
        put(e, " u8 w = %s;", not_p);
        not_p = "w";
    }
    if (dst->other)
        put(e, " u8 w2 = %s;", not_p);
    write_to(e, dst, T_PRED, p);
    if (dst->other)
        put(e, " r%u = w2;", dst->other->index);
    put(e, " }\n");
}

/* set on pairs: each half all ones, or 1.0 */
static void emit_set_pair(struct emitter *e, enum type d, enum type s)
{
    unsigned one = d == T_F16X2 ? 0x3c00 : d == T_BF16X2 ? 0x3f80 : 0xffff;
    put(e, "{ u8 c = %s; (void)c; u32 v = 0;", e->i->n_operands > 3 ? arg(e, 3, T_PRED) : "0");
    for (unsigned k = 0; k < 2; k++) {
        const char *x = compare_small(e, s, half_of(e, 1, k), half_of(e, 2, k));
        if (e->i->n_operands > 3)
            x = say(e, "(%s %s c)", x, boolean_operator(e));
        put(e, " if (%s) v |= 0x%xu;", x, one << (16 * k));
    }
    result(e, T_B32, "v");
    put(e, " }\n");
}

static void emit_set(struct emitter *e)
{
    only(e, "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz");
    enum type d = nth_type(e, 0), s = nth_type(e, 1);
    if (s == T_NONE)
        unsupported(e);
    if (is_pair(s)) {
        emit_set_pair(e, d, s);
        return;
    }
    const char *x = compare(e, s, 1);
    if (e->i->n_operands > 3)
        x = say(e, "(%s %s %s)", x, boolean_operator(e), arg(e, 3, T_PRED));
    const char *one = d == T_F32 ? "1.0f" : d == T_F16 ? "0x3c00" : d == T_BF16 ? "0x3f80" : say(e, "(%s)-1", ctype(d));
    result(e, d, say(e, "(%s ? %s : 0)", x, one));
}

static void emit_select(struct emitter *e)
{
    enum type t = the_type(e);
    only(e, "ftz");
    if (op_is(e, "selp")) {
        result(e, t, say(e, "(%s ? %s : %s)", arg(e, 3, T_PRED), arg(e, 1, t), arg(e, 2, t)));
        return;
    }
    enum type c = nth_type(e, 1);
    if (c == T_F32)
        result(e, t, say(e, "(%s >= 0 ? %s : %s)", float_arg(e, 3, T_F32), arg(e, 1, t), arg(e, 2, t)));
    else
        result(e, t, say(e, "(%s >= 0 ? %s : %s)", arg(e, 3, T_S32), arg(e, 1, t), arg(e, 2, t)));
}

/* ------------------------------------------------------------------------- conversion */

static const char *int_name(struct emitter *e, enum type t)
{
    return say(e, "%c%u", is_signed(t) ? 's' : 'u', type_bytes(t) * 8);
}

static const char *to_double(struct emitter *e, enum type s, const char *x)
{
    return is_small_float(s) ? say(e, "(double)%s", widen(e, s, x)) : say(e, "(double)%s", x);
}

static void cvt_to_int(struct emitter *e, enum type d, enum type s)
{
    const char *x = is_small_float(s) ? arg(e, 1, T_B16) : float_arg(e, 1, s);
    const char *round = has(e, "rni") ? "nearbyint" : has(e, "rmi") ? "floor" : has(e, "rpi") ? "ceil" : "trunc";
    /* PTX ISA, cvt: NaN is 0, but 1 << (bits - 1) where either type has 64 bits */
    const char *nan = s == T_F64 || type_bytes(d) == 8 ? say(e, "(%s)(1ull << %u)", ctype(d), type_bytes(d) * 8 - 1) : "0";
    result(e, d, say(e, "f64_to_%s(%s(%s), %s)", int_name(e, d), round, to_double(e, s, x), nan));
}

static void cvt_int_to_int(struct emitter *e, enum type d, enum type s)
{
    const char *x = arg(e, 1, s);
    if (has(e, "sat")) {
        /* through 128 bits both ranges fit */
        unsigned n = type_bytes(d) * 8;
        const char *low = is_signed(d) ? say(e, "-((s128)1 << %u)", n - 1) : "(s128)0";
        const char *high = say(e, "(((s128)1 << %u) - 1)", is_signed(d) ? n - 1 : n);
        put(e, "{ s128 v = (s128)%s; v = v < %s ? %s : v > %s ? %s : v;", x, low, low, high, high);
        result(e, d, say(e, "(%s)v", ctype(d)));
        put(e, " }\n");
        return;
    }
    result(e, d, say(e, "(%s)%s", ctype(d), x));
}

/* cvt.rn.f16x2.f32 d, a, b: a goes to the upper half */
static void cvt_pair(struct emitter *e, enum type d)
{
    const char *fn = d == T_F16X2 ? (has(e, "rz") ? "f2h_rz" : "f2h") : has(e, "rz") ? "f2bf_rz" : "f2bf";
    const char *a = arg(e, 1, T_F32), *b = arg(e, 2, T_F32);
    if (has(e, "relu")) {
        a = say(e, "max_f32(%s, 0.0f)", a);
        b = say(e, "max_f32(%s, 0.0f)", b);
    }
    result(e, T_B32, say(e, "(u32)%s(%s) << 16 | %s(%s)", fn, a, fn, b));
}

static void cvt_to_float(struct emitter *e, enum type d, enum type s)
{
    const char *mode = rounding(e), *x;
    bool from_int = !is_float(s) && !is_small_float(s);
    if (from_int) {
        const char *v = arg(e, 1, s), *wide = is_signed(s) ? "s64" : "u64";
        if (d == T_F16 || d == T_BF16)
            x = say(e, type_bytes(s) == 8 ? "sticky_%s(%s)" : "(double)%.0s%s", wide, v);
        else if (mode)
            x = say(e, "rnd_%s_%s(%s, (%s)%s)", wide, d == T_F32 ? "f32" : "f64", mode, wide, v);
        else
            x = say(e, "(%s)%s", ctype(d), v);
    } else {
        x = is_small_float(s) ? widen(e, s, arg(e, 1, T_B16)) : float_arg(e, 1, s);
        if (d == s || is_small_float(s) || d == T_F64) {
            const char *round = has(e, "rni") ? "nearbyint" : has(e, "rmi") ? "floor" : has(e, "rpi") ? "ceil" : has(e, "rzi") ? "trunc" : NULL;
            if (round)
                x = say(e, "%s((double)%s)", round, x);
        }
        if (d == T_F32 && s == T_F64)
            x = mode ? say(e, "rnd_f64_f32(%s, %s)", mode, x) : say(e, "(float)%s", x);
    }
    if (d == T_F16 || d == T_BF16) {
        if (has(e, "relu"))
            x = say(e, "max_f64(%s, 0.0)", x);
        if (has(e, "sat"))
            x = say(e, "satd(%s)", x);
        if (mode && d == T_BF16 && !(has(e, "rz") && s == T_F32))
            unsupported(e);
        result(e, T_B16, d == T_BF16 ? say(e, mode ? "f2bf_rz(%s)" : "d2bf(%s)", x)
                         : mode      ? say(e, "d2h_to(%s, %s)", mode, x)
                                     : say(e, "d2h(%s)", x));
        return;
    }
    result(e, d, finish_float(e, d, say(e, "(%s)%s", ctype(d), x)));
}

static void emit_cvt(struct emitter *e)
{
    enum type d = nth_type(e, 0), s = nth_type(e, 1);
    only(e, "rni rzi rmi rpi rz rm rp rn ftz sat relu pack");
    if (s == T_NONE || has(e, "pack"))
        unsupported(e);
    if (is_pair(d)) {
        if (s != T_F32)
            unsupported(e);
        cvt_pair(e, d);
        return;
    }
    bool to_float = is_float(d) || is_small_float(d), from_float = is_float(s) || is_small_float(s);
    if (is_pair(s))
        unsupported(e);
    if (to_float)
        cvt_to_float(e, d, s);
    else if (from_float)
        cvt_to_int(e, d, s);
    else
        cvt_int_to_int(e, d, s);
}

/* ------------------------------------------------------------------------- control */

static void save_restore(struct emitter *e, bool save)
{
    for (size_t w = 0; e->i->live && w <= e->f->n_regs / 64; w++)
        for (uint64_t left = e->i->live[w]; left; left &= left - 1) {
            unsigned r = (unsigned)(w * 64) + (unsigned)__builtin_ctzll(left);
            put(e, save ? " F->s%u = r%u;" : " r%u = F->s%u;", r, r);
        }
}

/* The thread stops here and resumes behind it; what it brings and for whom it waits is in F->h. */
static void wait_here(struct emitter *e, const char *kind)
{
    if (!e->f->is_kernel)
        ir_fail(e->m, PTX_E_UNSUPPORTED, "function %s, line %d: %s in a function that is called is not supported",
                e->f->name, e->i->line, e->i->opcode);
    unsigned k = ++e->n_waits;
    put(e, "{");
    save_restore(e, true);
    put(e, " F->h.pc = %u; F->h.wait = %s; goto next_thread; W%u:;", k, kind, k);
    save_restore(e, false);
    put(e, " }\n");
}

/* Shows @value to the lanes named by operand @mask; without one, to those at the same instruction. */
static void meet_warp(struct emitter *e, const char *value, unsigned mask)
{
    put(e, "F->h.brings = (u64)(%s); ", value);
    if (mask < e->i->n_operands) {
        put(e, "F->h.mask = %s; ", arg(e, mask, T_U32));
        wait_here(e, "WAIT_WARP");
    } else {
        wait_here(e, "WAIT_ACTIVE");
    }
}

static void emit_shfl(struct emitter *e)
{
    const struct operand *dst = &e->i->operand[0];
    int mode = has(e, "up") ? 0 : has(e, "down") ? 1 : has(e, "bfly") ? 2 : 3;
    only(e, "up down bfly idx");
    meet_warp(e, arg(e, 1, T_B32), 4);
    put(e, "{ u32 ok, v = warp_shfl(&B, T->linear, %d, %s, %s, %s, &ok);", mode, arg(e, 1, T_B32), arg(e, 2, T_U32),
        arg(e, 3, T_U32));
    write_to(e, dst, T_B32, "v");
    if (dst->other)
        put(e, " r%u = ok != 0;", dst->other->index);
    put(e, " (void)ok; }\n");
}

static void emit_vote(struct emitter *e)
{
    int mode = has(e, "any") ? 0 : has(e, "all") ? 1 : has(e, "uni") ? 2 : 3;
    only(e, "all any uni ballot");
    meet_warp(e, arg(e, 1, T_PRED), 2);
    result(e, mode == 3 ? T_B32 : T_PRED, say(e, "warp_vote(&B, T->linear, %d)", mode));
}

static void emit_match(struct emitter *e)
{
    const struct operand *dst = &e->i->operand[0];
    enum type t = the_type(e);
    only(e, "any all");
    meet_warp(e, arg(e, 1, t), 2);
    put(e, "{ u32 same, v = warp_match(&B, T->linear, %s, %d, &same);", arg(e, 1, t), has(e, "all"));
    write_to(e, dst, T_B32, "v");
    if (dst->other)
        put(e, " r%u = same != 0;", dst->other->index);
    put(e, " (void)same; }\n");
}

static void emit_redux(struct emitter *e)
{
    bool s = is_signed(the_type(e));
    int op = has(e, "add") ? 0 : has(e, "min") ? (s ? 3 : 1) : has(e, "max") ? (s ? 4 : 2) : has(e, "and") ? 5 : has(e, "or") ? 6 : 7;
    only(e, "add min max and or xor");
    if (type_bytes(the_type(e)) != 4 || the_type(e) == T_F32)
        unsupported(e);
    meet_warp(e, arg(e, 1, T_B32), 2);
    result(e, T_B32, say(e, "warp_redux(&B, T->linear, %d)", op));
}

static void emit_activemask(struct emitter *e)
{
    need(e, 1);
    only(e, "");
    put(e, "F->h.brings = 0; ");
    wait_here(e, "WAIT_ACTIVE");
    result(e, T_B32, "F->h.group");
}

/* Barrier @id, which takes as many threads as operand @expected says; 0: all. */
static void name_barrier(struct emitter *e, const char *id, const char *expected)
{
    put(e, "F->h.barrier = %s; F->h.expected = (u16)(%s); ", id, expected);
}

/* bar.red.OP d, a{, b}, p */
static void emit_barrier_red(struct emitter *e)
{
    unsigned last = e->i->n_operands - 1;
    need(e, 3);
    name_barrier(e, say(e, "%s & 15", arg(e, 1, T_U32)), last > 2 ? arg(e, 2, T_U32) : "0");
    put(e, "F->h.brings = %s != 0; ", arg(e, last, T_PRED));
    wait_here(e, "WAIT_BARRIER");
    if (has(e, "popc"))
        result(e, T_U32, "(u32)F->h.brought");
    else
        result(e, T_PRED, has(e, "and") ? "(u32)F->h.brought == F->h.brought >> 32" : "(u32)F->h.brought != 0");
}

static void emit_barrier(struct emitter *e)
{
    only(e, "red popc and or arrive warp wait");
    if (has(e, "warp")) {
        meet_warp(e, "0", 0);
    } else if (op_is(e, "barrier") && has(e, "cluster")) {
        /* a cluster of one block: to arrive is nothing, to wait is to wait for the block */
        name_barrier(e, "CLUSTER_BARRIER", "0");
        if (has(e, "wait"))
            wait_here(e, "WAIT_BARRIER");
    } else if (has(e, "red")) {
        emit_barrier_red(e);
    } else if (has(e, "arrive")) {
        need(e, 2);
        put(e, "B.arrived[%s & 15]++;\n", arg(e, 0, T_U32));
    } else {
        need(e, 1);
        name_barrier(e, say(e, "%s & 15", arg(e, 0, T_U32)), e->i->n_operands > 1 ? arg(e, 1, T_U32) : "0");
        put(e, "F->h.brings = 0; ");
        wait_here(e, "WAIT_BARRIER");
    }
}

static void emit_call(struct emitter *e)
{
    const struct instruction *i = e->i;
    const struct function_ir *callee = i->callee->function;
    if (!callee->has_body || callee->is_kernel || i->n_call_arguments != callee->n_params)
        ir_fail(e->m, PTX_E_UNSUPPORTED, "kernel %s, line %d: call of %s, which has no body here, is not supported",
                e->f->name, i->line, callee->name);
    if (i->call_return.kind != O_SINK && (i->call_return.kind != O_SYM || i->call_return.sym->space != SPACE_PARAM))
        unsupported(e);
    put(e, "f_%s(E, T, local_at + %zu, %s", callee->c_name, (e->f->local_bytes + 15) & ~(size_t)15,
        i->call_return.kind == O_SINK ? "NULL" : say(e, "C + %zu", i->call_return.sym->offset));
    for (unsigned k = 0; k < i->n_call_arguments; k++) {
        const struct operand *o = &i->call_arguments[k];
        if (o->kind != O_SYM || o->sym->space != SPACE_PARAM || o->sym->size < callee->params[k]->size)
            unsupported(e);
        put(e, ", C + %zu", o->sym->offset);
    }
    put(e, ");\n");
}

static void emit_branch(struct emitter *e)
{
    need(e, 1);
    only(e, "idx");
    if (op_is(e, "bra")) {
        if (e->i->operand[0].kind != O_SYM || e->i->operand[0].sym->kind != SYM_LABEL)
            unsupported(e);
        put(e, "goto L%u;\n", e->i->operand[0].sym->index);
        return;
    }
    need(e, 2);
    const struct symbol *targets = e->i->operand[1].sym;
    if (e->i->operand[1].kind != O_SYM || targets->kind != SYM_TARGETS)
        unsupported(e);
    put(e, "switch (%s) {", arg(e, 0, T_U32));
    for (unsigned k = 0; k < targets->n_targets; k++)
        put(e, " case %u: goto L%u;", k, targets->targets[k]->index);
    put(e, " default: E->trap(); }\n");
}

static void emit_fence(struct emitter *e)
{
    /* membar and fence: gpu or cta scope are no weaker here than sys */
    put(e, "__atomic_thread_fence(%s);\n", has(e, "acq_rel") ? "__ATOMIC_ACQ_REL" : has(e, "acquire") ? "__ATOMIC_ACQUIRE" : has(e, "release") ? "__ATOMIC_RELEASE" : "__ATOMIC_SEQ_CST");
}

static void emit_nothing(struct emitter *e)
{
    put(e, ";\n");
}

static void emit_exit(struct emitter *e)
{
    if (op_is(e, "trap"))
        put(e, "E->trap();\n");
    else if (e->f->is_kernel)
        put(e, "goto done;\n");
    else if (op_is(e, "ret"))
        put(e, "return;\n");
    else
        unsupported(e);
}

static const struct {
    const char *name;
    void (*emit)(struct emitter *e);
} instructions[] = {
    {"ld", emit_ld}, {"ldu", emit_ld}, {"st", emit_st}, {"atom", emit_atom}, {"red", emit_atom}, {"mov", emit_mov},
    {"cvta", emit_cvta}, {"isspacep", emit_isspacep}, {"add", emit_add_sub}, {"sub", emit_add_sub},
    {"addc", emit_add_sub}, {"subc", emit_add_sub}, {"mul", emit_mul}, {"mul24", emit_mul24}, {"mad24", emit_mul24},
    {"mad", emit_mad}, {"madc", emit_mad}, {"fma", emit_fma}, {"div", emit_div_rem}, {"rem", emit_div_rem},
    {"min", emit_min_max}, {"max", emit_min_max}, {"neg", emit_neg_abs}, {"abs", emit_neg_abs},
    {"rcp", emit_unary_float}, {"sqrt", emit_unary_float}, {"rsqrt", emit_unary_float}, {"ex2", emit_unary_float},
    {"lg2", emit_unary_float}, {"sin", emit_unary_float}, {"cos", emit_unary_float}, {"tanh", emit_unary_float},
    {"testp", emit_testp_copysign}, {"copysign", emit_testp_copysign}, {"and", emit_logic}, {"or", emit_logic},
    {"xor", emit_logic}, {"not", emit_logic}, {"cnot", emit_logic}, {"shl", emit_shift}, {"shr", emit_shift},
    {"popc", emit_bits}, {"clz", emit_bits}, {"brev", emit_bits}, {"bfind", emit_bits}, {"bfe", emit_bits},
    {"bfi", emit_bits}, {"bmsk", emit_bits}, {"prmt", emit_bits}, {"lop3", emit_bits}, {"shf", emit_bits},
    {"dp4a", emit_bits}, {"dp2a", emit_bits}, {"sad", emit_bits}, {"setp", emit_setp}, {"set", emit_set},
    {"selp", emit_select}, {"slct", emit_select}, {"cvt", emit_cvt}, {"bra", emit_branch}, {"brx", emit_branch},
    {"call", emit_call}, {"ret", emit_exit}, {"exit", emit_exit}, {"trap", emit_exit}, {"bar", emit_barrier},
    {"barrier", emit_barrier}, {"shfl", emit_shfl}, {"vote", emit_vote}, {"match", emit_match}, {"redux", emit_redux},
    {"activemask", emit_activemask}, {"membar", emit_fence}, {"fence", emit_fence}, {"prefetch", emit_nothing},
    {"prefetchu", emit_nothing}, {"nanosleep", emit_nothing}, {"griddepcontrol", emit_nothing},
    {"discard", emit_nothing}, {"pmevent", emit_nothing}, {"brkpt", emit_nothing}, {"applypriority", emit_nothing},
};

static void emit_instruction(struct emitter *e)
{
    const struct instruction *i = e->i;
    e->n_scratch = 0;
    if (i->label) {
        put(e, "L%u:;\n", i->label->index);
        return;
    }
    for (size_t k = 0; k < sizeof instructions / sizeof instructions[0]; k++) {
        if (strcmp(instructions[k].name, i->part[0]))
            continue;
        if (i->guard)
            put(e, "if (%sr%u) {\n", i->guard_negated ? "!" : "", i->guard->index);
        instructions[k].emit(e);
        put(e, i->guard ? "}\n" : "\n");
        return;
    }
    unsupported(e);
}

/* ------------------------------------------------------------------------- functions */

static void declare_registers(struct emitter *e)
{
    for (unsigned r = 0; r < e->f->n_regs; r++)
        put(e, "%s r%u = 0; (void)r%u;\n", storage(e->f->regs[r]->type), r, r);
    put(e, "u32 CF = 0; (void)CF;\n");
    if (e->f->frame_params && !e->f->waits)
        put(e, "_Alignas(16) u8 C[%zu]; (void)C;\n", e->f->frame_params);
}

static void emit_window(struct emitter *e)
{
    put(e, "const u64 DB = E->device_base, DN = E->device_size; const s64 DD = E->alias_delta; (void)DB; (void)DN; (void)DD;\n"
           "u8 *const SB = E->shared; const u64 SN = E->n_shared; (void)SB; (void)SN;\n");
}

static void emit_body(struct emitter *e)
{
    for (size_t i = 0; i < e->f->n_body; i++) {
        e->i = e->f->body[i];
        emit_instruction(e);
    }
}

/* Registers that some wait keeps: the thread's frame. */
static void emit_frame(struct emitter *e)
{
    size_t words = e->f->n_regs / 64 + 1;
    uint64_t *kept = ir_alloc(e->m, words * sizeof *kept);
    for (size_t i = 0; i < e->f->n_body; i++)
        for (size_t w = 0; e->f->body[i]->live && w < words; w++)
            kept[w] |= e->f->body[i]->live[w];
    put(e, "struct frame_%s { struct rt_frame h;", e->f->c_name);
    for (unsigned r = 0; r < e->f->n_regs; r++)
        if (kept[r / 64] >> (r % 64) & 1)
            put(e, " %s s%u;", storage(e->f->regs[r]->type), r);
    if (e->f->frame_params) /* what a call passes is the thread's own, too */
        put(e, " _Alignas(16) u8 c[%zu];", e->f->frame_params);
    put(e, " };\n");
}

static void emit_kernel(struct emitter *e)
{
    const struct function_ir *f = e->f;
    bool waits = f->waits;
    if (waits) {
        ptx_liveness(e->m, e->f);
        emit_frame(e);
    } else
        put(e, "struct frame_%s { u8 none; };\n", f->c_name);
    put(e, "const u64 frame_bytes_%s = %s;\n", f->c_name, waits ? say(e, "sizeof(struct frame_%s)", f->c_name) : "0");
    put(e, "void k_%s(const struct rt_env *E)\n{\n", f->c_name);
    emit_window(e);
    put(e, "const u8 *const P = E->params; (void)P; const u64 local_at = 0; (void)local_at;\n"
           "const u32 n_threads = E->block[0] * E->block[1] * E->block[2];\n"
           "struct thread_id id = {0}; struct thread_id *const T = &id;\n"
           "id.n_local = LOCAL_BYTES;\n");
    if (waits)
        put(e, "struct rt_block B = {.frames = E->frames, .stride = sizeof(struct frame_%s), .n = n_threads};\nagain:\n", f->c_name);
    put(e, "for (id.linear = 0, id.x = 0, id.y = 0, id.z = 0; id.linear < n_threads; id.linear++) {\n"
           "id.local = E->local + id.linear * LOCAL_BYTES;\n");
    if (waits)
        put(e, "struct frame_%s *const F = (void *)(E->frames + id.linear * sizeof(*F));\n", f->c_name);
    if (waits && f->frame_params)
        put(e, "u8 *const C = F->c; (void)C;\n");
    declare_registers(e);
    if (waits)
        put(e, "if (F->h.wait) goto next_thread;\nif (F->h.pc) goto resume;\n");
    emit_body(e);
    put(e, "goto done; done:;\n");
    if (waits) {
        put(e, "F->h.wait = WAIT_DONE; goto next_thread;\nresume: switch (F->h.pc) {\n");
        for (unsigned k = 1; k <= e->n_waits; k++)
            put(e, "case %u: goto W%u;\n", k, k);
        put(e, "default: break; }\nnext_thread:;\n");
    }
    put(e, "if (++id.x == E->block[0]) { id.x = 0; if (++id.y == E->block[1]) { id.y = 0; id.z++; } }\n}\n");
    if (waits)
        put(e, "switch (schedule(&B)) { case 1: goto again; case 2: E->trap(); }\n");
    put(e, "}\n");
}

static void emit_prototype(struct emitter *e, const struct function_ir *f)
{
    put(e, "static __attribute__((unused)) void f_%s(const struct rt_env *E, struct thread_id *T, u64 local_at, u8 *R", f->c_name);
    for (unsigned k = 0; k < f->n_params; k++)
        put(e, ", u8 *A%u", k);
    put(e, ")");
}

static void emit_function(struct emitter *e)
{
    emit_prototype(e, e->f);
    put(e, "\n{\n(void)E; (void)T; (void)local_at; (void)R;\n");
    for (unsigned k = 0; k < e->f->n_params; k++)
        put(e, "(void)A%u;\n", k);
    emit_window(e);
    declare_registers(e);
    emit_body(e);
    put(e, "}\n");
}

void ptx_emit(struct module_ir *m, struct text *out, bool pausable)
{
    struct emitter e = {.m = m, .out = out, .pausable = pausable, .scratch = ir_alloc(m, SCRATCH)};
    for (struct function_ir *f = m->functions; f; f = f->next)
        if (!f->is_kernel && !f->waits) {
            emit_prototype(&e, f);
            put(&e, ";\n");
        }
    for (struct function_ir *f = m->functions; f; f = f->next) {
        e.f = f;
        e.n_waits = 0;
        e.n_scratch = 0;
        ptx_lazy_nans(f);
        if (f->is_kernel) {
            put(&e, "#undef LOCAL_BYTES\n#define LOCAL_BYTES %zuull\n", f->total_local);
            emit_kernel(&e);
        } else if (!f->waits) { /* else it stands where it is called */
            emit_function(&e);
        }
    }
}
