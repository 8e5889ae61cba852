/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recorder: instead of following a spec, the library writes down what every launch is given and what it writes,
 * for `dmi-sites match`. The session is armed with a spec that names every kernel, and has no run. Launches are
 * recorded one after the other: each waits for its stream, before and after. Thread: any that entered.
 */
#pragma once

#include "core/err.h"
#include "policy/spec.h"
#include "preload/eager/kernel.h"
#include "preload/function/functions.h"

#include <stdbool.h>

/* The spec that names every kernel; $DMI_RECORD_BEGIN is the pattern of those that begin a forward. NULL: said why. */
struct spec *recorder_spec(void);

/* Opens the recording. Return: 0 or an error in @err. Init only. */
int recorder_start(struct err *err, const char *path);

/* Is there a recording? Thread: any. */
bool recorder_on(void);

/**
 * recorder_before() - what is done before a launch
 * @in_graph: it is a node of a graph
 * Return: whether it is recorded; then other launches wait until recorder_after() of this one.
 */
bool recorder_before(const struct eager_launch *launch, const struct func *func, bool in_graph);

/* After it; @result is what the driver said. */
void recorder_after(const struct eager_launch *launch, CUresult result);

/* A graph is launched that cannot be looked into. @tell: the recording says @why, else it only counts it. */
void recorder_unseen(const char *why, bool tell);

/* The last chunk. Return: false where there was no recording. */
bool recorder_finish(void);

/* The child after fork has none. */
void recorder_reset(void);
