/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second look, at the forwards that the first one showed, for what needs to be known of them: floats of 8 bits, rows of few
 * values, rows of integers, transposed tensors. One thread.
 */
#ifndef TOOLS_SITES_AGAIN_H
#define TOOLS_SITES_AGAIN_H

#include "tools/sites/kinds.h"
#include "tools/sites/sight.h"

/* Is most of a site in forwards of a kind still to be found? [kind][site] */
bool *again_open(const struct probe *probe, const struct forwards *forwards,
                 const struct kinds *kinds, const struct sightings *sightings);

/**
 * again_look() - adds to @sightings what a second look shows
 * @open: of again_open(); wide rows of floats are looked for only there
 * Return: 0 or -ENOMEM.
 */
int again_look(const struct probe *probe, const struct forwards *forwards, const bool *open,
               struct sightings *sightings);

#endif
