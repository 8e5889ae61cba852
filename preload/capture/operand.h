/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operand: what the action of a site takes at a launch whose parameters are known, or why there is nothing to take. An eager
 * launch has its own, a node has one until its parameters change. Thread: launching, entered, no lock held.
 */
#pragma once

#include "policy/spec.h"
#include "preload/capture/view.h"
#include "preload/context/context.h"
#include "preload/session/session.h"

#include <stdbool.h>
#include <stdint.h>

/* Changed by operand_of_site() and operand_limit() alone; operand_same() compares two. */
struct operand {
    uint32_t site;
    int32_t layer; /* of a tap; other sites have theirs by occurrence */
    int drop; /* drop reason under which all of its records are counted; DROP_NONE: it can be read */
    struct tensor_view view; /* also where @drop is set: rows and bytes as far as they are known */
};

/**
 * operand_of_site() - what @site reads at a launch, without a look at the memory
 * @env: grid, block, parameters and occurrence (0 where no expression may use it)
 * Reports what is wrong, once a site.
 */
void operand_of_site(uint32_t site, const struct expr_env *env, struct operand *operand);

/* The same of a tap that was checked. */
void operand_of_tap(uint32_t site, const struct dmi_tap *tap, struct operand *operand);

/* An operand whose records are all counted under @drop. */
void operand_refused(uint32_t site, enum dmi_drop drop, struct operand *operand);

/**
 * operand_limit() - of a tensor in the slots of a paged cache: how many slots its memory has
 * To be called between operand_of_site() and operand_check_memory(), and again where memory has changed; of other tensors there is
 * nothing to find out. May call the driver.
 */
void operand_limit(struct operand *operand, int device, struct memory_ranges *ranges);

/**
 * operand_check_memory() - may all that the operand reads be read: does it lie in live memory that is nobody else's?
 * @device: that copies; @ranges: the memory as last looked up; looked up anew where memory has changed since
 * May call the driver. Return: DROP_NONE, the operand's own drop reason, or, reported once a site, DMI_DROP_BAD_POINTER,
 * DMI_DROP_UNSUPPORTED (shared memory), DMI_DROP_COPY_FAILED (the driver did not say: it is asked again next time).
 */
int operand_check_memory(const struct operand *operand, uint32_t occurrence, int device,
                         struct memory_ranges *ranges);

/* The same of a tensor in host memory, which the calling thread reads, or writes by an edit. Makes system calls. Return: as there, but for DMI_DROP_UNSUPPORTED. */
int operand_check_host(const struct operand *operand, uint32_t occurrence);

/* Is there anything to record: a tensor with rows, or a reason why not? */
static inline bool operand_has_records(const struct operand *operand)
{
    return operand->drop != DROP_NONE || operand->view.n_bytes;
}

/* Do both read the same, or are dropped for the same reason? */
bool operand_same(const struct operand *a, const struct operand *b);

/* May what the site reads depend on the occurrence? Then the operand is not known before the launch. */
bool operand_needs_occurrence(uint32_t site);

/**
 * operand_layer() - the layer that an occurrence of @site belongs to
 * @tapped: of a tap: the layer that it says
 * Return: false where the spec's expression gives none (reported once a site); *@layer is then RUN_NO_LAYER, as for
 * sites without layers.
 */
bool operand_layer(uint32_t site, uint32_t occurrence, int32_t tapped, int32_t *layer);
