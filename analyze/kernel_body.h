/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels once, in vectors of VECTOR floats; kernel.c and kernel_avx2.c compile them, and define VECTOR, KERNEL and KERNEL_NAME.
 * Without contraction (-ffp-contract=off) both give the same bits. Pure: any thread.
 */
#ifndef ANALYZE_KERNEL_BODY_H
#define ANALYZE_KERNEL_BODY_H

#include "analyze/kernel.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define BYTES  (VECTOR * 4)
#define PARTS  (KERNEL_LANES / VECTOR) /* vectors of a panel's row */
#define PANELS (VECTOR / 4)            /* that are computed together: 8 sums stay in registers */

typedef float floats __attribute__((vector_size(BYTES)));
typedef int32_t ints __attribute__((vector_size(BYTES)));
typedef double doubles __attribute__((vector_size(32)));
/* Vectors in memory of any alignment. */
typedef float floats_at __attribute__((vector_size(BYTES), aligned(4), may_alias));
typedef float four_at __attribute__((vector_size(16), aligned(4), may_alias));

#define LOAD(v, at)  ((v) = *(const floats_at *)(at))
#define STORE(at, v) (*(floats_at *)(at) = (v))
#define UNROLL       _Pragma("GCC unroll 8")
#define INLINE       static inline __attribute__((always_inline))

/* Sums of one group of queries with @n panels. */
INLINE void score_panels(const float *queries, const float *panels, size_t n, size_t dim,
                         float scale, float *out, size_t stride)
{
    floats sum[PANELS * PARTS][KERNEL_GROUP] = { 0 }, keys[PANELS * PARTS];
    for (size_t i = 0; i < dim; i++) {
        UNROLL
        for (size_t v = 0; v < n * PARTS; v++)
            LOAD(keys[v], panels + (v / PARTS * dim + i) * KERNEL_LANES + v % PARTS * VECTOR);
        UNROLL
        for (size_t q = 0; q < KERNEL_GROUP; q++) {
            UNROLL
            for (size_t v = 0; v < n * PARTS; v++)
                sum[v][q] += queries[q * dim + i] * keys[v];
        }
    }
    UNROLL
    for (size_t q = 0; q < KERNEL_GROUP; q++) {
        UNROLL
        for (size_t v = 0; v < n * PARTS; v++)
            STORE(out + q * stride + v * VECTOR, sum[v][q] * scale);
    }
}

