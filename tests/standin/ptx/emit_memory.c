/* SPDX-License-Identifier: Apache-2.0 */
/* Loads, stores, atomics, addresses and moves. */
#include "emit.h"

#include <string.h>

enum space op_space(const struct emitter *e)
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

/* The address that a register or variable stands for, in @space. */
static const char *base_of(struct emitter *e, const struct symbol *s, enum space space)
{
    if (!s)
        return "0ull";
    if (s->kind == SYM_REG)
        return emit_say(e, type_bytes(s->type) == 4 ? "(u64)(u32)r%u" : "(u64)r%u", s->index);
    const char *base = symbol_address(e, s);
    if (space != SPACE_GENERIC)
        return base;
    return s->space == SPACE_SHARED  ? emit_say(e, "(SHARED_BASE + %s)", base)
           : s->space == SPACE_LOCAL ? emit_say(e, "(LOCAL_BASE + %s)", base)
                                     : base;
}

const char *emit_pointer(struct emitter *e, const struct operand *o, enum space space, unsigned n)
{
    static const char *const at[] = {
        [SPACE_GENERIC] = "AT_GENERIC", [SPACE_GLOBAL] = "AT_GLOBAL", [SPACE_CONST] = "AT_GLOBAL",
        [SPACE_SHARED] = "AT_SHARED",   [SPACE_LOCAL] = "AT_LOCAL",   [SPACE_PARAM] = "AT_PARAM"
    };
    const struct symbol *s = o->sym;
    if (o->kind != O_MEM || o->n_parts)
        emit_unsupported(e);
    if (s && s->kind == SYM_VAR && s->space == SPACE_PARAM) {
        if (o->value < 0 || (size_t)o->value + n > s->size)
            ir_fail(e->m, PTX_E_SYNTAX, "kernel %s, line %d: %s: outside %s", e->f->name,
                    e->i->line, e->i->opcode, s->name);
        if (s->argument == -2)
            return emit_say(e, "(void *)(R + %lld)", (long long)o->value);
        if (s->argument >= 0)
            return emit_say(e, "(void *)(A%d + %lld)", s->argument, (long long)o->value);
        if (s->kernel_param)
            return emit_say(e, "(void *)(P + %zu)", s->offset + (size_t)o->value);
        return emit_say(e, "(void *)(C + %zu)", s->offset + (size_t)o->value);
    }
    if (s && s->kind == SYM_REG && type_bytes(s->type) == 4)
        return emit_say(e, "%s((u64)(u32)(r%u + %lldu), %u)", at[space], s->index,
                        (long long)(uint32_t)o->value, n);
    return emit_say(e, "%s(%s + %lldll, %uull)", at[space], base_of(e, s, space),
                    (long long)o->value, n);
}

const char *emit_shared_offset(struct emitter *e, const struct operand *o)
{
    const struct symbol *s = o->sym;
    bool generic = op_space(e) == SPACE_GENERIC;
    if (o->kind != O_MEM || o->n_parts || (!generic && op_space(e) != SPACE_SHARED))
        emit_unsupported(e);
    if (s && s->kind == SYM_REG && type_bytes(s->type) == 4)
        return emit_say(e, "(u64)(u32)(r%u + %lldu)", s->index, (long long)(uint32_t)o->value);
    return emit_say(e, "%s + %lldll%s", base_of(e, s, op_space(e)), (long long)o->value,
                    generic ? " - SHARED_BASE" : "");
}

void emit_prefetch(struct emitter *e)
{
    const struct operand *o = &e->i->operand[0];
    enum space space = op_space(e);
    op_need(e, 1);
    if (o->kind != O_MEM || o->n_parts)
        emit_unsupported(e);
    if (space == SPACE_GLOBAL || space == SPACE_GENERIC)
        emit_put(e, "PREFETCH(%s + %lldll);\n", base_of(e, o->sym, space), (long long)o->value);
    else
        emit_nothing(e);
}

static const char *order_of(const struct emitter *e)
{
    if (op_has(e, "acquire"))
        return "__ATOMIC_ACQUIRE";
    if (op_has(e, "release"))
        return "__ATOMIC_RELEASE";
    if (op_has(e, "acq_rel"))
        return "__ATOMIC_ACQ_REL";
    return op_has(e, "sc") ? "__ATOMIC_SEQ_CST" : "__ATOMIC_RELAXED";
}

static bool strong(const struct emitter *e)
{
    return op_has(e, "relaxed") || op_has(e, "acquire") || op_has(e, "release") ||
           op_has(e, "volatile") || op_has(e, "mmio");
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
    unsigned want = op_has(e, "v2") ? 2 : op_has(e, "v4") ? 4 : op_has(e, "v8") ? 8 : 1;
    if (lanes(o) != want)
        ir_fail(e->m, PTX_E_SYNTAX, "kernel %s, line %d: %s takes %u registers", e->f->name,
                e->i->line, e->i->opcode, want);
}

