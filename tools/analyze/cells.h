/* SPDX-License-Identifier: Apache-2.0 */
/* How tables of numbers look. A program of one thread. */
#ifndef TOOLS_ANALYZE_CELLS_H
#define TOOLS_ANALYZE_CELLS_H

#include "tools/common/report.h"

/* A member of a row's member (@inner: NULL: the member itself). Return: NaN where it is no number. */
double cell_value(const json_t *row, const char *outer, const char *inner);

/* Four digits that count, whole numbers whole; "-" for what is no number. */
void cell_number(struct text *to, double value);

/* "12.5%"; of less than a thousandth its power of ten: a share that is not 0 never looks like 0. */
void cell_share(struct text *to, double share);

/* Defines a cell of a table: FORMAT is cell_number or cell_share. */
#define CELL(NAME, FORMAT, OUTER, INNER)                                                           \
    static void NAME(struct text *to, const json_t *row)                                           \
    {                                                                                              \
        FORMAT(to, cell_value(row, OUTER, INNER));                                                 \
    }

#endif
