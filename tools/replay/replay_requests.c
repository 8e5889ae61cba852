/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A replay to a sink that takes one request at a time: the records of so many requests as may go at once, in the
 * recorded order, then those of the next ones. So the number of commands is bounded without keeping any payload.
 */
#include "tools/replay/replay.h"

#include "storage/map.h"
#include "tools/common/stop.h"

#include <errno.h>
#include <stdlib.h>

struct passes {
    struct map numbers; /* of requests, by id */
    size_t n;
    size_t first, end; /* those of this pass */
    uint64_t *seen;    /* by request of this pass: the record that it was given last, from 1 */
    uint64_t record;
};

/* Numbers the requests of the record that comes next. */
static int list_record(struct replay *r, const struct replay_source *s, struct passes *p)
{
    size_t n;
    const struct source_rows *rows = source_rows(s, &n);
    for (size_t k = 0; k < n; k++) {
        if (!rows[k].request) {
            r->n_without += rows[k].stretch.n_rows;
            continue;
        }
        /* the ids of rows go with their window */
        const struct request *q =
            requests_find(&s->rivals.requests, rows[k].request, rows[k].n_request);
        size_t *number = q ? map_at(&p->numbers, q->id, q->n_id) : NULL;
        if (!number)
            return -ENOMEM;
        if (*number == MAP_NONE)
            *number = p->n++;
    }
    return 0;
}

static int rewind_source(struct err *err, struct replay_source *s)
{
    s->sent = (struct position){ 0 };
    return source_seek(err, s);
}

static int list_source(struct err *err, struct replay *r, struct replay_source *s, struct passes *p)
{
    int res = rewind_source(err, s);
    while (!res && s->at < s->n_entries) {
        if (list_record(r, s, p))
            return err_set_errno(err, ENOMEM, "cannot replay");
        res = source_advance(err, s);
    }
    return res;
}

/* To each request of this pass that has rows of the next record. */
static int give_record(struct err *err, struct replay *r, struct replay_source *s, struct passes *p)
{
    size_t n;
    const struct source_rows *rows = source_rows(s, &n);
    int res = 0;
    p->record++;
    for (size_t k = 0; !res && k < n; k++) {
        const struct source_rows *own = &rows[k];
        size_t number =
            own->request ? map_get(&p->numbers, own->request, own->n_request) : MAP_NONE;
        if (number < p->first || number >= p->end || p->seen[number - p->first] == p->record)
            continue;
        p->seen[number - p->first] = p->record;
        res = replay_record(err, r, s, own->request, own->n_request);
    }
    return res;
}

static int run_pass(struct err *err, struct replay *r, struct passes *p)
{
    struct replay_source *s;
    uint64_t time_ns;
    int res = 0;
    for (size_t i = 0; !res && i < r->n; i++)
        res = rewind_source(err, &r->sources[i]);
    r->pace.begun = false;
    while (!res && !stop_asked() && (s = replay_next(r, &time_ns))) {
        res = replay_wait(err, r, time_ns);
        if (source_next_is_event(s)) {
            res = res ? res : source_pass(err, s);
            continue;
        }
        if (!res && !stop_asked())
            res = give_record(err, r, s, p);
        if (!res)
            res = source_advance(err, s);
    }
    return res ? res : replay_gone(err, r);
}

/* A group that was not given all of its records is begun again, with a cursor. */
static int run_group(struct err *err, struct replay *r, struct passes *p)
{
    p->end = p->n - p->first > r->options->at_once ? p->first + r->options->at_once : p->n;
    int res = run_pass(err, r, p);
    int ended = r->sink->kind->end_requests(err, r->sink);
    r->n_commands += p->end - p->first;
    if (res || ended || stop_asked())
        return res ? res : ended;
    p->first = p->end;
    r->cursor.n_requests = p->end;
    return replay_settle(err, r);
}

int replay_requests(struct err *err, struct replay *r)
{
    struct passes p = { 0 };
    int res = 0;
    for (size_t i = 0; !res && i < r->n; i++)
        res = list_source(err, r, &r->sources[i], &p);
    p.seen = calloc(r->options->at_once, sizeof *p.seen);
    if (!res && !p.seen)
        res = err_set_errno(err, ENOMEM, "cannot replay");
    p.first = r->cursor.n_requests < p.n ? r->cursor.n_requests : p.n;
    while (!res && !stop_asked() && p.first < p.n)
        res = run_group(err, r, &p);
    for (size_t i = 0; !res && p.first == p.n && i < r->n; i++)
        r->sources[i].done = !source_grows(&r->sources[i]);
    free(p.seen);
    map_deinit(&p.numbers);
    return res;
}
