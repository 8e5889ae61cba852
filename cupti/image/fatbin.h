/* SPDX-License-Identifier: Apache-2.0 */
/* A fatbin: machine code and PTX for several devices, each entry perhaps compressed. Pure functions: any thread. */
#pragma once

#include "core/bytes.h"
#include "cupti/image/errors.h"

enum { FATBIN_PTX = 1, FATBIN_ELF = 2 };

struct fatbin_entry {
    uint16_t kind; /* FATBIN_PTX, FATBIN_ELF or another */
    uint32_t arch; /* 75 for sm_75 and compute_75 */
    uint64_t flags;
    uint64_t n_packed, n_unpacked; /* bytes; of one that is compressed */
    struct bytes stored;           /* borrowed, with the blanks after it */
};

/* Does @image begin as a fatbin does? */
bool fatbin_is(struct bytes image);

/* The entries of the fatbin at the front of @image. Return: 0, IMAGE_E_BOUNDS. */
int fatbin_open(struct bytes image, struct bytes *entries);

/* Takes an entry from their front. Return: 0, IMAGE_E_END, IMAGE_E_BOUNDS. */
int fatbin_next(struct bytes *entries, struct fatbin_entry *out);

/**
 * fatbin_code() - what an entry holds, decompressed
 * @own: gets the memory that @code lies in, or NULL: it lies in the fatbin; free() it
 * Return: 0, -ENOMEM, IMAGE_E_BOUNDS, IMAGE_E_PACKED.
 */
int fatbin_code(const struct fatbin_entry *entry, struct bytes *code, unsigned char **own);
