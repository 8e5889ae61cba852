/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/staging.h"

#include "core/clock.h"
#include "core/locked.h"
#include "preload/base/driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_BYTES (4u << 20) /* a batch */
#define MIN_BYTES (64u << 10)

struct staging *staging_new(uint64_t ring_bytes, uint32_t n_encoders)
{
    struct staging *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    uint64_t bytes = ring_bytes / 4;
    s->batch_bytes = bytes > MAX_BYTES ? MAX_BYTES : bytes < MIN_BYTES ? MIN_BYTES : bytes;
    s->batch_bytes = (s->batch_bytes + 4095) & ~(size_t)4095;
    s->n_batches = n_encoders + STAGING_SPARE;
    s->n_map = s->n_batches * s->batch_bytes;
    s->map = mmap(NULL, s->n_map, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->map == MAP_FAILED) {
        free(s);
        return NULL;
    }
    madvise(s->map, s->n_map, MADV_DONTFORK);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->filled, NULL);
    pthread_cond_init(&s->emptied, NULL);
    for (uint32_t i = 0; i < s->n_batches; i++)
        s->batches[i].mem = s->map + i * s->batch_bytes;
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
    s->no_more = s->in_turn = false;
    s->n_full = 0;
    s->n_given = s->n_ended = 0;
    s->n_idle = s->n_batches;
    for (uint32_t i = 0; i < s->n_batches; i++)
        s->idle[i] = &s->batches[i];
}

struct batch *staging_take_idle(struct staging *s)
{
    pthread_mutex_lock(&s->lock);
    bool waited = !s->n_idle;
    while (!s->n_idle)
        pthread_cond_wait(&s->emptied, &s->lock);
    struct batch *b = s->idle[--s->n_idle];
    pthread_mutex_unlock(&s->lock);
    b->n = 0;
    b->used = 0;
    b->waited = waited;
    b->pressed = false;
    return b;
}

static void empty(struct batch *b)
{
    free(b->big);
    b->big = NULL;
    while (b->n_lists)
        free(b->lists[--b->n_lists]);
}

void staging_give_idle(struct staging *s, struct batch *b)
{
    empty(b);
    pthread_mutex_lock(&s->lock);
    s->idle[s->n_idle++] = b;
    pthread_cond_signal(&s->emptied);
    pthread_mutex_unlock(&s->lock);
}

void staging_give_full(struct staging *s, struct batch *b)
{
    b->full_ns = clock_mono_ns();
    pthread_mutex_lock(&s->lock);
    b->turn = s->n_given++;
    s->full[s->n_full++] = b;
    pthread_cond_signal(&s->filled);
    pthread_mutex_unlock(&s->lock);
}

struct batch *staging_take_full(struct staging *s, uint64_t timeout_ns, bool *ended)
{
    const struct timespec at = clock_timespec(clock_mono_ns() + timeout_ns);
    struct batch *b = NULL;
    int r = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->n_full && !s->no_more && r != ETIMEDOUT)
        r = pthread_cond_clockwait(&s->filled, &s->lock, CLOCK_MONOTONIC, &at);
    *ended = !s->n_full && s->no_more;
    if (s->n_full) {
        b = s->full[0];
        memmove(s->full, s->full + 1, --s->n_full * sizeof s->full[0]);
    }
    pthread_mutex_unlock(&s->lock);
    return b;
}

void staging_give_encoded(struct staging *s, struct batch *b)
{
    UNDER(&s->lock, s->encoded[b->turn % STAGING_MAX_BATCHES] = b);
}

struct batch *staging_take_turn(struct staging *s)
{
    struct batch *b = NULL;
    pthread_mutex_lock(&s->lock);
    struct batch **next = &s->encoded[s->n_ended % STAGING_MAX_BATCHES];
    if (!s->in_turn && *next) {
        b = *next;
        *next = NULL;
        s->in_turn = true;
    }
    pthread_mutex_unlock(&s->lock);
    return b;
}

void staging_end_turn(struct staging *s, struct batch *b)
{
    empty(b);
    pthread_mutex_lock(&s->lock);
    s->n_ended++;
    s->in_turn = false;
    s->idle[s->n_idle++] = b;
    pthread_cond_signal(&s->emptied);
    pthread_mutex_unlock(&s->lock);
}

void staging_end(struct staging *s)
{
    pthread_mutex_lock(&s->lock);
    s->no_more = true;
    pthread_cond_broadcast(&s->filled);
    pthread_mutex_unlock(&s->lock);
}
