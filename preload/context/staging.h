/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging memory between drain and encoder: a few batches of records that go around, empty to the drain and full
 * to the encoder, in order. Thread: the drain and the encoder of one capture context.
 */
#ifndef PRELOAD_CONTEXT_STAGING_H
#define PRELOAD_CONTEXT_STAGING_H

#include "storage/run.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STAGING_BATCHES     3
#define STAGING_MAX_RECORDS 1024u /* a batch */

struct batch {
    unsigned char *mem; /* a part of the staging mapping */
    unsigned char *big; /* a record that is larger than that, NULL: none; heap */
    size_t used;
    uint64_t end_slot; /* the fate of all slots before it is known with this batch */
    uint32_t n;
    /* lists of kept rows that its records point to; heap. Of the last one: of which step, from where in the row lists */
    uint32_t *lists[STAGING_MAX_RECORDS];
    uint32_t n_lists, last_at, last_n;
    uint64_t last_step;
    struct run_record records[STAGING_MAX_RECORDS];
};

struct staging {
    unsigned char *map;
    size_t n_map;
    size_t batch_bytes;
    pthread_mutex_t lock; /* the queues; never held across a driver call */
    pthread_cond_t moved;
    struct batch *idle[STAGING_BATCHES], *full[STAGING_BATCHES]; /* full: oldest first */
    int n_idle, n_full;
    bool no_more; /* the drain has ended */
    struct batch batches[STAGING_BATCHES];
};

/* For a ring of @ring_bytes; pinned where the driver agrees. Return: NULL where there is no memory. */
struct staging *staging_new(uint64_t ring_bytes);

/* Its memory is no longer pinned. In the context that pinned it, while that lives. */
void staging_unpin(struct staging *staging);

/* Both threads have ended. Accepts NULL. */
void staging_free(struct staging *staging);

/* All batches are idle. Before the threads start. */
void staging_restart(struct staging *staging);

/* An empty batch, waited for. Thread: drain. */
struct batch *staging_take_idle(struct staging *staging);
void staging_give_idle(struct staging *staging, struct batch *batch);

/* Hands over what the drain has filled. Thread: drain. */
void staging_give_full(struct staging *staging, struct batch *batch);

/* Waits until there is one, or none will come, or @timeout_ns have passed. Thread: encoder. Return: false if they have. */
bool staging_wait_full(struct staging *staging, uint64_t timeout_ns);

/* The oldest full batch, waited for. Thread: encoder. Return: NULL once the drain has ended and all is taken. */
struct batch *staging_take_full(struct staging *staging);

/* Nothing more comes. Thread: drain, or the one that could not start it. */
void staging_end(struct staging *staging);

#endif
