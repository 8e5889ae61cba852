/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What there is to say of a type of chunk, from the table in chunk_types.def. Types that have no row there are allowed
 * everywhere. Pure; any thread. Source: docs/format.md 3.
 */
#pragma once

#include <dmi/format.h>

#include <stdbool.h>
#include <stdint.h>

/* Does this program know chunks of this type? Readers skip others. */
bool chunk_type_known(uint32_t type);

/* In words, for findings. */
const char *chunk_type_name(uint32_t type);

/* The type whose entries it has: @type, that of the chunks that it repeats, or that which it packs. 0: not known. */
uint32_t chunk_type_of(uint32_t type);

/* Whether it says again what a chunk of an earlier segment says. */
bool chunk_type_repeats(uint32_t type);

/* Whether it may have a payload. */
bool chunk_type_has_payload(uint32_t type);
