/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The edits in force. They come in versions, immutable, one after the other. The edits of a version stand in a block: a table in the region
 * of device memory that every capture context has (context/edit_region.h); versions that differ in coefficients and switches share
 * one. A request keeps the version of its first step until it ends, so that a prompt that is computed again is computed alike; edits
 * with `live: true` follow each change from the next step on. Thread: any that entered the session, but where it says more.
 */
#pragma once

#include "core/err.h"
#include "policy/edit.h"
#include "preload/edit/donors.h"
#include "preload/edit/version.h"

#include <stdbool.h>
#include <stdint.h>

/* What edits do in one step. */
struct edit_step {
    struct edit_version **held; /* versions of its rows; NULL: there are no edits */
    uint32_t n_held;
    struct donor **donors; /* whose rows of the bank it saves or takes, held */
    uint32_t n_donors;
    struct edit_rows rows;
};

/* ------------------------------------------------------------------------- launches and steps */

/**
 * edits_start() - the edits of the file that DMI_EDITS names are in force
 * What is wrong with them is said in the log, and none is then. Thread: one, once the run is open.
 */
void edits_start(void);

/* The version in force, held; NULL: there is none. */
struct edit_version *edits_hold(void);

/* Is the step of @sequence over once @next has begun? */
typedef bool edits_is_over(const void *next, uint64_t sequence);

/* Return: 0 or -ENOMEM: then nothing is done in this step. @out: edits_step_deinit(). */
int edits_step(const struct dmi_step *said, uint64_t sequence, edits_is_over *is_over,
               struct edit_step *out);

/* Accepts what was zeroed. */
void edits_step_deinit(struct edit_step *step);

/* A request has ended: its id may come again, and is another one then. */
void edits_request_end(const char *id);

/* Has the version in force, or one that requests have, an edit of the site's action at its place? For nodes that are switched off. */
bool edits_reach_site(uint32_t site);

/* All launches are over, and the run is about to be closed. Thread: the last flush's. */
void edits_finish(void);

/* The version, taken over and numbered, is in force for steps that begin now. Thread: one that changes. */
void edits_put_in_force(struct edit_version *version);

/* Fills in what the version does where the engine says no steps. Return: 0 or -ENOMEM. */
int edits_every(struct edit_version *version);

/* Has the engine said that it is one of several ranks, which have the same requests? */
bool edits_have_ranks(void);

/* May prefixes that the engine caches have what an edit wrote without a salt, as it is the same everywhere? Such an edit stays as it is. */
bool edits_lie_in_caches(void);

/**
 * edits_request_salt() - what tells a request with this version apart in an engine that shares cached prefixes
 * *@lacks: the name of rows of the bank that it would take and that none, or several, have; NULL: there is none. Borrowed from @v
 * Return: the salt, 0: it needs none.
 */
uint64_t edits_request_salt(struct edit_version *v, const char *id, const char *tags,
                            const char **lacks);

/* Which rank this is, as the last step said. Return: false: none has. */
bool edits_ranks(struct edit_ranks *out);

/* After fork, in the child. */
void edits_reset(void);

/* ------------------------------------------------------------------------- changes; one thread at a time */

/*
 * Each returns 0, or -errno with a sentence in @err and nothing has changed. A change holds from the step that begins next, whose
 * number (sequence in the run) is *@step. The run notes it before.
 */

/* @pack: as edits_pack() makes it; @who: what the note says of the one who asks, in words. */
int edits_add(struct err *err, const void *pack, size_t n, const char *who, uint64_t *step);

/* What edits_add() would say, without effect. */
int edits_check(struct err *err, const void *pack, size_t n);

/* @times: NULL: only the switch. @on: -1: as it is */
int edits_set(struct err *err, const char *name, const struct edit_coefficient *times, int on,
              const char *who, uint64_t *step);

/* It holds no more for steps that begin then. */
int edits_remove(struct err *err, const char *name, const char *who, uint64_t *step);
