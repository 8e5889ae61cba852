/* SPDX-License-Identifier: Apache-2.0 */
/* Sightings: in one forward, one launch leaves one tensor of the reference, all of it, in memory. One thread. */
#ifndef TOOLS_SITES_SIGHT_H
#define TOOLS_SITES_SIGHT_H

#include "tools/sites/forwards.h"
#include "tools/sites/layout.h"

struct sighting {
    uint32_t forward, launch;
    uint32_t site;
    int layer;
    struct layout layout;
    uint32_t n_rows;  /* those of the forward, or one a request */
    bool last_rows;   /* of each request the last one only */
    bool before;      /* it was there before the launch */
    bool several;     /* other launches had written a part of it before */
    uint32_t pointer; /* index in the launch's pointers: the nearest before it in its allocation */
    float error;
};

struct sightings {
    struct sighting *at;
    size_t n, room;
};

/* Adds to @out what @hits lead to. Return: 0 or -ENOMEM. */
int sight_hits(const struct probe *probe, const struct forwards *forwards, const struct hits *hits,
               struct sightings *out);

/* Adds sightings of integers, one a token: they are looked for where pointers lead. Return: 0 or -ENOMEM. */
int sight_integers(const struct probe *probe, const struct forwards *forwards,
                   struct sightings *out);

/* Takes out what is a likeness: another tensor is much nearer to what lies there. */
void sight_compete(struct sightings *all);

/* The forward that launch number @launch may show, UINT32_MAX: none. A gap between two belongs to both. */
bool sight_within(const struct forwards *forwards, uint32_t forward, uint32_t launch);

#endif
