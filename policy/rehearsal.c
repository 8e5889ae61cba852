/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/rehearsal.h"

#include "core/cleanup.h"
#include "policy/shedding.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COSTS (1 + OVERLOAD_MAX_BUDGETS)
#define NOT_ASKED UINT32_MAX
#define ALIGN     16u /* of records in the ring */

/* What stands in for the ring, the link and the engine. Bytes and seconds. */
struct world {
    double now, first, used, drained, late; /* @late: by how much the engine waited so far */
};

struct rehearsing {
    const struct rehearsal_run *run;
    const struct rehearsal_terms *terms;
    const struct overload *rules;
    struct shedding *shedding; /* NULL: these rules shed nothing */
    struct rehearsal *out;
    struct world world;
    bool *dropped;    /* by request: it is not kept any more */
    size_t next_step; /* that has not begun */
    size_t next_end;  /* of the run's @ended */
    /* the requests of the step or launch under way */
    uint32_t n_asks;
    uint32_t *ask_of, *request_of; /* by request; by ask */
    struct shedding_ask *asks;
    uint64_t (*costs)[MAX_COSTS];
    enum shedding_verdict *verdicts;
    char **tags; /* by ask, owned */
};

/* ------------------------------------------------------------------------- ring and link */

static void drain(struct world *w, const struct rehearsal_terms *t, double seconds)
{
    double out = (double)t->link_bytes_per_s * seconds;
    out = out < w->used ? out : w->used;
    w->used -= out;
    w->drained += out;
    w->now += seconds;
}

/* Time goes on to when the engine was at @time_ns. */
static void go_to(struct rehearsing *r, uint64_t time_ns)
{
    struct world *w = &r->world;
    double then = (double)time_ns / 1e9 / r->terms->speed;
    w->first = isnan(w->first) ? then : w->first;
    then += w->late - w->first;
    if (then > w->now)
        drain(w, r->terms, then - w->now);
}

static void fill(struct rehearsing *r, double n_bytes)
{
    double full;
    r->world.used += n_bytes;
    full = r->world.used / (double)r->terms->ring_bytes;
    full = full < 1 ? full : 1; /* more only while a launch waits within itself */
    r->out->most_full = full > r->out->most_full ? full : r->out->most_full;
}

static double room(const struct rehearsing *r)
{
    return (double)r->terms->ring_bytes - r->world.used;
}

static double padded(uint64_t n_bytes)
{
    return (double)((n_bytes + ALIGN - 1) / ALIGN * ALIGN);
}

/* ------------------------------------------------------------------------- asks */

static void forget_asks(struct rehearsing *r)
{
    for (uint32_t i = 0; i < r->n_asks; i++) {
        r->ask_of[r->request_of[i]] = NOT_ASKED;
        freep(&r->tags[i]);
        r->tags[i] = NULL;
    }
    r->n_asks = 0;
}

static struct shedding_ask *ask_of(struct rehearsing *r, uint32_t request)
{
    if (r->ask_of[request] != NOT_ASKED)
        return &r->asks[r->ask_of[request]];
    uint32_t i = r->n_asks++;
    r->ask_of[request] = i;
    r->request_of[i] = request;
    memset(r->costs[i], 0, sizeof r->costs[i]);
    r->verdicts[i] = SHEDDING_KEEP;
    r->asks[i] = (struct shedding_ask){ .id = r->out->requests[request].id, .costs = r->costs[i] };
    return &r->asks[i];
}

static int ask_for_span(struct rehearsing *r, const struct rehearsal_span *span)
{
    if (span->request == REHEARSAL_NOBODY || r->dropped[span->request])
        return 0;
    struct shedding_ask *ask = ask_of(r, span->request);
    uint32_t k = r->ask_of[span->request];
    ask->n_rows += span->n_rows;
    ask->is_prompt = ask->is_prompt || span->is_prompt;
    if (!span->tags || r->tags[k])
        return 0;
    ask->tags = r->tags[k] = strndup(span->tags, span->n_tags);
    return ask->tags ? 0 : -ENOMEM;
}

