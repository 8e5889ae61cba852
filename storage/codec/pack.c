/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/codec/pack.h"

#include "storage/codec/cpu.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define ESCAPE 15u   /* of the 16 values: what comes as a byte of its own */
#define STRIPE 1024u /* bytes that have one least value: a warp's, or a step of the loops below */
#define SAMPLE                                                                                     \
    32u /* bytes at the beginning of each quarter of a stripe that say what is usual in it */

static size_t stripes(size_t n)
{
    return (n + STRIPE - 1) / STRIPE;
}

/* Without escapes. */
static size_t packed_bytes(size_t n)
{
    return stripes(n) + (n + 1) / 2;
}

size_t pack_bound(size_t n)
{
    return packed_bytes(n) + n;
}

/* Escapes that leave an eighth of the plane saved. */
static size_t most_escapes(size_t n)
{
    size_t used = packed_bytes(n) + n / 8;
    return used < n ? n - used : 0;
}

static uint8_t greatest(const uint8_t *src, size_t n)
{
    uint8_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = src[i] > most ? src[i] : most;
    return most;
}

/* A stripe's least value: what is far above the usual, one in a hundred, is an escape rather than all that is small. */
static uint8_t choose_least(const uint8_t *src, size_t n)
{
    size_t each = n / 4 < SAMPLE ? n / 4 : SAMPLE;
    uint32_t most = 0;
    for (size_t part = 0; part < 4; part++) {
        uint32_t one = greatest(src + part * (n / 4), each) + 1u;
        most = one > most ? one : most;
    }
    return (uint8_t)(most >= ESCAPE ? most - ESCAPE + 1 : 0);
}

/* ------------------------------------------------------------------------- portable */

/* A stripe, whose nibbles begin a byte. Return: the escapes' end. */
static uint8_t *pack_portable(const uint8_t *src, size_t n, uint8_t least, uint8_t *dst,
                              uint8_t *escapes)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t far = (uint8_t)(src[i] - least);
        uint8_t v = far < ESCAPE ? far : ESCAPE;
        dst[i / 2] = (uint8_t)(i % 2 ? dst[i / 2] | v << 4 : v);
        *escapes = src[i];
        escapes += v == ESCAPE;
    }
    return escapes;
}

/* Return: the escapes' end; NULL where there are too few of them. */
static const uint8_t *unpack_portable(const uint8_t *src, const uint8_t *escapes,
                                      const uint8_t *end, uint8_t least, uint8_t *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t v = (uint8_t)(src[i / 2] >> (i % 2 ? 4 : 0) & 15u);
        if (v == ESCAPE && escapes == end)
            return NULL;
        dst[i] = v == ESCAPE ? *escapes++ : (uint8_t)(least + v);
    }
    return escapes;
}

/* ------------------------------------------------------------------------- AVX2 */

#ifdef __x86_64__
#define AVX2 __attribute__((target("avx2")))

/* The bytes at @src that @mask has bits of. */
static inline uint8_t *put_escapes(const uint8_t *src, uint32_t mask, uint8_t *escapes)
{
    for (; mask; mask &= mask - 1)
        *escapes++ = src[__builtin_ctz(mask)];
    return escapes;
}

/* The same of a whole stripe. */
AVX2 static uint8_t *pack_avx2(const uint8_t *src, uint8_t least, uint8_t *dst, uint8_t *escapes)
{
    const __m256i low = _mm256_set1_epi8((char)least), top = _mm256_set1_epi8(ESCAPE);
    const __m256i weights = _mm256_set1_epi16(16 << 8 | 1); /* of an even element, and an odd one */
    for (size_t i = 0; i < STRIPE; i += 64) {
        __m256i a = _mm256_loadu_si256((const void *)(src + i));
        __m256i b = _mm256_loadu_si256((const void *)(src + i + 32));
        a = _mm256_min_epu8(_mm256_sub_epi8(a, low), top);
        b = _mm256_min_epu8(_mm256_sub_epi8(b, low), top);
        uint32_t far_a = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, top));
        uint32_t far_b = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(b, top));
        __m256i both =
            _mm256_packus_epi16(_mm256_maddubs_epi16(a, weights), _mm256_maddubs_epi16(b, weights));
        _mm256_storeu_si256((void *)(dst + i / 2), _mm256_permute4x64_epi64(both, 0xd8));
        escapes = put_escapes(src + i, far_a, escapes);
        escapes = put_escapes(src + i + 32, far_b, escapes);
    }
    return escapes;
}

