/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries of a HookSpec, from sightings: the launches of some kernels that leave a site's layers in every forward of a
 * kind, and the expressions that say where. One thread.
 */
#pragma once

#include "tools/sites/kinds.h"
#include "tools/sites/sight.h"
#include "tools/sites/solve.h"

#define ENTRY_MAX_NAMES 32u

struct entry {
    uint32_t site, kind;
    const char *names[ENTRY_MAX_NAMES]; /* of its kernels, borrowed from the recording */
    uint32_t n_names;
    const struct sighting **members;
    size_t n_members, room_members;
    uint32_t dtype;
    float scale;
    bool before, last_rows, several;
    uint32_t chunk, n_chunks;
    float error;     /* the largest of its members */
    uint32_t n_seen; /* forwards and layers in which it was seen */
    uint32_t n_wanted;
    /* found by entry_solve() */
    char pointer[48];
    char list[48]; /* of the slots that rows are in; "": rows lie in order */
    uint32_t list_dtype;
    struct solution offset, count, row_stride, chunk_stride;
    uint32_t place;           /* its first launch, counted from its forward's begin */
    uint32_t from, to, every; /* occurrences */
    uint32_t expect;          /* how many there are in a forward, 0: that differs */
    char layer[48];           /* "": it has none */
    const char *why;          /* what could not be said in a HookSpec; NULL: it can */
    char also[256];           /* kernels that leave the same later */
    bool unsure;              /* nearly the same: which one is meant, the values do not say */
};

struct entries {
    struct entry *at;
    size_t n, room;
    uint8_t *found; /* [kind][site]: all that the reference has was found */
    uint32_t n_sites;
};

/* What the search is about. */
struct scene {
    const struct probe *probe;
    const struct forwards *forwards;
    const struct kinds *kinds;
    const struct sightings *sightings;
};

/* For every kind and site the entries that together show all layers, in the order of their launches. Return: 0 or -ENOMEM. */
int entries_find(const struct scene *scene, struct entries *out);
/* Accepts a zeroed struct. */
void entries_deinit(struct entries *entries);

/* Were all layers of the site found in forwards of this kind? */
bool entries_found(const struct entries *entries, uint32_t kind, uint32_t site);
