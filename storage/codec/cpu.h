/* SPDX-License-Identifier: Apache-2.0 */
/* What the processor can do beyond the least that its kind has. Pure: any thread. */
#pragma once

#include <stdbool.h>

/* Has it AVX2, and FMA, which each processor with AVX2 has? Never where it is no x86-64. */
static inline bool has_avx2(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

/* Has it what processors with AVX-512 have since 2017: F, BW, DQ, VL? Never where it is no x86-64. */
static inline bool has_avx512(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}
