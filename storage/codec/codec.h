/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of payload: rotation, byte planes, and each plane by a codec (codec_table.h). A struct codec is for one
 * thread at a time; it never touches files. Source: docs/format.md 5.
 */
#pragma once

#include "storage/codec/rung.h"

#include <dmi/format.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CODEC_MAX_PLANES 8

struct codec;

/* Return: NULL where there is no memory. It is on the first rung. */
struct codec *codec_new(void);
void codec_free(struct codec *codec);

/* What codec_encode() tries from here on; what can be decoded is the same on each. */
void codec_set_rung(struct codec *codec, enum codec_rung rung);
enum codec_rung codec_rung(const struct codec *codec);

/* The encoding that pays for a dtype (docs/measurements.md, "Codec"). */
uint32_t codec_encoding(uint32_t dtype, enum codec_rung rung);

/* Planes of a block; 0 for an encoding or element size that is not known. */
uint32_t codec_planes(uint32_t encoding, uint32_t element_bytes);

/**
 * codec_encode() - encode a block
 * @n_raw: at most DMI_BLOCK_BYTES, a multiple of @element_bytes
 * @out: @n_raw bytes, none of them @raw's; what is used never exceeds them
 * @planes: codec_planes() entries, filled
 * Return: bytes used of @out.
 */
size_t codec_encode(struct codec *codec, uint32_t encoding, uint32_t element_bytes, const void *raw,
                    size_t n_raw, void *out, struct dmi_plane *planes);

/**
 * codec_decode() - the reverse; checks every plane
 * @stored: the planes' bytes one after the other; @n_stored must be their sum
 * Return: 0, -ENOTSUP (the encoding, or the codec of *@bad_plane, is not known), -EBADMSG (a checksum or a
 * frame is wrong; *@bad_plane says which), -EINVAL (sizes that cannot be). @raw is undefined on failure.
 */
int codec_decode(struct codec *codec, uint32_t encoding, uint32_t element_bytes,
                 const struct dmi_plane *planes, const void *stored, size_t n_stored, void *raw,
                 size_t n_raw, uint32_t *bad_plane);
