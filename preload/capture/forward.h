/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an engine stands within a forward: begun by a kernel or by dmi_step_begin(), it numbers the
 * occurrences of each site, from which layers follow. All under the capture context's lock.
 */
#ifndef PRELOAD_CAPTURE_FORWARD_H
#define PRELOAD_CAPTURE_FORWARD_H

#include "policy/spec.h"
#include "preload/context/context.h"

#include <stdbool.h>
#include <stdint.h>

/* A launch of a kernel that begins forwards of @kind (-1: it begins none) is about to be counted. */
void forward_advance(struct context *arena, int kind);

/**
 * forward_tap() - the same of a tap, in @layer, of @site
 * Where all sites of the spec are taps and it says of no forward how it begins, dmi_step_begin() begins one, and a tap that the
 * forward under way had already.
 */
void forward_tap(struct context *arena, uint32_t site, int32_t layer);

/* true if @site belongs to the forward that is under way; @occurrence is then this launch's */
bool forward_occurrence(struct context *arena, uint32_t site, uint32_t *occurrence);

/* The driver refused the launch: its occurrence is the next one's. */
void forward_take_back(struct context *arena, uint32_t site);

/*
 * Kernels of @match ran, and the driver does not say how often: until the next forward begins, which occurrence a launch is of their
 * sites is in doubt; of all sites, if they begin forwards. Takes the lock.
 */
void forward_doubt(struct context *arena, const struct spec_match *match);

/* Reports sites that the forward under way matched another number of times than declared. */
void forward_check(struct context *arena);

/* Did a forward begin at a launch of the calling thread since it asked last? Not the one that is the whole run. Thread: any; no lock. */
bool forward_take_begun(void);

#endif