/* Adds what the record's rows cost to those that are asked for. */
static void add_costs(struct rehearsing *r, const struct rehearsal_record *rec)
{
    for (size_t i = rec->first_part; i < rec->end; i++) {
        uint32_t k = r->ask_of[r->run->parts[i].request];
        uint64_t n = r->run->parts[i].n_rows * rec->row_bytes;
        for (uint32_t b = 0; k != NOT_ASKED && b <= r->rules->n_budgets; b++)
            r->costs[k][b] += !b || rec->budgets & 1u << (b - 1) ? n : 0;
    }
}

/* ------------------------------------------------------------------------- what becomes of requests */

static void set_fate(struct rehearsing *r, uint32_t request, enum rehearsal_fate fate, size_t step)
{
    struct rehearsal_request *q = &r->out->requests[request];
    if (q->fate != REHEARSAL_KEPT)
        return;
    q->fate = fate;
    q->step = r->run->steps[step].number;
}

static void take_verdicts(struct rehearsing *r, size_t step)
{
    for (uint32_t i = 0; i < r->n_asks; i++) {
        if (r->verdicts[i] == SHEDDING_KEEP)
            continue;
        uint32_t request = r->request_of[i];
        bool any = r->out->requests[request].n_rows_kept > 0;
        r->dropped[request] = true;
        set_fate(r, request, any ? REHEARSAL_CUT : REHEARSAL_REFUSED, step);
    }
}

static void end_request(struct rehearsing *r, uint32_t request)
{
    if (r->shedding)
        shedding_end(r->shedding, r->out->requests[request].id);
    r->dropped[request] = false;
}

/* Those that ended before the step: by a call, or as their last span said. */
static void end_requests(struct rehearsing *r, size_t step)
{
    const struct rehearsal_step *s = &r->run->steps[step];
    for (; r->next_end < s->end_end; r->next_end++)
        end_request(r, r->run->ended[r->next_end]);
    for (size_t i = step ? s[-1].first_span : 0; step && i < s[-1].end_span; i++)
        if (r->run->spans[i].is_last && r->run->spans[i].request != REHEARSAL_NOBODY)
            end_request(r, r->run->spans[i].request);
}

/* ------------------------------------------------------------------------- steps */

static struct shedding_pressure pressure(const struct rehearsing *r)
{
    const struct world *w = &r->world;
    return (struct shedding_pressure){ .now_ns = 1 + (uint64_t)(w->now * 1e9),
                                       .ring_bytes = r->terms->ring_bytes,
                                       .ring_used = (uint64_t)ceil(w->used),
                                       .drained = (uint64_t)w->drained };
}

/* @launched: when the next launch came, which is not before the step */
static int begin_step(struct rehearsing *r, size_t step, uint64_t launched)
{
    const struct rehearsal_step *s = &r->run->steps[step];
    int res = 0;
    go_to(r, s->time_ns < launched ? s->time_ns : launched);
    end_requests(r, step);
    if (!r->shedding)
        return 0;
    for (size_t i = s->first_span; !res && i < s->end_span; i++)
        res = ask_for_span(r, &r->run->spans[i]);
    for (size_t i = s->first_record; i < s->end_record; i++)
        add_costs(r, &r->run->records[r->run->of_step[i]]);
    struct shedding_pressure p = pressure(r);
    res = res ? res : shedding_step(r->shedding, &p, r->asks, r->n_asks, r->verdicts);
    if (!res)
        take_verdicts(r, step);
    forget_asks(r);
    return res;
}

/* ------------------------------------------------------------------------- launches */

/* Rows of requests that are kept, and of nobody. */
static uint32_t rows_left(const struct rehearsing *r, const struct rehearsal_record *rec)
{
    uint32_t n = rec->n_rows;
    for (size_t i = rec->first_part; i < rec->end; i++)
        n -= r->dropped[r->run->parts[i].request] ? r->run->parts[i].n_rows : 0;
    return n;
}

