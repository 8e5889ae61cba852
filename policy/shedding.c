/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/shedding.h"

#include "core/grow.h"
#include "policy/request_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RING          0 /* a resource; those after it are the budgets */
#define MAX_RESOURCES (1 + OVERLOAD_MAX_BUDGETS)

#define HEADROOM   0.9  /* of a rate, for requests that are new */
#define SMOOTHING  0.25 /* weight of what was seen last */
#define BUSY       8    /* a ring that holds an eighth is being emptied as fast as that goes */
#define RISE_A_SEC 0.05 /* of a rate that was not needed: it may have become better */
#define FAST_RISE  0.5  /* the same, up to the rate that was seen before */
#define FADES      0.99 /* what is left of that with each window */
#define WINDOW_S   0.1  /* seconds in which the ring is busy that a rate is taken from */
#define N_WINDOWS  8u   /* of which the best counts */
/* Steps for which room is left for those that are kept, even if nothing came back. */
#define LASTS        8
#define BUDGET_DEPTH 1.0 /* seconds that a bucket holds */

/* One request of the step under way. */
struct candidate {
    struct tabled_request *request;
    uint32_t ask; /* its index */
    bool by_hash; /* the strategy's order */
};

struct shedding {
    const struct overload *rules;
    uint32_t n_rules; /* times that they were set */
    struct request_table requests;
    uint64_t n_steps, n_arrivals;
    struct shedding_pressure last; /* of the step before */
    double
        rate; /* of the ring, bytes a second; 0: not known. What follows is where it comes from: */
    double windows[N_WINDOWS], best;
    double greatest; /* of all windows, fading */
    uint64_t n_windows;
    double busy_bytes, busy_s; /* of the window under way */
    double rise;               /* since the last one */
    double step_s;             /* seconds between steps, smoothed; 0: not known */
    double tokens[OVERLOAD_MAX_BUDGETS];
    struct candidate *order;
    uint32_t room; /* entries of @order */
};

struct shedding *shedding_new(const struct overload *rules)
{
    struct shedding *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->rise = 1;
    shedding_use(s, rules);
    return s;
}

void shedding_use(struct shedding *s, const struct overload *rules)
{
    s->rules = rules;
    s->n_rules++;
    for (uint32_t i = 0; i < rules->n_budgets; i++)
        s->tokens[i] = (double)rules->budgets[i].bytes_per_s * BUDGET_DEPTH;
}

void shedding_free(struct shedding *s)
{
    if (!s)
        return;
    request_table_deinit(&s->requests);
    free(s->order);
    free(s);
}

/* ------------------------------------------------------------------------- what time teaches */

static double smooth(double before, double seen)
{
    return before > 0 ? before + SMOOTHING * (seen - before) : seen;
}

/* A window of time in which the ring was busy is over: the best of the last few counts, as a link may stall. */
static void end_window(struct shedding *s)
{
    s->windows[s->n_windows++ % N_WINDOWS] = s->busy_bytes / s->busy_s;
    s->busy_bytes = s->busy_s = 0;
    s->rise = 1;
    s->best = 0;
    for (uint32_t i = 0; i < N_WINDOWS; i++)
        s->best = s->windows[i] > s->best ? s->windows[i] : s->best;
    s->greatest = s->best > FADES * s->greatest ? s->best : FADES * s->greatest;
}

/* The ring is almost empty: what it is emptied at is enough for what comes, and may be more than it was. */
static void rise(struct shedding *s, double seconds)
{
    bool was_better = s->rate < s->greatest;
    s->rise *= 1 + (was_better ? FAST_RISE : RISE_A_SEC) * (seconds < 1 ? seconds : 1);
    if (!(s->best >
          0)) { /* it stood still whenever it was looked at, and yet is empty now: nothing is known */
        s->n_windows = 0;
        s->busy_bytes = s->busy_s = s->rate = 0;
    }
}

/* Only a ring that was busy all the time shows how fast it can be emptied; an idle one may be faster than it was. */
static void learn_rate(struct shedding *s, const struct shedding_pressure *p, double seconds)
{
    uint64_t busy = p->ring_bytes / BUSY;
    if (s->last.ring_used > busy && p->ring_used > busy) {
        s->busy_bytes += (double)(p->drained - s->last.drained);
        s->busy_s += seconds;
        if (s->busy_s >= WINDOW_S)
            end_window(s);
    } else if (p->ring_used <= busy) {
        rise(s, seconds);
    }
    if (s->n_windows)
        s->rate = s->best > 0 ? s->best * s->rise : 1; /* that it stands still is known, too */
    else if (s->busy_s >= WINDOW_S / 4 && s->busy_bytes > 0) /* a first guess */
        s->rate = s->busy_bytes / s->busy_s;
}

