/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-replay: records again, in the recorded order, into a file, a pipe, sockets or commands. See docs/man/dmi-replay.1. */
#include "tools/common/stop.h"
#include "tools/replay/rehearse_report.h"
#include "tools/replay/replay.h"
#include "tools/replay/summary.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "read/runs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct opened {
    struct replay_source *sources;
    size_t n, room;
    struct err other_rank; /* of one that was left out, as it is of another */
};

static void opened_deinit(struct opened *o)
{
    for (size_t i = 0; i < o->n; i++)
        source_deinit(&o->sources[i]);
    free(o->sources);
}

static int open_run(struct err *err, const struct source_wanted *wanted, const char *path,
                    struct opened *out)
{
    if (grow((void **)&out->sources, out->n, &out->room, sizeof *out->sources, 4))
        return err_set_errno(err, ENOMEM, "cannot replay");
    struct err own = { 0 };
    int r = source_open(&own, path, wanted, &out->sources[out->n]);
    out->n += !r;
    if (r == SOURCE_E_RANK) {
        out->other_rank = own;
        return 0;
    }
    return r ? err_set(err, r, "%s", own.msg) : 0;
}

/* A run, or all runs in a folder. */
static int open_word(struct err *err, const struct source_wanted *wanted, const char *path,
                     struct opened *out)
{
    _cleanup_(runs_deinit) struct runs runs = { 0 };
    int r = runs_at(path, &runs);
    if (r)
        return err_set_errno(err, -r, "cannot replay");
    for (size_t i = 0; !r && i < runs.n; i++)
        r = open_run(err, wanted, runs.paths[i], out);
    return r;
}

static int open_words(struct err *err, const struct replay_options *o,
                      const struct source_wanted *wanted, struct opened *out)
{
    int r = 0;
    for (int i = 0; !r && i < o->n_runs; i++)
        r = open_word(err, wanted, o->runs[i], out);
    if (!r && !out->n)
        r = err_set(err, -ENOENT, "%s", out->other_rank.msg);
    return r;
}

/* The last layer is that of all runs: a stage of a pipeline has some of them. */
static int find_last(struct err *err, struct replay_options *o)
{
    _cleanup_(opened_deinit) struct opened all = { 0 };
    const struct source_wanted any = { .ranks = { -1, -1, -1, -1 } };
    int32_t *n = &o->wanted.select.n_of_model;
    int r = open_words(err, o, &any, &all);
    for (size_t i = 0; i < all.n; i++)
        for (size_t k = 0; k < all.sources[i].seen.n; k++) {
            int32_t layer = all.sources[i].seen.all[k].layer;
            *n = layer >= *n && layer < INT32_MAX ? layer + 1 : *n;
        }
    return r;
}

static int open_all(struct err *err, struct replay_options *o, struct opened *out)
{
    int r = selection_needs_last(&o->wanted.select) ? find_last(err, o) : 0;
    return r ? r : open_words(err, o, &o->wanted, out);
}

/* What the sink is given, the cursor's word included. */
static int sink_of(struct err *err, const struct replay *r, struct sink_options *out,
                   const char ***taken)
{
    if (!(*taken = cursor_taken(r->sources, r->n)))
        return err_set_errno(err, ENOMEM, "cannot replay");
    *out = r->options->sink;
    out->has_cursor = r->cursor.read != NULL;
    out->mark = r->cursor.mark;
    out->keeps_cursor = r->cursor.path != NULL;
    out->taken = *taken;
    return 0;
}

/* All was replayed before. Is it there? Return: 1: yes, or nobody can tell; -errno with a sentence in @err. */
static int check_taken(struct err *err, const struct replay *r)
{
    struct sink_options sink;
    _cleanup_(freep) const char **taken = NULL;
    const struct sink_kind *kind = r->options->kind;
    int res = sink_of(err, r, &sink, &taken);
    if (!res && kind->check)
        res = kind->check(err, &sink);
    return res ? res : 1;
}

static int run(struct err *err, const struct replay_options *o, struct replay *r)
{
    struct sink_options sink;
    _cleanup_(freep) const char **taken = NULL;
    int res = sink_of(err, r, &sink, &taken);
    if (!res)
        res = o->kind->open(err, &sink, &r->sink);
    r->stopped = res == -EINTR;
    if (res)
        return r->stopped ? 0 : res;
    res = replay_run(err, r);
    if (o->kind->end_requests)
        o->kind->end_requests(err, r->sink);
    r->failed = json_incref(r->sink->failed);
    int closed = o->kind->close(err, r->sink);
    r->sink = NULL;
    return res && res != -EINTR ? res : closed;
}

/* With a cursor: what it says. Return: 0, 1: all was replayed before, -errno. */
static int resume(struct err *err, struct replay *r)
{
    int res = cursor_read(err, &r->cursor);
    if (!res && r->cursor.read)
        res = cursor_apply(err, &r->cursor, r->sources, r->n);
    if (res)
        return res;
    r->resumed = r->cursor.n_items > 0;
    r->n_items = r->cursor.n_items;
    return r->resumed && cursor_is_done(r->sources, r->n) ? check_taken(err, r) : 0;
}

static int replay_all(struct replay_options *o)
{
    struct err err = { 0 };
    _cleanup_(opened_deinit) struct opened opened = { 0 };
    _cleanup_(freep) char *choice = options_choice(o);
    int res = choice ? open_all(&err, o, &opened) : err_set_errno(&err, ENOMEM, "cannot replay");
    struct replay r = { .options = o,
                        .sources = opened.sources,
                        .n = opened.n,
                        .cursor = { .path = o->cursor, .choice = choice },
                        .pace = { .speed = o->speed } };
    if (!res)
        res = resume(&err, &r);
    bool missing = res >= 0 && summary_is_missing(&r);
    if (!res && !missing)
        res = run(&err, o, &r);
    int status = missing ? REPLAY_USAGE : summary(&r, &err, res);
    cursor_deinit(&r.cursor);
    json_decref(r.failed);
    return status;
}

int main(int argc, char **argv)
{
    struct replay_options o;
    int status = options_parse(argc, argv, &o);
    if (status < 0 && o.policy) {
        status = rehearse_report(&o);
    } else if (status < 0) {
        stop_install();
        status = replay_all(&o);
    }
    selection_deinit(&o.wanted.select);
    return status;
}
