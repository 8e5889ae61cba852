/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/codec.h"

#include "storage/codec_table.h"
#include "storage/hash.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct codec {
    struct codec_state state;
    uint8_t planes[DMI_BLOCK_BYTES] __attribute__((aligned(64)));
};

struct codec *codec_new(void)
{
    struct codec *c = aligned_alloc(64, sizeof *c);
    if (!c)
        return NULL;
    c->state = (struct codec_state){ 0 };
    return c;
}

void codec_free(struct codec *codec)
{
    if (!codec)
        return;
    codec_state_deinit(&codec->state);
    free(codec);
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
    /* a plane that grows is written after those before it, and then overwritten by its raw form */
    return n_raw + codec_row_bound(n_raw);
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

/* One plane by the first codec that pays; without memory for others it is stored raw. */
static size_t encode_plane(struct codec *codec, const uint8_t *src, size_t n, uint8_t *dst,
                           size_t room, struct dmi_plane *plane)
{
    size_t used = 0;
    *plane = (struct dmi_plane){ 0 };
    for (size_t i = 0; n && !used && i < codec_n_rows(); i++) {
        const struct codec_row *row = codec_row_at(i);
        used = row->encode ? row->encode(&codec->state, src, n, dst, room) : 0;
        plane->codec = used ? row->number : DMI_CODEC_RAW;
    }
    plane->n_stored = (uint32_t)used;
    plane->hash = hash_bytes(dst, used);
    return used;
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
    size_t n_plane = n_raw / n_planes, used = 0;
    for (uint32_t p = 0; p < n_planes; p++) {
        used += encode_plane(codec, src, n_plane, (uint8_t *)out + used, codec_bound(n_raw) - used,
                             &planes[p]);
        src += n_plane;
    }
    return used;
}

static int decode_plane(struct codec *codec, const struct dmi_plane *plane, const uint8_t *src,
                        uint8_t *dst, size_t n)
{
    if (hash_bytes(src, plane->n_stored) != plane->hash)
        return -EBADMSG;
    const struct codec_row *row = codec_row(plane->codec);
    return row ? row->decode(&codec->state, src, plane->n_stored, dst, n) : -ENOTSUP;
}

int codec_decode(struct codec *codec, uint32_t encoding, uint32_t element_bytes,
                 const struct dmi_plane *planes, const void *stored, size_t n_stored, void *raw,
                 size_t n_raw, uint32_t *bad_plane)
{
    uint32_t n_planes = codec_planes(encoding, element_bytes);
    *bad_plane = 0;
    if (!n_planes)
        return -ENOTSUP;
    if (n_raw > DMI_BLOCK_BYTES || n_raw % element_bytes)
        return -EINVAL;
    int rotate = encoding == DMI_ENCODING_ROTATED;
    size_t n_plane = n_raw / n_planes, used = 0;
    uint8_t *dst = n_planes > 1 ? codec->planes : raw;
    for (uint32_t p = 0; p < n_planes; p++) {
        const uint8_t *src = (const uint8_t *)stored + used;
        *bad_plane = p;
        if (planes[p].n_stored > n_stored - used)
            return -EINVAL;
        int r = decode_plane(codec, &planes[p], src, dst, n_plane);
        if (r)
            return r;
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
