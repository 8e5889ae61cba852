/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/codec/codec.h"

#include "core/err.h"
#include "storage/codec/codec_table.h"
#include "storage/codec/hash.h"
#include "storage/codec/planes.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SCRATCH_BYTES (2 * DMI_BLOCK_BYTES) /* any codec's try of a plane, or a block's planes */

struct codec {
    struct codec_state state;
    enum codec_rung rung;
    uint8_t scratch[SCRATCH_BYTES] __attribute__((aligned(64)));
};

struct codec *codec_new(void)
{
    struct codec *c = aligned_alloc(64, sizeof *c);
    if (!c)
        return NULL;
    c->state = (struct codec_state){ 0 };
    c->rung = CODEC_SMALLEST;
    return c;
}

void codec_set_rung(struct codec *codec, enum codec_rung rung)
{
    codec->rung = rung;
}

enum codec_rung codec_rung(const struct codec *codec)
{
    return codec->rung;
}

void codec_free(struct codec *codec)
{
    if (!codec)
        return;
    codec_state_deinit(&codec->state);
    free(codec);
}

uint32_t codec_encoding(uint32_t dtype, enum codec_rung rung)
{
    if (rung == CODEC_STORED)
        return DMI_ENCODING_RAW;
    if (dmi_dtype_bytes(dtype) < 2)
        return DMI_ENCODING_RAW;
    return dmi_dtype_is_float(dtype) ? DMI_ENCODING_ROTATED : DMI_ENCODING_PLANES;
}

uint32_t codec_planes(uint32_t encoding, uint32_t element_bytes)
{
    if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4 && element_bytes != 8)
        return 0;
    if (encoding == DMI_ENCODING_RAW)
        return 1;
    return encoding == DMI_ENCODING_PLANES || encoding == DMI_ENCODING_ROTATED ? element_bytes : 0;
}

/* Floats have all that shrinks in the last plane, their exponents; the sooner others are passed over the better. */
static bool may_pay(const struct codec *codec, bool rotated, bool last)
{
    return codec->rung == CODEC_SMALLEST || (codec->rung == CODEC_PACKED && (!rotated || last));
}

/* By the first codec of the rung that pays, into the scratch memory. Return: bytes; 0: it stays as it is. */
static size_t try_plane(struct codec *codec, const uint8_t *src, size_t n, uint8_t *number)
{
    size_t used = 0;
    for (size_t i = 0; n && !used && i < codec_n_rows(); i++) {
        const struct codec_row *row = codec_row_at(i);
        if (row->rungs & 1u << codec->rung)
            used = row->encode(&codec->state, src, n, codec->scratch, SCRATCH_BYTES);
        *number = row->number;
    }
    return used;
}

/* A plane of @n bytes at @src, to @dst, which is at it or before it. */
static size_t encode_plane(struct codec *codec, const uint8_t *src, size_t n, uint8_t *dst,
                           bool pays, struct dmi_plane *plane)
{
    uint8_t number;
    size_t used = pays ? try_plane(codec, src, n, &number) : 0;
    *plane = (struct dmi_plane){ .codec = used ? number : DMI_CODEC_RAW };
    if (used)
        memcpy(dst, codec->scratch, used);
    else if (dst != src)
        memmove(dst, src, n);
    plane->n_stored = (uint32_t)(used ? used : n);
    plane->hash = hash_bytes(dst, plane->n_stored);
    return plane->n_stored;
}

size_t codec_encode(struct codec *codec, uint32_t encoding, uint32_t element_bytes, const void *raw,
                    size_t n_raw, void *out, struct dmi_plane *planes)
{
    uint32_t n_planes = codec_planes(encoding, element_bytes);
    if (!n_planes || n_raw > DMI_BLOCK_BYTES || n_raw % element_bytes)
        return 0;
    bool rotate = encoding == DMI_ENCODING_ROTATED;
    if (n_planes > 1 || rotate)
        planes_split(raw, out, n_raw / element_bytes, element_bytes, rotate);
    else
        memcpy(out, raw, n_raw);
    size_t n_plane = n_raw / n_planes, used = 0;
    for (uint32_t p = 0; p < n_planes; p++)
        used +=
            encode_plane(codec, (const uint8_t *)out + p * n_plane, n_plane, (uint8_t *)out + used,
                         may_pay(codec, rotate, p + 1 == n_planes), &planes[p]);
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
    bool rotate = encoding == DMI_ENCODING_ROTATED;
    size_t n_plane = n_raw / n_planes, used = 0;
    uint8_t *dst = n_planes > 1 || rotate ? codec->scratch : raw;
    for (uint32_t p = 0; p < n_planes; p++) {
        const uint8_t *src = (const uint8_t *)stored + used;
        *bad_plane = p;
        if (planes[p].n_stored > n_stored - used)
            return -EINVAL;
        TRY(decode_plane(codec, &planes[p], src, dst, n_plane));
        used += planes[p].n_stored;
        dst += n_plane;
    }
    if (used != n_stored)
        return -EINVAL;
    if (n_planes > 1 || rotate)
        planes_join(codec->scratch, raw, n_raw / element_bytes, element_bytes, rotate);
    return 0;
}
