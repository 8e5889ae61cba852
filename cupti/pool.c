/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/pool.h"

#include "core/locked.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define RESERVE_BYTES 65536u

enum state { POOL_FREE, POOL_OUT, POOL_FULL };

static uint8_t reserve_bytes[RESERVE_BYTES] __attribute__((aligned(4096)));

static struct buffer_pool {
    pthread_mutex_t lock; /* all below */
    struct slot {
        uint8_t *buffer; /* NULL: not mapped yet; it stays */
        enum state state;
        size_t n_valid;
        uint64_t order;        /* in which it came back */
    } slots[POOL_BUFFERS + 1]; /* the last one is the reserve */
    uint64_t n_full;
} pool = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Under the lock. Return: NULL: there is no memory. */
static uint8_t *map(void)
{
    void *p =
        mmap(NULL, POOL_BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* A free place with a buffer; the reserve, whatever its state, where there is none. Under the lock. */
static struct slot *find_free(void)
{
    struct slot *s = pool.slots;
    for (; s < pool.slots + POOL_BUFFERS; s++)
        if (s->state == POOL_FREE && (s->buffer || (s->buffer = map())))
            return s;
    s->buffer = reserve_bytes;
    return s;
}

uint8_t *pool_take(size_t *n_bytes)
{
    pthread_mutex_lock(&pool.lock);
    struct slot *s = find_free();
    size_t room = s->buffer == reserve_bytes ? RESERVE_BYTES : POOL_BUFFER_BYTES;
    *n_bytes = s->state == POOL_FREE ? room : 0;
    s->state = s->state == POOL_FREE ? POOL_OUT : s->state;
    uint8_t *buffer = s->buffer;
    pthread_mutex_unlock(&pool.lock);
    return buffer;
}

/* Under the lock. */
static struct slot *find(const uint8_t *buffer)
{
    for (uint32_t i = 0; i <= POOL_BUFFERS; i++)
        if (pool.slots[i].buffer == buffer && buffer)
            return &pool.slots[i];
    return NULL;
}

bool pool_fill(uint8_t *buffer, size_t n_valid)
{
    pthread_mutex_lock(&pool.lock);
    struct slot *s = find(buffer);
    if (s && s->state == POOL_OUT) {
        s->state = POOL_FULL;
        s->n_valid = n_valid;
        s->order = pool.n_full++;
    }
    pthread_mutex_unlock(&pool.lock);
    return s;
}

bool pool_owns(const uint8_t *buffer)
{
    return LOCKED(&pool.lock, find(buffer));
}

bool pool_next(struct pool_full *full)
{
    struct slot *first = NULL;
    pthread_mutex_lock(&pool.lock);
    for (struct slot *s = pool.slots; s <= pool.slots + POOL_BUFFERS; s++)
        if (s->state == POOL_FULL && (!first || s->order < first->order))
            first = s;
    if (first)
        *full = (struct pool_full){ first->buffer, first->n_valid };
    pthread_mutex_unlock(&pool.lock);
    return first;
}

void pool_give(uint8_t *buffer)
{
    pthread_mutex_lock(&pool.lock);
    struct slot *s = find(buffer);
    size_t n = s ? s->n_valid : 0;
    pthread_mutex_unlock(&pool.lock);
    if (!s)
        return;
    memset(buffer, 0, n); /* until it is free, this thread alone uses it */
    UNDER(&pool.lock, s->state = POOL_FREE);
}

void pool_reset(void)
{
    pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (struct slot *s = pool.slots; s <= pool.slots + POOL_BUFFERS; s++) {
        if (s->buffer == reserve_bytes)
            memset(s->buffer, 0, RESERVE_BYTES);
        else if (s->buffer) /* zeros, without a copy of the parent's pages */
            madvise(s->buffer, POOL_BUFFER_BYTES, MADV_DONTNEED);
        s->state = POOL_FREE;
    }
}
