/* SPDX-License-Identifier: Apache-2.0 */
/* Text, the parts of an opcode, and operands as C expressions. */
#include "emit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void emit_put(struct emitter *e, const char *fmt, ...)
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

const char *emit_say(struct emitter *e, const char *fmt, ...)
{
    char *at = e->scratch + e->n_scratch;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(at, EMIT_SCRATCH - e->n_scratch, fmt, ap);
    va_end(ap);
    if (n < 0 || e->n_scratch + (size_t)n + 1 > EMIT_SCRATCH)
        ir_fail(e->m, PTX_E_UNSUPPORTED, "kernel %s, line %d: %s is too long", e->f->name,
                e->i->line, e->i->opcode);
    e->n_scratch += (size_t)n + 1;
    return at;
}

_Noreturn void emit_unsupported(struct emitter *e)
{
    ir_fail(e->m, PTX_E_UNSUPPORTED, "kernel %s, line %d: %s is not supported", e->f->name,
            e->i->line, e->i->opcode);
}

/* ------------------------------------------------------------------------- opcode parts */

bool op_has(const struct emitter *e, const char *part)
{
    for (unsigned k = 1; k < e->i->n_parts; k++)
        if (!strcmp(e->i->part[k], part))
            return true;
    return false;
}

bool op_is(const struct emitter *e, const char *op)
{
    return !strcmp(e->i->part[0], op);
}

/* The n-th type among the parts; T_NONE if there are fewer. */
enum type op_type(const struct emitter *e, unsigned n)
{
    for (unsigned k = 1; k < e->i->n_parts; k++) {
        enum type t = type_named(e->i->part[k], strlen(e->i->part[k]));
        if (t != T_NONE && !n--)
            return t;
    }
    return T_NONE;
}

enum type op_the_type(struct emitter *e)
{
    enum type t = op_type(e, 0);
    if (t == T_NONE)
        emit_unsupported(e);
    return t;
}

void op_need(struct emitter *e, unsigned n)
{
    if (e->i->n_operands < n)
        ir_fail(e->m, PTX_E_SYNTAX, "kernel %s, line %d: %s needs %u operands", e->f->name,
                e->i->line, e->i->opcode, n);
}

/* Parts that change nothing here: hints about caches, uniformity and the like. */
static bool harmless(const char *part)
{
    static const char *const words[] = {
        "full",    "approx",  "uni",     "sync",    "aligned", "nc",   "ca",   "cg",
        "cs",      "lu",      "cv",      "wb",      "wt",      "rn",   "weak", "volatile",
        "relaxed", "acquire", "release", "acq_rel", "cta",     "gpu",  "sys",  "cluster",
        "global",  "shared",  "param",   "local",   "const",   "v2",   "v4",   "v8",
        "to",      "u64",     "L1",      "mmio",    "entry",   "func", "sc",   "noftz",
    };
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
        if (!strcmp(part, words[k]))
            return true;
    return !strncmp(part, "L1::", 4) || !strncmp(part, "L2::", 4) || !strncmp(part, "level::", 7) ||
           !strncmp(part, "cluster", 7) || !strncmp(part, "param::", 7) ||
           !strncmp(part, "shared::", 8);
}

/* Every part of the opcode must be a type, harmless, or one that the emitting code looks at. */
void op_only(struct emitter *e, const char *known)
{
    for (unsigned k = 1; k < e->i->n_parts; k++) {
        const char *part = e->i->part[k];
        size_t n = strlen(part);
        bool ok = type_named(part, n) != T_NONE || harmless(part);
        for (const char *at = known; !ok && (at = strstr(at, part)); at++)
            ok = (at == known || at[-1] == ' ') && (!at[n] || at[n] == ' ');
        if (!ok)
            emit_unsupported(e);
    }
}

bool type_is_float(enum type t)
{
    return t == T_F32 || t == T_F64;
}

bool type_is_small(enum type t)
{
    return t == T_F16 || t == T_BF16;
}

bool type_is_pair(enum type t)
{
    return t == T_F16X2 || t == T_BF16X2;
}

