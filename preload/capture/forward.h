/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an engine stands within a forward: begun by a kernel or by dmi_step_begin(), it numbers the
 * occurrences of each site, from which layers follow. Where the spec says of no forward how it begins, each step begins one. All under the capture
 * context's lock.
 */
#pragma once

#include "policy/spec.h"
#include "preload/capture/said.h"
#include "preload/context/context.h"

#include <stdbool.h>
#include <stdint.h>

/* Launches of @said are counted from here on, until the next call. */
void forward_follow(struct context *context, const struct said *said);

/* A launch of a kernel that begins forwards of @kind (-1: it begins none) is about to be counted. */
void forward_advance(struct context *context, int kind);

/* Would that begin a forward? *@of: the kind of the one that is under way then. */
bool forward_begins(const struct context *context, int kind, int *of);

/**
 * forward_tap() - the same of a tap, in @layer, of @site
 * Outside of steps, where all sites of the spec are taps and it says of no forward how it begins, a tap that the forward under way had already begins one, too.
 */
void forward_tap(struct context *context, uint32_t site, int32_t layer);

/* true if @site belongs to the forward that is under way; @occurrence is then this launch's */
bool forward_occurrence(struct context *context, uint32_t site, uint32_t *occurrence);

#define FORWARD_NO_PASS UINT32_MAX

/*
 * Which pass of the layer (-1: none) the launch of @site is that was counted last: how often the layer ran before in the forward.
 * Return: FORWARD_NO_PASS where neither steps nor the spec say what a forward is, where launches were not counted, and of layers beyond SPEC_MAX_PLACE_LAYER.
 */
uint32_t forward_pass(struct context *context, uint32_t site, int32_t layer);

/* The driver refused the launch, after forward_take_back(). */
void forward_take_back_pass(struct context *context, uint32_t site, int32_t layer);

/* The driver refused the launch, of @said: its occurrence is the next one's. */
void forward_take_back(struct context *context, const struct said *said, uint32_t site);

/*
 * Kernels of @match ran, and the driver does not say how often: until the next forward begins, which occurrence a launch is of their
 * sites is in doubt; of all sites, if they begin forwards. Takes the lock.
 */
void forward_doubt(struct context *context, const struct said *said,
                   const struct spec_match *match);

/* Reports sites that the forwards under way matched another number of times than declared. */
void forward_check(struct context *context);

/* Did a forward begin at a launch of the calling thread since it asked last? Not the one that is the whole run. Thread: any; no lock. */
bool forward_take_begun(void);
