/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of attention for AVX2 and their portable form on the same random numbers:
 *
 *     kernels SEED
 *
 * Says what differs. Exits with 0, 1 (bits differ), 77 (the processor has no AVX2).
 */
#include "analyze/kernel.h"
#include "storage/codec/cpu.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_KEYS 72
#define MOST_DIM  40

#ifdef __x86_64__
static uint64_t state;

static float number(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(state >> 40) / (1 << 22) - 2);
}

static void fill(float *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = number();
}

/* All three, one after the other, as attention does. */
static void compute(const struct kernel *k, const float *q, const float *keys, const float *values,
                    size_t n_keys, size_t dim, float cap, float sink, float *rows, float *out)
{
    size_t n = (n_keys + 7) / 8 * 8;
    k->scores(q, keys, n / 8, dim, 0.5f, rows, n);
    for (size_t i = 0; i < KERNEL_GROUP; i++)
        k->softmax(rows + i * n, i, n_keys - i, n, cap, sink);
    k->weigh(rows, n, KERNEL_GROUP, values, n_keys, dim, out);
    k->weigh(rows + n, n, 1, values, n_keys, dim, out + dim);
}

static int differs(size_t n_keys, size_t dim, float cap, float sink)
{
    static float q[KERNEL_GROUP * MOST_DIM], keys[MOST_KEYS * MOST_DIM],
        values[MOST_KEYS * MOST_DIM];
    static float rows[2][KERNEL_GROUP * MOST_KEYS], out[2][KERNEL_GROUP * MOST_DIM];
    fill(q, KERNEL_GROUP * dim);
    fill(keys, MOST_KEYS * dim);
    fill(values, MOST_KEYS * dim);
    if (number() < -1.5f)
        keys[0] = NAN;
    memset(rows, 0, sizeof rows);
    memset(out, 0, sizeof out);
    compute(&kernel_avx2, q, keys, values, n_keys, dim, cap, sink, rows[0], out[0]);
    compute(&kernel_portable, q, keys, values, n_keys, dim, cap, sink, rows[1], out[1]);
    if (!memcmp(rows[0], rows[1], sizeof rows[0]) && !memcmp(out[0], out[1], sizeof out[0]))
        return 0;
    printf("%zu keys, %zu dimensions, cap %g, sink %g: bits differ\n", n_keys, dim, (double)cap,
           (double)sink);
    return 1;
}
#endif

int main(int argc, char **argv)
{
    int n = 0;
#ifdef __x86_64__
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    if (!has_avx2())
        return 77;
    for (size_t n_keys = 8; n_keys <= MOST_KEYS; n_keys++)
        for (size_t dim = 8; dim <= MOST_DIM; dim += 8)
            n += differs(n_keys, dim, n_keys % 3 ? 0 : 4, n_keys % 2 ? -INFINITY : 1);
    return n ? 1 : 0;
#else
    (void)argc, (void)argv;
    return 77 + n;
#endif
}
