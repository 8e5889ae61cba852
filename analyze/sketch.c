/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/sketch.h"

#include "storage/codec/cpu.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define KEY_SHIFT 16                    /* bits of a float that a key leaves out */
#define N_KEYS    (SKETCH_BUCKETS / 2u) /* of one sign; the negative ones stand after the others */
#define N_BYTES   (SKETCH_BUCKETS * sizeof(uint64_t))

/* ------------------------------------------------------------------------- counting */

/*
 * Memory that nothing touches costs nothing: a table with an index of pages takes twice the time a value. The system may
 * not join sketches into huge pages.
 */
static int reserve(struct sketch *s)
{
    if (s->counts)
        return 0;
    void *map = mmap(NULL, N_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return -ENOMEM;
    madvise(map, N_BYTES, MADV_NOHUGEPAGE);
    s->counts = map;
    return 0;
}

static void count_portable(uint64_t *counts, const double *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float narrow = (float)values[i];
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        counts[bits >> KEY_SHIFT]++;
    }
}

#ifdef __x86_64__
/* Four keys at a time stay in registers. */
__attribute__((target("avx2"))) static void count_avx2(uint64_t *counts, const double *values,
                                                       size_t n)
{
    size_t whole = n / 4 * 4;
    for (size_t i = 0; i < whole; i += 4) {
        __m128i bits = _mm_castps_si128(_mm256_cvtpd_ps(_mm256_loadu_pd(values + i)));
        __m128i keys = _mm_srli_epi32(bits, KEY_SHIFT);
        uint64_t low = (uint64_t)_mm_cvtsi128_si64(keys);
        uint64_t high = (uint64_t)_mm_extract_epi64(keys, 1);
        counts[(uint32_t)low]++;
        counts[low >> 32]++;
        counts[(uint32_t)high]++;
        counts[high >> 32]++;
    }
    count_portable(counts, values + whole, n - whole);
}
#else
#define count_avx2 count_portable
#endif

static int add(struct sketch *s, const double *values, size_t n, bool fast)
{
    if (reserve(s))
        return -ENOMEM;
    (fast ? count_avx2 : count_portable)(s->counts, values, n);
    s->n += n;
    return 0;
}

int sketch_add(struct sketch *s, const double *values, size_t n)
{
    return add(s, values, n, has_avx2());
}

int sketch_add_portable(struct sketch *s, const double *values, size_t n)
{
    return add(s, values, n, false);
}

/* Only where there is something, so that the rest stays untouched. */
int sketch_merge(struct sketch *to, const struct sketch *from)
{
    if (!from->n)
        return 0;
    if (reserve(to))
        return -ENOMEM;
    for (uint32_t key = 0; key < SKETCH_BUCKETS; key++)
        if (from->counts[key])
            to->counts[key] += from->counts[key];
    to->n += from->n;
    return 0;
}

/* ------------------------------------------------------------------------- asking */

static double float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return isfinite(value) ? (double)value : (double)FLT_MAX;
}

/* The middle of a bucket of positive values. The lowest one has zero in it. */
static double middle(uint32_t key)
{
    if (!key)
        return 0;
    return (float_of(key << KEY_SHIFT) + float_of((key + 1) << KEY_SHIFT)) / 2;
}

static uint64_t rank_of(const struct sketch *s, double q)
{
    double rank = floor(q * (double)(s->n - 1));
    return rank <= 0 ? 0 : (uint64_t)rank < s->n ? (uint64_t)rank : s->n - 1;
}

/* Counts are summed by page first, which the compiler vectorises: most pages are empty. */
#define PAGE 128u

static uint64_t sum_of(const uint64_t *counts)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < PAGE; i++)
        sum += counts[i];
    return sum;
}

/* The key of the rank-th value among keys of one sign, or (@other) of both, from the lowest magnitude on. N_KEYS: there are fewer. */
static uint32_t key_of(const uint64_t *counts, const uint64_t *other, uint64_t rank)
{
    uint64_t before = 0;
    for (uint32_t page = 0; page < N_KEYS; page += PAGE) {
        uint64_t n = sum_of(counts + page) + (other ? sum_of(other + page) : 0);
        if (before + n <= rank) {
            before += n;
            continue;
        }
        for (uint32_t key = page; key < page + PAGE; key++)
            if ((before += counts[key] + (other ? other[key] : 0)) > rank)
                return key;
    }
    return N_KEYS;
}

static uint64_t n_negative(const struct sketch *s)
{
    uint64_t n = 0;
    for (uint32_t page = 0; page < N_KEYS; page += PAGE)
        n += sum_of(s->counts + N_KEYS + page);
    return n;
}

double sketch_quantile(const struct sketch *s, double q)
{
    if (!s->n)
        return NAN;
    uint64_t rank = rank_of(s, q), negative = n_negative(s);
    return rank < negative ? -middle(key_of(s->counts + N_KEYS, NULL, negative - 1 - rank))
                           : middle(key_of(s->counts, NULL, rank - negative));
}

double sketch_magnitude(const struct sketch *s, double q)
{
    return s->n ? middle(key_of(s->counts, s->counts + N_KEYS, rank_of(s, q))) : NAN;
}

void sketch_deinit(struct sketch *s)
{
    if (s->counts)
        munmap(s->counts, N_BYTES);
    *s = (struct sketch){ 0 };
}
