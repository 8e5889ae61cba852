/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/moments.h"

#include "storage/codec/cpu.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define LANES MOMENTS_LANES

static_assert(LANES == 8, "sum_of() adds eight");
static_assert(MOMENTS_TILE % LANES == 0, "a tile consists of full rounds of lanes");

/* ------------------------------------------------------------------------- a tile */

/*
 * The two passes over a tile, by lane. Products and sums are not contracted (ISO C), so that both instruction sets round alike.
 * What is equal compares alike, so that a zero of either sign may be the least or the most: no answer tells them apart.
 */
struct first_pass {
    double sum[LANES], least[LANES], most[LANES];
    uint64_t n_zero[LANES];
};

struct second_pass {
    double d2[LANES], d3[LANES], d4[LANES];
};

static void first_pass_step(struct first_pass *p, size_t lane, double v)
{
    p->sum[lane] += v;
    p->least[lane] = v < p->least[lane] ? v : p->least[lane];
    p->most[lane] = v > p->most[lane] ? v : p->most[lane];
    p->n_zero[lane] += v == 0;
}

static void first_pass_portable(const double *values, size_t n, struct first_pass *p)
{
    for (size_t i = 0; i < n; i++)
        first_pass_step(p, i % LANES, values[i]);
}

static void second_pass_portable(const double *values, size_t n, double mean, struct second_pass *p)
{
    for (size_t i = 0; i < n; i++) {
        double d = values[i] - mean, d2 = d * d;
        p->d2[i % LANES] += d2;
        p->d3[i % LANES] += d2 * d;
        p->d4[i % LANES] += d2 * d2;
    }
}

#ifdef __x86_64__
#define AVX2 __attribute__((target("avx2")))

/* Four of the lanes, over whole rounds. */
AVX2 static void first_pass_four(const double *values, size_t n, struct first_pass *p, size_t lane)
{
    __m256d sum = _mm256_loadu_pd(p->sum + lane), zero = _mm256_setzero_pd();
    __m256d least = _mm256_loadu_pd(p->least + lane), most = _mm256_loadu_pd(p->most + lane);
    __m256i n_zero = _mm256_setzero_si256();
    for (size_t i = lane; i < n; i += LANES) {
        __m256d v = _mm256_loadu_pd(values + i);
        sum = _mm256_add_pd(sum, v);
        least = _mm256_min_pd(v, least);
        most = _mm256_max_pd(v, most);
        n_zero = _mm256_sub_epi64(n_zero, _mm256_castpd_si256(_mm256_cmp_pd(v, zero, _CMP_EQ_OQ)));
    }
    _mm256_storeu_pd(p->sum + lane, sum);
    _mm256_storeu_pd(p->least + lane, least);
    _mm256_storeu_pd(p->most + lane, most);
    _mm256_storeu_si256((__m256i *)(p->n_zero + lane), n_zero);
}

AVX2 static void second_pass_four(const double *values, size_t n, double mean,
                                  struct second_pass *p, size_t lane)
{
    __m256d m = _mm256_set1_pd(mean);
    __m256d s2 = _mm256_setzero_pd(), s3 = s2, s4 = s2;
    for (size_t i = lane; i < n; i += LANES) {
        __m256d d = _mm256_sub_pd(_mm256_loadu_pd(values + i), m), d2 = _mm256_mul_pd(d, d);
        s2 = _mm256_add_pd(s2, d2);
        s3 = _mm256_add_pd(s3, _mm256_mul_pd(d2, d));
        s4 = _mm256_add_pd(s4, _mm256_mul_pd(d2, d2));
    }
    _mm256_storeu_pd(p->d2 + lane, s2);
    _mm256_storeu_pd(p->d3 + lane, s3);
    _mm256_storeu_pd(p->d4 + lane, s4);
}

AVX2 static void first_pass_avx2(const double *values, size_t n, struct first_pass *p)
{
    for (size_t lane = 0; lane < LANES; lane += 4)
        first_pass_four(values, n, p, lane);
}

