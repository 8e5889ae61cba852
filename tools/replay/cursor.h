/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a replay is, in a file that is replaced at once: what a sink has taken, and no more. A program of one thread.
 * Source: docs/stream.md, "Cursors".
 */
#pragma once

#include "tools/replay/sink.h"
#include "tools/replay/source.h"

struct cursor {
    const char *path; /* NULL: none */
    const char
        *choice; /* what was selected, and where it goes, in words: one cursor is of one of these */
    json_t *read; /* as it was found; NULL: there was none */
    struct sink_mark mark;
    uint64_t n_items;
    uint64_t n_requests; /* that were given to commands, in the order of their first records */
};

/**
 * cursor_read() - the cursor of an earlier replay, if there is one
 * Return: 0; -EINVAL (it is of something else, is damaged, or is no cursor), -errno; with a sentence in @err.
 */
int cursor_read(struct err *err, struct cursor *cursor);
/* Accepts a zeroed struct. */
void cursor_deinit(struct cursor *cursor);

/* Sets what was sent of each run. Return: as cursor_read(): it is of other runs. */
int cursor_apply(struct err *err, const struct cursor *cursor, struct replay_source *sources,
                 size_t n);

/* The runs of which records were taken, for struct sink_options; borrows. Return: NULL where there is no memory. */
const char **cursor_taken(const struct replay_source *sources, size_t n);

/* Was all of every run replayed? */
bool cursor_is_done(const struct replay_source *sources, size_t n);

/* Return: 0 or -errno with a sentence in @err. */
int cursor_write(struct err *err, const struct cursor *cursor, const struct replay_source *sources,
                 size_t n);
