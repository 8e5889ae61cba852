/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens at a site: an action is a kernel of ours that the launch is given beside the application's own, and
 * how its parameter is filled. Capture is the first; a write into the tensor is another row of the table in action.c.
 * Pure functions. Thread: launching.
 */
#ifndef PRELOAD_CAPTURE_ACTION_H
#define PRELOAD_CAPTURE_ACTION_H

#include "preload/capture/plan.h"
#include "preload/context/context.h"

#include <dmi/ring.h>

#include <stdbool.h>
#include <stdint.h>

/* A kernel of ours as the driver is to launch it; one parameter. */
struct action_kernel {
    CUfunction function;
    uint32_t blocks, threads;
    union {
        struct dmi_copy copy;
        struct dmi_graph_copy graph_copy;
    } param;
};

/* One eager launch of it, admitted. */
struct action_launch {
    const struct context *context;
    const struct site_plan *plan;
    uint64_t number; /* the launch number */
    uint32_t occurrence;
    uint32_t first_row, n_rows; /* of those that the record keeps */
    CUdeviceptr rows;           /* list of all of those, 0: they are the tensor's first ones */
    uint64_t slot,
        payload; /* where it needs a slot: running number in the ring, offset of its bytes */
};

/* Where a node of ours in a graph exec belongs. */
struct action_place {
    const struct context *context;
    CUdeviceptr state; /* of the exec: struct dmi_ticket */
    uint32_t number;   /* of its entry in the ticket */
};

struct action {
    const char *name;
    bool
        needs_slot; /* it publishes a record: each of its launches is expected, and captured or dropped */
    void (*eager)(const struct action_launch *launch, struct action_kernel *out);
    /* as a node; also of a plan that reads nothing, whose place a later update may fill */
    void (*node)(const struct action_place *place, const struct site_plan *plan,
                 struct action_kernel *out);
};

/* The names of all kernels that actions launch, for device_use_kernels(). */
const char *const *action_kernels(uint32_t *n);

/* The action of a site of the spec. Never NULL. */
const struct action *action_of(uint32_t site);

#endif
