/* SPDX-License-Identifier: Apache-2.0 */
/* Whose rows the records of a run hold, and in which step, laid out for a rehearsal. A program of one thread. */
#pragma once

#include "policy/spec.h"
#include "read/requests.h"

#define REHEARSE_NO_STEP SIZE_MAX

/* Rows of one request in one record. */
struct rehearse_part {
    uint32_t request; /* index in requests.all */
    uint32_t n_rows;
};

struct rehearse_record {
    size_t index;           /* of the reader's record */
    size_t step;            /* of the reader's steps; REHEARSE_NO_STEP */
    size_t first_part, end; /* its parts; rows that are in none are nobody's */
    uint32_t n_rows;
    uint32_t budgets; /* bit i: it counts for budget i */
    uint64_t row_bytes;
};

struct rehearse_rows {
    struct requests requests;
    struct rehearse_record *records; /* those of the spec's sites, in launch order */
    size_t n_records, n_elsewhere;
    struct rehearse_part *parts;
    size_t n_parts, parts_room;
    size_t *first_of_step; /* n_steps + 1: where a step's records begin in @of_step */
    size_t *of_step;       /* indices in @records */
    size_t n_steps;
};

/* Return: 0, or -errno with a sentence in @err; @out is to be freed either way. */
int rehearse_rows_build(struct err *err, const struct reader *reader, const struct spec *spec,
                        struct rehearse_rows *out);

/* Accepts a zeroed struct. */
void rehearse_rows_deinit(struct rehearse_rows *rows);
