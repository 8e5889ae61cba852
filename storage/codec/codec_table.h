/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codecs of a plane's bytes: a codec is a row here and a number in include/dmi/format.h. A struct
 * codec_state is for one thread at a time. Source: docs/format.md 5.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What codecs keep from plane to plane; zeros at the start. */
struct codec_state {
    void *compress, *decompress; /* zstd's, made when first needed */
};

struct codec_row {
    uint8_t number; /* enum dmi_codec */
    const char *name;
    uint32_t rungs; /* bit R: it is tried on rung R of the ladder; 0: it is not tried */
    /**
     * encode() - @n bytes into @dst
     * Return: bytes written; 0 where it does not pay, or there is no memory.
     */
    size_t (*encode)(struct codec_state *state, const uint8_t *src, size_t n, uint8_t *dst,
                     size_t room);
    /* The reverse, of exactly @n bytes. Return: 0, -ENOMEM, -EBADMSG. */
    int (*decode)(struct codec_state *state, const uint8_t *src, size_t n_stored, uint8_t *dst,
                  size_t n);
};

/* Return: NULL for a number that this program does not know. */
const struct codec_row *codec_row(uint8_t number);

/* The rows, in the order in which the encoder tries them. */
size_t codec_n_rows(void);
const struct codec_row *codec_row_at(size_t i);

/* Frees what the codecs keep between blocks. */
void codec_state_deinit(struct codec_state *state);
