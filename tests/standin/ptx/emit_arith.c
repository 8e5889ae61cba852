/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on integers and floats. */
#include "emit.h"

#include <stdio.h>
#include <string.h>

static const char *c_operator(const char *op)
{
    return !strcmp(op, "add") ? "+" : !strcmp(op, "sub") ? "-" : !strcmp(op, "mul") ? "*" : "/";
}

/* One f16 or bf16 operation on bit patterns, computed wider: exact before the one rounding. */
static const char *small_op(struct emitter *e, enum type t, const char *op, const char *a,
                            const char *b, const char *c)
{
    bool half = t == T_F16 || t == T_F16X2;
    if (op_has(e, "ftz") && half) {
        a = emit_say(e, "ftzh(%s)", a);
        b = b ? emit_say(e, "ftzh(%s)", b) : NULL;
        c = c ? emit_say(e, "ftzh(%s)", c) : NULL;
    }
    if (!strcmp(op, "neg"))
        return emit_say(e, "(u16)(%s ^ 0x8000)", a);
    if (!strcmp(op, "abs"))
        return emit_say(e, "(u16)(%s & 0x7fff)", a);
    bool flush = half && op_has(e, "ftz");
    if (flush) {
        a = emit_say(e, "hftz(%s)", a);
        b = b ? emit_say(e, "hftz(%s)", b) : NULL;
        c = c ? emit_say(e, "hftz(%s)", c) : NULL;
    }
    const char *x = small_widen(e, t, a), *y = b ? small_widen(e, t, b) : NULL,
               *z = c ? small_widen(e, t, c) : NULL, *v;
    if (!strcmp(op, "fma"))
        v = emit_say(e, "fma_odd((double)%s, (double)%s, (double)%s)", x, y, z);
    else if (!strcmp(op, "min") || !strcmp(op, "max"))
        v = emit_say(e, "%s%s_f32(%s, %s)", op, op_has(e, "NaN") ? "nan" : "", x, y);
    else if (!strcmp(op, "ex2"))
        v = emit_say(e, "exp2f(%s)", x);
    else if (!strcmp(op, "tanh"))
        v = emit_say(e, "tanhf(%s)", x);
    else
        v = emit_say(e, "(%s %s %s)", x, c_operator(op), y);
    if (op_has(e, "relu"))
        v = emit_say(e, "max_f64(%s, 0.0)", v);
    if (op_has(e, "sat"))
        v = emit_say(e, "satd(%s)", v);
    v = emit_say(e, half ? "d2h(%s)" : "d2bf(%s)", v);
    return flush ? emit_say(e, "hftz(%s)", v) : v;
}

static void emit_small(struct emitter *e, enum type t, const char *op, unsigned n)
{
    op_only(e, "ftz sat relu NaN rn fma");
    if (type_is_pair(t)) {
        emit_put(e,
                 "{ u32 a = %s, b = %s, c = %s; (void)b; (void)c; u32 lo = ", op_arg(e, 1, T_B32),
                 n > 1 ? op_arg(e, 2, T_B32) : "0", n > 2 ? op_arg(e, 3, T_B32) : "0");
        emit_put(e, "%s, hi = %s;", small_op(e, t, op, "(u16)a", "(u16)b", "(u16)c"),
                 small_op(e, t, op, "(u16)(a >> 16)", "(u16)(b >> 16)", "(u16)(c >> 16)"));
        op_result(e, T_B32, "lo | hi << 16");
        emit_put(e, " }\n");
        return;
    }
    op_result(e, t,
              small_op(e, t, op, op_arg(e, 1, T_B16), n > 1 ? op_arg(e, 2, T_B16) : NULL,
                       n > 2 ? op_arg(e, 3, T_B16) : NULL));
}

static void emit_float_binary(struct emitter *e, enum type t, const char *op)
{
    op_only(e, "ftz sat rz rm rp full approx rn");
    const char *a = op_float_arg(e, 1, t), *b = op_float_arg(e, 2, t), *mode = op_rounding(e);
    const char *x =
        mode ? emit_say(e, "rnd_%s_%s(%s, %s, %s, 0)", op, t == T_F32 ? "f32" : "f64", mode, a, b)
             : emit_say(e, "(%s %s %s)", a, c_operator(op), b);
    op_result(e, t, op_finish(e, t, x));
}