bool type_is_signed(enum type t)
{
    return t >= T_S8 && t <= T_S64;
}

const char *type_c(enum type t)
{
    static const char *const names[T_COUNT] = {
        [T_NONE] = "u64",   [T_PRED] = "u8",   [T_B8] = "u8",      [T_B16] = "u16",
        [T_B32] = "u32",    [T_B64] = "u64",   [T_B128] = "u128",  [T_U8] = "u8",
        [T_U16] = "u16",    [T_U32] = "u32",   [T_U64] = "u64",    [T_S8] = "s8",
        [T_S16] = "s16",    [T_S32] = "s32",   [T_S64] = "s64",    [T_F16] = "u16",
        [T_BF16] = "u16",   [T_F32] = "float", [T_F64] = "double", [T_F16X2] = "u32",
        [T_BF16X2] = "u32",
    };
    return names[t];
}

/* The C type that a register of PTX type @t is kept in: unsigned bits, or a float. */
const char *type_storage(enum type t)
{
    static const char *const by_size[] = {
        [1] = "u8", [2] = "u16", [4] = "u32", [8] = "u64", [16] = "u128"
    };
    return t == T_F32 ? "float" : t == T_F64 ? "double" : by_size[type_bytes(t)];
}

/* ------------------------------------------------------------------------- reading operands */

static const char *special(struct emitter *e, const char *word)
{
    static const struct {
        const char *name, *expr;
    } table[] = {
        { "tid.x", "T->x" },
        { "tid.y", "T->y" },
        { "tid.z", "T->z" },
        { "ntid.x", "E->block[0]" },
        { "ntid.y", "E->block[1]" },
        { "ntid.z", "E->block[2]" },
        { "ctaid.x", "E->block_at[0]" },
        { "ctaid.y", "E->block_at[1]" },
        { "ctaid.z", "E->block_at[2]" },
        { "nctaid.x", "E->grid[0]" },
        { "nctaid.y", "E->grid[1]" },
        { "nctaid.z", "E->grid[2]" },
        { "laneid", "(T->linear & 31)" },
        { "warpid", "(T->linear >> 5)" },
        { "nwarpid", "((E->block[0] * E->block[1] * E->block[2] + 31) >> 5)" },
        { "smid", "0u" },
        { "nsmid", "1u" },
        { "gridid", "0ull" },
        { "clock", "(u32)now_ns()" },
        { "clock_hi", "(u32)(now_ns() >> 32)" },
        { "clock64", "now_ns()" },
        { "globaltimer", "now_ns()" },
        { "globaltimer_lo", "(u32)now_ns()" },
        { "globaltimer_hi", "(u32)(now_ns() >> 32)" },
        { "lanemask_eq", "(1u << (T->linear & 31))" },
        { "lanemask_lt", "((1u << (T->linear & 31)) - 1)" },
        { "lanemask_le", "((2u << (T->linear & 31)) - 1)" },
        { "lanemask_gt", "~((2u << (T->linear & 31)) - 1)" },
        { "lanemask_ge", "~((1u << (T->linear & 31)) - 1)" },
        { "dynamic_smem_size", "(u32)E->dynamic_shared" },
        { "total_smem_size", "(u32)E->n_shared" },
        { "cluster_ctaid.x", "0u" },
        { "cluster_nctaid.x", "1u" },
        { "cluster_ctarank", "0u" },
        { "cluster_nctarank", "1u" },
    };
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++)
        if (!strcmp(table[k].name, word))
            return table[k].expr;
    /* of the driver's own registers nvcc's cooperative groups read two: the address of the grid's workspace */
    unsigned env;
    int end = 0;
    if (sscanf(word, "envreg%u%n", &env, &end) == 1 && !word[end] && env < 32)
        return env == 1   ? "(u32)(E->workspace ? GRID_BASE >> 32 : 0)"
               : env == 2 ? "(u32)(E->workspace ? GRID_BASE : 0)"
                          : "0u";
    ir_fail(e->m, PTX_E_UNSUPPORTED, "kernel %s, line %d: %s: %%%s is no known register",
            e->f->name, e->i->line, e->i->opcode, word);
}

