/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels once, in vectors of VECTOR floats; kernel.c, kernel_avx2.c and kernel_avx512.c compile them, and define VECTOR, KERNEL and
 * KERNEL_NAME. Without contraction (-ffp-contract=off) all give the same bits. Pure: any thread.
 */
#pragma once

#include "analyze/kernel.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if VECTOR > 4
#include <immintrin.h>
#endif

#define BYTES    (VECTOR * 4)
#define PARTS    (KERNEL_LANES / VECTOR) /* vectors of a panel's row */
#define LANES    8                       /* of sums */
#define WIDE     (VECTOR / 2)            /* doubles of a vector */
#define SUMS     (LANES / WIDE)          /* vectors of a sum */
#define TOGETHER (VECTOR < 16 ? 2 : 4)   /* vectors of keys, with a group of queries */

typedef float floats __attribute__((vector_size(BYTES)));
typedef int32_t ints __attribute__((vector_size(BYTES)));
typedef double doubles __attribute__((vector_size(BYTES)));
typedef float halves __attribute__((vector_size(BYTES / 2)));
/* Vectors in memory of any alignment. */
typedef float floats_at __attribute__((vector_size(BYTES), aligned(4), may_alias));
typedef float halves_at __attribute__((vector_size(BYTES / 2), aligned(4), may_alias));

#define LOAD(v, at)  ((v) = *(const floats_at *)(at))
#define STORE(at, v) (*(floats_at *)(at) = (v))
#define UNROLL       _Pragma("GCC unroll 8")
#define INLINE       static inline __attribute__((always_inline))

/* Doubles of floats; a * b + c, rounded once. The compiler makes neither of one instruction from what is general. */
#if VECTOR == 16
#define WIDEN(at)      ((doubles)_mm512_cvtps_pd(_mm256_loadu_ps(at)))
#define SPLAT(x)       ((floats)_mm512_set1_ps(x))
#define FUSED(a, b, c) ((floats)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#elif VECTOR == 8
#define WIDEN(at)      ((doubles)_mm256_cvtps_pd(_mm_loadu_ps(at)))
#define SPLAT(x)       ((floats)_mm256_set1_ps(x))
#define FUSED(a, b, c) ((floats)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#else
#define WIDEN(at)      __builtin_convertvector((halves) * (const halves_at *)(at), doubles)
#define SPLAT(x)       ((floats){ x, x, x, x })
#define FUSED(a, b, c) fused(a, b, c)

