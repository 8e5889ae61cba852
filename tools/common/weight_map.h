/* SPDX-License-Identifier: Apache-2.0 */
/* A head's weights, pooled to a few cells: each is the largest weight of some queries and keys. A program of one thread. */
#pragma once

#include <dmi/analyze.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEIGHT_MAP_CELLS 64 /* of a side, at most */

struct weight_map {
    float *cells; /* n_rows of n_columns; NaN where a weight is not finite */
    size_t n_rows, n_columns;
    uint64_t n_queries;
    int64_t n_keys;
};

/* Cells of a side that @n tokens take, of @most: one a token where there is room. */
size_t weight_map_side(uint64_t n, size_t most);

/* @most: cells of a side. Return: 0 or -ENOMEM; weight_map_deinit() accepts a zeroed struct. */
int weight_map_init(struct weight_map *map, const struct dmi_analyze_shape *shape, size_t most);
void weight_map_deinit(struct weight_map *map);

/* Takes rows as they come. @skip_first: not the weights of the key 0. */
void weight_map_add(struct weight_map *map, const struct dmi_analyze_rows *rows, bool skip_first);

/* The position of the first query of a row of cells. */
int64_t weight_map_query(const struct weight_map *map, const struct dmi_analyze_shape *shape,
                         size_t row);
