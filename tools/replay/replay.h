/* SPDX-License-Identifier: Apache-2.0 */
/* A replay: from runs to a sink. A program of one thread. */
#pragma once

#include "tools/replay/cursor.h"
#include "tools/replay/options.h"
#include "tools/replay/pace.h"
#include "tools/replay/progress.h"

struct replay {
    const struct replay_options *options;
    struct replay_source *sources;
    size_t n;
    struct sink *sink;
    struct cursor cursor;
    struct pace pace;
    struct progress progress;
    uint64_t n_items, settled_ns;
    uint64_t n_damage;   /* findings that are damage */
    uint64_t n_commands; /* that were started */
    uint64_t n_without;  /* rows of no request, which no command is given */
    bool resumed, stopped;
    json_t *failed; /* as the sink's; NULL: nothing */
};

/**
 * replay_run() - send all that is wanted
 * Return: 0; -EINTR: stopped by a signal, with nobody who takes more; -errno with a sentence in @err.
 */
int replay_run(struct err *err, struct replay *replay);

/* The rest is shared by replay_items.c with replay.c and replay_requests.c. */

/* The source whose next item is the earliest; NULL: nothing is left. @time_ns: of that item. */
struct replay_source *replay_next(struct replay *replay, uint64_t *time_ns);

/* Waits until it is due. Return: as replay_run(). */
int replay_wait(struct err *err, struct replay *replay, uint64_t time_ns);

/* The next record of a source, only the rows of @request unless that is NULL. Return: as replay_run(). */
int replay_record(struct err *err, struct replay *replay, struct replay_source *source,
                  const char *request, size_t n_request);

/* Says which records were deleted while the replay was under way. Return: as replay_run(). */
int replay_gone(struct err *err, struct replay *replay);

/* What was sent is taken: the cursor may say so. Return: as replay_run(). */
int replay_settle(struct err *err, struct replay *replay);

/* An item without rows. Takes @facts over. Return: as replay_run(). */
int replay_send_facts(struct err *err, struct replay *replay, struct replay_source *source,
                      enum item_kind kind, json_t *facts);

/* What is new of what is wrong with a source. Return: as replay_run(). */
int replay_send_findings(struct err *err, struct replay *replay, struct replay_source *source);

/* The next item of a source, a record or what happened to a request. Return: as replay_run(). */
int replay_send_next(struct err *err, struct replay *replay, struct replay_source *source);

/* Settles, if its time has come. Return: as replay_run(). */
int replay_settle_at_times(struct err *err, struct replay *replay);

/* Waits; the sink may say that nobody takes more. Return: as replay_run(). */
int replay_pause(struct err *err, struct replay *replay, uint64_t ns);

/* To a sink that takes one request at a time: some requests, then the next ones. Return: as replay_run(). */
int replay_requests(struct err *err, struct replay *replay);
