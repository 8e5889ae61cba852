/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An array of any length in bounded memory: POOL_BYTES of it, in blocks; the other blocks are in a file without a name. Where there can be no
 * such file, all of it is in memory. A program of one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_BYTES (512u << 10)

struct pool {
    size_t size;     /* bytes of an element */
    size_t each;     /* elements of a block */
    size_t n_places; /* blocks that memory has room for: block i is in place i % n_places */
    uint8_t *data;   /* owned, as the next two */
    uint32_t *there; /* by place: the number of its block */
    bool *changed;   /* by place: the file has another one */
    int fd;          /* -1: memory has room for all */
    int failure;     /* of the file: -errno */
};

#define POOL_NONE ((struct pool){ .fd = -1 })

/* @size: of an element, at most 16 KiB. Return: 0 or -ENOMEM; pool_deinit() in any case, which accepts POOL_NONE. */
int pool_init(struct pool *pool, size_t n, size_t size);
void pool_deinit(struct pool *pool);

/* An element, zeroed at first. Borrowed until the next call of either. Once @failure is set the numbers are of no use. */
void *pool_change(struct pool *pool, size_t index);
/* @n: gets how many elements from it on are beside each other. */
const void *pool_read(struct pool *pool, size_t index, size_t *n);
