/* SPDX-License-Identifier: Apache-2.0 */
/* Bits, comparisons and selection. */
#include "emit.h"

#include <string.h>

void emit_logic(struct emitter *e)
{
    const char *op = e->i->part[0];
    enum type t = op_the_type(e);
    op_only(e, "");
    const char *a = op_arg(e, 1, t);
    if (!strcmp(op, "not"))
        op_result(e, t, t == T_PRED ? emit_say(e, "!%s", a) : emit_say(e, "(%s)~%s", type_c(t), a));
    else if (!strcmp(op, "cnot"))
        op_result(e, t, emit_say(e, "(%s)(%s == 0)", type_c(t), a));
    else
        op_result(e, t,
                  emit_say(e, "(%s)(%s %s %s)", type_c(t), a,
                           op[0] == 'a'   ? "&"
                           : op[0] == 'o' ? "|"
                                          : "^",
                           op_arg(e, 2, t)));
}

void emit_shift(struct emitter *e)
{
    enum type t = op_the_type(e);
    bool arithmetic = type_is_signed(t) && op_is(e, "shr");
    op_only(e, "");
    enum type u = arithmetic ? t : type_unsigned(t);
    op_result(e, u,
              emit_say(e, "%s_%s%u(%s, %s)", e->i->part[0],
                       op_is(e, "shl") ? "b"
                       : arithmetic    ? "s"
                                       : "u",
                       type_bytes(t) * 8, op_arg(e, 1, u), op_arg(e, 2, T_U32)));
}

void emit_bits(struct emitter *e)
{
    enum type t = op_type(e, 0);
    unsigned n = type_bytes(t) * 8;
    op_only(e, "shiftamt l r clamp wrap f4e b4e rc8 ecl ecr rc16 lo hi");
    if (op_is(e, "popc") || op_is(e, "clz"))
        op_result(e, T_U32, emit_say(e, "%s%u(%s)", e->i->part[0], n, op_arg(e, 1, t)));
    else if (op_is(e, "brev"))
        op_result(e, t, emit_say(e, "brev%u(%s)", n, op_arg(e, 1, t)));
    else if (op_is(e, "bfind")) {
        const char *a = op_arg(e, 1, t);
        const char *x = type_is_signed(t) ? emit_say(e, "(u%u)(%s < 0 ? ~%s : %s)", n, a, a, a) : a;
        op_result(e, T_U32, emit_say(e, "bfind(%s, %u, %d)", x, n, op_has(e, "shiftamt")));
    } else if (op_is(e, "bfe"))
        op_result(e, type_unsigned(t),
                  emit_say(e, "(u%u)bfe_%c(%s, %s, %s, %u)", n, type_is_signed(t) ? 's' : 'u',
                           op_arg(e, 1, type_unsigned(t)), op_arg(e, 2, T_U32), op_arg(e, 3, T_U32),
                           n));
    else if (op_is(e, "bfi"))
        op_result(e, t,
                  emit_say(e, "(u%u)bfi(%s, %s, %s, %s, %u)", n, op_arg(e, 1, t), op_arg(e, 2, t),
                           op_arg(e, 3, T_U32), op_arg(e, 4, T_U32), n));
    else if (op_is(e, "bmsk"))
        op_result(e, T_U32,
                  emit_say(e, "bmsk(%s, %s, %d)", op_arg(e, 1, T_U32), op_arg(e, 2, T_U32),
                           op_has(e, "wrap")));
    else if (op_is(e, "prmt"))
        op_result(e, T_U32,
                  emit_say(e, "prmt(%s, %s, %s, %d)", op_arg(e, 1, T_U32), op_arg(e, 2, T_U32),
                           op_arg(e, 3, T_U32),
                           op_has(e, "f4e")    ? 1
                           : op_has(e, "b4e")  ? 2
                           : op_has(e, "rc8")  ? 3
                           : op_has(e, "ecl")  ? 4
                           : op_has(e, "ecr")  ? 5
                           : op_has(e, "rc16") ? 6
                                               : 0));
    else if (op_is(e, "lop3"))
        op_result(e, T_U32,
                  emit_say(e, "lop3(%s, %s, %s, %s)", op_arg(e, 1, T_U32), op_arg(e, 2, T_U32),
                           op_arg(e, 3, T_U32), op_arg(e, 4, T_U32)));
    else if (op_is(e, "shf"))
        op_result(e, T_U32,
                  emit_say(e, "shf_%s(%s, %s, %s, %d)", op_has(e, "l") ? "l" : "r",
                           op_arg(e, 1, T_U32), op_arg(e, 2, T_U32), op_arg(e, 3, T_U32),
                           op_has(e, "wrap")));
    else if (op_is(e, "dp4a"))
        op_result(e, T_U32,
                  emit_say(e, "dp4a(%s, %s, %s, %d, %d)", op_arg(e, 1, T_U32), op_arg(e, 2, T_U32),
                           op_arg(e, 3, T_U32), type_is_signed(op_type(e, 0)),
                           type_is_signed(op_type(e, 1))));
    else if (op_is(e, "dp2a"))
        op_result(e, T_U32,
                  emit_say(e, "dp2a(%s, %s, %s, %d, %d, %d)", op_arg(e, 1, T_U32),
                           op_arg(e, 2, T_U32), op_arg(e, 3, T_U32), type_is_signed(op_type(e, 0)),
                           type_is_signed(op_type(e, 1)), op_has(e, "hi")));
    else if (op_is(e, "sad"))
        op_result(e, type_unsigned(t),
                  emit_say(e, "sad_%c%u(%s, %s, %s)", type_is_signed(t) ? 's' : 'u', n,
                           op_arg(e, 1, t), op_arg(e, 2, t), op_arg(e, 3, type_unsigned(t))));
    else
        emit_unsupported(e);
}

