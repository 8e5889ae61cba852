/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of what a plan says, layer by layer, some queries at a time: scores by blocks of keys, then one pass over a row for its
 * maximum and one for sums, in one order. Memory never holds all of a pattern. One thread calls; others compute where the plan allows.
 */
#ifndef ANALYZE_ATTENTION_H
#define ANALYZE_ATTENTION_H

#include "analyze/plan.h"

/**
 * attention_run() - the weights of all heads and queries of a plan, and the proofs of its layers
 * @take: NULL: only the proofs are wanted
 * Return: as dmi_analyze_attention(), with a sentence in @err where it is no answer of @take.
 */
int attention_run(struct err *err, struct plan *plan, dmi_analyze_take *take, void *arg);

#endif
