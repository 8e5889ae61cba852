/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump show --map: a heat map of rows. A line a row; a column is a block of the width, or a layer where the same
 * rows are there of several. A cell is the root mean square of its values. A program of one thread.
 */
#pragma once

#include "read/tensors.h"
#include "tools/dump/output.h"

struct map_cell {
    long double squares; /* their sum; long, since doubles may be squared */
    uint64_t n, n_not_finite;
};

struct map_row {
    int64_t key; /* position, or index */
    struct map_cell *cells;
};

struct heat_map {
    const struct tensor *tensors; /* of one request and one site, by layer */
    size_t n_tensors, n_columns;
    bool by_position;
    struct map_row *rows;
    size_t n_rows, room;
    size_t last; /* row that was added to */
};

/* How it is drawn. */
struct map_style {
    bool colour;      /* 256 colours and block characters; else ASCII */
    size_t n_columns; /* at most */
};

/* As stdout is: a terminal that wants colours, or anything else. */
struct map_style map_style_of_stdout(void);

/* Begins a map of @n tensors. */
void map_begin(struct heat_map *map, const struct tensor *tensors, size_t n,
               const struct map_style *style);

/**
 * map_add() - a row of values
 * @tensor: one of the map's
 * @key: position; below 0: not known, and @index counts
 * Return: 0 or -ENOMEM.
 */
int map_add(struct heat_map *map, const struct tensor *tensor, int64_t key, uint64_t index,
            const double *values, uint64_t width);

/* Prints the map and its scale: lines, or (JSON) a row of the report's table for each row. */
void map_print(struct report *report, const struct heat_map *map, const struct map_style *style);

/* Frees the rows. */
void map_deinit_rows(struct heat_map *map);
