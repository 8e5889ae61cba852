/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine said of its steps and what came of them, until the next commit writes it. It has a lock of its
 * own, never held while a file is written, so that the engine's thread does not wait for the disk. Any thread.
 */
#pragma once

#include "storage/writer/outcomes.h"

#include <pthread.h>

/* What may be refused. */
enum pending_kind {
    PENDING_STEP,
    PENDING_SPAN,
    PENDING_OUTCOME,
    PENDING_TAP,
    PENDING_OVERLAP, /* taken, and named */
    PENDING_KINDS,
};

struct pending_refusals {
    uint64_t n;
    char first[224]; /* the first of them, in a sentence */
};

struct pending {
    pthread_mutex_t lock;
    struct text steps;    /* entries */
    uint64_t last_number; /* of the engine's last step */
    struct outcomes outcomes;
    struct pending_refusals refused[PENDING_KINDS];
    bool with_ids;                /* of cached tokens: the run has a site whose rows are ids */
    struct pending_refusals back; /* steps whose number went back: taken, and named */
};

/* Before anybody else knows it; after everybody has left it. @with_ids: ids of cached tokens are kept */
void pending_init(struct pending *pending, bool with_ids);
void pending_deinit(struct pending *pending);

/* Return: as steps_add(); what is refused is counted. */
int pending_step(struct pending *pending, uint64_t sequence, const struct dmi_step *step);

/* Return: as outcomes_accept() and outcomes_end(); what is refused is counted. */
int pending_accept(struct pending *pending, const char *id, uint64_t number, uint32_t n_accepted);
int pending_end(struct pending *pending, const char *id, uint32_t reason);

/* Return: as outcomes_shed(). */
int pending_shed(struct pending *pending, const char *id, uint64_t sequence);

/* Counts something that the caller refused; the first of its kind is also logged. */
void pending_refuse(struct pending *pending, enum pending_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Is there anything to write? */
bool pending_any(struct pending *pending);

/**
 * pending_take() - move what waits: steps to the end of @steps, outcomes to @outcomes, if that is empty
 * Outcomes come with or after the steps that they name. Leaves what there is no memory for.
 */
void pending_take(struct pending *pending, struct text *steps, struct text *outcomes);

/* A copy of what was refused so far; @back: steps whose number went back. */
void pending_refused(struct pending *pending, struct pending_refusals refused[PENDING_KINDS],
                     struct pending_refusals *back);
