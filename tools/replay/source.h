/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run that is replayed: its records and what was said of their rows, in the recorded order. Records are read by window:
 * those of some chunks are in memory with the steps that they name, and the payload of one record, twice. What stays in memory
 * are the run's requests, and rows that have rivals (rivals.h). A program of one thread.
 */
#pragma once

#include "tools/replay/item.h"
#include "tools/replay/position.h"
#include "tools/replay/rivals.h"
#include "tools/replay/source_events.h"

#include "read/missing.h"
#include "read/tensors.h"

/* What is wanted of it; borrowed for as long as the source lives. */
struct source_wanted {
    struct selection select;
    struct slices steps, forwards;
    bool by_rank;
    int32_t ranks[DMI_AXIS_COUNT];
};

/* A record, or rows of it: @n places from @first on in source->rows. */
struct source_entry {
    size_t record, first;
    uint32_t n;
};

/* Rows of one owner: a stretch of a tensor. */
struct source_rows {
    const char *request; /* borrowed, not terminated; NULL: none */
    size_t n_request;
    struct stretch stretch;
};

struct replay_source {
    struct reader *reader;
    const struct source_wanted *wanted;
    struct sites sites;
    struct rivals rivals;
    struct attribution attribution;
    struct seen seen;
    struct err lacks;     /* what the run has not of what is wanted; code 0: nothing */
    size_t n_all, n_past; /* records that are wanted: all, and those before the next one */
    uint64_t end_chunk;   /* after the last chunk with a record */

    /* the window */
    size_t *order; /* the reader's records in the recorded order */
    struct source_rows *rows;
    struct source_entry *entries; /* in the recorded order */
    size_t n_order, order_room, n_listed, rows_room, n_entries, entries_room;
    size_t at;           /* the next one */
    uint64_t next_chunk; /* where the next window begins; UINT64_MAX: this is the last one */
    uint64_t
        n_gone; /* records that were deleted before they were read, and that was not said yet */

    struct source_events events;

    /* what was sent, which a cursor keeps */
    struct position sent;
    struct moment said;
    uint64_t n_records, n_rows, n_bytes, n_lost;
    bool done;      /* with its end */
    bool said_kept; /* why its segments are not released */

    struct source_left_out {
        uint64_t n_rejected, n_superseded, n_nobody; /* rows */
    } left_out, left_out_before; /* of what the reader has; of what was sent before */

    uint64_t step;   /* sequence of the step that was sent last */
    uint64_t *noted; /* hashes of the findings that were sent */
    size_t n_noted, noted_room;

    /* the record at hand */
    uint8_t *raw, *gathered;
    size_t raw_room, gathered_room, loaded;
    struct err why; /* code 0: it was decoded */
    struct item_span *spans;
    size_t spans_room;
};

enum { SOURCE_E_RANK = 1 };

/**
 * source_open() - open a run, and find what is wanted of it
 * Return: 0; SOURCE_E_RANK: it is of another rank, as @err says; -errno with a sentence in @err.
 */
int source_open(struct err *err, const char *path, const struct source_wanted *wanted,
                struct replay_source *out);
/* Accepts a zeroed struct. */
void source_deinit(struct replay_source *source);

/* Goes on after what was sent, as source->sent and source->said say. Return: 0 or -errno with a sentence in @err. */
int source_seek(struct err *err, struct replay_source *source);

/* Passes over the record that comes next. Return: as source_seek(). */
int source_advance(struct err *err, struct replay_source *source);
/* Passes over the event that comes next: it was said. Return: likewise. */
int source_pass(struct err *err, struct replay_source *source);

/**
 * source_refresh() - take in what was written since
 * Where all was sent, and steps say whose the rows are, only records of chunks that are new are kept from now on.
 * Return: 0 or -errno with a sentence in @err; then only source_deinit().
 */
int source_refresh(struct err *err, struct replay_source *source);

/* Does a process still write it? */
bool source_grows(const struct replay_source *source);

/* Time of what comes next; false: nothing is left. */
bool source_next_time(const struct replay_source *source, uint64_t *time_ns);

/* Is what comes next an event? Else it is a record. */
bool source_next_is_event(const struct replay_source *source);

/* The record that comes next. */
const struct reader_record *source_record(const struct replay_source *source);

/* Its rows, by owner. */
const struct source_rows *source_rows(const struct replay_source *source, size_t *n);

/**
 * source_fill() - the record that comes next as an item
 * @request: only the rows of this request, NULL: all that are wanted
 * @out: gets all but number and facts; n_spans 0: nothing of it is the request's
 * Return: 0; -EBADMSG (it cannot be decoded: source->why says why; the item has its rows and no data); -ENOMEM.
 */
int source_fill(struct replay_source *source, const char *request, size_t n_request,
                struct item *out);

/* The rest is shared with source_window.c. */

/**
 * source_window() - read the records of the chunks from @first on, in the recorded order
 * Return: 0; READER_E_AGAIN; -errno with a sentence in @err.
 */
int source_window(struct err *err, struct replay_source *source, uint64_t first);

/* Lists which of them are wanted, and their rows. @left_out: gets more rows. Return: 0 or -ENOMEM. */
int source_list(struct replay_source *source, struct source_left_out *left_out);
