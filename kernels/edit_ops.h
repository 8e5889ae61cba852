/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each operation of <dmi/edit.h> does to an element of a row or of a head of it, one after the other.
 *
 * The operations of an edit follow one another on each element without memory in between, as the results of those before are
 * computed again where a sum needs them: so wide rows need no room. A result is rounded to the tensor's type after each operation
 * that PyTorch would round after; products and sums are not contracted.
 *
 * Device and host compile the same text, and get the same bits. How each of them loads, adds and deals out elements is in edit_device.cuh
 * and edit_here.h.
 */
#pragma once

#ifdef __CUDACC__
#include "kernels/edit_device.cuh"
#else
#include "kernels/edit_here.h"
#endif

#include <dmi/dtype.h>
#include <dmi/edit.h>

/* ------------------------------------------------------------------------- values */

/* The number of these bits of a bf16. */
DMI_SHARED float bf16_value(dmi_u32 bits)
{
    return float_of(bits << 16);
}

/* To the nearest, of two the even one. */
DMI_SHARED dmi_u32 bf16_bits(float v)
{
    dmi_u32 u = bits_of(v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0;
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

/* An element. */
DMI_SHARED float load(dmi_u32 dtype, const char *at)
{
    if (dtype == DMI_DTYPE_F32)
        return float_of(load_word(at));
    return dtype == DMI_DTYPE_BF16 ? bf16_value(load_half(at)) : f16_value(load_half(at));
}

/* Leaves an element, rounded to its type. */
DMI_SHARED void store(dmi_u32 dtype, char *at, float v)
{
    if (dtype == DMI_DTYPE_F32)
        store_word(at, bits_of(v));
    else
        store_half(at, dtype == DMI_DTYPE_BF16 ? bf16_bits(v) : f16_bits(v));
}

/* As it would be after a store. */
DMI_SHARED float stored(dmi_u32 dtype, float v)
{
    if (dtype == DMI_DTYPE_F32)
        return v;
    return dtype == DMI_DTYPE_BF16 ? bf16_value(bf16_bits(v)) : f16_value(f16_bits(v));
}

/* ------------------------------------------------------------------------- elements of a row */

/* One row, or a head of it, under one edit. */
struct edited_row {
    const struct dmi_edit *e;
    const struct dmi_edit_part *part;
    const struct dmi_edit_op *ops;
    const float *coefficients;
    dmi_u32 vector_row;   /* of vectors that have several */
    const dmi_u32 *cells; /* of a row of the bank, one a chunk */
    const char *region;
    struct dmi_edit_fit fit; /* of the row that is here */
    const dmi_u32 *columns;  /* NULL: all */
    dmi_u32 n;               /* elements that the edit takes */
    dmi_u32 width;           /* elements of the row or head */
    dmi_u32 first;           /* element of the row with which it begins */
    dmi_i64 row;             /* where the row lies, in bytes from the first */
    dmi_u32 idle;            /* a bit for each operation that leaves everything as it is */
};

/* Which element of the row or head the @i-th is that the edit takes. */
DMI_SHARED dmi_u32 column_of(const struct edited_row *s, dmi_u32 i)
{
    return s->columns ? s->columns[i] - s->fit.offset : i;
}

/* Where it lies, in bytes from the tensor's first. */
DMI_SHARED dmi_i64 place_of(const struct edited_row *s, dmi_u32 column)
{
    const struct dmi_gather *g = &s->e->gather;
    dmi_u32 size = s->e->dtype == DMI_DTYPE_F32 ? 4 : 2;
    dmi_u32 a_run = g->run_bytes / size, element = s->first + column;
    dmi_u32 run = element / a_run;
    dmi_i64 at = s->row + (dmi_i64)(element - run * a_run) * size;
    if (!run)
        return at;
    at += run % g->count[3] * g->stride[3];
    run /= g->count[3];
    at += run % g->count[2] * g->stride[2];
    run /= g->count[2];
    return at + run * g->stride[1];
}

/* The value that edits work on. With a second tensor it is the sum, which no memory holds. */
DMI_SHARED float value_at(const struct edited_row *s, dmi_i64 at)
{
    const struct dmi_edit *e = s->e;
    float x = load(e->dtype, (const char *)e->gather.src + at);
    if (e->scale != 1.0f)
        x = div_rn(x, e->scale);
    return e->plus ? add_rn(x, load(e->dtype, (const char *)e->plus + at)) : x;
}

/* A result as the tensor can hold it; sums with a second tensor are rounded once, at the end. */
DMI_SHARED float rounded(const struct edited_row *s, float v)
{
    const struct dmi_edit *e = s->e;
    if (e->plus || e->dtype == DMI_DTYPE_F32)
        return v;
    if (e->scale == 1.0f)
        return stored(e->dtype, v);
    return div_rn(stored(e->dtype, mul_rn(v, e->scale)), e->scale);
}

/* Stores a result: the true value, of a second tensor's sum. */
DMI_SHARED void put(const struct edited_row *s, dmi_i64 at, float v)
{
    const struct dmi_edit *e = s->e;
    if (e->plus)
        v = sub_rn(v, load(e->dtype, (const char *)e->plus + at));
    store(e->dtype, (char *)e->gather.src + at, e->scale == 1.0f ? v : mul_rn(v, e->scale));
}

/* ------------------------------------------------------------------------- what they read */

/* The numbers that a cell of the bank holds. */
DMI_SHARED float *numbers_of(const struct dmi_edit *e, dmi_u32 cell)
{
    return (float *)(e->bank + (dmi_u64)e->n_cells * sizeof(struct dmi_bank_entry) +
                     (dmi_u64)cell * DMI_BANK_CELL_BYTES);
}

/*
 * The number of a vector for the @i-th element that the edit takes: vectors are as long as the row on all ranks, or as what the edit takes of it
 * or of a head. Rows of the bank are as long as what is here.
 */
DMI_SHARED float number_at(const struct edited_row *s, const struct dmi_edit_op *op, dmi_u32 vector,
                           dmi_u32 i)
{
    const float *v = (const float *)(s->region + (dmi_u64)vector * DMI_EDIT_ALIGN);
    if (!vector) {
        dmi_u32 element = s->first + column_of(s, i);
        if (!s->cells)
            return 0.0f;
        return numbers_of(s->e, s->cells[element / DMI_BANK_CELL])[element % DMI_BANK_CELL];
    }
    if (op->n_rows > 1)
        v += (dmi_u64)s->vector_row * op->n_vector;
    if (op->n_vector == s->fit.whole)
        return v[s->fit.offset + s->first + column_of(s, i)];
    return v[s->columns ? s->fit.first + i : i];
}

/* The number of the operation's own vector. */
DMI_SHARED float number_of(const struct edited_row *s, const struct dmi_edit_op *op, dmi_u32 i)
{
    return number_at(s, op, op->vector, i);
}

/* ------------------------------------------------------------------------- operations */

/* Does the operation leave everything as it is? Then nothing is written for it, not even what x + 0 would change. */
DMI_SHARED bool is_idle(const struct dmi_edit_op *op, float c)
{
    dmi_u32 traits = dmi_edit_traits(op->kind);
    return op->kind >= DMI_EDIT_KINDS || traits & DMI_EDIT_SAVES ||
           (traits & DMI_EDIT_IDLE_AT_0 && c == 0.0f) || (traits & DMI_EDIT_IDLE_AT_1 && c == 1.0f);
}

/* NaN stays NaN. */
DMI_SHARED float clamped(float x, float low, float high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* An operation on the @i-th element. @step: of one with a sum, what that says. */
#define ON_ELEMENT                                                                                 \
    const struct edited_row *s, const struct dmi_edit_op *op, float c, float step, dmi_u32 i,      \
        float x

/* x + c v */
DMI_SHARED float do_add(ON_ELEMENT)
{
    float v = rounded(s, number_of(s, op, i));
    return rounded(s, add_rn(x, rounded(s, mul_rn(v, c))));
}

/* c x */
DMI_SHARED float do_scale(ON_ELEMENT)
{
    return rounded(s, mul_rn(x, c));
}

/* v, or a */
DMI_SHARED float do_set(ON_ELEMENT)
{
    return rounded(s, op->vector ? number_of(s, op, i) : op->a);
}

/* 0 */
DMI_SHARED float do_zero(ON_ELEMENT)
{
    return 0.0f;
}

/* x within [a, b] */
DMI_SHARED float do_clamp(ON_ELEMENT)
{
    return clamped(x, rounded(s, op->a), rounded(s, op->b));
}

/* Along its vector, as far as the step says. */
DMI_SHARED float do_project_out(ON_ELEMENT)
{
    return rounded(s, add_rn(x, mul_rn(step, number_of(s, op, i))));
}

/* As do_project_out(). */
DMI_SHARED float do_adjust_rs(ON_ELEMENT)
{
    return do_project_out(s, op, c, step, i, x);
}

/* As do_project_out(). */
DMI_SHARED float do_limit_along(ON_ELEMENT)
{
    return do_project_out(s, op, c, step, i, x);
}

/* x times what the step says */
DMI_SHARED float do_keep_norm(ON_ELEMENT)
{
    return rounded(s, mul_rn(x, step));
}

/* (1 - c) x + c v */
DMI_SHARED float do_patch(ON_ELEMENT)
{
    float v = rounded(s, number_of(s, op, i));
    if (c == 1.0f) /* x may be an infinity */
        return v;
    return rounded(s, add_rn(rounded(s, mul_rn(x, sub_rn(1.0f, c))), rounded(s, mul_rn(v, c))));
}

/* Rounded with those that follow it. x + 0 would change -0.0. */
DMI_SHARED float do_feature(ON_ELEMENT)
{
    return step == 0.0f ? x : add_rn(x, mul_rn(step, number_of(s, op, i)));
}

/* x */
DMI_SHARED float do_save(ON_ELEMENT)
{
    return x;
}

/* An operation of any kind. */
DMI_SHARED float applied(const struct edited_row *s, const struct dmi_edit_op *op, float c,
                         float step, dmi_u32 i, float x)
{
    switch (op->kind) {
#define OP(NAME, word, traits)                                                                     \
    case DMI_EDIT_##NAME: return do_##word(s, op, c, step, i, x);
        DMI_EDIT_OPS(OP)
#undef OP
    default: return x;
    }
}

/* What the element's value is multiplied with in an operation's sum. */
DMI_SHARED float factor_of(const struct edited_row *s, const struct dmi_edit_op *op, dmi_u32 i,
                           float x)
{
    switch (op->kind) {
    case DMI_EDIT_KEEP_NORM: return x;
    case DMI_EDIT_FEATURE: return number_at(s, op, op->encoder, i);
    default: return number_of(s, op, i);
    }
}

/* The step that its sum says. @before: the sum of squares before the edit. */
DMI_SHARED float step_of(const struct dmi_edit_op *op, float c, float sum, float before)
{
    switch (op->kind) {
    case DMI_EDIT_PROJECT_OUT: return -mul_rn(c, sum);
    case DMI_EDIT_ADJUST: return sub_rn(op->a, sum);
    case DMI_EDIT_LIMIT: return mul_rn(c, sub_rn(clamped(sum, op->a, op->b), sum));
    case DMI_EDIT_KEEP_NORM: return sum > 0.0f ? sqrt_rn(div_rn(before, sum)) : 1.0f;
    case DMI_EDIT_FEATURE: {
        float f = add_rn(sum, op->a);
        return sub_rn(c, f > op->b ? f : 0.0f);
    }
    default: return 0.0f;
    }
}

/* Is operation number @k one of several that see the same row, and not the last of them? */
DMI_SHARED bool is_followed(const struct edited_row *s, dmi_u32 k)
{
    const struct dmi_edit_op *op = &s->ops[k];
    return dmi_edit_traits(op->kind) & DMI_EDIT_TOGETHER && k + 1 < s->part->n_ops &&
           op[1].kind == op->kind;
}

/* The first @n operations on the @i-th element. @steps: of those with sums. */
DMI_SHARED float after(const struct edited_row *s, dmi_u32 n, const float *steps, dmi_u32 i,
                       float x)
{
    bool loose = false; /* operations that follow one another are rounded together */
    for (dmi_u32 k = 0; k < n; k++) {
        bool together = dmi_edit_traits(s->ops[k].kind) & DMI_EDIT_TOGETHER;
        if (!(s->idle >> k & 1u))
            x = applied(s, &s->ops[k], s->coefficients[k], steps[k], i, x);
        loose = loose || (together && steps[k] != 0.0f);
        if (!loose || (k + 1 < n && is_followed(s, k)))
            continue;
        x = rounded(s, x);
        loose = false;
    }
    return x;
}
