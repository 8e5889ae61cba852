/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of forwards: those that launch the same kernels, and the kernel that begins each. One thread. */
#pragma once

#include "tools/sites/forwards.h"

#define KINDS_MAX 16u /* as many as a HookSpec may have */

struct forward_kind {
    char name[24];
    const char *
        begin; /* name of the kernel, borrowed; NULL: no kernel begins each of them, and nothing else */
    uint32_t n_forwards;
    uint32_t most_rows, fewest_rows;
    uint32_t n_counts; /* different numbers of rows */
};

struct kinds {
    struct forward_kind at[KINDS_MAX];
    uint32_t n;
};

/* Sets kind, begin and end of each forward. Return: 0 or an error in @err. */
int kinds_find(struct err *err, const struct recording *rec, struct forwards *forwards,
               struct kinds *out);
