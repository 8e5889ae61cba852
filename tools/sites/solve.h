/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that follow what a launch says of itself: from samples (launch, number) to an expression of a HookSpec. One
 * thread.
 */
#pragma once

#include "tools/sites/recording.h"

struct sample {
    const struct rec_launch *launch;
    int64_t occ;
    int64_t value;
};

struct solution {
    char text[160];
    bool constant;
    bool padded; /* the expression is at least the value, not always equal to it */
};

/**
 * solve() - the simplest expression that gives every sample's value
 * A number, one integer of the launch, a multiple of one and a number, or of two.
 * @padded: accept one integer that is never less than the value, and as little more as there is
 * Return: false: there is none.
 */
bool solve(const struct recording *rec, const struct sample *samples, size_t n, bool padded,
           struct solution *out);

/* The place of a pointer among the parameters: arg[I], arg[I][O] or param[O]. */
void solve_place(const struct recording *rec, const struct rec_launch *launch, uint32_t offset,
                 char *text, size_t n_text);
