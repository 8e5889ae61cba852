/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of struct dmi_analyze_score by name, in the order in which tools list them. A program of one thread. */
#pragma once

#include <dmi/analyze_heads.h>

#include <stddef.h>

#define HEAD_SCORES 12

struct head_score {
    const char *name;
    size_t offset;
    const char *what; /* how a list of the best of it is called; NULL: it has none */
};

extern const struct head_score head_scores[HEAD_SCORES];

/* NaN: no query has what it needs. @kind: index in head_scores */
double head_score_of(const struct dmi_analyze_score *score, size_t kind);

/* Those with the largest number first, those with NaN last. */
void head_scores_sort(struct dmi_analyze_score *scores, size_t n, size_t kind);
