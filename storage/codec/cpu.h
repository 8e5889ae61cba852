/* SPDX-License-Identifier: Apache-2.0 */
/* What the processor can do beyond the least that its kind has. Pure: any thread. */
#ifndef STORAGE_CODEC_CPU_H
#define STORAGE_CODEC_CPU_H

#include <stdbool.h>

/* Has it AVX2? Never where it is no x86-64. */
static inline bool has_avx2(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

/* Has it the foundation of AVX-512? Never where it is no x86-64. */
static inline bool has_avx512(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

#endif
