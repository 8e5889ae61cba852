/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging memory between drain and encoders: a few batches of records that go around: empty to the drain, full to
 * whichever encoder is free, encoded to their turn. Turns come in the order in which the drain gave the batches.
 * Thread: the drain and the encoders of one capture context.
 */
#pragma once

#include "preload/context/context.h"
#include "storage/writer/run.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STAGING_MAX_ENCODERS CONTEXT_MAX_ENCODERS
#define STAGING_SPARE        2u /* batches beyond one an encoder: one is filled, one waits */
#define STAGING_MAX_BATCHES  (STAGING_MAX_ENCODERS + STAGING_SPARE)
#define STAGING_MAX_RECORDS  1024u /* a batch */

struct batch {
    unsigned char *mem; /* a part of the staging mapping */
    unsigned char *big; /* a record that is larger than that, NULL: none; heap */
    size_t used;
    uint64_t end_slot; /* the fate of all slots before it is known with this batch */
    uint32_t n;
    uint64_t turn;    /* how many the drain had given before it */
    uint64_t full_ns; /* monotonic: when it was given */
    bool waited;      /* none was idle when the drain needed it */
    bool pressed;     /* a part of the ring waited with it; the drain says so */
    /* what became of it: NULL and 0 where it has no record */
    struct chunk *chunk;
    int failure; /* of encoding it: -errno */
    enum codec_rung rung;
    uint64_t encode_ns;
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
    uint32_t n_batches;
    pthread_mutex_t lock; /* all below; never held across a driver call */
    pthread_cond_t filled, emptied;
    struct batch *idle[STAGING_MAX_BATCHES], *full[STAGING_MAX_BATCHES]; /* full: oldest first */
    struct batch *encoded[STAGING_MAX_BATCHES]; /* by turn; NULL: not yet */
    uint32_t n_idle, n_full;
    uint64_t n_given, n_ended; /* turns */
    bool in_turn;              /* somebody has the batch whose turn it is */
    bool no_more;              /* the drain has ended */
    struct batch batches[STAGING_MAX_BATCHES];
};

/*
 * For a ring of @ring_bytes and at most STAGING_MAX_ENCODERS encoders.
 * Return: NULL where there is no memory.
 */
struct staging *staging_new(uint64_t ring_bytes, uint32_t n_encoders);

/* What a context's side pinned (side_ops.h) no longer is. In the context that pinned it, while that lives. */
void staging_unpin(struct staging *staging);

/* All threads have ended. Accepts NULL. */
void staging_free(struct staging *staging);

/* All batches are idle. Before the threads start. */
void staging_restart(struct staging *staging);

/* An empty batch, waited for. Thread: drain. */
struct batch *staging_take_idle(struct staging *staging);
void staging_give_idle(struct staging *staging, struct batch *batch);

/* Hands over what the drain has filled; its turn is after those given before. Thread: drain. */
void staging_give_full(struct staging *staging, struct batch *batch);

/**
 * staging_take_full() - the oldest full batch, waited for
 * Thread: encoder. Return: NULL after @timeout_ns, and, with *@ended, once the drain has ended and all is taken.
 */
struct batch *staging_take_full(struct staging *staging, uint64_t timeout_ns, bool *ended);

/* What was taken is encoded, and waits for its turn. Thread: encoder. */
void staging_give_encoded(struct staging *staging, struct batch *batch);

/* The batch whose turn it is, if it is encoded and nobody has it; does not wait. Thread: encoder. */
struct batch *staging_take_turn(struct staging *staging);

/* That batch is done with, and idle. Thread: the encoder that took it. */
void staging_end_turn(struct staging *staging, struct batch *batch);

/* Nothing more comes. Thread: drain, or the one that could not start it. */
void staging_end(struct staging *staging);