/* The address of a variable within its own state space. */
const char *symbol_address(struct emitter *e, const struct symbol *s)
{
    if (s->kind == SYM_FUNC && s->function->has_body && !s->function->is_kernel)
        return emit_say(e, "%lluull", FUNCTION_ADDRESS(s->index));
    if (s->kind != SYM_VAR)
        emit_unsupported(e);
    switch (s->space) {
    case SPACE_SHARED:
        return s->external
                   ? "E->static_shared"
                   : emit_say(e, "%zuull", s->offset + (s->of_kernel ? e->f->shared_base : 0));
    case SPACE_LOCAL: return emit_say(e, "(local_at + %zuull)", s->offset);
    case SPACE_PARAM:
        if (!s->kernel_param)
            emit_unsupported(e);
        return emit_say(e, "(PARAM_BASE + %zuull)", s->offset);
    default: return emit_say(e, "E->globals[%d]", s->global);
    }
}

/* @expr of storage type @from as a value of PTX type @to */
static const char *bits_as(struct emitter *e, const char *expr, enum type from, enum type to)
{
    if (type_is_float(to)) {
        if (from == to)
            return expr;
        if (type_is_float(from))
            return to == T_F64 ? emit_say(e, "f64b((u64)b32f(%s))", expr)
                               : emit_say(e, "f32b((u32)b64f(%s))", expr);
        return to == T_F32 ? emit_say(e, "f32b((u32)%s)", expr)
                           : emit_say(e, "f64b((u64)%s)", expr);
    }
    if (from == T_F32)
        return emit_say(e, "((%s)b32f(%s))", type_c(to), expr);
    if (from == T_F64)
        return emit_say(e, "((%s)b64f(%s))", type_c(to), expr);
    return emit_say(e, "((%s)%s)", type_c(to), expr);
}

static const char *immediate(struct emitter *e, const struct operand *o, enum type t)
{
    unsigned long long bits = (unsigned long long)o->value;
    if (t == T_PRED)
        return o->value ? "1" : "0";
    if (o->kind == O_INT)
        return type_is_float(t) ? emit_say(e, "((%s)%lldll)", type_c(t), (long long)o->value)
                                : emit_say(e, "((%s)0x%llxull)", type_c(t), bits);
    if (o->kind == O_F32)
        return t == T_F32   ? emit_say(e, "f32b(0x%llxu)", bits)
               : t == T_F64 ? emit_say(e, "(double)f32b(0x%llxu)", bits)
                            : emit_say(e, "((%s)0x%llxu)", type_c(t), bits);
    return t == T_F64   ? emit_say(e, "f64b(0x%llxull)", bits)
           : t == T_F32 ? emit_say(e, "(float)f64b(0x%llxull)", bits)
                        : emit_say(e, "((%s)0x%llxull)", type_c(t), bits);
}

/* A register whose NaNs become canonical where their bits can be seen, not where they arise (live.c). */
static const char *seen(struct emitter *e, const struct symbol *s)
{
    const char *name = emit_say(e, "r%u", s->index);
    return !s->lazy_nan ? name : emit_say(e, s->type == T_F32 ? "cn(%s)" : "cnd(%s)", name);
}

/* The value of an operand as a C expression of type ctype(@t). */
const char *operand_as(struct emitter *e, const struct operand *o, enum type t)
{
    const char *x;
    switch (o->kind) {
    case O_REG:
        if (t == T_PRED)
            return o->negated ? emit_say(e, "(!r%u)", o->sym->index)
                              : emit_say(e, "r%u", o->sym->index);
        x = bits_as(e, seen(e, o->sym), o->sym->type, t);
        break;
    case O_INT:
    case O_F32:
    case O_F64: return immediate(e, o, t);
    case O_SPECIAL: x = emit_say(e, "((%s)%s)", type_c(t), special(e, o->word)); break;
    case O_SYM:
        x = emit_say(e, "((%s)(%s + %lldll))", type_c(t), symbol_address(e, o->sym),
                     (long long)o->value);
        break;
    default: emit_unsupported(e);
    }
    return o->negated ? emit_say(e, "(-%s)", x) : x;
}

