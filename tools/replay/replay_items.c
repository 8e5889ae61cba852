/* SPDX-License-Identifier: Apache-2.0 */
/* What a replay sends, an item at a time. */
#include "tools/replay/replay.h"

#include "core/clock.h"
#include "core/err.h"
#include "core/grow.h"
#include "core/words.h"
#include "storage/codec/hash.h"
#include "storage/reader/release.h"
#include "tools/common/say.h"
#include "tools/common/stop.h"
#include "tools/replay/describe.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define SETTLE_NS 300000000u

static int send(struct err *err, struct replay *r, struct item *item)
{
    item->number = r->n_items;
    int res = item->facts ? r->sink->kind->take(err, r->sink, item)
                          : err_set_errno(err, ENOMEM, "cannot replay");
    json_decref(item->facts);
    item->facts = NULL;
    r->n_items += !res;
    return res;
}

int replay_send_facts(struct err *err, struct replay *r, struct replay_source *s,
                      enum item_kind kind, json_t *facts)
{
    struct item item = { .kind = kind, .reader = s->reader, .facts = facts };
    return send(err, r, &item);
}

/* ------------------------------------------------------------------------- the cursor */

/* Of runs all of which the sink has taken, as far as they are known. */
static void consume(struct replay *r)
{
    for (size_t i = 0; i < r->n; i++) {
        struct replay_source *s = &r->sources[i];
        struct err err = { 0 };
        uint64_t ignored;
        if (source_next_time(s, &ignored) || s->n_lost || !release_read(&err, s->reader) ||
            s->said_kept)
            continue;
        complain("%s", err.msg);
        s->said_kept = true;
    }
}

/* What was sent is taken: the cursor may say so. */
int replay_settle(struct err *err, struct replay *r)
{
    struct sink_mark mark = { 0 };
    TRY(r->sink->kind->settle ? r->sink->kind->settle(err, r->sink, &mark) : 0);
    r->settled_ns = clock_mono_ns();
    r->cursor.mark = mark;
    r->cursor.n_items = r->n_items;
    int res = cursor_write(err, &r->cursor, r->sources, r->n);
    if (!res && r->options->consume)
        consume(r);
    return res;
}

int replay_settle_at_times(struct err *err, struct replay *r)
{
    if (!r->cursor.path || clock_mono_ns() - r->settled_ns < SETTLE_NS)
        return 0;
    return replay_settle(err, r);
}

/* ------------------------------------------------------------------------- what is missing */

/* Whether it was not sent yet; notes that it is. Return: -ENOMEM. */
static int is_new(struct replay_source *s, const struct reader_finding *f, bool *out)
{
    uint64_t hash = hash_bytes(f->text, strlen(f->text)) ^ f->offset ^ ((uint64_t)f->chunk << 40);
    *out = false;
    for (size_t i = 0; i < s->n_noted; i++)
        if (s->noted[i] == hash)
            return 0;
    if (PUSH(s->noted, s->n_noted, s->noted_room, 16, hash))
        return -ENOMEM;
    *out = true;
    return 0;
}

/* A torn tail of a run that grows is a chunk that is being written. */
static bool is_worth_it(const struct replay_source *s, const struct reader_finding *f)
{
    return f->damage || f->unknown || !source_grows(s);
}

static void say_finding(const struct replay_source *s, const struct reader_finding *f)
{
    complain("%s%s: %s%s%s", f->damage ? "DAMAGED: " : "", reader_run(s->reader)->path, f->file,
             *f->file ? ": " : "", f->text);
}

int replay_send_findings(struct err *err, struct replay *r, struct replay_source *s)
{
    int res = 0;
    for (size_t i = 0; !res && i < reader_n_findings(s->reader); i++) {
        const struct reader_finding *f = reader_finding(s->reader, i);
        bool fresh;
        if (!is_worth_it(s, f))
            continue;
        if (is_new(s, f, &fresh))
            return err_set_errno(err, ENOMEM, "cannot replay");
        if (!fresh)
            continue;
        r->n_damage += f->damage;
        say_finding(s, f);
        res = replay_send_facts(err, r, s, ITEM_GAP, describe_finding(s, f));
    }
    return res;
}