void emit_ld(struct emitter *e)
{
    op_only(e, "");
    op_need(e, 2);
    enum type t = op_type(e, 0);
    const struct operand *dst = &e->i->operand[0], *src = &e->i->operand[1];
    enum space space = op_space(e);
    if (t == T_NONE)
        emit_unsupported(e);
    check_lanes(e, dst);
    if (instruction_in_step(e->i))
        emit_step(e);
    const char *type = type_c(t);
    unsigned n = type_bytes(t);
    if (space == SPACE_PARAM && src->sym && src->sym->kind == SYM_VAR) {
        emit_put(e, "{ const u8 *p = %s;", emit_pointer(e, src, space, n * lanes(dst)));
        for (unsigned k = 0; k < lanes(dst); k++) {
            emit_put(e, " %s v%u; memcpy(&v%u, p + %u, %u);", type, k, k, k * n, n);
            operand_write(e, lane(dst, k), t, emit_say(e, "v%u", k));
        }
        emit_put(e, " }\n");
        return;
    }
    if (strong(e) && (space == SPACE_GLOBAL || space == SPACE_GENERIC))
        emit_put(e, "LOOK(); ");
    emit_put(e, "{ const void *p = %s;", emit_pointer(e, src, space, n * lanes(dst)));
    for (unsigned k = 0; k < lanes(dst); k++) {
        if (strong(e) && n <= 8) {
            const char *bits = type_storage(n == 1   ? T_B8
                                            : n == 2 ? T_B16
                                            : n == 4 ? T_B32
                                                     : T_B64);
            emit_put(e,
                     " %s b%u = __atomic_load_n((const %s *)p + %u, %s); %s v%u; memcpy(&v%u, "
                     "&b%u, %u);",
                     bits, k, bits, k,
                     op_has(e, "acquire") ? "__ATOMIC_ACQUIRE" : "__ATOMIC_RELAXED", type, k, k, k,
                     n);
        } else {
            emit_put(e, " %s v%u = LD(%s, p, %u);", type, k, type, k);
        }
    }
    for (unsigned k = 0; k < lanes(dst); k++)
        operand_write(e, lane(dst, k), t, emit_say(e, "v%u", k));
    emit_put(e, " }\n");
}

void emit_st(struct emitter *e)
{
    op_only(e, "");
    op_need(e, 2);
    enum type t = op_type(e, 0);
    const struct operand *dst = &e->i->operand[0], *src = &e->i->operand[1];
    enum space space = op_space(e);
    if (t == T_NONE)
        emit_unsupported(e);
    check_lanes(e, src);
    if (instruction_in_step(e->i))
        emit_step(e);
    unsigned n = type_bytes(t);
    if (e->pausable && (space == SPACE_GLOBAL || space == SPACE_GENERIC))
        emit_put(e, "PAUSE(); ");
    if (space == SPACE_PARAM) {
        emit_put(e, "{ u8 *p = %s;", emit_pointer(e, dst, space, n * lanes(src)));
        for (unsigned k = 0; k < lanes(src); k++)
            emit_put(e, " %s v%u = %s; memcpy(p + %u, &v%u, %u);", type_c(t), k,
                     operand_as(e, lane(src, k), t), k * n, k, n);
    } else {
        emit_put(e, "{ void *p = %s;", emit_pointer(e, dst, space, n * lanes(src)));
        for (unsigned k = 0; k < lanes(src); k++) {
            const char *v = operand_as(e, lane(src, k), t);
            if (strong(e) && n <= 8) {
                const char *bits = type_storage(n == 1   ? T_B8
                                                : n == 2 ? T_B16
                                                : n == 4 ? T_B32
                                                         : T_B64);
                emit_put(e,
                         " %s v%u = %s; %s b%u; memcpy(&b%u, &v%u, %u); __atomic_store_n((%s *)p + "
                         "%u, b%u, %s);",
                         type_c(t), k, v, bits, k, k, k, n, bits, k, k,
                         op_has(e, "release") ? "__ATOMIC_RELEASE" : "__ATOMIC_RELAXED");
            } else {
                emit_put(e, " ST(%s, p, %u, %s);", type_c(t), k, v);
            }
        }
    }
    emit_put(e, " }\n");
}

