/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a record: which of its dimensions are rows, and which rows of the complete tensor it keeps. Pure. */
#pragma once

#include "storage/reader/reader.h"

#include <stddef.h>
#include <stdint.h>

/* Rows that were captured. */
static inline uint32_t record_rows(const struct reader_record *rec)
{
    return rec->n_rows;
}

/* For each captured row, which row of the complete tensor it is; NULL: row r is row r. */
static inline const uint32_t *record_kept(const struct reader_record *rec)
{
    return rec->kept;
}

/* How many of the first dimensions are the rows. */
static inline uint32_t record_row_dims(const struct reader_record *rec)
{
    return rec->at.n_row_dims;
}

/* Elements of a row. */
static inline uint64_t record_width(const struct reader_record *rec)
{
    uint64_t width = 1;
    for (uint32_t d = record_row_dims(rec); d < rec->at.n_dims; d++)
        width *= rec->at.dims[d];
    return width;
}
