/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run that is replayed: its records and what was said of their rows, in the recorded order. In memory are what is
 * known of records (about 250 bytes each) and of rows of one owner (about 60), and the payload of one record, twice.
 * A program of one thread.
 */
#ifndef TOOLS_REPLAY_SOURCE_H
#define TOOLS_REPLAY_SOURCE_H

#include "tools/replay/item.h"
#include "tools/replay/position.h"

#include "read/tensors.h"

/* What is wanted of it; borrowed for as long as the source lives. */
struct wanted {
    struct selection select;
    struct range steps, forwards;
    bool by_step, by_forward, by_rank;
    int32_t ranks[DMI_AXIS_COUNT];
};

/* A record, or rows of it: @n places from @first on in source->rows. */
struct source_entry {
    size_t record, first;
    uint32_t n;
};

/* Rows of one owner: a piece of a tensor. */
struct source_rows {
    uint32_t tensor, piece;
};

/* Something that was said of rows, or of a request. */
struct source_event {
    struct moment at;
    size_t step; /* index; of an end: how many steps came before */
    size_t end;  /* index of the end; SIZE_MAX: of a span */
};

struct source {
    struct reader *reader;
    const struct wanted *wanted;
    struct sites sites;
    struct tensors tensors;
    bool unknown_request; /* the run has not the request that is wanted */

    struct source_rows *rows;
    struct source_entry *entries; /* in the recorded order */
    size_t n_entries, at;         /* the next one */
    struct source_event *events;
    size_t n_events, event_at;

    /* what was sent, which a cursor keeps */
    struct position sent;
    struct moment said;
    uint64_t n_records, n_rows, n_bytes, n_lost;
    bool done;      /* with its end */
    bool said_kept; /* why its segments are not released */

    uint64_t n_rejected, n_superseded, n_nobody; /* rows left out of what is no longer in memory */

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
 * Return: 0; SOURCE_E_RANK: it is of another rank; -errno with a sentence in @err.
 */
int source_open(struct err *err, const char *path, const struct wanted *wanted, struct source *out);
/* Accepts a zeroed struct. */
void source_deinit(struct source *source);

/* Goes on after what was sent, as source->sent and source->said say. */
void source_seek(struct source *source);

/**
 * source_refresh() - take in what was written since
 * Where all was sent, and steps say whose the rows are, only records of chunks that are new are kept from now on.
 * Return: 0 or -errno with a sentence in @err; then only source_deinit().
 */
int source_refresh(struct err *err, struct source *source);

/* Does a process still write it? */
bool source_grows(const struct source *source);

/* Time of what comes next; false: nothing is left. */
bool source_next_time(const struct source *source, uint64_t *time_ns);

/* Is what comes next an event? Else it is a record. */
bool source_next_is_event(const struct source *source);

/* The record that comes next. */
const struct reader_record *source_record(const struct source *source);

/* Rows of one owner of an entry. */
const struct tensor *source_tensor(const struct source *source, const struct source_rows *rows);
const struct piece *source_piece(const struct source *source, const struct source_rows *rows);

/**
 * source_fill() - the record that comes next as an item
 * @request: only the rows of this request, NULL: all that are wanted
 * @out: gets all but number and facts; n_spans 0: nothing of it is the request's
 * Return: 0; -EBADMSG (it cannot be decoded: source->why says why; the item has its rows and no data); -ENOMEM.
 */
int source_fill(struct source *source, const char *request, size_t n_request, struct item *out);

#endif