AVX2 static void second_pass_avx2(const double *values, size_t n, double mean,
                                  struct second_pass *p)
{
    for (size_t lane = 0; lane < LANES; lane += 4)
        second_pass_four(values, n, mean, p, lane);
}
#else
#define first_pass_avx2  first_pass_portable
#define second_pass_avx2 second_pass_portable
#endif

/* The whole rounds by the instructions that are asked for, then the rest, which goes on in their lanes. */
static void pass_first(const double *values, size_t n, bool fast, struct first_pass *p)
{
    size_t whole = n / LANES * LANES;
    for (size_t l = 0; l < LANES; l++)
        p->least[l] = p->most[l] = values[0];
    (fast ? first_pass_avx2 : first_pass_portable)(values, whole, p);
    first_pass_portable(values + whole, n - whole, p);
}

static void pass_second(const double *values, size_t n, double mean, bool fast,
                        struct second_pass *p)
{
    size_t whole = n / LANES * LANES;
    (fast ? second_pass_avx2 : second_pass_portable)(values, whole, mean, p);
    second_pass_portable(values + whole, n - whole, mean, p);
}

static double sum_of(const double lanes[LANES])
{
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
           ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

static void take_ends(const struct first_pass *p, struct moments *out)
{
    for (size_t l = 0; l < LANES; l++) {
        out->n_zero += p->n_zero[l];
        out->least = p->least[l] < out->least ? p->least[l] : out->least;
        out->most = p->most[l] > out->most ? p->most[l] : out->most;
    }
}

static void of_tile(const double *values, size_t n, bool fast, struct moments *out)
{
    struct first_pass first = { 0 };
    struct second_pass second = { 0 };
    *out = (struct moments){ .n = n, .least = values[0], .most = values[0] };
    pass_first(values, n, fast, &first);
    take_ends(&first, out);
    out->mean = sum_of(first.sum) / (double)n;
    pass_second(values, n, out->mean, fast, &second);
    out->m2 = sum_of(second.d2);
    out->m3 = sum_of(second.d3);
    out->m4 = sum_of(second.d4);
}

void moments_of(const double *values, size_t n, struct moments *out)
{
    of_tile(values, n, has_avx2(), out);
}

void moments_of_portable(const double *values, size_t n, struct moments *out)
{
    of_tile(values, n, false, out);
}

/* ------------------------------------------------------------------------- several */

void moments_merge(struct moments *to, const struct moments *part)
{
    if (!to->n || !part->n) {
        *to = part->n ? *part : *to;
        return;
    }
    double a = (double)to->n, b = (double)part->n, ab = a * b;
    double d = part->mean - to->mean, dn = d / (a + b), m2 = d * dn * ab;
    to->m4 += part->m4 + m2 * dn * dn * (a * a - ab + b * b) +
              6 * dn * dn * (a * a * part->m2 + b * b * to->m2) +
              4 * dn * (a * part->m3 - b * to->m3);
    to->m3 += part->m3 + m2 * dn * (a - b) + 3 * dn * (a * part->m2 - b * to->m2);
    to->m2 += part->m2 + m2;
    to->mean += dn * b;
    to->n += part->n;
    to->n_zero += part->n_zero;
    to->least = part->least < to->least ? part->least : to->least;
    to->most = part->most > to->most ? part->most : to->most;
}

double moments_sd(const struct moments *m)
{
    return m->n ? sqrt(m->m2 / (double)m->n) : NAN;
}

double moments_kurtosis(const struct moments *m)
{
    return m->m2 > 0 ? (double)m->n * m->m4 / (m->m2 * m->m2) : NAN;
}

double moments_norm(const struct moments *m)
{
    return sqrt(m->m2 + (double)m->n * m->mean * m->mean);
}

double moments_peak(const struct moments *m)
{
    return m->n ? fmax(fabs(m->least), fabs(m->most)) : NAN;
}
