/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A replay to a sink that takes one request at a time: the records of so many requests as may go at once, in the
 * recorded order, then those of the next ones. So the number of commands is bounded without keeping any payload.
 */
#include "tools/replay/replay.h"

#include "core/grow.h"
#include "read/map.h"
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

static int list_source(struct replay *r, const struct source *s, struct passes *p)
{
    for (size_t i = 0; i < s->n_entries; i++)
        for (uint32_t k = 0; k < s->entries[i].n; k++) {
            const struct source_rows *rows = &s->rows[s->entries[i].first + k];
            const struct tensor *t = source_tensor(s, rows);
            if (!t->request) {
                r->n_without += source_piece(s, rows)->n_rows;
                continue;
            }
            size_t *number = map_at(&p->numbers, t->request, t->n_request);
            if (!number)
                return -ENOMEM;
            if (*number == MAP_NONE)
                *number = p->n++;
        }
    return 0;
}

/* To each request of this pass that has rows of the next record. */
static int give_record(struct err *err, struct replay *r, struct source *s, struct passes *p)
{
    const struct source_entry *e = &s->entries[s->at];
    int res = 0;
    p->record++;
    for (uint32_t k = 0; !res && k < e->n; k++) {
        const struct tensor *t = source_tensor(s, &s->rows[e->first + k]);
        size_t number = t->request ? map_get(&p->numbers, t->request, t->n_request) : MAP_NONE;
        if (number < p->first || number >= p->end || p->seen[number - p->first] == p->record)
            continue;
        p->seen[number - p->first] = p->record;
        res = replay_record(err, r, s, t->request, t->n_request);
    }
    return res;
}

static int run_pass(struct err *err, struct replay *r, struct passes *p)
{
    struct source *s;
    uint64_t time_ns;
    int res = 0;
    for (size_t i = 0; i < r->n; i++) {
        r->sources[i].sent = (struct position){ 0 };
        source_seek(&r->sources[i]);
    }
    r->pace.begun = false;
    while (!res && !stop_asked() && (s = replay_next(r, &time_ns))) {
        res = replay_wait(err, r, time_ns);
        if (source_next_is_event(s)) {
            s->event_at++;
            continue;
        }
        if (!res && !stop_asked())
            res = give_record(err, r, s, p);
        s->at++;
    }
    return res;
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
        res = list_source(r, &r->sources[i], &p);
    p.seen = calloc(r->options->at_once, sizeof *p.seen);
    if (res || !p.seen)
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
