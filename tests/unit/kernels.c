/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of attention for each instruction set and their portable form on the same random numbers:
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

#define MOST_KEYS 80
#define MOST_DIM  48

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

/* All of them, one after the other, as attention and heads do. */
static void compute(const struct kernel *k, const float *q, const float *keys, const float *values,
                    size_t n_keys, size_t dim, float cap, float sink, float *rows, float *out,
                    struct kernel_sums *sums)
{
    size_t n = (n_keys + KERNEL_LANES - 1) / KERNEL_LANES * KERNEL_LANES;
    k->scores(q, keys, n / KERNEL_LANES, dim, 0.5f, rows, n);
    for (size_t i = 0; i < KERNEL_GROUP; i++)
        k->softmax(rows + i * n, i, n_keys - i, n, cap, sink, i ? &sums[i] : NULL);
    k->weigh(rows, n, KERNEL_GROUP, values, n_keys, dim, out);
    k->weigh(rows + n, n, 1, values, n_keys, dim, out + dim);
}

static int differs(const struct kernel *kernel, size_t n_keys, size_t dim, float cap, float sink)
{
    static float q[KERNEL_GROUP * MOST_DIM], keys[MOST_KEYS * MOST_DIM],
        values[MOST_KEYS * MOST_DIM];
    static float rows[2][KERNEL_GROUP * MOST_KEYS], out[2][KERNEL_GROUP * MOST_DIM];
    struct kernel_sums sums[2][KERNEL_GROUP] = { 0 };
    fill(q, KERNEL_GROUP * dim);
    fill(keys, MOST_KEYS * dim);
    fill(values, MOST_KEYS * dim);
    if (number() < -1.5f)
        keys[0] = NAN;
    memset(rows, 0, sizeof rows);
    memset(out, 0, sizeof out);
    compute(kernel, q, keys, values, n_keys, dim, cap, sink, rows[0], out[0], sums[0]);
    compute(&kernel_portable, q, keys, values, n_keys, dim, cap, sink, rows[1], out[1], sums[1]);
    if (!memcmp(rows[0], rows[1], sizeof rows[0]) && !memcmp(out[0], out[1], sizeof out[0]) &&
        !memcmp(sums[0], sums[1], sizeof sums[0]))
        return 0;
    printf("%s, %zu keys, %zu dimensions, cap %g, sink %g: bits differ\n", kernel->name, n_keys,
           dim, (double)cap, (double)sink);
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
        for (size_t dim = KERNEL_LANES; dim <= MOST_DIM; dim += KERNEL_LANES)
            for (size_t k = 0; k < 1u + has_avx512(); k++)
                n += differs(k ? &kernel_avx512 : &kernel_avx2, n_keys, dim, n_keys % 3 ? 0 : 4,
                             n_keys % 2 ? -INFINITY : 1);
    return n ? 1 : 0;
#else
    (void)argc, (void)argv;
    return 77 + n;
#endif
}