/* Segments that were deleted while the replay was under way. */
static int send_gone(struct err *err, struct replay *r, struct replay_source *s)
{
    struct err why = { 0 };
    err_set(&why, -ENOENT, "%" PRIu64 " %s deleted unread", s->n_gone,
            word_for(s->n_gone, "record was", "records were"));
    const struct reader_finding f = { .file = "", .chunk = -1, .text = why.msg };
    s->n_lost += s->n_gone;
    s->n_gone = 0;
    say_finding(s, &f);
    return replay_send_facts(err, r, s, ITEM_GAP, describe_finding(s, &f));
}

int replay_gone(struct err *err, struct replay *r)
{
    int res = 0;
    for (size_t i = 0; !res && i < r->n; i++)
        if (r->sources[i].n_gone)
            res = send_gone(err, r, &r->sources[i]);
    return res;
}

/* ------------------------------------------------------------------------- records */

static int send_undecoded(struct err *err, struct replay *r, struct replay_source *s,
                          struct item *item)
{
    /* of a newer program; released before it was read */
    bool sound = s->why.code == -ENOTSUP || s->why.code == -ENOENT;
    const char *prefix = sound ? "" : "DAMAGED: ";
    complain("%s%s: %s", prefix, reader_run(s->reader)->path, s->why.msg);
    s->n_lost++;
    return replay_send_facts(err, r, s, ITEM_GAP, describe_undecoded(s, item));
}

/* The step of a record, unless the record before it was of the same. */
static int send_step(struct err *err, struct replay *r, struct replay_source *s)
{
    const struct reader_step *step = source_record(s)->step;
    if (!step || step->entry->sequence == s->step || r->sink->kind->per_request)
        return 0;
    int res = replay_send_facts(err, r, s, ITEM_STEP, describe_step(s, step));
    if (!res)
        s->step = step->entry->sequence;
    return res;
}

int replay_record(struct err *err, struct replay *r, struct replay_source *s, const char *request,
                  size_t n_request)
{
    struct item item;
    int res = source_fill(s, request, n_request, &item);
    if (res == -EBADMSG)
        return send_undecoded(err, r, s, &item);
    if (res)
        return err_set_errno(err, -res, "cannot replay");
    if (!item.n_spans)
        return 0;
    item.facts = describe_record(s, &item);
    TRY(send(err, r, &item));
    s->n_records++;
    s->n_rows += item.n_rows;
    s->n_bytes += item.n_data;
    return 0;
}

static int send_record(struct err *err, struct replay *r, struct replay_source *s)
{
    int res = send_step(err, r, s);
    if (!res)
        res = replay_record(err, r, s, NULL, 0);
    if (res)
        return res;
    s->sent = position_of(source_record(s));
    return source_advance(err, s);
}

static int send_event(struct err *err, struct replay *r, struct replay_source *s)
{
    int res = replay_send_facts(err, r, s, ITEM_OUTCOME, describe_event(s));
    return res ? res : source_pass(err, s);
}

int replay_send_next(struct err *err, struct replay *r, struct replay_source *s)
{
    return source_next_is_event(s) ? send_event(err, r, s) : send_record(err, r, s);
}

/* ------------------------------------------------------------------------- in order */

struct replay_source *replay_next(struct replay *r, uint64_t *time_ns)
{
    struct replay_source *first = NULL;
    for (size_t i = 0; i < r->n; i++) {
        uint64_t t;
        if (source_next_time(&r->sources[i], &t) && (!first || t < *time_ns)) {
            first = &r->sources[i];
            *time_ns = t;
        }
    }
    return first;
}

int replay_pause(struct err *err, struct replay *r, uint64_t ns)
{
    if (r->sink->kind->wait)
        return r->sink->kind->wait(err, r->sink, ns);
    stop_sleep(ns);
    return 0;
}

int replay_wait(struct err *err, struct replay *r, uint64_t time_ns)
{
    uint64_t ns;
    int res = 0;
    while (!res && !stop_asked() && (ns = pace_wait_ns(&r->pace, time_ns))) {
        res = replay_settle_at_times(err, r);
        if (!res)
            res = replay_pause(err, r, ns < SETTLE_NS ? ns : SETTLE_NS);
    }
    return res;
}
