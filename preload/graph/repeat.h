/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A launch that repeats the last one of its exec: the same sites are counted from the same place in a forward, and each keeps as many rows, in order. Then its
 * records are those of the last launch but for step, time, forward and place in the ring, and nothing is worked out site by site: it costs the launching thread as much
 * with 250 sites as with one. Whatever differs goes by graph/launch.c as ever, which notes what the next launch may repeat. Thread: as graph/launch.h.
 */
#pragma once

#include "preload/capture/admission.h"
#include "preload/graph/plan.h"

#include <stdbool.h>
#include <stdint.h>

#define REPEAT_PICKS 16u /* choices of rows by tensors of so many rows */

/* A site in the forward under way, as struct context_counts has it. */
struct repeat_counts {
    uint32_t occurrence, n_layers, room;
    uint8_t *passes;
};

/* All that a launch is of one site. */
struct repeat_site {
    uint32_t site;
    struct repeat_counts before, after;
    uint64_t launches, records, rows, bytes;
    uint32_t row_bytes; /* of all its records together */
};

/* What a site keeps of a tensor. */
struct repeat_pick {
    const struct operand *operand; /* of the exec's plan */
    uint32_t n;                    /* rows, the first ones in order */
    bool all;
};

/* What it kept of them, and what its ticket says of that. */
struct repeat_rows {
    struct repeat_pick picks[REPEAT_PICKS];
    struct dmi_rows choices[DMI_TICKET_ROWS];
    uint32_t n_picks, n_choices;
};

struct repeat {
    bool noted;   /* of the launch under way: before and after */
    bool ready;   /* the next launch may repeat it, whose ticket is the one in the exec's state */
    bool refused; /* the driver does not take dmi_reopen */
    bool in_step;
    int begins, kind; /* what its first kernel begins, -1: nothing; the forward that it is of */
    uint64_t sequence;
    uint32_t n_sites;
    struct repeat_site *sites; /* NULL: not listed */
    uint16_t *of_action;       /* index in sites */
    struct repeat_rows *rows;
    struct launch_records *records; /* held; NULL: none */
};

/* The plan has other actions, or its exec ends: nothing that was listed of them holds. */
void repeat_deinit(struct repeat *repeat);

/* The next launch repeats none: actions were switched or read something else, memory has come and gone, or another ticket goes to the exec's state. */
static inline void repeat_pass(struct repeat *repeat)
{
    repeat->ready = false;
}

/*
 * Around the counting of a launch whose kernels are all counted in @context, under its lock: the first one begins a forward of kind @begins, or none (-1).
 */
void repeat_before(struct repeat *repeat, const struct graph_plan *plan,
                   const struct context *context, int begins);
void repeat_after(struct repeat *repeat, const struct context *context);

/* The driver took the launch, which went the long way: may the next one repeat it? */
void repeat_learn(struct repeat *repeat, const struct graph_plan *plan,
                  const struct admission_launch *launch);

/**
 * repeat_launch() - counts the launch and reserves its records, if it repeats the last one
 * Return: whether it does. Its items are then as repeat_undo() leaves them once that is called.
 */
bool repeat_launch(struct repeat *repeat, struct admission_launch *launch);

/* The launch is to be taken back, or to get a whole ticket: its items are RESERVED. */
void repeat_undo(struct repeat *repeat, struct admission_launch *launch);
