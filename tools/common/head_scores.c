/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/head_scores.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct head_score head_scores[HEAD_SCORES] = {
    { "previous", offsetof(struct dmi_analyze_score, previous), "mean weight of the token before" },
    { "duplicate", offsetof(struct dmi_analyze_score, duplicate),
      "mean weight of the first occurrence of the same token" },
    { "induction", offsetof(struct dmi_analyze_score, induction),
      "mean weight of what came after the same token" },
    { "sink", offsetof(struct dmi_analyze_score, sink), "mean weight of the first token" },
    { "entropy", offsetof(struct dmi_analyze_score, entropy), NULL },
    { "distance", offsetof(struct dmi_analyze_score, distance), NULL },
    { "mul_previous", offsetof(struct dmi_analyze_score, mul_previous), NULL },
    { "mul_duplicate", offsetof(struct dmi_analyze_score, mul_duplicate), NULL },
    { "mul_induction", offsetof(struct dmi_analyze_score, mul_induction), NULL },
    { "abs_previous", offsetof(struct dmi_analyze_score, abs_previous), NULL },
    { "abs_duplicate", offsetof(struct dmi_analyze_score, abs_duplicate), NULL },
    { "abs_induction", offsetof(struct dmi_analyze_score, abs_induction), NULL },
};

double head_score_of(const struct dmi_analyze_score *s, size_t kind)
{
    double v;
    memcpy(&v, (const char *)s + head_scores[kind].offset, sizeof v);
    return v;
}

static _Thread_local size_t sorted_kind; /* for by_value() */

static int by_value(const void *a, const void *b)
{
    double x = head_score_of(a, sorted_kind), y = head_score_of(b, sorted_kind);
    if (isnan(x) || isnan(y))
        return isnan(x) - isnan(y);
    return (x < y) - (x > y);
}

void head_scores_sort(struct dmi_analyze_score *scores, size_t n, size_t kind)
{
    sorted_kind = kind;
    qsort(scores, n, sizeof *scores, by_value);
}
