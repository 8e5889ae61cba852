/* SPDX-License-Identifier: Apache-2.0 */
/* What a site of a HookSpec would take at one launch of a recording, and whether it is what the reference holds. One thread. */
#pragma once

#include "policy/spec.h"
#include "tools/sites/layout.h"

/* A tensor as a site says it lies. */
struct extent {
    uint64_t address;
    uint32_t n_dims;
    int64_t count[SPEC_MAX_DIMS], stride[SPEC_MAX_DIMS]; /* rows first */
    struct extent_slots {
        uint64_t list;  /* address */
        uint32_t dtype; /* of its numbers; 0: there is none, row i lies at i */
        int64_t block,
            block_stride; /* slots a page, bytes from page to page; block 0: without gaps */
    } slots;
};

enum extent_state {
    EXTENT_GOOD,
    EXTENT_EMPTY,    /* no rows: nothing is taken */
    EXTENT_NO_VALUE, /* an expression has none, or the launch no such parameter */
    EXTENT_OUTSIDE,  /* it reaches out of the allocation that its pointer is in */
};

/* Where the tensor lies at @launch, the @occ-th of the site in its forward. */
enum extent_state extent_at(const struct recording *rec, const struct spec_site *site,
                            const struct rec_launch *launch, uint32_t occ, struct extent *out);

/* The number of its layer, REF_NO_LAYER: it has none. */
int extent_layer(const struct spec_site *site, uint32_t occ);

/**
 * extent_error() - how far the first rows are from those of @subject: norm over norm
 * Return: INFINITY where there are fewer rows, or memory is not known; NAN where the reference has none of them.
 */
float extent_error(const struct probe *probe, const struct spec_site *site,
                   const struct extent *extent, const struct subject *subject);
