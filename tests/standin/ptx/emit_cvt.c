/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between types. */
#include "emit.h"

#include <string.h>

static const char *int_name(struct emitter *e, enum type t)
{
    return emit_say(e, "%c%u", type_is_signed(t) ? 's' : 'u', type_bytes(t) * 8);
}

static const char *to_double(struct emitter *e, enum type s, const char *x)
{
    return type_is_small(s) ? emit_say(e, "(double)%s", small_widen(e, s, x))
                            : emit_say(e, "(double)%s", x);
}

static void cvt_to_int(struct emitter *e, enum type d, enum type s)
{
    const char *x = type_is_small(s) ? op_arg(e, 1, T_B16) : op_float_arg(e, 1, s);
    const char *round = op_has(e, "rni")   ? "nearbyint"
                        : op_has(e, "rmi") ? "floor"
                        : op_has(e, "rpi") ? "ceil"
                                           : "trunc";
    /* PTX ISA, cvt: NaN is 0, but 1 << (bits - 1) where either type has 64 bits */
    const char *nan = s == T_F64 || type_bytes(d) == 8
                          ? emit_say(e, "(%s)(1ull << %u)", type_c(d), type_bytes(d) * 8 - 1)
                          : "0";
    op_result(e, d,
              emit_say(e, "f64_to_%s(%s(%s), %s)", int_name(e, d), round, to_double(e, s, x), nan));
}

static void cvt_int_to_int(struct emitter *e, enum type d, enum type s)
{
    const char *x = op_arg(e, 1, s);
    if (op_has(e, "sat")) {
        /* through 128 bits both ranges fit */
        unsigned n = type_bytes(d) * 8;
        const char *low = type_is_signed(d) ? emit_say(e, "-((s128)1 << %u)", n - 1) : "(s128)0";
        const char *high = emit_say(e, "(((s128)1 << %u) - 1)", type_is_signed(d) ? n - 1 : n);
        emit_put(e, "{ s128 v = (s128)%s; v = v < %s ? %s : v > %s ? %s : v;", x, low, low, high,
                 high);
        op_result(e, d, emit_say(e, "(%s)v", type_c(d)));
        emit_put(e, " }\n");
        return;
    }
    op_result(e, d, emit_say(e, "(%s)%s", type_c(d), x));
}

/* cvt.rn.f16x2.f32 d, a, b: a goes to the upper half */
static void cvt_pair(struct emitter *e, enum type d)
{
    const char *fn = d == T_F16X2      ? (op_has(e, "rz") ? "f2h_rz" : "f2h")
                     : op_has(e, "rz") ? "f2bf_rz"
                                       : "f2bf";
    const char *a = op_arg(e, 1, T_F32), *b = op_arg(e, 2, T_F32);
    if (op_has(e, "relu")) {
        a = emit_say(e, "max_f32(%s, 0.0f)", a);
        b = emit_say(e, "max_f32(%s, 0.0f)", b);
    }
    op_result(e, T_B32, emit_say(e, "(u32)%s(%s) << 16 | %s(%s)", fn, a, fn, b));
}

static void cvt_to_float(struct emitter *e, enum type d, enum type s)
{
    const char *mode = op_rounding(e), *x;
    bool from_int = !type_is_float(s) && !type_is_small(s);
    if (from_int) {
        const char *v = op_arg(e, 1, s), *wide = type_is_signed(s) ? "s64" : "u64";
        if (d == T_F16 || d == T_BF16)
            x = emit_say(e, type_bytes(s) == 8 ? "sticky_%s(%s)" : "(double)%.0s%s", wide, v);
        else if (mode)
            x = emit_say(e, "rnd_%s_%s(%s, (%s)%s)", wide, d == T_F32 ? "f32" : "f64", mode, wide,
                         v);
        else
            x = emit_say(e, "(%s)%s", type_c(d), v);
    } else {
        x = type_is_small(s) ? small_widen(e, s, op_arg(e, 1, T_B16)) : op_float_arg(e, 1, s);
        if (d == s || type_is_small(s) || d == T_F64) {
            const char *round = op_has(e, "rni")   ? "nearbyint"
                                : op_has(e, "rmi") ? "floor"
                                : op_has(e, "rpi") ? "ceil"
                                : op_has(e, "rzi") ? "trunc"
                                                   : NULL;
            if (round)
                x = emit_say(e, "%s((double)%s)", round, x);
        }
        if (d == T_F32 && s == T_F64)
            x = mode ? emit_say(e, "rnd_f64_f32(%s, %s)", mode, x) : emit_say(e, "(float)%s", x);
    }
    if (d == T_F16 || d == T_BF16) {
        if (op_has(e, "relu"))
            x = emit_say(e, "max_f64(%s, 0.0)", x);
        if (op_has(e, "sat"))
            x = emit_say(e, "satd(%s)", x);
        if (mode && d == T_BF16 && !(op_has(e, "rz") && s == T_F32))
            emit_unsupported(e);
        op_result(e, T_B16,
                  d == T_BF16 ? emit_say(e, mode ? "f2bf_rz(%s)" : "d2bf(%s)", x)
                  : mode      ? emit_say(e, "d2h_to(%s, %s)", mode, x)
                              : emit_say(e, "d2h(%s)", x));
        return;
    }
    op_result(e, d, op_finish(e, d, emit_say(e, "(%s)%s", type_c(d), x)));
}

/* cvt.rna.tf32.f32: 32 bits, of which the last 13 are 0 */
static void cvt_tf32(struct emitter *e)
{
    op_only(e, "tf32 rna rn rz");
    if (e->i->n_parts != 4 || strcmp(e->i->part[2], "tf32") || strcmp(e->i->part[3], "f32"))
        emit_unsupported(e);
    op_result(e, T_B32,
              emit_say(e, "f2tf(%s, %d)", op_arg(e, 1, T_F32),
                       op_has(e, "rna")  ? 0
                       : op_has(e, "rn") ? 1
                                         : 2));
}

void emit_cvt(struct emitter *e)
{
    if (op_has(e, "tf32")) {
        cvt_tf32(e);
        return;
    }
    enum type d = op_type(e, 0), s = op_type(e, 1);
    op_only(e, "rni rzi rmi rpi rz rm rp rn ftz sat relu pack");
    if (s == T_NONE || op_has(e, "pack"))
        emit_unsupported(e);
    if (type_is_pair(d)) {
        if (s != T_F32)
            emit_unsupported(e);
        cvt_pair(e, d);
        return;
    }
    bool to_float = type_is_float(d) || type_is_small(d),
         from_float = type_is_float(s) || type_is_small(s);
    if (type_is_pair(s))
        emit_unsupported(e);
    if (to_float)
        cvt_to_float(e, d, s);
    else if (from_float)
        cvt_to_int(e, d, s);
    else
        cvt_int_to_int(e, d, s);
}