#ifdef __FP_FAST_FMAF
/* a * b + c, rounded once. */
INLINE floats fused(floats a, floats b, floats c)
{
    for (size_t i = 0; i < VECTOR; i++)
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
#else
typedef int64_t wholes __attribute__((vector_size(BYTES)));

/*
 * In doubles a product of floats is exact. The sum is rounded to odd: where it is not exact, its last bit becomes 1, so that rounding it to
 * a float rounds but once. Source: Boldo and Melquiond, "Emulation of a FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to Odd", 2008.
 */
INLINE halves fused_half(halves a, halves b, halves c)
{
    doubles product = __builtin_convertvector(a, doubles) * __builtin_convertvector(b, doubles);
    doubles more = __builtin_convertvector(c, doubles), sum = product + more, part = sum - product;
    doubles error = (product - (sum - part)) + (more - part);
    wholes bits = (wholes)sum, even = (bits & 1) - 1, inexact = (error < 0) | (error > 0);
    wholes away =
        (((wholes)error ^ bits) >> 63) | 1; /* 1 where the error has the sum's sign, else -1 */
    bits += inexact & even & away;
    return __builtin_convertvector((doubles)bits, halves);
}

/* a * b + c, rounded once. */
INLINE floats fused(floats a, floats b, floats c)
{
    halves low = fused_half((halves){ a[0], a[1] }, (halves){ b[0], b[1] }, (halves){ c[0], c[1] });
    halves high =
        fused_half((halves){ a[2], a[3] }, (halves){ b[2], b[3] }, (halves){ c[2], c[3] });
    return (floats){ low[0], low[1], high[0], high[1] };
}
#endif
#endif

/* Sums of one group of queries with @n vectors of keys, from vector @first on: they stay in registers. */
INLINE void score_vectors(const float *queries, const float *panels, size_t first, size_t n,
                          size_t dim, float scale, float *out, size_t stride)
{
    floats sum[TOGETHER][KERNEL_GROUP] = { 0 }, key[TOGETHER];
    const float *keys[TOGETHER];
    UNROLL
    for (size_t v = 0; v < n; v++)
        keys[v] = panels + (first + v) / PARTS * dim * KERNEL_LANES + (first + v) % PARTS * VECTOR;
    for (size_t i = 0; i < dim; i++) {
        UNROLL
        for (size_t v = 0; v < n; v++)
            LOAD(key[v], keys[v] + i * KERNEL_LANES);
        UNROLL
        for (size_t q = 0; q < KERNEL_GROUP; q++) {
            UNROLL
            for (size_t v = 0; v < n; v++)
                sum[v][q] = FUSED(SPLAT(queries[q * dim + i]), key[v], sum[v][q]);
        }
    }
    UNROLL
    for (size_t q = 0; q < KERNEL_GROUP; q++) {
        UNROLL
        for (size_t v = 0; v < n; v++)
            STORE(out + q * stride + (first + v) * VECTOR, sum[v][q] * scale);
    }
}

/* As struct kernel has it. */
static void kernel_scores(const float *queries, const float *panels, size_t n_panels, size_t dim,
                          float scale, float *out, size_t stride)
{
    size_t n = n_panels * PARTS, v = 0;
    for (; v + TOGETHER <= n; v += TOGETHER)
        score_vectors(queries, panels, v, TOGETHER, dim, scale, out, stride);
    for (; v < n; v++)
        score_vectors(queries, panels, v, 1, dim, scale, out, stride);
}

/*
 * The exponential of what is not above 0, within two units of the last place: 2^n times the series of e^r, |r| <= ln 2 / 2, whose first term
 * left out is r^8 / 8! < 6e-9. What would not be a normal number is 0; NaN stays. By address: by value a vector's register would
 * depend on the target.
 */
INLINE void exp_of(floats *x)
{
    floats v = *x, r, y;
    ints n = __builtin_convertvector(v * 1.44269504f - 0.5f, ints);
    floats whole = __builtin_convertvector(n, floats);
    r = FUSED(whole, SPLAT(-0.693359375f),
              v); /* ln 2 in two parts, of which the first has few bits */
    r = FUSED(whole, SPLAT(2.12194440e-4f), r);
    y = FUSED(r, SPLAT(1.0f / 5040), SPLAT(1.0f / 720));
    y = FUSED(y, r, SPLAT(1.0f / 120));
    y = FUSED(y, r, SPLAT(1.0f / 24));
    y = FUSED(y, r, SPLAT(1.0f / 6));
    y = FUSED(y, r, SPLAT(0.5f));
    y = FUSED(y, r, SPLAT(1.0f));
    y = FUSED(y, r, SPLAT(1.0f));
    y = y * (floats)((n + 127) << 23);
    ints number = v == v, normal = v > -87.0f;
    *x = (floats)((number & normal & (ints)y) | (~number & (ints)v));
}

/* cap * tanh(x / cap) */
INLINE void cap_scores(float *at, float cap)
{
    floats x, t;
    LOAD(x, at);
    x = x / cap;
    ints sign = (x < 0.0f) & INT32_MIN;
    t = (floats)((ints)x & INT32_MAX) * -2.0f;
    exp_of(&t);
    t = (1.0f - t) / (1.0f + t) * cap;
    STORE(at, (floats)((ints)t | sign));
}

/* Keys that the query does not see, in the first and the last panel of its row. */
static void hide(float *row, size_t first, size_t end, size_t lo, size_t hi)
{
    for (size_t j = lo; j < first; j++)
        row[j] = -INFINITY;
    for (size_t j = end; j < hi; j++)
        row[j] = -INFINITY;
}

/* The maximum of row[lo..hi) and @least. */
static float highest(const float *row, size_t lo, size_t hi, float least)
{
    floats most, v;
    LOAD(most, row + lo);
    for (size_t j = lo + VECTOR; j < hi; j += VECTOR) {
        LOAD(v, row + j);
        ints more = v > most;
        most = (floats)((more & (ints)v) | (~more & (ints)most));
    }
    for (size_t i = 0; i < VECTOR; i++)
        least = most[i] > least ? most[i] : least;
    return least;
}

/* Eight lanes in one fixed order. */
INLINE double sum_of_lanes(const doubles sums[SUMS])
{
    double l[LANES];
    memcpy(l, sums, sizeof l);
    return ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]));
}

/* Scores to powers of e: of what each is above @most, which goes to @above, or 0 where its power is 0. */
INLINE void raise_panel(float *row, float most, float *above)
{
    UNROLL
    for (size_t i = 0; i < KERNEL_LANES; i += VECTOR) {
        floats v, e;
        LOAD(v, row + i);
        e = v = v - most;
        exp_of(&e);
        STORE(row + i, e);
        STORE(above + i, (floats)((v > -87.0f) & (ints)v));
    }
}

/*
 * Scores to exp(score - most). @all: false: only @sums->all is wanted. Of powers, not of weights: @sums->distance is the sum of power *
 * distance, @sums->entropy that of power * (score - most).
 */
