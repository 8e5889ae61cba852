/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guesses: this launch of each forward, at this distance from one of its pointers, leaves a site's layer. What one forward
 * suggests, all of its kind have to bear out, and by more values than may lie there by chance. One thread.
 */
#pragma once

#include "tools/sites/sight.h"

struct guess {
    uint32_t kind, site;
    int layer;
    uint32_t kernel, occ; /* launch number @occ of that kernel in a forward */
    uint32_t offset;      /* byte of the pointer among the parameters */
    int64_t distance;     /* from where it points to */
    struct layout layout; /* its address is that of no launch */
    bool turned;          /* chunks are as far apart as a forward has rows */
    bool last;            /* of each request the last row */
    float bits;           /* of evidence: so often would a coin have to fall as it did */
    float error;          /* the largest of a forward: norm over norm */
    bool certain;
};

/* Does it say the same of the same? */
bool guess_equal(const struct guess *a, const struct guess *b);

/**
 * guess_check() - do all forwards bear out what @guess says?
 * @needed: bits of evidence that make it certain
 * Sets bits, error and certain. Return: false: too many do not.
 */
bool guess_check(const struct probe *probe, const struct forwards *forwards, float needed,
                 struct guess *guess);

/* Adds what it says of each forward in which it holds. Return: 0 or -ENOMEM. */
int guess_show(const struct probe *probe, const struct forwards *forwards,
               const struct guess *guess, struct sightings *out);
