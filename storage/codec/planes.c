/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/codec/planes.h"

#include "storage/codec/cpu.h"

#include <string.h>

/*
 * One body a width, inlined where all but the data is constant, so that the compiler vectorises it (at -O3) for the
 * instructions of the function that it is in. Loads go through memcpy: payload has any alignment.
 */
#define INLINE static inline __attribute__((always_inline))

#define DEFINE_BODIES(BITS)                                                                        \
    INLINE void split##BITS(const uint8_t *restrict in, uint8_t *restrict out, size_t n, bool rot) \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            uint##BITS##_t v;                                                                      \
            memcpy(&v, in + i * sizeof v, sizeof v);                                               \
            v = (uint##BITS##_t)(rot ? (uint##BITS##_t)(v << 1) | (v >> (BITS - 1)) : v);          \
            for (size_t p = 0; p < sizeof v; p++)                                                  \
                out[p * n + i] = (uint8_t)(v >> (8 * p));                                          \
        }                                                                                          \
    }                                                                                              \
    INLINE void join##BITS(const uint8_t *restrict in, uint8_t *restrict out, size_t n, bool rot)  \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            uint##BITS##_t v = 0;                                                                  \
            for (size_t p = 0; p < sizeof v; p++)                                                  \
                v = (uint##BITS##_t)(v |                                                           \
                                     (uint##BITS##_t)((uint##BITS##_t)in[p * n + i] << (8 * p)));  \
            v = (uint##BITS##_t)(                                                                  \
                rot ? (uint##BITS##_t)(v >> 1) | (uint##BITS##_t)(v << (BITS - 1)) : v);           \
            memcpy(out + i * sizeof v, &v, sizeof v);                                              \
        }                                                                                          \
    }

DEFINE_BODIES(8)
DEFINE_BODIES(16)
DEFINE_BODIES(32)
DEFINE_BODIES(64)

/* Both ways for one set of instructions. */
#define DEFINE_WAYS(NAME, TARGET)                                                                  \
    TARGET static void split_##NAME(const uint8_t *in, uint8_t *out, size_t n,                     \
                                    uint32_t element_bytes, bool rotate)                           \
    {                                                                                              \
        switch (element_bytes) {                                                                   \
        case 1: rotate ? split8(in, out, n, true) : split8(in, out, n, false); break;              \
        case 2: rotate ? split16(in, out, n, true) : split16(in, out, n, false); break;            \
        case 4: rotate ? split32(in, out, n, true) : split32(in, out, n, false); break;            \
        case 8: rotate ? split64(in, out, n, true) : split64(in, out, n, false); break;            \
        }                                                                                          \
    }                                                                                              \
    TARGET static void join_##NAME(const uint8_t *in, uint8_t *out, size_t n,                      \
                                   uint32_t element_bytes, bool rotate)                            \
    {                                                                                              \
        switch (element_bytes) {                                                                   \
        case 1: rotate ? join8(in, out, n, true) : join8(in, out, n, false); break;                \
        case 2: rotate ? join16(in, out, n, true) : join16(in, out, n, false); break;              \
        case 4: rotate ? join32(in, out, n, true) : join32(in, out, n, false); break;              \
        case 8: rotate ? join64(in, out, n, true) : join64(in, out, n, false); break;              \
        }                                                                                          \
    }

DEFINE_WAYS(plain, )
#ifdef __x86_64__
DEFINE_WAYS(avx2, __attribute__((target("avx2"))))
#endif

void planes_split(const uint8_t *in, uint8_t *out, size_t n, uint32_t element_bytes, bool rotate)
{
#ifdef __x86_64__
    if (has_avx2()) {
        split_avx2(in, out, n, element_bytes, rotate);
        return;
    }
#endif
    split_plain(in, out, n, element_bytes, rotate);
}

void planes_join(const uint8_t *in, uint8_t *out, size_t n, uint32_t element_bytes, bool rotate)
{
#ifdef __x86_64__
    if (has_avx2()) {
        join_avx2(in, out, n, element_bytes, rotate);
        return;
    }
#endif
    join_plain(in, out, n, element_bytes, rotate);
}

void planes_split_portable(const uint8_t *in, uint8_t *out, size_t n, uint32_t element_bytes,
                           bool rotate)
{
    split_plain(in, out, n, element_bytes, rotate);
}

void planes_join_portable(const uint8_t *in, uint8_t *out, size_t n, uint32_t element_bytes,
                          bool rotate)
{
    join_plain(in, out, n, element_bytes, rotate);
}
