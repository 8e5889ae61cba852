/* SPDX-License-Identifier: Apache-2.0 */
/* What device memory held at a time of a recording. One thread. */
#pragma once

#include "tools/sites/recording.h"

struct memory {
    struct memory_page *pages; /* by hash of the address */
    size_t n, room;
};

/* @rec is borrowed. Return: 0 or -ENOMEM. */
int memory_build(const struct recording *rec, struct memory *out);
/* Accepts a zeroed struct. */
void memory_deinit(struct memory *memory);

/**
 * memory_read() - @n bytes at @address as they were at @time
 * @known: NULL, or @n bytes that become 1 where the recording says what was there
 * Return: how many of them it says; the others become 0.
 */
size_t memory_read(const struct memory *memory, uint64_t address, size_t n, uint64_t time,
                   void *out, uint8_t *known);
