/* SPDX-License-Identifier: Apache-2.0 */
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode */
#include "storage/codec/codec_table.h"

#include "core/any.h"
#include "storage/codec/pack.h"
#include "storage/codec/rung.h"

#include <dmi/format.h>

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <zstd.h>

/* ------------------------------------------------------------------------- raw */

static int raw_decode(struct codec_state *state, const uint8_t *src, size_t n_stored, uint8_t *dst,
                      size_t n)
{
    (void)state;
    if (n_stored != n)
        return -EBADMSG;
    memcpy(dst, src, n);
    return 0;
}

/* ------------------------------------------------------------------------- zstd */

/*
 * No matching, only entropy coding of bytes: the least level there is. A negative level switches
 * literal compression off by itself, so it is switched on again by hand (zstd 1.5.4; ratio 1.000
 * without).
 */
#define LITERALS_ONLY (-131072)

static ZSTD_CCtx *compressor(struct codec_state *state)
{
    if (state->compress)
        return state->compress;
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
    state->compress = z;
    return z;
}

/*
 * Whether a plane is worth a try. A mantissa's bytes are all but uniform, and zstd needs as long to
 * give up on them as several hashes of them take: a sample of SAMPLES bytes tells. Its number of
 * equal pairs has mean n + n(n-1)/256 and deviation n/sqrt(128) = 91 if bytes are uniform. A plane that lies
 * less than WORTH deviations above would shrink by less than a twelfth: over activations 0.2% of all bytes, for
 * a tenth of all time (docs/measurements.md, "Codec").
 */
#define SAMPLES   1024u
#define RUNS      16u
#define DEVIATION 91u
#define WORTH     32u

static bool may_shrink(const uint8_t *plane, size_t n)
{
    if (n < 4 * SAMPLES)
        return true;
    uint32_t count[256] = { 0 }, pairs = 0;
    for (uint32_t run = 0; run < RUNS; run++) {
        const uint8_t *from = plane + run * (n / RUNS);
        for (uint32_t i = 0; i < SAMPLES / RUNS; i++)
            count[from[i]]++;
    }
    for (int i = 0; i < 256; i++)
        pairs += count[i] * count[i];
    return pairs > SAMPLES + SAMPLES * (SAMPLES - 1) / 256 + WORTH * DEVIATION;
}

static size_t zstd_encode(struct codec_state *state, const uint8_t *src, size_t n, uint8_t *dst,
                          size_t room)
{
    ZSTD_CCtx *z = may_shrink(src, n) ? compressor(state) : NULL;
    size_t used = z ? ZSTD_compress2(z, dst, room, src, n) : 0;
    return ZSTD_isError(used) || used >= n ? 0 : used;
}

/* One frame that is no skippable one, that needs no dictionary, and nothing after it. */
static bool is_one_frame(const uint8_t *src, size_t n)
{
    uint32_t magic = 0;
    memcpy(&magic, src, n < sizeof magic ? n : sizeof magic);
    return magic == ZSTD_MAGICNUMBER && ZSTD_findFrameCompressedSize(src, n) == n &&
           !ZSTD_getDictID_fromFrame(src, n);
}

static int zstd_decode(struct codec_state *state, const uint8_t *src, size_t n_stored, uint8_t *dst,
                       size_t n)
{
    if (!state->decompress && !(state->decompress = ZSTD_createDCtx()))
        return -ENOMEM;
    if (!is_one_frame(src, n_stored))
        return -EBADMSG;
    size_t r = ZSTD_decompressDCtx(state->decompress, dst, n, src, n_stored);
    return ZSTD_isError(r) || r != n ? -EBADMSG : 0;
}

/* ------------------------------------------------------------------------- packing */

static size_t packed_encode(struct codec_state *state, const uint8_t *src, size_t n, uint8_t *dst,
                            size_t room)
{
    (void)state;
    return room < pack_bound(n) ? 0 : pack_encode(src, n, dst);
}

static int packed_decode(struct codec_state *state, const uint8_t *src, size_t n_stored,
                         uint8_t *dst, size_t n)
{
    (void)state;
    return pack_decode(src, n_stored, dst, n);
}

/* ------------------------------------------------------------------------- the table */

static const struct codec_row rows[] = {
    { DMI_CODEC_ZSTD, "zstd", 1u << CODEC_SMALLEST, zstd_encode, zstd_decode },
    { DMI_CODEC_PACKED, "packed", 1u << CODEC_PACKED, packed_encode, packed_decode },
    { DMI_CODEC_RAW, "raw", 0, NULL, raw_decode }, /* what stays as it is */
};

#define N_ROWS (sizeof rows / sizeof rows[0])

const struct codec_row *codec_row(uint8_t number)
{
    return FIRST(i, N_ROWS, rows[i].number == number, &rows[i], NULL);
}

size_t codec_n_rows(void)
{
    return N_ROWS;
}

const struct codec_row *codec_row_at(size_t i)
{
    return i < N_ROWS ? &rows[i] : NULL;
}

void codec_state_deinit(struct codec_state *state)
{
    ZSTD_freeCCtx(state->compress);
    ZSTD_freeDCtx(state->decompress);
    *state = (struct codec_state){ 0 };
}