static void fill_buckets(struct shedding *s, double seconds)
{
    for (uint32_t i = 0; i < s->rules->n_budgets; i++) {
        double rate = (double)s->rules->budgets[i].bytes_per_s, most = rate * BUDGET_DEPTH;
        s->tokens[i] += rate * seconds;
        if (s->tokens[i] > most)
            s->tokens[i] = most;
    }
}

static void learn(struct shedding *s, const struct shedding_pressure *p)
{
    if (s->n_steps && p->now_ns > s->last.now_ns) {
        double seconds = (double)(p->now_ns - s->last.now_ns) / 1e9;
        if (p->ring_bytes == s->last.ring_bytes && p->drained >= s->last.drained)
            learn_rate(s, p, seconds);
        fill_buckets(s, seconds);
        s->step_s = smooth(s->step_s, seconds);
    }
    s->last = *p;
    s->n_steps++;
}

uint64_t shedding_rate(const struct shedding *s)
{
    return (uint64_t)s->rate;
}

/* ------------------------------------------------------------------------- the order of preference */

static int by_preference(const void *a, const void *b)
{
    const struct candidate *ca = a;
    const struct tabled_request *x = ca->request, *y = ((const struct candidate *)b)->request;
    if (x->is_protected != y->is_protected)
        return x->is_protected ? -1 : 1;
    if (ca->by_hash && x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return x->arrival < y->arrival ? -1 : x->arrival > y->arrival;
}

/* What the rules say of a request: once when it comes, and once under other rules. */
static void introduce(struct shedding *s, struct tabled_request *r, const struct shedding_ask *ask)
{
    r->arrival = r->arrival ? r->arrival : ++s->n_arrivals;
    r->n_rules = s->n_rules;
    r->dropped = r->dropped || (!r->kept && !overload_samples(s->rules, r->hash));
    memset(&r->per_step[1], 0, sizeof r->per_step - sizeof *r->per_step);
    r->is_protected = s->rules->strategy == OVERLOAD_KEEP_BY_PATTERN &&
                      overload_keeps(s->rules, ask->id, ask->tags);
}

/* The step's requests, best first, in s->order. Return: 0 or -ENOMEM. */
static int put_in_order(struct shedding *s, const struct shedding_ask *asks, uint32_t n)
{
    if (RESERVE(s->order, n, s->room))
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        struct tabled_request *r = request_table_find(&s->requests, asks[i].id, s->n_steps);
        if (!r)
            return -ENOMEM;
        if (r->n_rules != s->n_rules)
            introduce(s, r, &asks[i]);
        s->order[i] = (struct candidate){ r, i, s->rules->strategy == OVERLOAD_SAMPLE };
    }
    if (n)
        qsort(s->order, n, sizeof *s->order, by_preference);
    return 0;
}

/* ------------------------------------------------------------------------- what fits */

/* Something that there is only so much of. */
struct resource {
    double room, depth; /* bytes: now, and at most */
    double rate;        /* bytes a second that come back; 0: not known */
    double taken;       /* bytes of this step's requests */
    double wanted;      /* bytes a second that they go on to cost */
};

/* What a request will cost at each further step. A prompt comes once: of it a row is what follows. */
static void learn_cost(struct tabled_request *r, const struct shedding_ask *ask,
                       uint32_t n_resources)
{
    for (uint32_t k = 0; k < n_resources; k++) {
        double cost = (double)ask->costs[k], row = ask->n_rows ? cost / ask->n_rows : 0;
        if (ask->is_prompt)
            r->per_step[k] = row;
        else
            r->per_step[k] = smooth(r->per_step[k], cost);
    }
}

/* The resources of a step, in the order of an ask's costs. Return: how many there are. */
static uint32_t list_resources(const struct shedding *s, const struct shedding_pressure *p,
                               struct resource *out)
{
    double free_bytes = p->ring_bytes > p->ring_used ? (double)(p->ring_bytes - p->ring_used) : 0;
    out[RING] =
        (struct resource){ .room = free_bytes, .depth = (double)p->ring_bytes, .rate = s->rate };
    for (uint32_t i = 0; i < s->rules->n_budgets; i++) {
        double rate = (double)s->rules->budgets[i].bytes_per_s;
        out[1 + i] =
            (struct resource){ .room = s->tokens[i], .depth = rate * BUDGET_DEPTH, .rate = rate };
    }
    return 1 + s->rules->n_budgets;
}

