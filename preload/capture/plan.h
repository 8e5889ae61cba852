/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A site plan: what a site wants of a launch whose parameters are known. Eager launches plan anew each time, a graph
 * once per node and change of its parameters. Thread: launching, entered, no lock held.
 */
#ifndef PRELOAD_CAPTURE_PLAN_H
#define PRELOAD_CAPTURE_PLAN_H

#include "policy/spec.h"
#include "preload/capture/view.h"
#include "preload/context/context.h"
#include "preload/session/session.h"

#include <stdbool.h>
#include <stdint.h>

/* Changed by plan_site() and plan_limit() alone; plan_same() compares two. */
struct site_plan {
    uint32_t site;
    int32_t layer; /* of a tap; other sites have theirs by occurrence */
    int drop; /* drop reason under which all of its records are counted; DROP_NONE: it can be read */
    struct tensor_view view; /* also where @drop is set: rows and bytes as far as they are known */
};

/**
 * plan_site() - what @site reads at a launch, without a look at the memory
 * @env: grid, block, parameters and occurrence (0 where no expression may use it)
 * Reports what is wrong, once a site.
 */
void plan_site(uint32_t site, const struct expr_env *env, struct site_plan *plan);

/* The same of a tap that was checked. */
void plan_tap(uint32_t site, const struct dmi_tap *tap, struct site_plan *plan);

/* A plan whose records are all counted under @drop. */
void plan_refused(uint32_t site, enum dmi_drop drop, struct site_plan *plan);

/**
 * plan_limit() - of a tensor in the slots of a paged cache: how many slots its memory has
 * To be called between plan_site() and plan_check_memory(), and again where memory has changed; of other tensors there is
 * nothing to find out. May call the driver.
 */
void plan_limit(struct site_plan *plan, int device, struct memory_ranges *ranges);

/**
 * plan_check_memory() - may all that the plan reads be read: does it lie in live memory that is nobody else's?
 * @device: that copies; @ranges: the memory as last looked up; looked up anew where memory has changed since
 * May call the driver. Return: DROP_NONE, the plan's own drop reason, or, reported once a site, DMI_DROP_BAD_POINTER,
 * DMI_DROP_UNSUPPORTED (shared memory), DMI_DROP_COPY_FAILED (the driver did not say: it is asked again next time).
 */
int plan_check_memory(const struct site_plan *plan, uint32_t occurrence, int device,
                      struct memory_ranges *ranges);

/* Is there anything to record: a tensor with rows, or a reason why not? */
static inline bool plan_has_records(const struct site_plan *plan)
{
    return plan->drop != DROP_NONE || plan->view.n_bytes;
}

/* Do both read the same, or are dropped for the same reason? */
bool plan_same(const struct site_plan *a, const struct site_plan *b);

/* May what the site reads depend on the occurrence? Then it cannot be planned before the launch. */
bool plan_needs_occurrence(uint32_t site);

/**
 * plan_layer() - the layer that an occurrence of the plan's site belongs to
 * Return: false where the spec's expression gives none (reported once a site); *@layer is then RUN_NO_LAYER, as for
 * sites without layers.
 */
bool plan_layer(const struct site_plan *plan, uint32_t occurrence, int32_t *layer);

#endif
