/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that CUPTI fills: given out, come back full, walked, given out again. Their memory is the library's own mapping. Thread: any; a lock
 * that is never held across a call of CUPTI.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_BUFFER_BYTES (1u << 20)
#define POOL_BUFFERS      64u /* most that there are at a time */

struct pool_full {
    uint8_t *buffer;
    size_t n_valid;
};

/*
 * A zeroed buffer, aligned to a page: one that came back, or a new one. It is always one, as CUPTI before 12.9 crashes without: where there is no memory,
 * or POOL_BUFFERS are out, it is the reserve, which has *@n_bytes 0 while it is out already.
 */
uint8_t *pool_take(size_t *n_bytes);

/* CUPTI is done with @buffer. Return: false: it is none of the pool's. */
bool pool_fill(uint8_t *buffer, size_t n_valid);

/* Is the buffer the pool's? */
bool pool_owns(const uint8_t *buffer);

/* The buffer that came back first, to be given back by pool_give(). Return: false: there is none. */
bool pool_next(struct pool_full *full);
void pool_give(uint8_t *buffer);

/* After fork, in the child. */
void pool_reset(void);
