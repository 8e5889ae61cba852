/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors that are rows of a recorded run. */
#pragma once

#include "core/err.h"
#include "policy/edit.h"

/* Takes the rows of one layer (EDIT_ANY_LAYER: the site has none), true values, one row after the other. Return: 0, or what ends the reading. */
typedef int vectors_take_layer(void *arg, int32_t layer, const float *numbers, uint64_t n);

/**
 * vectors_read_run() - the donor's rows that a vector asks for, layer by layer
 * @path: of the run
 * @vector: its run, request, site and rows are said
 * Return: 0; -EINVAL, and @err says why it has none; -ENOMEM; what @take returned.
 */
int vectors_read_run(struct err *err, const char *path, const struct edit_vector *vector,
                     vectors_take_layer *take, void *arg);