INLINE void raise(float *row, size_t lo, size_t hi, float most, size_t query, bool all,
                  struct kernel_sums *sums)
{
    doubles power[SUMS] = { 0 }, entropy[SUMS] = { 0 }, distance[SUMS] = { 0 }, to[SUMS];
    float above[KERNEL_LANES];
    for (size_t l = 0; l < LANES; l++)
        to[l / WIDE][l % WIDE] = (double)query - (double)(lo + l);
    for (size_t j = lo; j < hi; j += KERNEL_LANES) {
        raise_panel(row + j, most, above);
        UNROLL
        for (size_t i = 0; i < KERNEL_LANES; i += WIDE) {
            size_t s = i / WIDE % SUMS;
            doubles e = WIDEN(row + j + i);
            power[s] += e;
            if (all) {
                entropy[s] += e * WIDEN(above + i);
                distance[s] += e * to[s];
                to[s] -= (double)LANES;
            }
        }
    }
    *sums = (struct kernel_sums){ sum_of_lanes(power), all ? sum_of_lanes(distance) : 0,
                                  all ? sum_of_lanes(entropy) : 0 };
}

/* From sums of powers of e to those of weights, which are powers / @total: -(w ln w) = w (ln total - (score - most)). */
static void divide_sums(struct kernel_sums *sums, double total)
{
    sums->entropy = (sums->all * log(total) - sums->entropy) / total;
    sums->distance /= total;
    sums->all /= total;
}

/* As struct kernel has it. */
static void kernel_softmax(float *row, size_t first, size_t end, size_t n, float cap, float sink,
                           struct kernel_sums *sums)
{
    size_t lo = first / KERNEL_LANES * KERNEL_LANES;
    size_t hi = (end + KERNEL_LANES - 1) / KERNEL_LANES * KERNEL_LANES;
    struct kernel_sums powers;
    for (size_t j = lo; j < hi && cap > 0; j += VECTOR)
        cap_scores(row + j, cap);
    hide(row, first, end, lo, hi);
    float most = highest(row, lo, hi, sink);
    if (sums)
        raise(row, lo, hi, most, end - 1, true, &powers);
    else
        raise(row, lo, hi, most, end - 1, false, &powers);
    double total = powers.all;
    if (sink > -INFINITY)
        total += (double)expf(sink - most);
    float share = (float)(1.0 / total);
    memset(row, 0, lo * sizeof *row);
    memset(row + hi, 0, (n - hi) * sizeof *row);
    for (size_t j = lo; j < hi; j += VECTOR) {
        floats v;
        LOAD(v, row + j);
        STORE(row + j, v * share);
    }
    if (sums) {
        *sums = powers;
        divide_sums(sums, total);
    }
}

/* @n_dims vectors of dimensions, of @n_rows rows. */
INLINE void weigh_rows(const float *weights, size_t stride, size_t n_rows, const float *values,
                       size_t n_keys, size_t dim, size_t n_dims, float *out)
{
    floats sum[KERNEL_GROUP][2], value[2];
    UNROLL
    for (size_t q = 0; q < n_rows; q++) {
        UNROLL
        for (size_t i = 0; i < n_dims; i++)
            LOAD(sum[q][i], out + q * dim + i * VECTOR);
    }
    for (size_t j = 0; j < n_keys; j++) {
        UNROLL
        for (size_t i = 0; i < n_dims; i++)
            LOAD(value[i], values + j * dim + i * VECTOR);
        UNROLL
        for (size_t q = 0; q < n_rows; q++) {
            UNROLL
            for (size_t i = 0; i < n_dims; i++)
                sum[q][i] = FUSED(SPLAT(weights[q * stride + j]), value[i], sum[q][i]);
        }
    }
    UNROLL
    for (size_t q = 0; q < n_rows; q++) {
        UNROLL
        for (size_t i = 0; i < n_dims; i++)
            STORE(out + q * dim + i * VECTOR, sum[q][i]);
    }
}

/* As struct kernel has it. */
static void kernel_weigh(const float *weights, size_t stride, size_t n_rows, const float *values,
                         size_t n_keys, size_t dim, float *out)
{
    for (size_t i = 0, n; i < dim; i += n * VECTOR) {
        n = i + 2 * VECTOR <= dim ? 2 : 1;
        if (n_rows == KERNEL_GROUP && n == 2)
            weigh_rows(weights, stride, KERNEL_GROUP, values + i, n_keys, dim, 2, out + i);
        else if (n_rows == KERNEL_GROUP)
            weigh_rows(weights, stride, KERNEL_GROUP, values + i, n_keys, dim, 1, out + i);
        else if (n == 2)
            weigh_rows(weights, stride, 1, values + i, n_keys, dim, 2, out + i);
        else
            weigh_rows(weights, stride, 1, values + i, n_keys, dim, 1, out + i);
    }
}

const struct kernel KERNEL = { KERNEL_NAME, kernel_scores, kernel_softmax, kernel_weigh };
