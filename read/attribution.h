/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose token a row of a record is: rows are handed out to their owners, record by record. Not locked: the owner's
 * thread. Source: docs/format.md 8.
 */
#pragma once

#include "storage/reader/reader.h"

/* A captured request that goes by another name in what it is compared with. */
struct alias {
    const char *id; /* NULL: none */
    size_t n_id;
    const char *name;
};

/* Rows of one record that have one owner. */
struct part {
    size_t record;       /* index */
    const char *request; /* NULL: none */
    size_t n_request;
    uint32_t span; /* of the record's step; UINT32_MAX: none */
    uint32_t first_row, n_rows;
    int64_t position; /* of the first row, -1: not known */
    bool rejected;
};

struct attribution_forward;

struct attribution {
    const struct reader *reader;
    bool by_request;     /* the run has step metadata */
    const char *implied; /* request of a run that has none, NULL: none */
    const struct alias *aliases;
    size_t n_aliases;
    int (*add)(void *ctx,
               const struct part *part); /* Return: 0, or what attribution_record() returns */
    void *ctx;

    uint64_t n_short;  /* records with fewer rows than their step says */
    uint64_t n_nobody; /* rows that belong to no request (padding) */

    struct attribution_forward *forwards; /* private */
    size_t n_forwards, forwards_room;
};

/* Does the run say whose tokens its rows are? Also where no step is selected. */
bool attribution_is_by_request(const struct reader *reader);

/* Once @reader and @by_request are set: attribution_count() and attribution_place(). Return: 0 or -ENOMEM. */
int attribution_init(struct attribution *attribution);
/* Adds the records that are selected to the forwards that they are of: window by window, before any is handed out. */
int attribution_count(struct attribution *attribution);
/* Once all are counted. */
void attribution_place(struct attribution *attribution);
void attribution_deinit(struct attribution *attribution);

/* Hands out the rows of one record. Return: 0; what join->add() returned; -ENOMEM. */
int attribution_record(struct attribution *attribution, size_t index);
