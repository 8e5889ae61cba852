/* SPDX-License-Identifier: Apache-2.0 */
/* A captured tensor, and a change, on their way to disk. Plain structs: the caller's. Source: docs/format.md 5, 6.3. */
#pragma once

#include "storage/record_fields.h"

#include <stddef.h>
#include <stdint.h>

#define RUN_MAX_DIMS 4
#define RUN_NO_LAYER (-1)

/* One captured tensor of one launch. */
struct run_record {
    RECORD_FACTS(RECORD_DECLARE)
    uint64_t step;   /* sequence of the run_step() that was in force, UINT64_MAX: none */
    uint32_t n_dims; /* 1..RUN_MAX_DIMS */
    uint32_t dims[RUN_MAX_DIMS]; /* elements, rows first */
    uint32_t n_row_dims;         /* leading dimensions that together are the rows; 0 is read as 1 */
    const uint32_t *kept; /* for each row, which row of the batch it is; NULL: all rows in order */
    const void *data;     /* packed, row-major, dtype-sized elements; borrowed */
    size_t n_bytes;       /* product of dims and element size */
};

/* Something that was changed while the run was written. */
struct run_change {
    uint64_t time_ns;
    uint64_t launch;  /* the first launch number that may have been drawn after it */
    uint64_t step;    /* the first step sequence that may have been drawn after it */
    const char *what; /* a sentence of the one who changed it, such as "sites off q" */
    const char *more; /* further keys of its object, as JSON with a comma in front; NULL: none */
};
