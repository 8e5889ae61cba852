/* SPDX-License-Identifier: Apache-2.0 */
/* Sightings: in one forward, one launch leaves one tensor of the reference, all of it, in memory. One thread. */
#pragma once

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
    uint32_t list;    /* of a layout in slots: index of the pointer to the list */
    float error;
    bool doubtful; /* so few values that something else may hold the same by chance */
};

/* Rows that may be there: all of the forward, or of each request the last. */
struct sight_rows {
    uint32_t *at;
    uint32_t n;
    bool last;
};

struct sightings {
    struct sighting *at;
    size_t n, room;
};

/* Adds to @out what @hits lead to. Return: 0 or -ENOMEM. */
int sight_hits(const struct probe *probe, const struct forwards *forwards, const struct hits *hits,
               struct sightings *out);

/* Return: 0 or -ENOMEM; free(@out->at) follows in any case. */
int sight_rows(const struct probe *probe, const struct forward *forward, bool last,
               struct sight_rows *out);

/* Does the reference have all of @rows? Of logits it may have the last tokens' alone. */
bool sight_has_rows(const struct probe *probe, uint32_t site, int layer,
                    const struct sight_rows *rows);

/* The nearest pointer at or before @address in its allocation; else one after it. Return: UINT32_MAX: none. */
uint32_t sight_pointer(const struct rec_launch *launch, uint64_t address);

/* Rows in order, and rows in the same slots of the same list, are alike. */
bool sight_same_list(const struct recording *rec, const struct sighting *a,
                     const struct sighting *b);

/* One more, unless it is there. Return: 0 or -ENOMEM. */
int sight_add(struct sightings *all, const struct sighting *sighting);

/* Adds sightings of integers, one a token: they are looked for where pointers lead. Return: 0 or -ENOMEM. */
int sight_integers(const struct probe *probe, const struct forwards *forwards,
                   struct sightings *out);

/* Takes out what is a likeness: another tensor is much nearer to what lies there. @from: those before it have competed. */
void sight_compete(struct sightings *all, size_t from);
