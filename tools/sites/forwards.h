/* SPDX-License-Identifier: Apache-2.0 */
/* The forwards of a recording: which launches belong to one pass through the model, and whose rows it computes. One thread. */
#pragma once

#include "tools/sites/probe.h"

#define FORWARDS_MAX_ROWS 65536u

struct forward {
    uint32_t first, last; /* launches that show something of it */
    uint32_t begin,
        end; /* from the launch that begins it to that which begins the next; set by kinds_find() */
    uint32_t *rows; /* in the order in which they lie in memory */
    uint32_t n_rows;
    uint32_t kind;
};

struct forwards {
    struct forward *at;
    size_t n, room;
};

/* Return: 0 or -ENOMEM. @hits: of look_for_beginnings() */
int forwards_find(const struct probe *probe, const struct hits *hits, struct forwards *out);
/* Accepts a zeroed struct. */
void forwards_deinit(struct forwards *forwards);

/* Where @row lies among the forward's rows, -1: it does not compute it. */
int forward_row(const struct forward *forward, uint32_t row);
