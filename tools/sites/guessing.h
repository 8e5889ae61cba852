/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A third look, for what a row of its own does not show: rows of few floats, integers, and tensors of which the elements of
 * a row lie apart ([element][row]). A forward of each kind suggests where they are, the others bear it out. One thread.
 */
#pragma once

#include "tools/sites/kinds.h"
#include "tools/sites/sight.h"

/* Adds sightings. Return: 0 or -ENOMEM. */
int guessing_look(const struct probe *probe, const struct forwards *forwards,
                  const struct kinds *kinds, struct sightings *out);
