/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/stepring.h"

#include "core/locked.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

static struct stepring {
    pthread_mutex_t
        lock; /* all below; a step is its taker's until it is put, then the collector's until it is free */
    struct trace_step steps[STEPRING_STEPS];
    uint16_t unused[STEPRING_STEPS]; /* steps that were free()d, */
    uint32_t n_unused;
    uint32_t n_used; /* and how many were ever in use: those after them are free, too */
    uint16_t waiting[STEPRING_STEPS]; /* that were put; a ring */
    uint64_t head, tail;
    uint64_t lost;
} ring = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct trace_step *stepring_take(void)
{
    struct trace_step *step = NULL;
    pthread_mutex_lock(&ring.lock);
    if (ring.n_unused)
        step = &ring.steps[ring.unused[--ring.n_unused]];
    else if (ring.n_used < STEPRING_STEPS)
        step = &ring.steps[ring.n_used++];
    pthread_mutex_unlock(&ring.lock);
    if (step)
        memset(step, 0, sizeof *step);
    return step;
}

void stepring_lose(void)
{
    UNDER(&ring.lock, ring.lost++);
}

void stepring_put(struct trace_step *step)
{
    pthread_mutex_lock(&ring.lock);
    step->at.number = ring.head;
    ring.waiting[ring.head++ % STEPRING_STEPS] = (uint16_t)(step - ring.steps);
    pthread_mutex_unlock(&ring.lock);
}

struct trace_step *stepring_oldest(void)
{
    return LOCKED(&ring.lock, ring.tail < ring.head
                                  ? &ring.steps[ring.waiting[ring.tail % STEPRING_STEPS]]
                                  : NULL);
}

void stepring_free(struct trace_step *oldest)
{
    pthread_mutex_lock(&ring.lock);
    ring.tail++;
    ring.unused[ring.n_unused++] = (uint16_t)(oldest - ring.steps);
    pthread_mutex_unlock(&ring.lock);
}

uint64_t stepring_numbered(void)
{
    return LOCKED(&ring.lock, ring.head);
}

uint64_t stepring_ended(void)
{
    return LOCKED(&ring.lock, ring.head + ring.lost);
}

uint64_t stepring_lost(void)
{
    return LOCKED(&ring.lock, ring.lost);
}

void stepring_reset(void)
{
    ring.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    ring.n_unused = ring.n_used = 0;
    ring.head = ring.tail = ring.lost = 0;
}
