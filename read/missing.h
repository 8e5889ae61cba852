/* SPDX-License-Identifier: Apache-2.0 */
/* Names, ids, layers and ranks that a selection says and a run has not: one sentence for every tool and for Python. Not locked: the owner's thread. */
#pragma once

#include "read/layers.h"
#include "read/selection.h"
#include "read/sites.h"
#include "storage/map.h"

/* Which layers of which sites have records. Accepts a zeroed struct. */
struct seen {
    struct map index;
    struct seen_layer {
        uint32_t site; /* the first of its name */
        int32_t layer;
    } * all;
    size_t n, room;
};

/* Return: 0 or -ENOMEM. */
int seen_add(struct seen *seen, const struct sites *sites, const struct dmi_record *record);
/* Those of all records that are selected. Return: 0 or -ENOMEM. */
int seen_add_all(struct seen *seen, const struct sites *sites, const struct reader *reader);
void seen_deinit(struct seen *seen);

/* What is known of the run. */
struct missing_from {
    const struct reader *reader;
    const struct sites *sites;
    const struct requests *requests;
    const struct seen *seen;
};

/**
 * missing_check() - whether the run has all that a selection names: requests, sites and tensors, layers
 * Return: 0; -ENOENT: not all, @err names the first and what is nearest to it, or words for tokens that mean nothing in a run whose engine
 * named no requests; -ENOMEM.
 */
int missing_check(struct err *err, const struct missing_from *run, const struct selection *select);

/* The sentence of a layer that a site has not; @site NULL: any. Return: -ENOENT. */
int missing_layer(struct err *err, const char *site, const struct layer_word *word,
                  const struct layers *have);

/* A name, not terminated. */
struct name_bytes {
    const char *at;
    size_t n;
};
/* Adds "; near it: a, b" of @n names; nothing where there is none. */
void missing_add_nearest(struct text *to, const char *wanted, size_t n_wanted,
                         const struct name_bytes *names, size_t n);

/* Looks only at runs of these ranks from now on. Return: 0; -ENOENT: no run is, as @err says; then it looks at all. */
int missing_ranks(struct err *err, struct reader *reader, const int32_t ranks[DMI_AXIS_COUNT]);
