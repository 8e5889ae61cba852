/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which layers go into one tensor, and in which order: --layers of a format that stacks them. "last" is what enters the
 * last norm, where the site that is stacked has that beside it. A program of one thread.
 */
#pragma once

#include "core/err.h"
#include "read/layers.h"
#include "read/selection.h"

#include <stdbool.h>

#define EXPORT_LAST INT32_MAX /* the layer that "last" is, where it is none of the site's */

/* What there is to choose from. */
struct export_stock {
    const char *site;
    struct layers layers; /* sorted */
    const char *last;     /* site that "last" means; NULL: the highest layer of @site */
    bool has_last;        /* @last was captured */
};

/**
 * export_layers_choose() - layers in the order of a selection's words; without any, all that there are
 * Return: 0, -EINVAL (one is there twice), -ENOENT (a layer that was not captured), -ENODATA (no "last"), -ENOMEM; with a
 * sentence in @err.
 */
int export_layers_choose(struct err *err, const struct selection *select,
                         const struct export_stock *stock, struct layers *out);

/* "3" or "last" */
void export_layers_add_name(struct text *to, int32_t layer);
