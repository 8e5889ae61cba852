/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each operation of <dmi/edit.h> does to an element of a row or of a head of it, one after the other.
 *
 * The operations of an edit follow one another on each element without memory in between, as the results of those before are
 * computed again where a sum needs them: so wide rows need no room. A result is rounded to the tensor's type after each operation
 * that PyTorch would round after; products and sums are not contracted.
 */
#ifndef KERNELS_EDIT_OPS_CUH
#define KERNELS_EDIT_OPS_CUH

#include "kernels/gather.cuh"

#include <dmi/edit.h>

#define THREADS 256u /* of a block; the order of sums depends on it */

/* ------------------------------------------------------------------------- values */

static __device__ __forceinline__ float bf16_value(unsigned short bits)
{
    return __uint_as_float((dmi_u32)bits << 16);
}

/* To the nearest, of two the even one. */
static __device__ __forceinline__ unsigned short bf16_bits(float v)
{
    dmi_u32 u = __float_as_uint(v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0;
    return (unsigned short)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static __device__ __forceinline__ float f16_value(unsigned short bits)
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
}

static __device__ __forceinline__ unsigned short f16_bits(float v)
{
    unsigned short bits;
    if ((__float_as_uint(v) & 0x7fffffffu) > 0x7f800000u)
        return 0x7e00;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}

static __device__ __forceinline__ float load(dmi_u32 dtype, const char *at)
{
    if (dtype == DMI_EDIT_F32)
        return *(const float *)at;
    unsigned short bits = *(const unsigned short *)at;
    return dtype == DMI_EDIT_BF16 ? bf16_value(bits) : f16_value(bits);
}

static __device__ __forceinline__ void store(dmi_u32 dtype, char *at, float v)
{
    if (dtype == DMI_EDIT_F32)
        *(float *)at = v;
    else
        *(unsigned short *)at = dtype == DMI_EDIT_BF16 ? bf16_bits(v) : f16_bits(v);
}

/* As it would be after a store. */
static __device__ __forceinline__ float stored(dmi_u32 dtype, float v)
{
    if (dtype == DMI_EDIT_F32)
        return v;
    return dtype == DMI_EDIT_BF16 ? bf16_value(bf16_bits(v)) : f16_value(f16_bits(v));
}

/* ------------------------------------------------------------------------- elements of a row */

#define NO_CELL 0xffffffffu

/* One row, or a head of it, under one edit. */
struct stretch {
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
static __device__ __forceinline__ dmi_u32 column_of(const struct stretch *s, dmi_u32 i)
{
    return s->columns ? s->columns[i] - s->fit.offset : i;
}

/* Where it lies, in bytes from the tensor's first. */
static __device__ __forceinline__ dmi_i64 place_of(const struct stretch *s, dmi_u32 column)
{
    const struct dmi_gather *g = &s->e->gather;
    dmi_u32 size = s->e->dtype == DMI_EDIT_F32 ? 4 : 2;
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
static __device__ __forceinline__ float value_at(const struct stretch *s, dmi_i64 at)
{
    const struct dmi_edit *e = s->e;
    float x = load(e->dtype, (const char *)e->gather.src + at);
    if (e->scale != 1.0f)
        x = __fdiv_rn(x, e->scale);
    return e->plus ? __fadd_rn(x, load(e->dtype, (const char *)e->plus + at)) : x;
}

/* A result as the tensor can hold it; sums with a second tensor are rounded once, at the end. */
static __device__ __forceinline__ float rounded(const struct stretch *s, float v)
{
    const struct dmi_edit *e = s->e;
    if (e->plus || e->dtype == DMI_EDIT_F32)
        return v;
    if (e->scale == 1.0f)
        return stored(e->dtype, v);
    return __fdiv_rn(stored(e->dtype, __fmul_rn(v, e->scale)), e->scale);
}

static __device__ __forceinline__ void put(const struct stretch *s, dmi_i64 at, float v)
{
    const struct dmi_edit *e = s->e;
    if (e->plus)
        v = __fsub_rn(v, load(e->dtype, (const char *)e->plus + at));
    store(e->dtype, (char *)e->gather.src + at, e->scale == 1.0f ? v : __fmul_rn(v, e->scale));
}

/* ------------------------------------------------------------------------- what they read */

/* Of a cell of the bank. */
static __device__ __forceinline__ float *numbers_of(const struct dmi_edit *e, dmi_u32 cell)
{
    return (float *)(e->bank + (dmi_u64)e->n_cells * sizeof(struct dmi_bank_entry) +
                     (dmi_u64)cell * DMI_BANK_CELL_BYTES);
}

/*
 * The number of a vector for the @i-th element that the edit takes: vectors are as long as the row on all ranks, or as what the edit takes of it
 * or of a head. Rows of the bank are as long as what is here.
 */
static __device__ __forceinline__ float number_at(const struct stretch *s,
                                                  const struct dmi_edit_op *op, dmi_u32 vector,
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

static __device__ __forceinline__ float number_of(const struct stretch *s,
                                                  const struct dmi_edit_op *op, dmi_u32 i)
{
    return number_at(s, op, op->vector, i);
}

/* ------------------------------------------------------------------------- operations */

/* Does the operation leave everything as it is? Then nothing is written for it, not even what x + 0 would change. */
static __device__ __forceinline__ bool is_idle(const struct dmi_edit_op *op, float c)
{
    dmi_u32 traits = dmi_edit_traits(op->kind);
    return op->kind >= DMI_EDIT_KINDS || traits & DMI_EDIT_SAVES ||
           (traits & DMI_EDIT_IDLE_AT_0 && c == 0.0f) || (traits & DMI_EDIT_IDLE_AT_1 && c == 1.0f);
}

/* NaN stays NaN. */
static __device__ __forceinline__ float clamped(float x, float low, float high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* An operation on the @i-th element. @step: of one with a sum, what that says. */
#define ON_ELEMENT                                                                                 \
    const struct stretch *s, const struct dmi_edit_op *op, float c, float step, dmi_u32 i, float x

static __device__ __forceinline__ float do_add(ON_ELEMENT)
{
    float v = rounded(s, number_of(s, op, i));
    return rounded(s, __fadd_rn(x, rounded(s, __fmul_rn(v, c))));
}

static __device__ __forceinline__ float do_scale(ON_ELEMENT)
{
    return rounded(s, __fmul_rn(x, c));
}

static __device__ __forceinline__ float do_set(ON_ELEMENT)
{
    return rounded(s, op->vector ? number_of(s, op, i) : op->a);
}

static __device__ __forceinline__ float do_zero(ON_ELEMENT)
{
    return 0.0f;
}

static __device__ __forceinline__ float do_clamp(ON_ELEMENT)
{
    return clamped(x, rounded(s, op->a), rounded(s, op->b));
}

/* Along its vector, as far as the step says. */
static __device__ __forceinline__ float do_project_out(ON_ELEMENT)
{
    return rounded(s, __fadd_rn(x, __fmul_rn(step, number_of(s, op, i))));
}

static __device__ __forceinline__ float do_adjust_rs(ON_ELEMENT)
{
    return do_project_out(s, op, c, step, i, x);
}

static __device__ __forceinline__ float do_limit_along(ON_ELEMENT)
{
    return do_project_out(s, op, c, step, i, x);
}

static __device__ __forceinline__ float do_keep_norm(ON_ELEMENT)
{
    return rounded(s, __fmul_rn(x, step));
}

static __device__ __forceinline__ float do_patch(ON_ELEMENT)
{
    float v = rounded(s, number_of(s, op, i));
    if (c == 1.0f) /* x may be an infinity */
        return v;
    return rounded(
        s, __fadd_rn(rounded(s, __fmul_rn(x, __fsub_rn(1.0f, c))), rounded(s, __fmul_rn(v, c))));
}

/* Rounded with those that follow it. x + 0 would change -0.0. */
static __device__ __forceinline__ float do_feature(ON_ELEMENT)
{
    return step == 0.0f ? x : __fadd_rn(x, __fmul_rn(step, number_of(s, op, i)));
}

static __device__ __forceinline__ float do_save(ON_ELEMENT)
{
    return x;
}

static __device__ __forceinline__ float applied(const struct stretch *s,
                                                const struct dmi_edit_op *op, float c, float step,
                                                dmi_u32 i, float x)
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
static __device__ __forceinline__ float factor_of(const struct stretch *s,
                                                  const struct dmi_edit_op *op, dmi_u32 i, float x)
{
    switch (op->kind) {
    case DMI_EDIT_KEEP_NORM: return x;
    case DMI_EDIT_FEATURE: return number_at(s, op, op->encoder, i);
    default: return number_of(s, op, i);
    }
}

/* The step that its sum says. @before: the sum of squares before the edit. */
static __device__ __forceinline__ float step_of(const struct dmi_edit_op *op, float c, float sum,
                                                float before)
{
    switch (op->kind) {
    case DMI_EDIT_PROJECT_OUT: return -__fmul_rn(c, sum);
    case DMI_EDIT_ADJUST: return __fsub_rn(op->a, sum);
    case DMI_EDIT_LIMIT: return __fmul_rn(c, __fsub_rn(clamped(sum, op->a, op->b), sum));
    case DMI_EDIT_KEEP_NORM: return sum > 0.0f ? __fsqrt_rn(__fdiv_rn(before, sum)) : 1.0f;
    case DMI_EDIT_FEATURE: {
        float f = __fadd_rn(sum, op->a);
        return __fsub_rn(c, f > op->b ? f : 0.0f);
    }
    default: return 0.0f;
    }
}

/* Is operation number @k one of several that see the same row, and not the last of them? */
static __device__ __forceinline__ bool is_followed(const struct stretch *s, dmi_u32 k)
{
    const struct dmi_edit_op *op = &s->ops[k];
    return dmi_edit_traits(op->kind) & DMI_EDIT_TOGETHER && k + 1 < s->part->n_ops &&
           op[1].kind == op->kind;
}

/* The first @n operations on the @i-th element. @steps: of those with sums. */
static __device__ __forceinline__ float after(const struct stretch *s, dmi_u32 n,
                                              const float *steps, dmi_u32 i, float x)
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

/* The sum over all threads, in an order that is always the same. */
static __device__ float sum_of_all(float mine)
{
    __shared__ float partial[THREADS];
    __syncthreads();
    partial[threadIdx.x] = mine;
    for (dmi_u32 half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            partial[threadIdx.x] = __fadd_rn(partial[threadIdx.x], partial[threadIdx.x + half]);
    }
    __syncthreads();
    return partial[0];
}

/* What operation number @k needs to know of the whole row or head. */
static __device__ float find_step(const struct stretch *s, dmi_u32 k, const float *steps)
{
    const struct dmi_edit_op *op = &s->ops[k];
    dmi_u32 n_before =
        k; /* operations that see the same row are all read before the first is written */
    while (n_before && is_followed(s, n_before - 1))
        n_before--;
    float sum = 0.0f, before = 0.0f;
    for (dmi_u32 i = threadIdx.x; i < s->n; i += THREADS) {
        float x = value_at(s, place_of(s, column_of(s, i)));
        float y = after(s, n_before, steps, i, x);
        sum = __fadd_rn(sum, __fmul_rn(y, factor_of(s, op, i, y)));
        before = __fadd_rn(before, __fmul_rn(x, x));
    }
    sum = sum_of_all(sum);
    if (op->kind == DMI_EDIT_KEEP_NORM)
        before = sum_of_all(before);
    return step_of(op, s->coefficients[k], sum, before);
}

/* Return: has this thread stored something that is not finite? */
static __device__ bool edit_stretch(struct stretch *s)
{
    float steps[DMI_EDIT_MAX_OPS];
    bool any = false, wild = false;
    s->idle = 0;
    for (dmi_u32 k = 0; k < s->part->n_ops; k++) {
        bool idle = is_idle(&s->ops[k], s->coefficients[k]);
        bool sums = dmi_edit_traits(s->ops[k].kind) & DMI_EDIT_SUMS;
        s->idle |= (dmi_u32)idle << k;
        steps[k] = sums && !idle ? find_step(s, k, steps) : 0.0f;
        any = any || !idle;
    }
    for (dmi_u32 i = threadIdx.x; any && i < s->n; i += THREADS) {
        dmi_i64 at = place_of(s, column_of(s, i));
        put(s, at, after(s, s->part->n_ops, steps, i, value_at(s, at)));
        float stored = load(s->e->dtype, (const char *)s->e->gather.src + at);
        wild = wild || (__float_as_uint(stored) & 0x7f800000u) == 0x7f800000u;
    }
    return wild;
}

#endif