/* May a request that costs so much be taken besides those that were? */
static bool fits(const struct resource *k, double cost, double wanted,
                 const struct tabled_request *r)
{
    double left = k->room - k->taken - cost;
    double reserve = r->is_protected ? 0 : k->depth / 4; /* others make room for those */
    if (left < 0)
        return false;
    if (r->kept) /* it is cut only where what is left will not last */
        return left >= k->depth / 4 || left >= LASTS * (k->taken + cost) ||
               (k->rate > 0 && k->wanted + wanted <= k->rate);
    if (!(k->rate > 0)) /* how fast it empties shows once it is in use */
        return left >= k->depth / 4 + reserve;
    return left >= reserve && k->wanted + wanted <= HEADROOM * k->rate;
}

/* Does the resource count under these rules? The ring does where its room decides, and there is one. */
static bool counts(const struct shedding *s, const struct resource *all, uint32_t k)
{
    return k != RING || (overload_foresees(s->rules) && all[RING].depth > 0);
}

static double wanted_of(const struct shedding *s, const struct tabled_request *r, uint32_t k)
{
    return s->step_s > 0 ? r->per_step[k] / s->step_s : 0;
}

static bool take(const struct shedding *s, struct resource *all, uint32_t n,
                 const struct tabled_request *r, const struct shedding_ask *ask)
{
    for (uint32_t k = 0; k < n; k++)
        if (counts(s, all, k) && !fits(&all[k], (double)ask->costs[k], wanted_of(s, r, k), r))
            return false;
    for (uint32_t k = 0; k < n; k++) {
        all[k].taken += (double)ask->costs[k];
        all[k].wanted += wanted_of(s, r, k);
    }
    return true;
}

/* ------------------------------------------------------------------------- verdicts */

/* @verdict the first time, later that the request is gone. */
static enum shedding_verdict announce(struct tabled_request *r, enum shedding_verdict verdict)
{
    bool again = r->announced;
    r->announced = true;
    return again ? SHEDDING_GONE : verdict;
}

/* Of a request that is not kept from here on. */
static enum shedding_verdict drop(struct tabled_request *r)
{
    r->dropped = true;
    return announce(r, r->kept ? SHEDDING_CUT : SHEDDING_REFUSED);
}

static enum shedding_verdict judge(struct shedding *s, struct resource *all, uint32_t n,
                                   struct tabled_request *r, const struct shedding_ask *ask)
{
    if (r->dropped)
        return announce(r, SHEDDING_REFUSED); /* outside of the share */
    learn_cost(r, ask, n);
    if (!take(s, all, n, r, ask))
        return drop(r);
    r->kept = true;
    return SHEDDING_KEEP;
}

static void pay(struct shedding *s, const struct resource *all)
{
    for (uint32_t i = 0; i < s->rules->n_budgets; i++)
        s->tokens[i] -= all[1 + i].taken;
}

int shedding_step(struct shedding *s, const struct shedding_pressure *pressure,
                  const struct shedding_ask *asks, uint32_t n, enum shedding_verdict *verdicts)
{
    struct resource all[MAX_RESOURCES];
    memset(verdicts, 0, n * sizeof *verdicts); /* SHEDDING_KEEP */
    learn(s, pressure);
    if (put_in_order(s, asks, n))
        return -ENOMEM;
    uint32_t n_resources = list_resources(s, pressure, all);
    for (uint32_t i = 0; i < n; i++) {
        const struct candidate *c = &s->order[i];
        verdicts[c->ask] = judge(s, all, n_resources, c->request, &asks[c->ask]);
    }
    pay(s, all);
    return 0;
}

uint64_t shedding_cut(struct shedding *s, const struct shedding_ask *asks, uint32_t n,
                      uint64_t excess, enum shedding_verdict *verdicts)
{
    uint64_t saved = 0;
    if (put_in_order(s, asks, n))
        return 0;
    for (uint32_t i = n; i-- > 0 && saved < excess;) {
        const struct candidate *c = &s->order[i];
        if (verdicts[c->ask] != SHEDDING_KEEP || !asks[c->ask].costs[0])
            continue;
        saved += asks[c->ask].costs[0];
        verdicts[c->ask] = drop(c->request);
    }
    return saved;
}

/* ------------------------------------------------------------------------- what else becomes of requests */

bool shedding_lose(struct shedding *s, const char *id)
{
    struct tabled_request *r = request_table_find(&s->requests, id, s->n_steps);
    bool was_kept = r && !r->dropped;
    if (was_kept)
        drop(r);
    return was_kept;
}

void shedding_end(struct shedding *s, const char *id)
{
    request_table_remove(&s->requests, id);
}
