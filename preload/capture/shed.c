/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/shed.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/locked.h"
#include "core/log.h"
#include "policy/shedding.h"
#include "preload/capture/said.h"
#include "preload/context/context.h"
#include "preload/session/session.h"

#include <dmi/span.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COSTS  (1 + OVERLOAD_MAX_BUDGETS) /* of a request: all sites, the sites of each budget */
#define MAX_LOSSES 8u /* records of a site on end, after which it is switched off */
#define FADES      8  /* a cost that does not come again loses an eighth a step */

/* What a row costs in a step, by the choice that keeps it. */
struct row_costs {
    uint64_t adding[SPEC_MAX_SELECTS][MAX_COSTS]; /* of the step under way; any thread, atomic */
    uint64_t learned[SPEC_MAX_SELECTS][MAX_COSTS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shedding *shedding;    /* under the lock, as all below but costs.adding */
static const struct overload *rules; /* that @shedding follows */
static struct row_costs costs;
static struct step
    *last;        /* held: its requests that ended with it are forgotten with the next one */
static bool said; /* that something is shed */
static uint32_t
    losses[SPEC_MAX_SITES]; /* of records of nobody's rows, on end; atomic, any thread */

/* ------------------------------------------------------------------------- the requests of a step */

/* Each once; a request may have several spans. */
struct step_requests {
    uint32_t n;
    uint32_t *of; /* per span: its request, NOBODY: padding, or not kept before */
    struct shedding_ask *asks;
    uint64_t (*costs)[MAX_COSTS];
    enum shedding_verdict *verdicts;
    uint32_t *order; /* spans, by id */
};

#define NOBODY UINT32_MAX

static void requests_deinit(struct step_requests *r)
{
    free(r->of);
    free(r->asks);
    free(r->costs);
    free(r->verdicts);
    free(r->order);
}

static int by_id(const void *a, const void *b, void *arg)
{
    const struct dmi_step *step = arg;
    return strcmp(dmi_span_at(step, *(const uint32_t *)a)->request_id,
                  dmi_span_at(step, *(const uint32_t *)b)->request_id);
}

static bool is_kept(const struct step *step, uint32_t span)
{
    const struct dmi_span *s = dmi_span_at(step->said, span);
    return !(s->flags & DMI_SPAN_PADDING) && s->request_id && (!step->keeps || step->keeps[span]);
}

/* Return: false without memory. */
static bool requests_alloc(struct step_requests *r, uint32_t n_spans)
{
    size_t n = n_spans + 1u;
    *r = (struct step_requests){ .of = calloc(n, sizeof *r->of),
                                 .asks = calloc(n, sizeof *r->asks),
                                 .costs = calloc(n, sizeof *r->costs),
                                 .verdicts = calloc(n, sizeof *r->verdicts),
                                 .order = calloc(n, sizeof *r->order) };
    return r->of && r->asks && r->costs && r->verdicts && r->order;
}

static bool is_prompt(const struct dmi_span *span)
{
    return span->n_prompt ? span->first_position < span->n_prompt
                          : span->phase == DMI_PHASE_PREFILL;
}

static void add_span(struct step_requests *r, const struct dmi_step *step, uint32_t span,
                     bool is_new)
{
    const struct dmi_span *s = dmi_span_at(step, span);
    r->n += is_new;
    struct shedding_ask *ask = &r->asks[r->n - 1];
    if (is_new)
        *ask = (struct shedding_ask){ .id = s->request_id, .costs = r->costs[r->n - 1] };
    ask->tags = ask->tags ? ask->tags : s->tags;
    ask->n_rows += s->n_tokens;
    ask->is_prompt = ask->is_prompt || is_prompt(s);
    r->of[span] = r->n - 1;
}

/* Those of the step that are kept so far, in the order in which the engine names them. Return: false without memory. */
static bool requests_collect(struct step_requests *r, const struct step *step)
{
    const struct dmi_step *words = step->said;
    uint32_t n = 0;
    if (!requests_alloc(r, words->n_spans))
        return false;
    for (uint32_t i = 0; i < words->n_spans; i++) {
        r->of[i] = NOBODY;
        if (is_kept(step, i))
            r->order[n++] = i;
    }
    qsort_r(r->order, n, sizeof *r->order, by_id, step->said);
    for (uint32_t i = 0; i < n; i++)
        add_span(r, step->said, r->order[i],
                 !i || by_id(&r->order[i - 1], &r->order[i], step->said));
    return true;
}

/* ------------------------------------------------------------------------- what they cost */

/* Adds what @row_bytes of a row of the choice come to for each request. */
static void add_costs(struct step_requests *r, const struct step *step, uint32_t choice, uint32_t k,
                      uint64_t row_bytes)
{
    const struct select_rows *rows = &step->all->rows[choice];
    bool by_token = session.spec->selects[choice].row == DMI_ROW_TOKEN;
    uint32_t number = 0; /* of the span among those that have tokens */
    for (uint32_t i = 0; row_bytes && i < step->said->n_spans; i++) {
        const struct dmi_span *s = dmi_span_at(step->said, i);
        uint32_t from = by_token ? s->first_row : number, n = by_token ? s->n_tokens : 1;
        if (r->of[i] != NOBODY && s->n_tokens)
            r->costs[r->of[i]][k] += row_bytes * select_rows_between(rows, from, from + n);
        number += s->n_tokens != 0;
    }
}

/* What a row cost in the step before, or in those before that, if that was more: it fades. Under the lock. */
static void learn_costs(const struct overload *o)
{
    for (uint32_t c = 0; c < session.spec->n_selects; c++)
        for (uint32_t k = 0; k <= o->n_budgets; k++) {
            uint64_t *was = &costs.learned[c][k];
            uint64_t seen = atomic_exchange_acq_rel(&costs.adding[c][k], 0);
            *was -= *was / FADES;
            *was = seen > *was ? seen : *was;
        }
}

void shed_note_cost(uint32_t site, uint32_t row_bytes)
{
    uint32_t choice = session_site(site)->select;
    if (!session_sheds() || choice == SPEC_NO_SELECT)
        return;
    const struct overload *o = session_overload();
    uint32_t budgets = overload_budgets_of(o, site);
    atomic_add_relaxed(&costs.adding[choice][0], row_bytes);
    for (uint32_t i = 0; i < o->n_budgets; i++)
        if (budgets & 1u << i)
            atomic_add_relaxed(&costs.adding[choice][1 + i], row_bytes);
}

/* ------------------------------------------------------------------------- pressure */

/* All rings as one, as full as the fullest. */
struct rings {
    uint64_t n_bytes, drained;
    double full;
};

static void add_ring(struct context *c, void *arg)
{
    struct rings *rings = arg;
    if (c->state != CONTEXT_READY)
        return;
    pthread_mutex_lock(&c->lock);
    uint64_t tail = atomic_load_acquire(&c->ring.tail_byte); /* of ring_release() */
    double full = (double)(c->ring.head_byte - tail) / (double)c->ring.n_bytes;
    pthread_mutex_unlock(&c->lock);
    rings->n_bytes += c->ring.n_bytes;
    rings->drained += atomic_load_relaxed(&c->drained_bytes);
    rings->full = full > rings->full ? full : rings->full;
}

static struct shedding_pressure pressure_now(void)
{
    struct rings rings = { 0 };
    context_each(add_ring, &rings);
    return (struct shedding_pressure){ .now_ns = clock_mono_ns(),
                                       .ring_bytes = rings.n_bytes,
                                       .ring_used = (uint64_t)(rings.full * (double)rings.n_bytes),
                                       .drained = rings.drained };
}

/* ------------------------------------------------------------------------- what is not kept */

/* Once a run: what happens, and what can be done. */
static void say(const struct shedding_ask *ask)
{
    if (said)
        return;
    said = true;
    uint64_t rate = shedding_rate(shedding);
    char emptied[64] = "";
    if (rate > 1)
        snprintf(emptied, sizeof emptied, " The ring is emptied at %" PRIu64 " bytes a second.",
                 rate);
    log_line(
        "requests are shed, the first one is %.64s: the spec's overload says which.%s dmi-dump "
        "list --requests names those that lack rows",
        ask->id, emptied);
}

/* The run learns of requests that are not kept from this step on. */
static void note_verdicts(const struct step_requests *r, const struct step *step)
{
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->verdicts[i] != SHEDDING_CUT && r->verdicts[i] != SHEDDING_REFUSED)
            continue;
        run_request_shed(session_run(), r->asks[i].id, step->sequence);
        say(&r->asks[i]);
    }
}