/* ------------------------------------------------------------------------- comparison */

static const char *comparison(struct emitter *e, const char *cmp, enum type t, const char *a,
                              const char *b)
{
    static const struct {
        const char *name, *op;
        bool unordered;
    } table[] = {
        { "eq", "==", false }, { "ne", "!=", false }, { "lt", "<", false },  { "le", "<=", false },
        { "gt", ">", false },  { "ge", ">=", false }, { "lo", "<", false },  { "ls", "<=", false },
        { "hi", ">", false },  { "hs", ">=", false }, { "equ", "==", true }, { "neu", "!=", true },
        { "ltu", "<", true },  { "leu", "<=", true }, { "gtu", ">", true },  { "geu", ">=", true },
    };
    bool floating = type_is_float(t);
    if (!strcmp(cmp, "num"))
        return emit_say(e, "(%s == %s && %s == %s)", a, a, b, b);
    if (!strcmp(cmp, "nan"))
        return emit_say(e, "(%s != %s || %s != %s)", a, a, b, b);
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        if (strcmp(table[k].name, cmp))
            continue;
        const char *x = emit_say(e, "(%s %s %s)", a, table[k].op, b);
        if (floating && table[k].unordered)
            return emit_say(e, "(%s || %s != %s || %s != %s)", x, a, a, b, b);
        if (floating && !strcmp(cmp, "ne"))
            return emit_say(e, "(%s && %s == %s && %s == %s)", x, a, a, b, b);
        return x;
    }
    emit_unsupported(e);
}

static const char *comparison_name(struct emitter *e)
{
    static const char *const names[] = { "eq",  "ne",  "lt",  "le",  "gt",  "ge",
                                         "lo",  "ls",  "hi",  "hs",  "equ", "neu",
                                         "ltu", "leu", "gtu", "geu", "num", "nan" };
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        if (op_has(e, names[k]))
            return names[k];
    emit_unsupported(e);
}

/* f16 and bf16 bit patterns compare as f32: exact. */
static const char *compare_small(struct emitter *e, enum type t, const char *a, const char *b)
{
    bool flush = op_has(e, "ftz") && (t == T_F16 || t == T_F16X2);
    return comparison(e, comparison_name(e), T_F32,
                      small_widen(e, t, flush ? emit_say(e, "hftz(%s)", a) : a),
                      small_widen(e, t, flush ? emit_say(e, "hftz(%s)", b) : b));
}

/* Half @k of a packed pair */
static const char *half_of(struct emitter *e, unsigned n, unsigned k)
{
    return emit_say(e, "(u16)(%s >> %u)", op_arg(e, n, T_B32), 16 * k);
}

static const char *compare(struct emitter *e, enum type t, unsigned first)
{
    const char *name = comparison_name(e);
    if (type_is_pair(t))
        emit_unsupported(e);
    if (type_is_small(t))
        return compare_small(e, t, op_arg(e, first, T_B16), op_arg(e, first + 1, T_B16));
    if (type_is_float(t))
        return comparison(e, name, t, op_float_arg(e, first, t), op_float_arg(e, first + 1, t));
    return comparison(e, name, t, op_arg(e, first, t), op_arg(e, first + 1, t));
}

