/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/staging.h"

#include "core/clock.h"
#include "preload/base/driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_BYTES (4u << 20) /* a batch */
#define MIN_BYTES (64u << 10)

struct staging *staging_new(uint64_t ring_bytes)
{
    struct staging *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    uint64_t bytes = ring_bytes / 4;
    s->batch_bytes = bytes > MAX_BYTES ? MAX_BYTES : bytes < MIN_BYTES ? MIN_BYTES : bytes;
    s->batch_bytes = (s->batch_bytes + 4095) & ~(size_t)4095;
    s->n_map = STAGING_BATCHES * s->batch_bytes;
    s->map = mmap(NULL, s->n_map, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->map == MAP_FAILED) {
        free(s);
        return NULL;
    }
    madvise(s->map, s->n_map, MADV_DONTFORK);
    /* only faster copies: a driver that refuses serves pageable memory as well */
    driver_table.cuMemHostRegister_v2(s->map, s->n_map, 0);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    for (int i = 0; i < STAGING_BATCHES; i++)
        s->batches[i].mem = s->map + (size_t)i * s->batch_bytes;
    return s;
}

void staging_unpin(struct staging *s)
{
    if (s)
        driver_table.cuMemHostUnregister(s->map);
}

void staging_free(struct staging *s)
{
    if (!s)
        return;
    munmap(s->map, s->n_map);
    free(s);
}

void staging_restart(struct staging *s)
{
    s->no_more = false;
    s->n_full = 0;
    s->n_idle = STAGING_BATCHES;
    for (int i = 0; i < STAGING_BATCHES; i++)
        s->idle[i] = &s->batches[i];
}

struct batch *staging_take_idle(struct staging *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->n_idle)
        pthread_cond_wait(&s->moved, &s->lock);
    struct batch *b = s->idle[--s->n_idle];
    pthread_mutex_unlock(&s->lock);
    b->n = 0;
    b->used = 0;
    return b;
}

void staging_give_idle(struct staging *s, struct batch *b)
{
    free(b->big);
    b->big = NULL;
    while (b->n_lists)
        free(b->lists[--b->n_lists]);
    pthread_mutex_lock(&s->lock);
    s->idle[s->n_idle++] = b;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

void staging_give_full(struct staging *s, struct batch *b)
{
    pthread_mutex_lock(&s->lock);
    s->full[s->n_full++] = b;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

bool staging_wait_full(struct staging *s, uint64_t timeout_ns)
{
    uint64_t end = clock_mono_ns() + timeout_ns;
    struct timespec at = { .tv_sec = (time_t)(end / 1000000000u),
                           .tv_nsec = (long)(end % 1000000000u) };
    int r = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->n_full && !s->no_more && r != ETIMEDOUT)
        r = pthread_cond_clockwait(&s->moved, &s->lock, CLOCK_MONOTONIC, &at);
    bool found = s->n_full || s->no_more;
    pthread_mutex_unlock(&s->lock);
    return found;
}

struct batch *staging_take_full(struct staging *s)
{
    struct batch *b = NULL;
    pthread_mutex_lock(&s->lock);
    while (!s->n_full && !s->no_more)
        pthread_cond_wait(&s->moved, &s->lock);
    if (s->n_full) {
        b = s->full[0];
        memmove(s->full, s->full + 1, (size_t)--s->n_full * sizeof s->full[0]);
    }
    pthread_mutex_unlock(&s->lock);
    return b;
}

void staging_end(struct staging *s)
{
    pthread_mutex_lock(&s->lock);
    s->no_more = true;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}
