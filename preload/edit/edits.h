/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The edits in force. They come in versions: immutable, one after the other, each with a table in the region of device memory that
 * every capture context has, at the same offset in each. A step is built of the version in force when it begins, and holds it.
 * Thread: any that entered the session, but where it says more.
 */
#ifndef PRELOAD_EDIT_EDITS_H
#define PRELOAD_EDIT_EDITS_H

#include "core/err.h"
#include "policy/edit.h"
#include "preload/context/context.h"

#include <stdbool.h>
#include <stdint.h>

struct edit_version {
    uint32_t refs;   /* atomic */
    uint64_t number; /* from 1 */
    struct edits *edits;
    struct edit_table table;
    uint32_t at;            /* where it lies in the region, in units of DMI_EDIT_ALIGN */
    struct edit_rows every; /* what it does where the engine says no steps */
};

/* What edits do in one step. */
struct edit_step {
    struct edit_version *version; /* held; NULL: there are no edits */
    struct edit_rows rows;
};

/**
 * edits_start() - the edits of the file that DMI_EDITS names are in force
 * What is wrong with them is said in the log, and none is then. Thread: the one that arms the session.
 */
void edits_start(void);

/* The version in force, to be given back; NULL: there is none. */
struct edit_version *edits_hold(void);

/* Accepts NULL. */
void edits_release(struct edit_version *version);

/* Return: 0 or -ENOMEM: then nothing is done in this step. @out: edits_step_deinit(). */
int edits_step(const struct dmi_step *said, struct edit_step *out);

/* Accepts what was zeroed. */
void edits_step_deinit(struct edit_step *step);

/* May the place be written: has a version that is in force, or held, an edit there? For nodes that are switched off. */
bool edits_reach_place(uint32_t place);

/* After fork, in the child. */
void edits_reset(void);

#endif
