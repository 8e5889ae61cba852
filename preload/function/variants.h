/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions within NVTX ranges. A launch, or a node, of a kernel is of the sites that its name gives it and of those that
 * the ranges add that were open: a variant of the function says both, so that the code that follows launches and graphs
 * sees one function. There is one variant for the same function, sites and layers, which is never freed.
 * Thread: any; takes a lock where a variant is new.
 */
#pragma once

#include "preload/function/functions.h"

#include <stdbool.h>
#include <stdint.h>

#define VARIANT_LAYER_OF_SITE INT32_MIN /* the site's expression gives the layer */
#define VARIANT_NO_LAYER      (-1)      /* the range's name was to give it, and has no number */

/* A site that a range adds. */
struct variant_site {
    uint32_t site;
    int32_t layer; /* or VARIANT_LAYER_OF_SITE, VARIANT_NO_LAYER */
};

/* What ranges add to a function. */
struct variant_facts {
    int kind; /* of the forward that a range begins with it, -1: none */
    uint32_t n;
    struct variant_site sites[SPEC_MAX_MATCHES];
};

struct variant {
    struct func func; /* its sites are the base's, and those of @facts at the end */
    struct variant_facts facts;
    struct variant *next;
};

/* Has the function sites, or does it begin a forward, also outside of ranges? */
static inline bool func_concerns(const struct func *func)
{
    return func->match.n_sites || func->match.kind >= 0;
}

/**
 * variants_of() - the variant of @base with @facts
 * @facts: all of its bytes count; zero it first
 * Return: @base where there is nothing to add. What finds no room is reported, once a site, and left out.
 */
const struct func *variants_of(const struct func *base, const struct variant_facts *facts);

/* @func was a node's, which now has the kernel @base: what ranges added holds of that as far as patterns allow. */
const struct func *variants_like(const struct func *base, const struct func *func);

/* What a range said of a site of @func, NULL: nothing. */
const struct variant_site *variants_site(const struct func *func, uint32_t site);

/* Of the forward that a range begins with @func, -1: none. */
int variants_kind(const struct func *func);

/* After fork, in the child. */
void variants_reset(void);
