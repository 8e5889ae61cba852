/* SPDX-License-Identifier: Apache-2.0 */
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode */
#include "storage/codec.h"

#include "storage/hash.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

/*
 * No matching, only entropy coding of bytes: the least level there is. A negative level switches
 * literal compression off by itself, so it is switched on again by hand (zstd 1.5.4; ratio 1.000
 * without).
 */
#define LITERALS_ONLY (-131072)

struct codec {
    ZSTD_CCtx *compress;
    ZSTD_DCtx *decompress;
    uint8_t planes[DMI_BLOCK_BYTES] __attribute__((aligned(64)));
};

struct codec *codec_new(void)
{
    struct codec *c = aligned_alloc(64, sizeof *c);
    if (!c)
        return NULL;
    c->compress = NULL;
    c->decompress = NULL;
    return c;
}

void codec_free(struct codec *codec)
{
    if (!codec)
        return;
    ZSTD_freeCCtx(codec->compress);
    ZSTD_freeDCtx(codec->decompress);
    free(codec);
}

void codec_freep(struct codec **codec)
{
    codec_free(*codec);
}

uint32_t codec_encoding(uint32_t dtype)
{
    switch (dtype) {
    case DMI_DTYPE_F32:
    case DMI_DTYPE_F16:
    case DMI_DTYPE_BF16:
    case DMI_DTYPE_F64: return DMI_ENCODING_ROTATED;
    default: return dmi_dtype_bytes(dtype) > 1 ? DMI_ENCODING_PLANES : DMI_ENCODING_RAW;
    }
}

uint32_t codec_planes(uint32_t encoding, uint32_t element_bytes)
{
    if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4 && element_bytes != 8)
        return 0;
    if (encoding == DMI_ENCODING_RAW)
        return 1;
    return encoding == DMI_ENCODING_PLANES || encoding == DMI_ENCODING_ROTATED ? element_bytes : 0;
}

size_t codec_bound(size_t n_raw)
{
    /* a plane that grows is written behind those before it, and then overwritten by its raw form */
    return n_raw + ZSTD_compressBound(n_raw);
}

/*
 * Planes from elements and back, one function a width, so that the compiler sees constant strides
 * (it vectorises them at -O3). Loads go through memcpy: payload has any alignment.
 */
#define DEFINE_SPLIT(BITS)                                                                         \
    static void split##BITS(const uint8_t *restrict in, uint8_t *restrict out, size_t n, int rot)  \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            uint##BITS##_t v;                                                                      \
            memcpy(&v, in + i * sizeof v, sizeof v);                                               \
            v = (uint##BITS##_t)(rot ? (uint##BITS##_t)(v << 1) | (v >> (BITS - 1)) : v);          \
            for (size_t p = 0; p < sizeof v; p++)                                                  \
                out[p * n + i] = (uint8_t)(v >> (8 * p));                                          \
        }                                                                                          \
    }                                                                                              \
    static void join##BITS(const uint8_t *restrict in, uint8_t *restrict out, size_t n, int rot)   \
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

DEFINE_SPLIT(16)
DEFINE_SPLIT(32)
DEFINE_SPLIT(64)

static void split(const uint8_t *in, uint8_t *out, size_t n, uint32_t element_bytes, int rotate)
{
    if (element_bytes == 2)
        rotate ? split16(in, out, n, 1) : split16(in, out, n, 0);
    else if (element_bytes == 4)
        rotate ? split32(in, out, n, 1) : split32(in, out, n, 0);
    else
        rotate ? split64(in, out, n, 1) : split64(in, out, n, 0);
}

static void join(const uint8_t *in, uint8_t *out, size_t n, uint32_t element_bytes, int rotate)
{
    if (element_bytes == 2)
        rotate ? join16(in, out, n, 1) : join16(in, out, n, 0);
    else if (element_bytes == 4)
        rotate ? join32(in, out, n, 1) : join32(in, out, n, 0);
    else
        rotate ? join64(in, out, n, 1) : join64(in, out, n, 0);
}

static void rotate8(uint8_t *b, size_t n, int left)
{
    for (size_t i = 0; i < n; i++)
        b[i] = (uint8_t)(left ? b[i] << 1 | b[i] >> 7 : b[i] >> 1 | b[i] << 7);
}