static double needs(const struct rehearsing *r, size_t first, size_t end)
{
    double n = 0;
    for (size_t i = first; i < end; i++) {
        const struct rehearsal_record *rec = &r->run->records[i];
        n += padded(rows_left(r, rec) * rec->row_bytes);
    }
    return n;
}

/* Sheds requests until the launch fits, or none of it is left that could be shed. */
static void cut(struct rehearsing *r, size_t first, size_t end)
{
    size_t step = r->run->records[first].step;
    uint64_t saved = 1;
    double excess;
    while (saved && step != REHEARSAL_NO_STEP && (excess = needs(r, first, end) - room(r)) > 0) {
        for (size_t i = first; i < end; i++)
            for (size_t k = r->run->records[i].first_part; k < r->run->records[i].end; k++)
                if (!r->dropped[r->run->parts[k].request])
                    ask_of(r, r->run->parts[k].request);
        for (size_t i = first; i < end; i++)
            add_costs(r, &r->run->records[i]);
        saved = shedding_cut(r->shedding, r->asks, r->n_asks, (uint64_t)ceil(excess), r->verdicts);
        take_verdicts(r, step);
        forget_asks(r);
    }
}

/* Return: whether the launch has room by then, for as long as it lasts. */
static bool wait_for_room(struct rehearsing *r, double n_bytes)
{
    struct rehearsal *out = r->out;
    double missing = (n_bytes - room(r)) / (double)r->terms->link_bytes_per_s;
    double most = (double)r->rules->wait_ns / 1e9, waits = missing < most ? missing : most;
    if (missing <= 0)
        return true;
    out->n_waits++;
    out->n_over += missing > most;
    out->wait_s += waits;
    out->longest_wait_s = waits > out->longest_wait_s ? waits : out->longest_wait_s;
    r->world.late += waits;
    if (missing > most) {
        drain(&r->world, r->terms, waits);
        return false;
    }
    fill(r, n_bytes); /* as it drains, so that one that is larger than the ring goes through it */
    drain(&r->world, r->terms, waits);
    r->world.used -= n_bytes; /* each of its records adds its own again */
    return true;
}

static void add(struct rehearsal_tally *to, uint64_t n_records, uint64_t n_rows, uint64_t row_bytes)
{
    to->n_records += n_records;
    to->n_rows += n_rows;
    to->n_bytes += n_rows * row_bytes;
}

/* The record is kept, with those rows that are not shed, or dropped. */
static void keep(struct rehearsing *r, const struct rehearsal_record *rec)
{
    for (size_t i = rec->first_part; i < rec->end; i++) {
        const struct rehearsal_part *part = &r->run->parts[i];
        struct rehearsal_request *q = &r->out->requests[part->request];
        if (r->dropped[part->request])
            continue;
        q->n_rows_kept += part->n_rows;
        q->n_bytes_kept += part->n_rows * rec->row_bytes;
    }
}

/* Whose rows were in it has not all its rows any more; where requests are shed, such a one is. */
static void lose(struct rehearsing *r, const struct rehearsal_record *rec)
{
    bool sheds = overload_cuts(r->rules);
    for (size_t i = rec->first_part; i < rec->end; i++) {
        uint32_t request = r->run->parts[i].request;
        if (r->dropped[request])
            continue;
        set_fate(r, request, sheds ? REHEARSAL_CUT : REHEARSAL_TORN, rec->step);
        if (sheds) {
            r->dropped[request] = true;
            shedding_lose(r->shedding, r->out->requests[request].id);
        }
    }
}

static void settle(struct rehearsing *r, const struct rehearsal_record *rec, bool has_room)
{
    struct rehearsal *out = r->out;
    uint32_t n_left = rows_left(r, rec);
    double n = padded(n_left * rec->row_bytes);
    add(&out->wanted, 1, rec->n_rows, rec->row_bytes);
    add(&out->shed, !n_left && rec->n_rows, rec->n_rows - n_left, rec->row_bytes);
    if (!n_left && rec->n_rows)
        return;
    bool fits = has_room || n <= room(r);
    add(fits ? &out->kept : &out->dropped, 1, n_left, rec->row_bytes);
    if (!fits) {
        lose(r, rec);
        return;
    }
    fill(r, n);
    keep(r, rec);
}

