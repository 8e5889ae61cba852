/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of one request, for formats whose files or batches are of requests. A program of one thread. */
#pragma once

#include "tools/dump/export.h"

struct target_group {
    struct target *first;
    size_t n;
};

/* The targets from @at on that are of one request: tensors are sorted by request. */
struct target_group group_at(const struct exporter *x, size_t at);

/* Return: NULL: the request has none of that site and layer. */
const struct target *group_find(const struct target_group *group, const char *site, int32_t layer);

/* Says that the request is left out, because @what @fault. */
void group_leave_out(struct exporter *x, const struct target_group *group, enum sample_fault why,
                     const char *what, const char *fault);

/* Whether the rows of the group's target are a sample; else the request is left out by name. */
bool group_is_whole(struct exporter *x, const struct target_group *group,
                    const struct target *target);

/* Whether the request goes on in a run that is still written; it is then left out by name. */
bool group_still_runs(struct exporter *x, const struct target_group *group);
