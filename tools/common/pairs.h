/* SPDX-License-Identifier: Apache-2.0 */
/* The strongest pairs of query and key among all that were seen; of equal ones the first by layer, head, query and key. A program of one thread. */
#pragma once

#include <dmi/analyze.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pair {
    float weight;
    int32_t layer;
    uint32_t head;
    int64_t query, key;
};

struct pairs {
    struct pair *all; /* a heap, the weakest first; after pairs_sort() the strongest first */
    size_t n, most;
};

/* Return: 0 or -ENOMEM; pairs_deinit() accepts a zeroed struct. */
int pairs_init(struct pairs *pairs, size_t most);
void pairs_deinit(struct pairs *pairs);

/* Takes rows as they come, but that of query 0, which sees itself alone. @skip_first: not those of the key 0. */
void pairs_add(struct pairs *pairs, const struct dmi_analyze_rows *rows, bool skip_first);

/* Once all were taken. */
void pairs_sort(struct pairs *pairs);