static enum type twice(struct emitter *e, enum type t)
{
    switch (t) {
    case T_U16: return T_U32;
    case T_S16: return T_S32;
    case T_U32: return T_U64;
    case T_S32: return T_S64;
    case T_U64:
    case T_S64: return T_B128;
    default: emit_unsupported(e);
    }
}

/* add.cc, addc, sub.cc, subc, mad.cc: CF is the kernel's own local */
static void emit_carry(struct emitter *e, bool subtract)
{
    enum type t = type_unsigned(op_the_type(e));
    bool in = op_is(e, "addc") || op_is(e, "subc"), out = op_has(e, "cc");
    op_only(e, "cc");
    emit_put(e, "{ %s a = %s, b = %s, s; u32 c0 = %s, k1, k2;", type_c(t), op_arg(e, 1, t),
             op_arg(e, 2, t), in ? "CF" : "0");
    emit_put(e, " k1 = __builtin_%s_overflow(a, b, &s); k2 = __builtin_%s_overflow(s, (%s)c0, &s);",
             subtract ? "sub" : "add", subtract ? "sub" : "add", type_c(t));
    emit_put(e, out ? " CF = k1 | k2;" : " (void)k1; (void)k2;");
    op_result(e, t, "s");
    emit_put(e, " }\n");
}

void emit_add_sub(struct emitter *e)
{
    const char *op = e->i->part[0];
    enum type t = op_the_type(e);
    if (!strcmp(op, "addc") || !strcmp(op, "subc") || op_has(e, "cc")) {
        emit_carry(e, op[0] == 's');
    } else if (type_is_16(t)) {
        emit_small(e, t, op, 2);
    } else if (type_is_float(t)) {
        emit_float_binary(e, t, op);
    } else if (op_has(e, "sat") && t == T_S32) {
        op_only(e, "sat");
        op_result(e, t,
                  emit_say(e, "clamp_s32((s64)%s %s (s64)%s)", op_arg(e, 1, t), c_operator(op),
                           op_arg(e, 2, t)));
    } else {
        op_only(e, "");
        enum type u = type_unsigned(t);
        op_result(e, u,
                  emit_say(e, "(%s)(%s %s %s)", type_c(u), op_arg(e, 1, u), c_operator(op),
                           op_arg(e, 2, u)));
    }
}

/* lo, hi or wide product of integers as an unsigned expression; *type is its type */
static const char *product(struct emitter *e, enum type t, enum type *type)
{
    enum type w = twice(e, t);
    const char *wide = w == T_B128 ? (type_is_signed(t) ? "s128" : "u128") : type_c(w);
    const char *a = op_arg(e, 1, t), *b = op_arg(e, 2, t);
    if (op_has(e, "wide")) {
        *type = w;
        if (w == T_B128)
            emit_unsupported(e);
        return emit_say(e, "(%s)((%s)%s * (%s)%s)", type_c(w), wide, a, wide, b);
    }
    *type = type_unsigned(t);
    if (op_has(e, "hi"))
        return emit_say(e, "(%s)((%s)((%s)%s * (%s)%s) >> %u)", type_c(*type), wide, wide, a, wide,
                        b, type_bytes(t) * 8);
    /* u64: u16 operands promoted to int would overflow it */
    return emit_say(e, "(%s)((u64)%s * (u64)%s)", type_c(*type), a, b);
}

void emit_mul(struct emitter *e)
{
    enum type t = op_the_type(e), p;
    if (type_is_16(t)) {
        emit_small(e, t, "mul", 2);
    } else if (type_is_float(t)) {
        emit_float_binary(e, t, "mul");
    } else {
        op_only(e, "lo hi wide");
        const char *x = product(e, t, &p);
        op_result(e, p, x);
    }
}

void emit_mul24(struct emitter *e)
{
    enum type t = op_the_type(e);
    op_only(e, "lo hi sat");
    bool mad = op_is(e, "mad24");
    const char *cut = type_is_signed(t) ? "((s64)((s32)(%s << 8) >> 8))" : "((s64)(%s & 0xffffff))";
    char a[300], b[300];
    snprintf(a, sizeof a, cut, op_arg(e, 1, T_U32));
    snprintf(b, sizeof b, cut, op_arg(e, 2, T_U32));
    const char *x =
        emit_say(e, op_has(e, "hi") ? "(u32)((%s * %s) >> 16)" : "(u32)(%s * %s)", a, b);
    if (mad && op_has(e, "sat"))
        emit_unsupported(e);
    op_result(e, T_U32, mad ? emit_say(e, "%s + %s", x, op_arg(e, 3, T_U32)) : x);
}

