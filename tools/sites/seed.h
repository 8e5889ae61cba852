/* SPDX-License-Identifier: Apache-2.0 */
/* What one forward suggests: from patterns that were seen in it to guesses. One thread. */
#pragma once

#include "tools/sites/guess.h"

struct guesses {
    struct guess *at;
    size_t n, room;
};

/**
 * seed_find() - adds the guesses that would explain @hits
 * @hits: in forward number @forward, their row is an index in its rows; their tensor the first of its site and layer
 * @turned: the patterns are columns, and the hits' row is the element: [element][row] lies there
 * The hits get another order. Return: 0 or -ENOMEM.
 */
int seed_find(const struct probe *probe, const struct forwards *forwards, uint32_t forward,
              bool turned, struct hits *hits, struct guesses *out);
