/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/sketch.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#define KEY_SHIFT 16                    /* bits of a float that a key leaves out */
#define N_KEYS    (SKETCH_BUCKETS / 2u) /* of one sign; the negative ones stand after the others */
#define AT_ONCE   256u                  /* doubles that become keys together */

/* ------------------------------------------------------------------------- counting */

/*
 * Memory that nothing touches costs nothing: a table with an index of pages takes twice the time a value. The system may
 * not join sketches into huge pages.
 */
static int reserve(void **table, size_t size)
{
    if (*table)
        return 0;
    void *map = mmap(NULL, SKETCH_BUCKETS * size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return -ENOMEM;
    madvise(map, SKETCH_BUCKETS * size, MADV_NOHUGEPAGE);
    *table = map;
    return 0;
}

/* Recent counts are narrow, so that those of many sketches stay in the processor's caches. Before @n more could be too many for one, they move. */
static int make_room(struct sketch *s, uint64_t n)
{
    if (s->n_recent + n <= UINT32_MAX)
        return reserve((void **)&s->recent, sizeof *s->recent);
    if (reserve((void **)&s->earlier, sizeof *s->earlier))
        return -ENOMEM;
    for (uint32_t key = 0; key < SKETCH_BUCKETS; key++)
        if (s->recent[key]) {
            s->earlier[key] += s->recent[key];
            s->recent[key] = 0;
        }
    s->n_recent = 0;
    return 0;
}

/* Keys as they lie in memory: 16 bits, little-endian, @step bytes apart. A register takes each from there to its count. */
static inline __attribute__((always_inline)) void count(uint32_t *counts, const uint8_t *keys,
                                                        size_t step, size_t n)
{
    _Pragma("GCC unroll 8") for (size_t i = 0; i < n; i++, keys += step)
        counts[(uint32_t)keys[0] | (uint32_t)keys[1] << 8]++;
}

int sketch_add_keys(struct sketch *s, const void *keys, size_t step, size_t n)
{
    if (make_room(s, n))
        return -ENOMEM;
    if (step == sizeof(float))
        count(s->recent, keys, sizeof(float), n);
    else
        count(s->recent, keys, step, n);
    s->n_recent += n;
    s->n += n;
    return 0;
}

int sketch_add(struct sketch *s, const double *values, size_t n)
{
    uint16_t keys[AT_ONCE];
    for (size_t at = 0, some; at < n; at += some) {
        some = n - at < AT_ONCE ? n - at : AT_ONCE;
        for (size_t i = 0; i < some; i++) {
            float narrow = (float)values[at + i];
            uint32_t bits;
            memcpy(&bits, &narrow, sizeof bits);
            keys[i] = (uint16_t)(bits >> KEY_SHIFT);
        }
        if (sketch_add_keys(s, keys, sizeof keys[0], some))
            return -ENOMEM;
    }
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

/* Counts are summed by page first, which the compiler vectorises: a page is of one power of two. */
#define PAGE        128u
#define PAGE_OF_ONE 0x3f80u

static uint64_t count_of(const struct sketch *s, uint32_t key)
{
    return s->recent[key] + (s->earlier ? s->earlier[key] : 0);
}

static uint64_t sum_of(const struct sketch *s, uint32_t page)
{
    uint64_t sum = 0;
    for (uint32_t key = page; key < page + PAGE; key++)
        sum += s->recent[key];
    for (uint32_t key = page; s->earlier && key < page + PAGE; key++)
        sum += s->earlier[key];
    return sum;
}

static uint64_t sum_of_both(const struct sketch *s, uint32_t page)
{
    return sum_of(s, page) + sum_of(s, N_KEYS + page);
}

/* Where the counts are: in the first page, which has zero in it, and in those from @low to before @high. */
struct count_bounds {
    uint32_t low, high;
};

/* From 1 up and down, until all are found: the system would have to map what nothing touched, one fault for four pages. */
static struct count_bounds span_of(const struct sketch *s)
{
    struct count_bounds span = { PAGE_OF_ONE, PAGE_OF_ONE };
    for (uint64_t found = sum_of_both(s, 0); found < s->n;) {
        if (span.low > PAGE)
            found += sum_of_both(s, span.low -= PAGE);
        if (span.high < N_KEYS) {
            found += sum_of_both(s, span.high);
            span.high += PAGE;
        }
    }
    return span;
}

static uint32_t next_page(const struct count_bounds *span, uint32_t page)
{
    return page ? page + PAGE : span->low;
}

/* Keys of one sign, from @first on, or of both. */
struct keys {
    uint32_t first;
    bool both;
};

/* The key of the rank-th value among @keys, without its sign, from the lowest magnitude on. N_KEYS: there are fewer. */
static uint32_t key_of(const struct sketch *s, const struct count_bounds *span, struct keys keys,
                       uint64_t rank)
{
    uint64_t before = 0;
    for (uint32_t page = 0; page < span->high; page = next_page(span, page)) {
        uint64_t n = keys.both ? sum_of_both(s, page) : sum_of(s, keys.first + page);
        if (before + n <= rank) {
            before += n;
            continue;
        }
        for (uint32_t key = page; key < page + PAGE; key++) {
            before += count_of(s, keys.first + key) + (keys.both ? count_of(s, N_KEYS + key) : 0);
            if (before > rank)
                return key;
        }
    }
    return N_KEYS;
}

static uint64_t n_negative(const struct sketch *s, const struct count_bounds *span)
{
    uint64_t n = 0;
    for (uint32_t page = 0; page < span->high; page = next_page(span, page))
        n += sum_of(s, N_KEYS + page);
    return n;
}

double sketch_quantile(const struct sketch *s, double q)
{
    if (!s->n)
        return NAN;
    struct count_bounds span = span_of(s);
    uint64_t rank = rank_of(s, q), negative = n_negative(s, &span);
    return rank < negative
               ? -middle(key_of(s, &span, (struct keys){ .first = N_KEYS }, negative - 1 - rank))
               : middle(key_of(s, &span, (struct keys){ 0 }, rank - negative));
}

double sketch_magnitude(const struct sketch *s, double q)
{
    if (!s->n)
        return NAN;
    struct count_bounds span = span_of(s);
    return middle(key_of(s, &span, (struct keys){ .both = true }, rank_of(s, q)));
}

void sketch_deinit(struct sketch *s)
{
    if (s->recent)
        munmap(s->recent, SKETCH_BUCKETS * sizeof *s->recent);
    if (s->earlier)
        munmap(s->earlier, SKETCH_BUCKETS * sizeof *s->earlier);
    *s = (struct sketch){ 0 };
}