void emit_fma(struct emitter *e)
{
    enum type t = op_the_type(e);
    if (type_is_16(t)) {
        emit_small(e, t, "fma", 3);
        return;
    }
    op_only(e, "ftz sat rz rm rp rn");
    const char *a = op_float_arg(e, 1, t), *b = op_float_arg(e, 2, t), *c = op_float_arg(e, 3, t),
               *mode = op_rounding(e);
    const char *x =
        mode ? emit_say(e, "rnd_fma_%s(%s, %s, %s, %s)", t == T_F32 ? "f32" : "f64", mode, a, b, c)
             : emit_say(e, "%s(%s, %s, %s)", t == T_F32 ? "fmaf" : "fma", a, b, c);
    op_result(e, t, op_finish(e, t, x));
}

void emit_mad(struct emitter *e)
{
    enum type t = op_the_type(e), p;
    bool carry_in = op_is(e, "madc");
    if (type_is_float(t) || type_is_16(t)) {
        emit_fma(e); /* PTX ISA: mad.f32 for sm_20 and later is fma */
        return;
    }
    op_only(e, "lo hi wide cc sat");
    const char *x = product(e, t, &p);
    if (op_has(e, "sat")) {
        if (t != T_S32 || !op_has(e, "hi"))
            emit_unsupported(e);
        op_result(e, t, emit_say(e, "clamp_s32((s64)(s32)%s + (s64)%s)", x, op_arg(e, 3, t)));
    } else if (carry_in || op_has(e, "cc")) {
        enum type u = type_unsigned(t);
        emit_put(e, "{ %s a = %s, b = %s, s; u32 c0 = %s, k1, k2;", type_c(u), x, op_arg(e, 3, u),
                 carry_in ? "CF" : "0");
        emit_put(
            e,
            " k1 = __builtin_add_overflow(a, b, &s); k2 = __builtin_add_overflow(s, (%s)c0, &s);",
            type_c(u));
        emit_put(e, op_has(e, "cc") ? " CF = k1 | k2;" : " (void)k1; (void)k2;");
        op_result(e, u, "s");
        emit_put(e, " }\n");
    } else {
        op_result(e, p, emit_say(e, "(%s)(%s + %s)", type_c(p), x, op_arg(e, 3, p)));
    }
}

void emit_div_rem(struct emitter *e)
{
    const char *op = e->i->part[0];
    enum type t = op_the_type(e);
    if (type_is_float(t)) {
        emit_float_binary(e, t, op);
        return;
    }
    op_only(e, "");
    op_result(e, t,
              emit_say(e, "%s_%c%u(%s, %s)", op, type_is_signed(t) ? 's' : 'u', type_bytes(t) * 8,
                       op_arg(e, 1, t), op_arg(e, 2, t)));
}

void emit_min_max(struct emitter *e)
{
    const char *op = e->i->part[0];
    enum type t = op_the_type(e);
    if (type_is_16(t)) {
        emit_small(e, t, op, 2);
    } else if (type_is_float(t)) {
        op_only(e, "ftz NaN");
        const char *x =
            emit_say(e, "%s%s_%s(%s, %s)", op, op_has(e, "NaN") ? "nan" : "",
                     t == T_F32 ? "f32" : "f64", op_float_arg(e, 1, t), op_float_arg(e, 2, t));
        if (e->i->n_operands > 3)
            x = emit_say(e, "%s%s_%s(%s, %s)", op, op_has(e, "NaN") ? "nan" : "",
                         t == T_F32 ? "f32" : "f64", x, op_float_arg(e, 3, t));
        op_result(e, t, x);
    } else {
        op_only(e, "relu");
        const char *a = op_arg(e, 1, t), *b = op_arg(e, 2, t);
        const char *x = emit_say(e, "(%s %s %s ? %s : %s)", a, op[1] == 'i' ? "<" : ">", b, a, b);
        op_result(e, t, op_has(e, "relu") ? emit_say(e, "(%s > 0 ? %s : 0)", x, x) : x);
    }
}