/* atom.OP and red.OP, without a result */
void emit_atom(struct emitter *e)
{
    bool red = op_is(e, "red");
    unsigned at = red ? 0 : 1;
    enum type t = op_the_type(e);
    static const char *const ops[] = { "add", "and", "or",  "xor", "exch",
                                       "cas", "min", "max", "inc", "dec" };
    const char *op = NULL;
    op_only(e, "add and or xor exch cas min max inc dec");
    for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++)
        if (op_has(e, ops[k]))
            op = ops[k];
    op_need(e, at + 2);
    if (!op || op_has(e, "v2") || op_has(e, "v4") || op_has(e, "v8") || t == T_B128)
        emit_unsupported(e);
    unsigned bits = type_bytes(t) * 8;
    enum type raw = bits == 16 ? T_B16 : bits == 32 ? T_B32 : T_B64;
    const char *suffix;
    if (type_is_float(t) || type_is_small(t) || type_is_pair(t)) {
        if (strcmp(op, "add"))
            emit_unsupported(e);
        suffix = emit_say(e, "%s",
                          t == T_F32     ? "f32"
                          : t == T_F64   ? "f64"
                          : t == T_F16   ? "f16"
                          : t == T_BF16  ? "bf16"
                          : t == T_F16X2 ? "f16x2"
                                         : "bf16x2");
    } else if (!strcmp(op, "min") || !strcmp(op, "max")) {
        suffix = emit_say(e, "%c%u", type_is_signed(t) ? 's' : 'u', bits);
    } else {
        suffix = emit_say(e, "b%u", bits);
    }
    if (bits < 16)
        emit_unsupported(e);
    if (e->pausable)
        emit_put(e, "PAUSE(); ");
    if (op_space(e) == SPACE_GLOBAL || op_space(e) == SPACE_GENERIC)
        emit_put(e, "LOOK(); ");
    const char *b = op_arg(e, at + 1, raw);
    const char *c = e->i->n_operands > at + 2 ? op_arg(e, at + 2, raw) : "0";
    emit_put(e, "{ %s v = atom_%s_%s(%s, %s, %s, %s);", type_c(raw), op, suffix,
             emit_pointer(e, &e->i->operand[at], op_space(e), bits / 8), b, c, order_of(e));
    if (red)
        emit_put(e, " (void)v;");
    else
        op_result(e, raw, "v");
    emit_put(e, " }\n");
}

/* Caches are not modelled, so any policy will do. */
void emit_createpolicy(struct emitter *e)
{
    op_only(e, "fractional range");
    op_result(e, T_B64, "0");
}

void emit_cvta(struct emitter *e)
{
    op_only(e, "");
    enum space space = op_space(e);
    const char *base = space == SPACE_SHARED  ? "SHARED_BASE"
                       : space == SPACE_LOCAL ? "LOCAL_BASE"
                                              : "0ull";
    op_need(e, 2);
    const struct operand *o = &e->i->operand[1];
    const char *x = operand_as(e, o, T_U64);
    op_result(e, T_U64, emit_say(e, op_has(e, "to") ? "%s - %s" : "%s + %s", x, base));
}

void emit_isspacep(struct emitter *e)
{
    op_only(e, "");
    const char *x = op_arg(e, 1, T_U64);
    switch (op_space(e)) {
    case SPACE_SHARED: op_result(e, T_PRED, emit_say(e, "%s - SHARED_BASE < WINDOW", x)); break;
    case SPACE_LOCAL: op_result(e, T_PRED, emit_say(e, "%s - LOCAL_BASE < WINDOW", x)); break;
    case SPACE_PARAM: op_result(e, T_PRED, emit_say(e, "%s - PARAM_BASE < WINDOW", x)); break;
    case SPACE_GLOBAL:
        op_result(e, T_PRED, emit_say(e, "%s - SHARED_BASE >= 3 * WINDOW", x));
        break;
    default: emit_unsupported(e);
    }
}

/* ------------------------------------------------------------------------- moves */

/* mov, with packing {a, b} and unpacking */
void emit_mov(struct emitter *e)
{
    op_only(e, "");
    op_need(e, 2);
    enum type t = op_the_type(e);
    const struct operand *dst = &e->i->operand[0], *src = &e->i->operand[1];
    unsigned bits = type_bytes(t) * 8;
    if (src->kind == O_VEC) {
        unsigned each = bits / src->n_parts;
        enum type part = each == 8 ? T_B8 : each == 16 ? T_B16 : each == 32 ? T_B32 : T_B64;
        emit_put(e, "{ %s v = 0;", t == T_B128 ? "u128" : "u64");
        for (unsigned k = 0; k < src->n_parts; k++)
            emit_put(e, " v |= (%s)%s << %u;", t == T_B128 ? "u128" : "u64",
                     operand_as(e, &src->parts[k], part), k * each);
        operand_write(e, dst, t == T_B128 ? T_B128 : T_B64, "v");
        emit_put(e, " }\n");
    } else if (dst->kind == O_VEC) {
        unsigned each = bits / dst->n_parts;
        enum type part = each == 8 ? T_B8 : each == 16 ? T_B16 : each == 32 ? T_B32 : T_B64;
        emit_put(e, "{ %s v = %s;", t == T_B128 ? "u128" : "u64",
                 operand_as(e, src,
                            t == T_B128  ? t
                            : bits == 64 ? T_B64
                            : bits == 32 ? T_B32
                                         : T_B16));
        for (unsigned k = 0; k < dst->n_parts; k++)
            operand_write(e, &dst->parts[k], part,
                          emit_say(e, "(%s)(v >> %u)", type_c(part), k * each));
        emit_put(e, " }\n");
    } else if (dst->kind == O_REG && dst->sym->lazy_nan && src->kind == O_REG) {
        emit_put(e, "r%u = r%u;\n", dst->sym->index, src->sym->index);
    } else {
        op_result(e, t, operand_as(e, src, t));
    }
}