/* As struct kernel has it. */
static void kernel_scores(const float *queries, const float *panels, size_t n_panels, size_t dim,
                          float scale, float *out, size_t stride)
{
    size_t p = 0;
    for (; p + PANELS <= n_panels; p += PANELS)
        score_panels(queries, panels + p * dim * KERNEL_LANES, PANELS, dim, scale,
                     out + p * KERNEL_LANES, stride);
    if (p < n_panels)
        score_panels(queries, panels + p * dim * KERNEL_LANES, 1, dim, scale,
                     out + p * KERNEL_LANES, stride);
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
    r = v - whole * 0.693359375f; /* ln 2 in two parts, of which the first has few bits */
    r = r - whole * -2.12194440e-4f;
    y = r * (1.0f / 5040) + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
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
static double sum_of_lanes(const doubles lanes[2])
{
    return ((lanes[0][0] + lanes[0][1]) + (lanes[0][2] + lanes[0][3])) +
           ((lanes[1][0] + lanes[1][1]) + (lanes[1][2] + lanes[1][3]));
}

/* Scores to exp(score - most). Return: their sum. */
static double raise(float *row, size_t lo, size_t hi, float most)
{
    doubles sums[2] = { 0 };
    for (size_t j = lo; j < hi; j += VECTOR) {
        floats v;
        LOAD(v, row + j);
        v = v - most;
        exp_of(&v);
        STORE(row + j, v);
        for (size_t i = j; i < j + VECTOR; i += 4)
            sums[i / 4 % 2] += __builtin_convertvector(*(const four_at *)(row + i), doubles);
    }
    return sum_of_lanes(sums);
}

/* As struct kernel has it. */
static void kernel_softmax(float *row, size_t first, size_t end, size_t n, float cap, float sink)
{
    size_t lo = first / KERNEL_LANES * KERNEL_LANES;
    size_t hi = (end + KERNEL_LANES - 1) / KERNEL_LANES * KERNEL_LANES;
    for (size_t j = lo; j < hi && cap > 0; j += VECTOR)
        cap_scores(row + j, cap);
    hide(row, first, end, lo, hi);
    float most = highest(row, lo, hi, sink);
    double sum = raise(row, lo, hi, most);
    if (sink > -INFINITY)
        sum += (double)expf(sink - most);
    float share = (float)(1.0 / sum);
    memset(row, 0, lo * sizeof *row);
    memset(row + hi, 0, (n - hi) * sizeof *row);
    for (size_t j = lo; j < hi; j += VECTOR) {
        floats v;
        LOAD(v, row + j);
        STORE(row + j, v * share);
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
                sum[q][i] += weights[q * stride + j] * value[i];
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

/*
 * The logarithm of a weight is exponent * ln 2 + rest, the rest within 4e-8. With s = (m - 1) / (m + 1), |s| < 0.172, ln m is twice the series of
 * s + s^3 / 3 + ..., whose first term left out is below 7e-10. A weight that is 0, not normal or NaN has 0 for both.
 */
INLINE void log_of(const floats *x, floats *exponent, floats *rest)
{
    ints normal = *x >= 1.17549435e-38f, bits = (normal & (ints)*x) | (~normal & 0x3f800000);
    ints e = (bits - 0x3f3504f3) >> 23; /* m is from the root of 1/2 to the root of 2 */
    floats f = (floats)(bits - e * (1 << 23)) - 1.0f, s = f / (f + 2.0f), z = s * s, y;
    y = z * (2.0f / 9) + 2.0f / 7;
    y = y * z + 2.0f / 5;
    y = y * z + 2.0f / 3;
    y = y * z + 2.0f;
    *exponent = __builtin_convertvector(e, floats);
    *rest = y * s;
}

/* As struct kernel has it. */
static struct kernel_sums kernel_sum(const float *row, size_t n, size_t query)
{
    doubles all[2] = { 0 }, distance[2] = { 0 }, entropy[2] = { 0 };
    doubles from = { 0, -1, -2, -3 }, to[2] = { from + (double)query, from + (double)query - 4.0 };
    for (size_t j = 0; j < n; j += KERNEL_LANES) {
        float exponents[KERNEL_LANES], rests[KERNEL_LANES];
        for (size_t i = 0; i < KERNEL_LANES; i += VECTOR) {
            floats v, exponent, rest;
            LOAD(v, row + j + i);
            log_of(&v, &exponent, &rest);
            STORE(exponents + i, exponent);
            STORE(rests + i, rest);
        }
        UNROLL
        for (size_t i = 0; i < 2; i++) {
            doubles w = __builtin_convertvector(*(const four_at *)(row + j + 4 * i), doubles);
            doubles e = __builtin_convertvector(*(const four_at *)(exponents + 4 * i), doubles);
            doubles r = __builtin_convertvector(*(const four_at *)(rests + 4 * i), doubles);
            all[i] += w;
            distance[i] += w * to[i];
            entropy[i] -= w * (e * 0.693147180559945309417 + r);
            to[i] -= (double)KERNEL_LANES;
        }
    }
    return (struct kernel_sums){ sum_of_lanes(all), sum_of_lanes(distance), sum_of_lanes(entropy) };
}

const struct kernel KERNEL = { KERNEL_NAME, kernel_scores, kernel_softmax, kernel_weigh,
                               kernel_sum };

#endif
