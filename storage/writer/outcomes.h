/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What became of rows after their step, on its way into OUTCOMES chunks: which drafts were accepted, which requests
 * ended. The draft rows of the latest steps are kept until somebody says what became of them. Memory is bounded. Not
 * locked: the caller's. Source: docs/format.md 6.1.
 */
#pragma once

#include "storage/text.h"

#include <dmi/dmi.h>

#include <stdbool.h>

#define OUTCOMES_MAX_STEPS   1024u       /* with drafts whose outcome may still come */
#define OUTCOMES_MAX_BYTES   (8u << 20)  /* of what is kept of them */
#define OUTCOMES_MAX_WAITING (16u << 20) /* bytes of entries that wait to be written */

struct outcomes_step;

/* Accepts being zeroed. */
struct outcomes {
    struct outcomes_step *steps[OUTCOMES_MAX_STEPS]; /* a ring, the oldest at @first */
    uint32_t first, n_steps;
    size_t n_bytes;            /* of all @steps */
    uint64_t next_sequence;    /* after the highest of a step; 0: there was none */
    struct text entries, text; /* struct dmi_outcome, and their strings */
};

/* Frees all. */
void outcomes_deinit(struct outcomes *outcomes);

/**
 * outcomes_step() - remember the draft rows of a step that was noted as @sequence
 * The oldest are forgotten where there are too many. Return: 0, -ENOMEM.
 */
int outcomes_step(struct outcomes *outcomes, uint64_t sequence, const struct dmi_step *step);

/**
 * outcomes_accept() - of the request's draft rows in the engine's step @number the first @n_accepted hold
 * The latest step with that number is meant. Return: 0; with *@why a sentence: -EINVAL (there are fewer rows, no id,
 * an id too long), -ENOENT (no such step or request, no draft rows, or forgotten), -EALREADY, -ENOBUFS, -ENOMEM.
 */
int outcomes_accept(struct outcomes *outcomes, const char *id, uint64_t number, uint32_t n_accepted,
                    const char **why);

/* The request ended after the steps noted so far. Return: as outcomes_accept(). */
int outcomes_end(struct outcomes *outcomes, const char *id, uint32_t reason, const char **why);

/* From the step noted as @sequence on the request is shed. Return: as outcomes_accept(). */
int outcomes_shed(struct outcomes *outcomes, const char *id, uint64_t sequence, const char **why);

/**
 * outcomes_take() - move what waits into @meta, the metadata of a chunk
 * @meta: empty before. Return: whether there is any; false also where there is no memory, and then nothing is lost.
 */
bool outcomes_take(struct outcomes *outcomes, struct text *meta);
