/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/view/pool.h"

#include "core/unnamed.h"
#include "core/whole.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCK_BYTES (16u << 10)

/* A file of zeros for so many blocks. Return: -1: there can be none. */
static int open_file(size_t n_blocks)
{
    int fd = unnamed_open();
    if (fd >= 0 && ftruncate(fd, (off_t)(n_blocks * BLOCK_BYTES))) {
        close(fd);
        fd = -1;
    }
    return fd < 0 ? -1 : fd;
}

int pool_init(struct pool *p, size_t n, size_t size)
{
    *p = (struct pool){ .size = size, .each = BLOCK_BYTES / size, .fd = -1 };
    size_t n_blocks = n / p->each + 1;
    p->n_places = n_blocks;
    if (n_blocks > POOL_BYTES / BLOCK_BYTES && n_blocks <= UINT32_MAX &&
        (p->fd = open_file(n_blocks)) >= 0)
        p->n_places = POOL_BYTES / BLOCK_BYTES;
    p->data = calloc(p->n_places, BLOCK_BYTES);
    p->there = calloc(p->n_places, sizeof *p->there);
    p->changed = calloc(p->n_places, sizeof *p->changed);
    if (!p->data || !p->there || !p->changed)
        return -ENOMEM;
    for (size_t i = 0; p->fd >= 0 && i < p->n_places; i++)
        p->there[i] = (uint32_t)i; /* zeros, as in the file */
    return 0;
}

void pool_deinit(struct pool *p)
{
    if (p->fd >= 0)
        close(p->fd);
    free(p->data);
    free(p->there);
    free(p->changed);
    *p = POOL_NONE;
}

/* Another block comes to a place. */
static void exchange(struct pool *p, size_t place, size_t block)
{
    uint8_t *data = p->data + place * BLOCK_BYTES;
    int r = 0;
    if (p->changed[place])
        r = whole_write(p->fd, data, BLOCK_BYTES, (uint64_t)p->there[place] * BLOCK_BYTES);
    if (!r)
        r = whole_read(p->fd, data, BLOCK_BYTES, (uint64_t)block * BLOCK_BYTES);
    p->there[place] = (uint32_t)block;
    p->changed[place] = false;
    p->failure = p->failure ? p->failure : r;
}

static uint8_t *find(struct pool *p, size_t index, size_t *place)
{
    size_t block = index / p->each;
    *place = block % p->n_places;
    if (p->fd >= 0 && p->there[*place] != block)
        exchange(p, *place, block);
    return p->data + *place * BLOCK_BYTES + index % p->each * p->size;
}

void *pool_change(struct pool *p, size_t index)
{
    size_t place;
    void *found = find(p, index, &place);
    p->changed[place] = true;
    return found;
}

const void *pool_read(struct pool *p, size_t index, size_t *n)
{
    size_t place;
    *n = p->each - index % p->each;
    return find(p, index, &place);
}
