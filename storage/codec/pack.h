/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixed-width packing of a plane whose bytes keep close together, as exponents do: 4 bits a byte, the distance from the
 * least of 1,024 of them; what is farther away follows, in order. No state, and no order of work but that of the escapes'
 * places, so that a kernel can do it. Plain functions, any thread. Source: docs/format.md 5.3.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Bytes of room that pack_encode() may use for @n bytes. */
size_t pack_bound(size_t n);

/**
 * pack_encode() - pack @n bytes into @dst, which has pack_bound(@n) bytes of room
 * Return: bytes used; 0 where it would save less than an eighth.
 */
size_t pack_encode(const uint8_t *src, size_t n, uint8_t *dst);

/* The reverse. Return: 0; -EBADMSG: @n_stored bytes at @src are no packing of @n bytes. */
int pack_decode(const uint8_t *src, size_t n_stored, uint8_t *dst, size_t n);

/* The same by instructions that every CPU has: what others are compared with. */
size_t pack_encode_portable(const uint8_t *src, size_t n, uint8_t *dst);
int pack_decode_portable(const uint8_t *src, size_t n_stored, uint8_t *dst, size_t n);
