/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantiles of times in bounded memory: exact of as many as QUANTILES_EXACT, within 1/512 of the value beyond. Pure; a program of one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUANTILES_EXACT 32768u

/* Accepts being zeroed. */
struct quantiles {
    uint64_t n;      /* values so far */
    int64_t *values; /* all of them; NULL once they are too many: */
    size_t room;
    uint64_t *parts; /* how many lie in each part of each power of two, below 0 and not */
};

/* One more. Return: false: no memory. */
bool quantiles_add(struct quantiles *q, int64_t value);

/* The value at @share, 0 to 1, of those in order; the middle of its part where they are too many. 0: there are none. */
int64_t quantiles_at(struct quantiles *q, double share);

/* Frees all. */
void quantiles_deinit(struct quantiles *q);