AVX2 static const uint8_t *unpack_avx2(const uint8_t *src, const uint8_t *escapes,
                                       const uint8_t *end, uint8_t least, uint8_t *dst)
{
    const __m256i low = _mm256_set1_epi8((char)least), top = _mm256_set1_epi8(ESCAPE);
    for (size_t i = 0; i < STRIPE; i += 64) {
        __m256i packed = _mm256_loadu_si256((const void *)(src + i / 2));
        packed = _mm256_permute4x64_epi64(packed, 0xd8);
        __m256i even = _mm256_and_si256(packed, top);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi16(packed, 4), top);
        __m256i half[2] = { _mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd) };
        for (int h = 0; h < 2; h++) {
            uint8_t *to = dst + i + 32 * h;
            uint32_t far = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(half[h], top));
            _mm256_storeu_si256((void *)to, _mm256_add_epi8(half[h], low));
            if ((size_t)__builtin_popcount(far) > (size_t)(end - escapes))
                return NULL;
            for (; far; far &= far - 1)
                to[__builtin_ctz(far)] = *escapes++;
        }
    }
    return escapes;
}

#else
static uint8_t *pack_avx2(const uint8_t *src, uint8_t least, uint8_t *dst, uint8_t *escapes)
{
    return pack_portable(src, STRIPE, least, dst, escapes);
}

static const uint8_t *unpack_avx2(const uint8_t *src, const uint8_t *escapes, const uint8_t *end,
                                  uint8_t least, uint8_t *dst)
{
    return unpack_portable(src, escapes, end, least, dst, STRIPE);
}
#endif

/* ------------------------------------------------------------------------- either */

static size_t encode(const uint8_t *src, size_t n, uint8_t *dst, bool fast)
{
    uint8_t *packed = dst + stripes(n), *escapes = dst + packed_bytes(n), *end = escapes;
    for (size_t at = 0; at < n; at += STRIPE) {
        size_t part = n - at < STRIPE ? n - at : STRIPE;
        uint8_t least = dst[at / STRIPE] = choose_least(src + at, part);
        end = fast && part == STRIPE ? pack_avx2(src + at, least, packed + at / 2, end)
                                     : pack_portable(src + at, part, least, packed + at / 2, end);
        if ((size_t)(end - escapes) > most_escapes(n))
            return 0;
    }
    return most_escapes(n) ? (size_t)(end - dst) : 0;
}

static int decode(const uint8_t *src, size_t n_stored, uint8_t *dst, size_t n, bool fast)
{
    if (n_stored < packed_bytes(n) || (n % 2 && src[packed_bytes(n) - 1] >> 4))
        return -EBADMSG; /* half a byte that no element has is 0 */
    const uint8_t *packed = src + stripes(n), *end = src + n_stored;
    const uint8_t *escapes = src + packed_bytes(n);
    for (size_t at = 0; escapes && at < n; at += STRIPE) {
        size_t part = n - at < STRIPE ? n - at : STRIPE;
        uint8_t least = src[at / STRIPE];
        escapes = fast && part == STRIPE
                      ? unpack_avx2(packed + at / 2, escapes, end, least, dst + at)
                      : unpack_portable(packed + at / 2, escapes, end, least, dst + at, part);
    }
    return escapes == end ? 0 : -EBADMSG;
}

size_t pack_encode(const uint8_t *src, size_t n, uint8_t *dst)
{
    return encode(src, n, dst, has_avx2());
}

int pack_decode(const uint8_t *src, size_t n_stored, uint8_t *dst, size_t n)
{
    return decode(src, n_stored, dst, n, has_avx2());
}

size_t pack_encode_portable(const uint8_t *src, size_t n, uint8_t *dst)
{
    return encode(src, n, dst, false);
}

int pack_decode_portable(const uint8_t *src, size_t n_stored, uint8_t *dst, size_t n)
{
    return decode(src, n_stored, dst, n, false);
}
