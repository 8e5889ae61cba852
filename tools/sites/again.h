/* SPDX-License-Identifier: Apache-2.0 */
/* A second look, at the forwards that the first one showed, for floats of 8 bits. One thread. */
#pragma once

#include "tools/sites/kinds.h"
#include "tools/sites/sight.h"

/* Is most of a site in forwards of a kind still to be found? [kind][site] */
bool *again_open(const struct probe *probe, const struct forwards *forwards,
                 const struct kinds *kinds, const struct sightings *sightings);

/* Adds sightings of sites that are @open, which is again_open()'s. Return: 0 or -ENOMEM. */
int again_small(const struct probe *probe, const struct forwards *forwards, const bool *open,
                struct sightings *sightings);
