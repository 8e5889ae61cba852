/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of what a plan says, layer by layer, some queries at a time: scores by blocks of keys, then one pass over a row for its
 * maximum and one for sums, in one order. Memory never holds all of a pattern. One thread calls; others compute where the plan allows.
 */
#pragma once

#include "analyze/kernel.h"
#include "analyze/plan.h"

/* As dmi_analyze_take, with sums over each of the rows. */
typedef int attention_take(void *arg, const struct dmi_analyze_rows *rows,
                           const struct kernel_sums *sums);

/**
 * attention_run() - the weights of all heads and queries of a plan, and the proofs of its layers
 * @take: NULL: only the proofs are wanted
 * @with_sums: false: @take gets NULL for sums
 * Return: as dmi_analyze_attention(), with a sentence in @err where it is no answer of @take.
 */
int attention_run(struct err *err, struct plan *plan, attention_take *take, void *arg,
                  bool with_sums);
