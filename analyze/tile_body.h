/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops once, in vectors of VECTOR doubles; tile.c, tile_avx2.c and tile_avx512.c compile them, and define VECTOR, KERNEL and
 * KERNEL_NAME. Without contraction (-ffp-contract=off) all give the same bits. Pure: any thread.
 */
#pragma once

#include "analyze/tile.h"

#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

typedef double reals __attribute__((vector_size(VECTOR * 8)));
typedef int64_t wholes __attribute__((vector_size(VECTOR * 8)));
/* In memory of any alignment. */
typedef double reals_at __attribute__((vector_size(VECTOR * 8), aligned(8), may_alias));
typedef int64_t wholes_at __attribute__((vector_size(VECTOR * 8), aligned(8), may_alias));

#define INLINE          static inline __attribute__((always_inline))
#define LOAD(at)        (*(const reals_at *)(at))
#define STORE(at, v)    (*(reals_at *)(at) = (v))
#define MAGNITUDE(v)    ((reals)((wholes)(v)&INT64_MAX))
#define WHERE(is, a, b) ((reals)(((is) & (wholes)(a)) | (~(is) & (wholes)(b))))

/* a < b ? a : b, and a > b ? a : b: the compiler makes one instruction of neither. */
#if !defined(__x86_64__)
#define LESS(a, b) WHERE((a) < (b), a, b)
#define MORE(a, b) WHERE((a) > (b), a, b)
#elif VECTOR == 8
#define LESS(a, b) ((reals)_mm512_min_pd((__m512d)(a), (__m512d)(b)))
#define MORE(a, b) ((reals)_mm512_max_pd((__m512d)(a), (__m512d)(b)))
#elif VECTOR == 4
#define LESS(a, b) ((reals)_mm256_min_pd((__m256d)(a), (__m256d)(b)))
#define MORE(a, b) ((reals)_mm256_max_pd((__m256d)(a), (__m256d)(b)))
#else
#define LESS(a, b) ((reals)_mm_min_pd((__m128d)(a), (__m128d)(b)))
#define MORE(a, b) ((reals)_mm_max_pd((__m128d)(a), (__m128d)(b)))
#endif

/* The compiler vectorises both (at -O3). */
static void kernel_from_f32(const void *data, size_t n, double *restrict out)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < n; i++) {
        float v;
        memcpy(&v, at + i * sizeof v, sizeof v);
        out[i] = (double)v;
    }
}

/* As struct tile_kernel has it. */
static void kernel_from_bf16(const void *data, size_t n, double *restrict out)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < n; i++) {
        uint16_t upper;
        float v;
        memcpy(&upper, at + i * sizeof upper, sizeof upper);
        uint32_t bits = (uint32_t)upper << 16;
        memcpy(&v, &bits, sizeof v);
        out[i] = (double)v;
    }
}

/* VECTOR of the lanes, over whole rounds of them. */
INLINE void sum_lanes(const double *values, size_t n, double first, size_t lane,
                      struct tile_sums *s)
{
    const reals none = { 0 }, shift = none + first;
    reals d1 = LOAD(s->d1 + lane), d2 = LOAD(s->d2 + lane), d3 = LOAD(s->d3 + lane),
          d4 = LOAD(s->d4 + lane), least = LOAD(s->least + lane), most = LOAD(s->most + lane);
    wholes n_zero = *(const wholes_at *)(s->n_zero + lane);
    for (size_t i = lane; i < n; i += TILE_LANES) {
        reals v = LOAD(values + i), d = v - shift, square = d * d;
        d1 += d;
        d2 += square;
        d3 += square * d;
        d4 += square * square;
        least = LESS(v, least);
        most = MORE(v, most);
        n_zero -= v == none;
    }
    STORE(s->d1 + lane, d1);
    STORE(s->d2 + lane, d2);
    STORE(s->d3 + lane, d3);
    STORE(s->d4 + lane, d4);
    STORE(s->least + lane, least);
    STORE(s->most + lane, most);
    *(wholes_at *)(s->n_zero + lane) = n_zero;
}

/* The last round is filled up with the shift, which adds 0 to each sum. */
static void kernel_sums(const double *values, size_t n, struct tile_sums *out)
{
    size_t whole = n / TILE_LANES * TILE_LANES;
    double rest[TILE_LANES], first = values[0];
    *out = (struct tile_sums){ 0 };
    for (size_t l = 0; l < TILE_LANES; l++) {
        out->least[l] = out->most[l] = first;
        rest[l] = whole + l < n ? values[whole + l] : first;
    }
    for (size_t lane = 0; lane < TILE_LANES; lane += VECTOR)
        sum_lanes(values, whole, first, lane, out);
    if (whole == n)
        return;
    for (size_t lane = 0; lane < TILE_LANES; lane += VECTOR)
        sum_lanes(rest, TILE_LANES, first, lane, out);
    out->n_zero[0] -= first == 0 ? (int64_t)(whole + TILE_LANES - n) : 0;
}

/* One channel, as the vectors add theirs. */
INLINE void add_channel(const struct tile_channels *to, const double *values, size_t stride,
                        size_t n_rows, size_t i)
{
    double shift = to->shift[i], sum = to->sum[i], squares = to->squares[i], peak = to->peak[i];
    for (size_t r = 0; r < n_rows; r++) {
        double v = values[r * stride + i], d = v - shift, magnitude = v < 0 ? -v : v;
        sum += d;
        squares += d * d;
        peak = magnitude > peak ? magnitude : peak;
    }
    to->sum[i] = sum;
    to->squares[i] = squares;
    to->peak[i] = peak;
}

/* As struct tile_kernel has it. */
static void kernel_channels(const struct tile_channels *to, const double *values, size_t stride,
                            size_t n_rows, size_t n)
{
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        reals shift = LOAD(to->shift + i), sum = LOAD(to->sum + i), squares = LOAD(to->squares + i),
              peak = LOAD(to->peak + i);
        for (size_t r = 0; r < n_rows; r++) {
            reals v = LOAD(values + r * stride + i), d = v - shift;
            sum += d;
            squares += d * d;
            peak = MORE(MAGNITUDE(v), peak);
        }
        STORE(to->sum + i, sum);
        STORE(to->squares + i, squares);
        STORE(to->peak + i, peak);
    }
    for (; i < n; i++)
        add_channel(to, values, stride, n_rows, i);
}

const struct tile_kernel KERNEL = { KERNEL_NAME, kernel_from_f32, kernel_from_bf16, kernel_sums,
                                    kernel_channels };
