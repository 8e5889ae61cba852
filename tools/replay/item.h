/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sink is given, one after the other: the start of a run, a step, a record, what became of rows, what is
 * missing, the end of a run. Everything an item points to is borrowed until the sink returns. A program of one thread.
 * Source: docs/stream.md.
 */
#pragma once

#include "read/stretches.h"
#include "storage/reader/reader.h"

#include <jansson.h>

enum item_kind {
    ITEM_RUN = 1,
    ITEM_STEP = 2,
    ITEM_RECORD = 3,
    ITEM_OUTCOME = 4,
    ITEM_GAP = 5,
    ITEM_END = 6,
    ITEM_KINDS
};

/* "run", "step" and so on. */
const char *item_kind_name(enum item_kind kind);

/* Consecutive rows of an item that have one owner. */
struct item_span {
    const char *request; /* any bytes, not terminated; NULL: none */
    size_t n_request;
    int64_t position;   /* of the first row; -1: not known */
    uint32_t row;       /* number of the first row among those of its record */
    uint32_t first_row; /* in the launch */
    uint32_t n_rows;
    uint32_t phase; /* enum dmi_phase */
    uint32_t flags; /* enum stretch_flags */
};

struct item {
    enum item_kind kind;
    uint64_t number;             /* of the items of a replay, from 0 */
    const struct reader *reader; /* of its run */
    json_t *facts;               /* an object: all of what follows but the payload */

    /* ITEM_RECORD: the rows that were selected */
    const struct reader_record *record;
    const struct dmi_site *site;
    const struct item_span *spans; /* all rows, in the order of the payload */
    size_t n_spans;
    uint32_t n_dims;
    uint64_t dims[DMI_MAX_DIMS]; /* of the payload */
    uint64_t n_rows, width;
    const uint8_t *data;
    size_t n_data;
    uint64_t hash; /* XXH3 of the payload */
};
