/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shedding requests, as the spec's `overload` says: what steps cost and how full the rings are goes into
 * policy/shedding.h, and what comes out into the step in force. A request whose rows are not kept takes no place in the ring,
 * no bytes of the link, and no node or graph has to change: only the lists of rows are shorter.
 */
#pragma once

#include "policy/spec.h"
#include "preload/capture/step.h"

#include <stdbool.h>
#include <stdint.h>

/**
 * shed_step() - which of a step's requests are kept, when it begins
 * @step: taken over
 * Thread: any that entered; takes the locks of all contexts in turn. Return: the step, or what is left of it.
 */
struct step *shed_step(struct step *step);

/* A record of the site, of so many bytes a row, is part of the step under way. Thread: any that entered; no lock. */
void shed_note_cost(uint32_t site, uint32_t row_bytes);

/* What a launch needs that finds no room. */
struct shed_launch {
    uint64_t row_bytes[SPEC_MAX_SELECTS]; /* a row of each choice, all its records together */
    uint64_t excess;                      /* bytes that are too many */
};

/**
 * shed_cut() - a launch found no room: its step goes on with fewer requests
 * @step: held by the launch; replaced by one that is held in its place, in force for later launches too
 * Thread: as shed_step(), without a lock. Return: false: there is nothing more to shed.
 */
bool shed_cut(struct step **step, const struct shed_launch *launch);

/**
 * shed_lost() - a record of the step was lost for want of room
 * The requests that had rows in it are kept no more. Where it had none, nobody else can make room for it: after several on
 * end its site is switched off, and the run says so. Thread: the same.
 */
void shed_lost(const struct step *step, uint32_t site);

/* A record of the site found room. Thread: the same. */
void shed_found_room(uint32_t site);

/* A request has ended: its id may come again. Thread: any that entered. */
void shed_request_end(const char *id);

/* After fork, in the child. */
void shed_reset(void);