static void launch(struct rehearsing *r, size_t first, size_t end)
{
    bool has_room = r->rules->mode == OVERLOAD_COMPLETE && wait_for_room(r, needs(r, first, end));
    if (!has_room && overload_cuts(r->rules))
        cut(r, first, end);
    for (size_t i = first; i < end; i++)
        settle(r, &r->run->records[i], has_room);
}

static bool is_same_launch(const struct rehearsing *r, size_t a, size_t b)
{
    const struct rehearsal_record *x = &r->run->records[a], *y = &r->run->records[b];
    return x->step == y->step && x->launch == y->launch;
}

static int go_through(struct rehearsing *r)
{
    size_t end;
    for (size_t i = 0; i < r->run->n_records; i = end) {
        const struct rehearsal_record *rec = &r->run->records[i];
        for (end = i + 1; end < r->run->n_records && is_same_launch(r, i, end);)
            end++;
        for (; rec->step != REHEARSAL_NO_STEP && r->next_step <= rec->step; r->next_step++)
            if (begin_step(r, r->next_step, rec->time_ns))
                return -ENOMEM;
        go_to(r, rec->time_ns);
        launch(r, i, end);
    }
    r->out->seconds = r->world.now;
    return 0;
}

/* ------------------------------------------------------------------------- before and after */

static int prepare(struct rehearsing *r)
{
    size_t n = r->out->n_requests + 1;
    r->dropped = calloc(n, sizeof *r->dropped);
    r->ask_of = malloc(n * sizeof *r->ask_of);
    r->request_of = calloc(n, sizeof *r->request_of);
    r->asks = calloc(n, sizeof *r->asks);
    r->costs = calloc(n, sizeof *r->costs);
    r->verdicts = calloc(n, sizeof *r->verdicts);
    r->tags = calloc(n, sizeof *r->tags);
    r->shedding = overload_sheds(r->rules) ? shedding_new(r->rules) : NULL;
    if (!r->dropped || !r->ask_of || !r->request_of || !r->asks || !r->costs || !r->verdicts ||
        !r->tags || (overload_sheds(r->rules) && !r->shedding))
        return -ENOMEM;
    memset(r->ask_of, 0xff, n * sizeof *r->ask_of); /* NOT_ASKED */
    return 0;
}

static void rehearsing_deinit(struct rehearsing *r)
{
    if (r->tags)
        forget_asks(r);
    shedding_free(r->shedding);
    free(r->dropped);
    free(r->ask_of);
    free(r->request_of);
    free(r->asks);
    free(r->costs);
    free(r->verdicts);
    free(r->tags);
}

/* Requests without a row at these sites say nothing. One whose id came again may have been refused only once. */
static void finish_requests(struct rehearsal *out)
{
    size_t n = 0;
    for (size_t i = 0; i < out->n_requests; i++) {
        if (out->requests[i].fate == REHEARSAL_REFUSED && out->requests[i].n_rows_kept)
            out->requests[i].fate = REHEARSAL_CUT;
        if (out->requests[i].n_rows)
            out->requests[n++] = out->requests[i];
        else
            free(out->requests[i].id);
    }
    out->n_requests = n;
}

int rehearse(const struct rehearsal_run *run, const struct rehearsal_terms *terms,
             struct rehearsal *out)
{
    _cleanup_(rehearsing_deinit) struct rehearsing r = {
        .run = run, .terms = terms, .rules = &terms->spec->overload, .out = out, .world.first = NAN
    };
    if (prepare(&r) || go_through(&r))
        return -ENOMEM;
    finish_requests(out);
    return 0;
}

void rehearsal_deinit(struct rehearsal *r)
{
    for (size_t i = 0; i < r->n_requests; i++)
        free(r->requests[i].id);
    free(r->requests);
}