static const char *boolean_operator(const struct emitter *e)
{
    return op_has(e, "and") ? "&" : op_has(e, "or") ? "|" : "^";
}

/* setp on pairs: p is what the lower halves say, q the upper */
static void emit_setp_pair(struct emitter *e, enum type t)
{
    const struct operand *dst = &e->i->operand[0];
    emit_put(e, "{ u8 lo = %s, hi = %s;", compare_small(e, t, half_of(e, 1, 0), half_of(e, 2, 0)),
             compare_small(e, t, half_of(e, 1, 1), half_of(e, 2, 1)));
    if (e->i->n_operands > 3)
        emit_put(e, " u8 c = %s; lo = lo %s c; hi = hi %s c;", op_arg(e, 3, T_PRED),
                 boolean_operator(e), boolean_operator(e));
    operand_write(e, dst, T_PRED, "lo");
    if (dst->other)
        emit_put(e, " r%u = hi;", dst->other->index);
    emit_put(e, " }\n");
}

void emit_setp(struct emitter *e)
{
    op_only(e, "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz");
    enum type t = op_the_type(e);
    const struct operand *dst = &e->i->operand[0];
    if (type_is_pair(t)) {
        emit_setp_pair(e, t);
        return;
    }
    emit_put(e, "{ u8 q = %s;", compare(e, t, 1));
    const char *p = "q", *not_p = "!q";
    if (e->i->n_operands > 3) {
        const char *op = boolean_operator(e);
        emit_put(e, " u8 c = %s;", op_arg(e, 3, T_PRED));
        p = emit_say(e, "q %s c", op);
        not_p = emit_say(e, "!q %s c", op);
        emit_put(e, " u8 w = %s;", not_p);
        not_p = "w";
    }
    if (dst->other)
        emit_put(e, " u8 w2 = %s;", not_p);
    operand_write(e, dst, T_PRED, p);
    if (dst->other)
        emit_put(e, " r%u = w2;", dst->other->index);
    emit_put(e, " }\n");
}

/* set on pairs: each half all ones, or 1.0 */
static void emit_set_pair(struct emitter *e, enum type d, enum type s)
{
    unsigned one = d == T_F16X2 ? 0x3c00 : d == T_BF16X2 ? 0x3f80 : 0xffff;
    emit_put(e, "{ u8 c = %s; (void)c; u32 v = 0;",
             e->i->n_operands > 3 ? op_arg(e, 3, T_PRED) : "0");
    for (unsigned k = 0; k < 2; k++) {
        const char *x = compare_small(e, s, half_of(e, 1, k), half_of(e, 2, k));
        if (e->i->n_operands > 3)
            x = emit_say(e, "(%s %s c)", x, boolean_operator(e));
        emit_put(e, " if (%s) v |= 0x%xu;", x, one << (16 * k));
    }
    op_result(e, T_B32, "v");
    emit_put(e, " }\n");
}

void emit_set(struct emitter *e)
{
    op_only(e, "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz");
    enum type d = op_type(e, 0), s = op_type(e, 1);
    if (s == T_NONE)
        emit_unsupported(e);
    if (type_is_pair(s)) {
        emit_set_pair(e, d, s);
        return;
    }
    const char *x = compare(e, s, 1);
    if (e->i->n_operands > 3)
        x = emit_say(e, "(%s %s %s)", x, boolean_operator(e), op_arg(e, 3, T_PRED));
    const char *one = d == T_F32    ? "1.0f"
                      : d == T_F16  ? "0x3c00"
                      : d == T_BF16 ? "0x3f80"
                                    : emit_say(e, "(%s)-1", type_c(d));
    op_result(e, d, emit_say(e, "(%s ? %s : 0)", x, one));
}

void emit_select(struct emitter *e)
{
    enum type t = op_the_type(e);
    op_only(e, "ftz");
    if (op_is(e, "selp")) {
        op_result(
            e, t,
            emit_say(e, "(%s ? %s : %s)", op_arg(e, 3, T_PRED), op_arg(e, 1, t), op_arg(e, 2, t)));
        return;
    }
    enum type c = op_type(e, 1);
    if (c == T_F32)
        op_result(e, t,
                  emit_say(e, "(%s >= 0 ? %s : %s)", op_float_arg(e, 3, T_F32), op_arg(e, 1, t),
                           op_arg(e, 2, t)));
    else
        op_result(e, t,
                  emit_say(e, "(%s >= 0 ? %s : %s)", op_arg(e, 3, T_S32), op_arg(e, 1, t),
                           op_arg(e, 2, t)));
}
