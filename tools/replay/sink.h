/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a replay goes. A sink is one file, sink_NAME.c, which defines sink_NAME, and a row of the table in sink.c. It is
 * given items (item.h) one after the other, and may keep what it makes of them until settle(): whatever it was given
 * before settle() returns 0 is then taken, and the cursor moves on. A sink that sends batches (a table of rows) sends
 * there, and whenever a batch is full. A program of one thread.
 */
#pragma once

#include "core/err.h"
#include "tools/replay/format.h"

#include <stdbool.h>
#include <stdint.h>

struct sink;

/* How far an output is good. */
struct sink_mark {
    uint64_t n_bytes;
    uint64_t
        tail; /* hash of what lies right before that in a file: up to SINK_TAIL bytes; else 0 */
};

#define SINK_TAIL 65536u

struct sink_options {
    const char *where;                 /* what follows the prefix */
    const struct frame_format *format; /* of sinks that take bytes */
    bool values;
    const char *names;     /* a JSON line an item, to this file, too; NULL: no */
    unsigned wait_for;     /* readers that are waited for before the first item */
    unsigned lose_s;       /* a reader that takes nothing for so long is closed; 0: never */
    bool has_cursor;       /* the sink's @mark at the last settle() is known, or it is new */
    struct sink_mark mark; /* what lies after it is written anew */
    bool keeps_cursor;     /* marks are written to a cursor */
    const char **taken; /* UUIDs of the runs of which the sink has records, NULL after the last */
};

struct sink_kind {
    const char *prefix, *where, *what; /* of --to, and for --help */
    bool per_request;                  /* given one request's records at a time, no steps */
    bool has_bytes;                    /* --format, --values and --names make sense */
    /* Return: 0 or -errno with a sentence in @err; -EINTR: the user wants to stop. */
    int (*open)(struct err *err, const struct sink_options *options, struct sink **out);
    /* Waits until there is room. Return: as open; -EINTR: the user wants to stop, and nobody takes it. */
    int (*take)(struct err *err, struct sink *sink, const struct item *item);
    /* Waits, and does meanwhile what there is to do. NULL: nothing but wait. Return: as take. */
    int (*wait)(struct err *err, struct sink *sink, uint64_t ns);
    /* All that was given is taken, as *@mark says. NULL: it is as soon as it is given. */
    int (*settle)(struct err *err, struct sink *sink, struct sink_mark *mark);
    /* With a cursor, without opening: is what the sink has taken still there? NULL: nobody can tell. Return: as open. */
    int (*check)(struct err *err, const struct sink_options *options);
    /* The requests that were given so far get no more. NULL: it makes no difference. */
    int (*end_requests)(struct err *err, struct sink *sink);
    /* Frees the sink. Return: as open. */
    int (*close)(struct err *err, struct sink *sink);
};

/* What every sink begins with. */
struct sink {
    const struct sink_kind *kind;
    json_t *
        failed; /* array: what went wrong with a reader or a command, for the summary; NULL: nothing */
};

/* NULL after the last. */
extern const struct sink_kind *const sinks[];

extern const struct sink_kind sink_stdout, sink_file, sink_unix, sink_tcp, sink_command,
    sink_clickhouse;

/* @to: as --to has it; *@where: what follows the prefix. Return: NULL: no such sink. */
const struct sink_kind *sink_find(const char *to, const char **where);

/* Notes what went wrong, and says it on stderr. */
void sink_fail(struct sink *sink, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
