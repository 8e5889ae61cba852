/* SPDX-License-Identifier: Apache-2.0 */
/* Steps as a chunk of STEPS_PACKED has them: each as its difference to the one before, all of them compressed. Pure; any thread. Source: docs/format.md 6.10. */
#pragma once

#include "storage/text.h"

#include <stddef.h>
#include <stdint.h>

#define STEPS_PACK_MOST (1u << 24) /* bytes of steps in a chunk */

enum { STEPS_PACK_E_LARGE = 1 };

/**
 * steps_pack() - the metadata of STEPS_PACKED, into the empty text @meta
 * @steps: the metadata of a STEPS chunk, @n bytes, aligned as that
 * Return: 0; STEPS_PACK_E_LARGE: there are more than STEPS_PACK_MOST bytes; -ENOMEM.
 */
int steps_pack(const uint8_t *steps, size_t n, struct text *meta);

/**
 * steps_unpack() - the metadata of the STEPS chunk that it stands for
 * @out: gets it, *@n_out bytes, to be freed
 * Return: 0, with *@wrong: what is wrong with it, in words, then there is no @out; -ENOMEM.
 */
int steps_unpack(const uint8_t *meta, size_t n, uint8_t **out, size_t *n_out, const char **wrong);