/* For dmi-top: the rate that was learned, and how many requests of this step stay. */
static void note_live(const struct step_requests *r)
{
    struct dmi_live *live = session.live;
    uint32_t n_kept = 0;
    if (!live)
        return;
    for (uint32_t i = 0; i < r->n; i++)
        n_kept += r->verdicts[i] == SHEDDING_KEEP;
    atomic_store_relaxed(&live->link_bytes_s, shedding_rate(shedding));
    atomic_store_relaxed(&live->step_requests, r->n);
    atomic_store_relaxed(&live->step_kept, n_kept);
}

/* The step with those alone that are kept. Takes @step over. */
static struct step *reduce(const struct step_requests *r, struct step *step)
{
    uint32_t n = step->said->n_spans, n_kept = 0, n_before = 0;
    _cleanup_(freep) bool *keeps = calloc(n + 1u, sizeof *keeps);
    for (uint32_t i = 0; keeps && i < n; i++) {
        n_before += is_kept(step, i);
        keeps[i] = r->of[i] != NOBODY && r->verdicts[r->of[i]] == SHEDDING_KEEP;
        n_kept += keeps[i];
    }
    struct step *less = keeps && n_kept < n_before ? step_without(step, keeps) : NULL;
    return less ? less : step;
}

/* Requests that said that the step before is their last. Under the lock. */
static void forget_ended(void)
{
    for (uint32_t i = 0; last && i < last->said->n_spans; i++) {
        const struct dmi_span *s = dmi_span_at(last->said, i);
        if (s->flags & DMI_SPAN_LAST && s->request_id)
            shedding_end(shedding, s->request_id);
    }
    step_release(last);
    last = NULL;
}

