/* SPDX-License-Identifier: Apache-2.0 */
/* The cells of a map, layers down and positions across, and how many positions share one where all do not fit. Pure functions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What a cell shows: the worst of its rows. LACKING, EXTRA and SHAPE compare two runs: the other run lacks the row, it alone has it, its rows
 * have another shape.
 */
enum cell_state {
    CELL_ABSENT = 0,
    CELL_THERE = 1,
    CELL_DAMAGED = 2,
    CELL_LACKING = 3,
    CELL_EXTRA = 4,
    CELL_SHAPE = 5,
};

struct cells {
    uint32_t n_layers;
    int64_t first,
        end; /* positions; where they are not known (@by_row), rows. None: first is above end */
    bool by_row;
    uint64_t per; /* positions that share a cell; 0: the map is left out */
    uint64_t n;   /* of a layer */
};

#define CELLS_NONE ((struct cells){ .first = INT64_MAX, .end = INT64_MIN })

/* Takes a row in, at a position below 0 one without. */
void cells_widen(struct cells *cells, int64_t position);
/* Cells are rows where a position is not known. @most_rows: of a layer. */
void cells_settle(struct cells *cells, uint64_t most_rows);

/**
 * cells_choose() - sets @per and @n: first as many maps as there is room for, then finer cells for the first of them
 * @n_floats: arrays of float that a map has, beside one of octets
 * Return: maps in which positions share cells; @n_out gets those that are left out.
 */
uint64_t cells_choose(struct cells *const all[], size_t n_maps, uint32_t n_floats, uint64_t room,
                      uint64_t *n_out);

/* Index of the cell of a position (or row) in arrays by layer; SIZE_MAX: it is outside, or the map is left out. */
size_t cells_at(const struct cells *cells, uint64_t layer, int64_t position);

/* Elements of each array. */
size_t cells_all(const struct cells *cells);