const char *op_arg(struct emitter *e, unsigned n, enum type t)
{
    op_need(e, n + 1);
    return operand_as(e, &e->i->operand[n], t);
}

/* The same for arithmetic, to which any NaN is as good as another. */
const char *op_raw_arg(struct emitter *e, unsigned n, enum type t)
{
    op_need(e, n + 1);
    const struct operand *o = &e->i->operand[n];
    if (o->kind != O_REG || o->sym->type != t || o->negated || !type_is_float(t))
        return operand_as(e, o, t);
    return emit_say(e, "r%u", o->sym->index);
}

/* The register takes @expr, a value of C type ctype(@t); signed values extend, as PTX asks of ld and cvt. */
void operand_write(struct emitter *e, const struct operand *o, enum type t, const char *expr)
{
    if (o->kind == O_SINK)
        return;
    if (o->kind != O_REG)
        emit_unsupported(e);
    enum type have = o->sym->type;
    if (have == T_PRED)
        emit_put(e, "r%u = (%s) != 0;", o->sym->index, expr);
    else if (have == t || (!type_is_float(have) && !type_is_float(t)))
        emit_put(e, "r%u = (%s)(%s);", o->sym->index, type_storage(have), expr);
    else if (type_is_float(have))
        emit_put(e, "r%u = %s;", o->sym->index,
                 bits_as(e, emit_say(e, "(%s)", expr), type_is_float(t) ? t : T_B64, have));
    else
        emit_put(e, "r%u = (%s)%s(%s);", o->sym->index, type_storage(have),
                 t == T_F32 ? "b32f" : "b64f", expr);
}

void op_result(struct emitter *e, enum type t, const char *expr)
{
    op_need(e, 1);
    operand_write(e, &e->i->operand[0], t, expr);
}

/* ------------------------------------------------------------------------- numbers */

bool type_is_16(enum type t)
{
    return type_is_small(t) || type_is_pair(t);
}

enum type type_unsigned(enum type t)
{
    switch (type_bytes(t)) {
    case 1: return T_U8;
    case 2: return T_U16;
    case 4: return T_U32;
    case 8: return T_U64;
    default: return T_B128;
    }
}

const char *op_rounding(struct emitter *e)
{
    return op_has(e, "rz")   ? "FE_TOWARDZERO"
           : op_has(e, "rm") ? "FE_DOWNWARD"
           : op_has(e, "rp") ? "FE_UPWARD"
                             : NULL;
}

/* f32 and f64 results: flush, saturate, canonical NaN */
const char *op_finish(struct emitter *e, enum type t, const char *expr)
{
    const struct operand *dst = &e->i->operand[0];
    if (dst->kind != O_REG || dst->sym->type != t || !dst->sym->lazy_nan)
        expr = emit_say(e, t == T_F32 ? "cn(%s)" : "cnd(%s)", expr);
    if (op_has(e, "ftz") && t == T_F32)
        expr = emit_say(e, "ftz(%s)", expr);
    if (op_has(e, "relu"))
        expr = emit_say(e, t == T_F32 ? "max_f32(%s, 0.0f)" : "max_f64(%s, 0.0)", expr);
    if (op_has(e, "sat"))
        expr = emit_say(e, t == T_F32 ? "sat(%s)" : "satd(%s)", expr);
    return expr;
}

const char *op_float_arg(struct emitter *e, unsigned n, enum type t)
{
    const char *x = op_raw_arg(e, n, t);
    return op_has(e, "ftz") && t == T_F32 ? emit_say(e, "ftz(%s)", x) : x;
}

const char *small_widen(struct emitter *e, enum type t, const char *bits)
{
    return emit_say(e, t == T_F16 || t == T_F16X2 ? "h2f(%s)" : "bf2f(%s)", bits);
}