/* Those in force are asked from here on. Under the lock. */
static const struct overload *follow_rules(void)
{
    const struct overload *o = session_overload();
    if (!shedding)
        shedding = shedding_new(o);
    else if (o != rules)
        shedding_use(shedding, o);
    rules = o;
    return o;
}

static struct step *judge(struct step *step)
{
    struct step_requests r;
    struct shedding_pressure pressure = pressure_now();
    pthread_mutex_lock(&lock);
    const struct overload *o = follow_rules();
    bool good = requests_collect(&r, step) && shedding;
    if (good) {
        forget_ended();
        learn_costs(o);
        for (uint32_t c = 0; c < session.spec->n_selects; c++)
            for (uint32_t k = 0; k <= o->n_budgets; k++)
                add_costs(&r, step, c, k, costs.learned[c][k]);
        good = shedding_step(shedding, &pressure, r.asks, r.n, r.verdicts) == 0;
    }
    if (good) {
        note_verdicts(&r, step);
        note_live(&r);
        step = reduce(&r, step);
        atomic_add_relaxed(&step->refs, 1);
        last = step;
    }
    pthread_mutex_unlock(&lock);
    requests_deinit(&r);
    return step;
}

struct step *shed_step(struct step *step)
{
    return step && step->said ? judge(step) : step;
}

/* ------------------------------------------------------------------------- within a step */

/* Another launch of the step may have been here before. Under the lock. Return: whether @step is another one now. */
static bool catch_up(struct step **step)
{
    struct step *now = said_now(true).rows;
    if (!now || now->all != (*step)->all || now == *step) {
        step_release(now);
        return false;
    }
    step_release(*step);
    *step = now;
    return true;
}

/* Under the lock. */
static bool cut(struct step **step, const struct shed_launch *launch)
{
    struct step_requests r;
    bool any = false;
    if (requests_collect(&r, *step)) {
        for (uint32_t c = 0; c < session.spec->n_selects; c++)
            add_costs(&r, *step, c, 0, launch->row_bytes[c]);
        any = shedding_cut(shedding, r.asks, r.n, launch->excess, r.verdicts) != 0;
    }
    struct step *less = any ? reduce(&r, *step) : *step;
    any = less != *step;
    if (any) {
        note_verdicts(&r, *step);
        *step = less;
        said_replace(less);
    }
    requests_deinit(&r);
    return any;
}

bool shed_cut(struct step **step, const struct shed_launch *launch)
{
    if (!*step || !(*step)->said || !overload_cuts(session_overload()))
        return false;
    return LOCKED(&lock, shedding && (catch_up(step) || cut(step, launch)));
}

/* Under the lock. */
static void lose(const struct step *step, uint32_t choice)
{
    struct step_requests r;
    if (requests_collect(&r, step)) {
        add_costs(&r, step, choice, 0, 1);
        for (uint32_t i = 0; i < r.n; i++)
            if (r.costs[i][0] && shedding_lose(shedding, r.asks[i].id))
                run_request_shed(session_run(), r.asks[i].id, step->sequence);
    }
    requests_deinit(&r);
}

/* A record that is no request's. */
static void lose_site(uint32_t site)
{
    if (atomic_add_relaxed(&losses[site], 1) + 1 != MAX_LOSSES)
        return;
    session_site_switch(site, false);
    session_problem(site, PROBLEM_PRESSURE,
                    "no room for %u of its records on end, and no request that could be shed for "
                    "them: switched off",
                    MAX_LOSSES);
}

void shed_found_room(uint32_t site)
{
    if (atomic_load_relaxed(&losses[site]))
        atomic_store_relaxed(&losses[site], 0);
}

void shed_lost(const struct step *step, uint32_t site)
{
    uint32_t choice = session_site(site)->select;
    if (!step || !step->said || !overload_cuts(session_overload()))
        return;
    if (choice == SPEC_NO_SELECT) {
        lose_site(site);
        return;
    }
    pthread_mutex_lock(&lock);
    if (shedding)
        lose(step, choice);
    pthread_mutex_unlock(&lock);
}

void shed_request_end(const char *id)
{
    if (!id || !session_sheds())
        return;
    pthread_mutex_lock(&lock);
    if (shedding)
        shedding_end(shedding, id);
    pthread_mutex_unlock(&lock);
}

void shed_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    shedding = NULL; /* the parent's */
    memset(losses, 0, sizeof losses);
    memset(&costs, 0, sizeof costs);
    said = false;
    last = NULL;
}