void emit_neg_abs(struct emitter *e)
{
    const char *op = e->i->part[0];
    enum type t = op_the_type(e);
    if (type_is_16(t)) {
        emit_small(e, t, op, 1);
    } else if (type_is_float(t)) {
        op_only(e, "ftz");
        const char *x = op_arg(e, 1, t);
        if (op_has(e, "ftz") && t == T_F32)
            x = emit_say(e, "ftz(%s)", x);
        op_result(e, t,
                  op[0] == 'n' ? emit_say(e, "(-%s)", x)
                               : emit_say(e, t == T_F32 ? "fabsf(%s)" : "fabs(%s)", x));
    } else if (op[0] == 'n') {
        op_only(e, "");
        enum type u = type_unsigned(t);
        op_result(e, u, emit_say(e, "(%s)(0 - %s)", type_c(u), op_arg(e, 1, u)));
    } else {
        op_only(e, "");
        op_result(e, type_unsigned(t),
                  emit_say(e, "abs_s%u(%s)", type_bytes(t) * 8, op_arg(e, 1, t)));
    }
}

void emit_unary_float(struct emitter *e)
{
    static const struct {
        const char *op, *f32, *f64;
    } table[] = {
        { "rcp", "1.0f / %s", "1.0 / %s" },
        { "sqrt", "sqrtf(%s)", "sqrt(%s)" },
        { "rsqrt", "(float)(1.0 / sqrt((double)%s))", "1.0 / sqrt(%s)" },
        { "ex2", "exp2f(%s)", NULL },
        { "lg2", "log2f(%s)", NULL },
        { "sin", "sinf(%s)", NULL },
        { "cos", "cosf(%s)", NULL },
        { "tanh", "tanhf(%s)", NULL },
    };
    enum type t = op_the_type(e);
    if (type_is_16(t)) {
        emit_small(e, t, e->i->part[0], 1);
        return;
    }
    op_only(e, "ftz rz rm rp rn");
    const char *mode = op_rounding(e), *name = t == T_F32 ? "f32" : "f64";
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        if (!op_is(e, table[k].op))
            continue;
        const char *x = op_float_arg(e, 1, t), *fmt = t == T_F32 ? table[k].f32 : table[k].f64;
        if (!fmt || !type_is_float(t))
            emit_unsupported(e);
        if (mode && op_is(e, "rcp"))
            x = emit_say(e, "rnd_div_%s(%s, 1, %s, 0)", name, mode, x);
        else if (mode && op_is(e, "sqrt"))
            x = emit_say(e, "rnd_sqrt_%s(%s, %s, 0, 0)", name, mode, x);
        else {
            char *text = (char *)emit_say(e, "%*s", (int)(strlen(x) + strlen(fmt) + 1), "");
            const char *hole = strstr(fmt, "%s");
            sprintf(text, "%.*s%s%s", (int)(hole - fmt), fmt, x, hole + 2);
            x = emit_say(e, "(%s)", text);
        }
        op_result(e, t, op_finish(e, t, x));
        return;
    }
    emit_unsupported(e);
}

void emit_testp_copysign(struct emitter *e)
{
    enum type t = op_the_type(e);
    if (op_is(e, "copysign")) {
        op_only(e, "");
        /* PTX: the sign of a goes on b */
        op_result(e, t,
                  emit_say(e, t == T_F32 ? "copysignf(%s, %s)" : "copysign(%s, %s)",
                           op_arg(e, 2, t), op_arg(e, 1, t)));
        return;
    }
    op_only(e, "finite infinite number notanumber normal subnormal");
    const char *x = op_arg(e, 1, t);
    const char *fmt = op_has(e, "finite")       ? "isfinite(%s)"
                      : op_has(e, "infinite")   ? "isinf(%s)"
                      : op_has(e, "number")     ? "!isnan(%s)"
                      : op_has(e, "notanumber") ? "isnan(%s)"
                      : op_has(e, "normal")     ? "isnormal(%s)"
                                                : "(fpclassify(%s) == FP_SUBNORMAL)";
    char text[400];
    snprintf(text, sizeof text, fmt, x);
    op_result(e, T_PRED, emit_say(e, "%s", text));
}
