/* SPDX-License-Identifier: Apache-2.0 */
/* Which positions are queries, and whether every key that they see is there. One thread, as the plan. */
#pragma once

#include "analyze/plan.h"

/* Fills queries, n_keys and n_borrowed. @asked: positions, ascending; NULL: all of the first layer. Return: 0, -ENODATA, -EINVAL, -ENOMEM. */
int plan_rows(struct err *err, struct plan *plan, const int64_t *asked, size_t n_asked);