static ZSTD_CCtx *compressor(struct codec *c)
{
    if (c->compress)
        return c->compress;
    ZSTD_CCtx *z = ZSTD_createCCtx();
    if (!z)
        return NULL;
    size_t r = ZSTD_CCtx_setParameter(z, ZSTD_c_compressionLevel, LITERALS_ONLY);
    if (!ZSTD_isError(r))
        r = ZSTD_CCtx_setParameter(z, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
    if (!ZSTD_isError(r))
        r = ZSTD_CCtx_setParameter(z, ZSTD_c_contentSizeFlag, 1);
    if (ZSTD_isError(r)) {
        ZSTD_freeCCtx(z);
        return NULL;
    }
    return c->compress = z;
}

/*
 * Whether a plane is worth a try. A mantissa's bytes are all but uniform, and zstd needs as long to
 * give up on them as several hashes of them take: a sample of SAMPLES bytes tells. Its number of
 * equal pairs has mean n + n(n-1)/256 and deviation n/sqrt(128) if bytes are uniform; a plane that
 * would shrink by 1.6%, the least that zstd accepts, lies well above four deviations.
 */
#define SAMPLES 1024u
#define RUNS    16u

static int may_shrink(const uint8_t *plane, size_t n)
{
    if (n < 4 * SAMPLES)
        return 1;
    uint32_t count[256] = { 0 }, pairs = 0;
    for (uint32_t run = 0; run < RUNS; run++) {
        const uint8_t *from = plane + run * (n / RUNS);
        for (uint32_t i = 0; i < SAMPLES / RUNS; i++)
            count[from[i]]++;
    }
    for (int i = 0; i < 256; i++)
        pairs += count[i] * count[i];
    return pairs > SAMPLES + SAMPLES * (SAMPLES - 1) / 256 + 4 * 91;
}

size_t codec_encode(struct codec *codec, uint32_t encoding, uint32_t element_bytes, const void *raw,
                    size_t n_raw, void *out, struct dmi_plane *planes)
{
    uint32_t n_planes = codec_planes(encoding, element_bytes);
    if (!n_planes || n_raw > DMI_BLOCK_BYTES || n_raw % element_bytes)
        return 0;
    int rotate = encoding == DMI_ENCODING_ROTATED;
    const uint8_t *src = raw;
    if (n_planes > 1) {
        split(raw, codec->planes, n_raw / element_bytes, element_bytes, rotate);
        src = codec->planes;
    } else if (rotate) {
        memcpy(codec->planes, raw, n_raw);
        rotate8(codec->planes, n_raw, 1);
        src = codec->planes;
    }
    /* without memory for zstd everything is stored raw: larger, and whole */
    ZSTD_CCtx *z = compressor(codec);
    size_t n_plane = n_raw / n_planes, used = 0;
    for (uint32_t p = 0; p < n_planes; p++) {
        uint8_t *dst = (uint8_t *)out + used;
        size_t n = n_plane;
        if (z && may_shrink(src, n_plane))
            n = ZSTD_compress2(z, dst, codec_bound(n_raw) - used, src, n_plane);
        planes[p] = (struct dmi_plane){ .codec = DMI_CODEC_ZSTD };
        if (ZSTD_isError(n) || n >= n_plane) {
            memcpy(dst, src, n_plane);
            planes[p].codec = DMI_CODEC_RAW;
            n = n_plane;
        }
        planes[p].n_stored = (uint32_t)n;
        planes[p].hash = hash_bytes(dst, n);
        used += n;
        src += n_plane;
    }
    return used;
}

int codec_decode(struct codec *codec, uint32_t encoding, uint32_t element_bytes,
                 const struct dmi_plane *planes, const void *stored, size_t n_stored, void *raw,
                 size_t n_raw, uint32_t *bad_plane)
{
    uint32_t n_planes = codec_planes(encoding, element_bytes);
    *bad_plane = 0;
    if (!n_planes || n_raw > DMI_BLOCK_BYTES || n_raw % element_bytes)
        return -EINVAL;
    if (!codec->decompress && !(codec->decompress = ZSTD_createDCtx()))
        return -ENOMEM;
    int rotate = encoding == DMI_ENCODING_ROTATED;
    size_t n_plane = n_raw / n_planes, used = 0;
    uint8_t *dst = n_planes > 1 ? codec->planes : raw;
    for (uint32_t p = 0; p < n_planes; p++) {
        const uint8_t *src = (const uint8_t *)stored + used;
        *bad_plane = p;
        if (planes[p].n_stored > n_stored - used)
            return -EINVAL;
        if (hash_bytes(src, planes[p].n_stored) != planes[p].hash)
            return -EBADMSG;
        if (planes[p].codec == DMI_CODEC_ZSTD) {
            size_t n =
                ZSTD_decompressDCtx(codec->decompress, dst, n_plane, src, planes[p].n_stored);
            if (ZSTD_isError(n) || n != n_plane)
                return -EBADMSG;
        } else if (planes[p].codec == DMI_CODEC_RAW && planes[p].n_stored == n_plane) {
            memcpy(dst, src, n_plane);
        } else {
            return -EBADMSG;
        }
        used += planes[p].n_stored;
        dst += n_plane;
    }
    if (used != n_stored)
        return -EINVAL;
    if (n_planes > 1)
        join(codec->planes, raw, n_raw / element_bytes, element_bytes, rotate);
    else if (rotate)
        rotate8(raw, n_raw, 0);
    return 0;
}
