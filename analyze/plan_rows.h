/* SPDX-License-Identifier: Apache-2.0 */
/* Which positions are queries, and whether every key that they see is there. One thread, as the plan. */
#ifndef ANALYZE_PLAN_ROWS_H
#define ANALYZE_PLAN_ROWS_H

#include "analyze/plan.h"
#include "storage/text.h"

/* Fills queries, n_keys and n_borrowed. @asked: positions, ascending; NULL: all of the first layer. Return: 0, -ENODATA, -EINVAL, -ENOMEM. */
int plan_rows(struct err *err, struct plan *plan, const int64_t *asked, size_t n_asked);

/**
 * plan_lacks() - say that rows of a site are not there, and which sites hold rows that cannot be used
 * @offset: of the sources in struct plan_layer; @name: of what lacks; @positions: goes after it
 * Return: -ENODATA.
 */
int plan_lacks(struct err *err, const struct plan *plan, const struct plan_layer *layer,
               size_t offset, const char *name, const char *positions);

#endif
