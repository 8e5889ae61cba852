/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which slow steps a trace keeps, each with the step before it and the one after it: 100 steps in all, and 1% of the steps beyond the first
 * 10,000. Where that is too few, those with the greatest excess stay. Pure: one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Steps that are kept of the first BUDGET_STEPS; then one in BUDGET_PART. */
#define BUDGET_FIRST 100u
#define BUDGET_STEPS 10000u
#define BUDGET_PART  100u

/* The last slow steps that are kept may give way to others; those before them stay. */
#define BUDGET_MOST 1024u

/* Accepts being zeroed: nothing is kept. */
struct budget {
    struct budget_step {
        uint64_t step;
        double excess;
        bool is_out;     /* while an offer is weighed */
    } slow[BUDGET_MOST]; /* that are kept and may give way, in order */
    size_t n;
    uint64_t next;    /* steps below it were offered, or passed over */
    uint64_t settled; /* one more than the last slow step that stays; 0: none does */
    uint64_t used;    /* steps that are kept, neighbours included */
    /* Slow steps: offered = kept + refused. */
    uint64_t offered, kept, refused;
};

/**
 * budget_offer() - whether a slow step and its neighbours are kept
 * @step: its number; numbers rise from call to call, and one that does not is refused
 * @excess: by how much the step was too long, in one unit for all steps
 * @n_steps: steps of the run so far
 * @give_way: called with each slow step that is kept no more, so that this one is; NULL: the caller asks budget_keeps()
 * Return: whether it is kept.
 */
bool budget_offer(struct budget *budget, uint64_t step, double excess, uint64_t n_steps,
                  void (*give_way)(void *arg, uint64_t step), void *arg);

/* Return: whether a step is kept, as a slow one or as a neighbour. It asks of those that may give way, and of the last one that stays. */
bool budget_keeps(const struct budget *budget, uint64_t step);
