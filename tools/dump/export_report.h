/* SPDX-License-Identifier: Apache-2.0 */
/* What an export says of itself at its end, over all runs that it is of. A program of one thread. */
#pragma once

#include "read/sample.h"
#include "read/value.h"
#include "tools/dump/formats.h"
#include "tools/dump/options.h"

/* Sums over the runs. */
struct export_totals {
    uint64_t n_written;        /* runs of which something is in the output */
    uint64_t tensors, bytes;   /* written */
    uint64_t mixed, emptied;   /* tensors left out: changing shape, no row that can be read */
    uint64_t damaged, missing; /* records that cannot be read; rows of theirs */
    uint64_t superseded, rejected, of_nobody; /* rows left out */
    uint64_t samples, there_already, left_out;
    uint64_t left_out_by[SAMPLE_N_FAULTS];
    uint64_t without_loss;                /* of the samples: their loss mask is 0 throughout */
    uint64_t samples_filled, filled_rows; /* with rows of other requests; these rows */
    json_t
        *filled; /* owned: by request, the ids of the requests whose rows its cached tokens have */
    json_t *edited; /* owned: by request, what edits wrote in it */
};

/* Prints it. @output: NULL: nothing was written. Return: an exit status: DUMP_OK, or DUMP_USAGE if it could not be built. */
int export_report(const struct export_totals *totals, const struct format *format,
                  const struct dump_options *options, const char *output);
