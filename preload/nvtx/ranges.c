/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/nvtx/ranges.h"

#include "core/any.h"
#include "core/grow.h"
#include "core/locked.h"
#include "preload/nvtx/names.h"
#include "preload/session/session.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* One that concerns the spec. */
struct open_range {
    const struct nvtx_name *name;
    const void *domain;
    uint64_t at; /* pushed: its depth in the domain; started: its id */
    struct range_site *sites;
    uint32_t n_room; /* of @sites; they stay for the next range in this place */
};

/* How many ranges a thread has open in a domain, whatever they are. */
struct depth {
    const void *domain;
    uint64_t n;
};

struct ranges_own {
    struct open_range open[RANGES_OPEN];
    struct depth depths[RANGES_DOMAINS];
    uint32_t n_depths;
};

__thread __attribute__((tls_model("initial-exec"))) struct ranges_thread ranges_thread;
uint32_t ranges_n_started;

static pthread_key_t key; /* its destructor ends what a thread leaves open */
static bool has_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct open_range started[RANGES_STARTED]; /* the first n_started; under the lock */
static uint32_t n_started;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */

/* ------------------------------------------------------------------------- one range */

/* Counts from nothing. Return: false without memory. */
static bool open_sites(struct open_range *r, const struct nvtx_name *name)
{
    if (RESERVE(r->sites, name->n_sites, r->n_room))
        return false;
    for (uint32_t i = 0; i < name->n_sites; i++)
        r->sites[i] = (struct range_site){ .site = name->sites[i] };
    r->name = name;
    return true;
}

static void report(const struct nvtx_name *name, const char *why)
{
    struct session_call call;
    if (session_enter(&call))
        for (uint32_t i = 0; i < name->n_sites; i++)
            session_problem(name->sites[i], PROBLEM_UNSUPPORTED, "range %.64s: %s: not captured",
                            name->text, why);
    session_leave(&call);
}

/* What is launched in it would be taken for that of a range around it. */
static void give_up(const struct nvtx_name *name)
{
    struct session_call call;
    if (session_enter(&call))
        for (uint32_t i = 0; i < name->n_sites; i++)
            session_give_up(name->sites[i], "no memory for the range %.64s: switched off",
                            name->text);
    session_leave(&call);
}

/* ------------------------------------------------------------------------- threads */

static void end_thread(void *arg)
{
    struct ranges_own *own = arg;
    for (uint32_t i = 0; i < RANGES_OPEN; i++)
        free(own->open[i].sites);
    free(own);
    ranges_thread = (struct ranges_thread){ 0 };
}

static void create_key(void)
{
    has_key = !pthread_key_create(&key, end_thread);
}

/* NULL without memory: its ranges are not seen. */
static struct ranges_own *own_ranges(void)
{
    if (ranges_thread.own)
        return ranges_thread.own;
    pthread_once(&once, create_key);
    struct ranges_own *own = has_key ? calloc(1, sizeof *own) : NULL;
    if (own && pthread_setspecific(key, own)) {
        free(own);
        own = NULL;
    }
    ranges_thread.own = own;
    return own;
}

/* NULL: ranges of too many domains. */
static struct depth *depth_in(struct ranges_own *own, const void *domain)
{
    for (uint32_t i = 0; i < own->n_depths; i++)
        if (own->depths[i].domain == domain)
            return &own->depths[i];
    if (own->n_depths == RANGES_DOMAINS)
        return NULL;
    own->depths[own->n_depths].domain = domain;
    return &own->depths[own->n_depths++];
}

/* ------------------------------------------------------------------------- push and pop */

static void push(struct ranges_own *own, const struct nvtx_name *name, const void *domain,
                 uint64_t depth)
{
    struct open_range *r = &own->open[ranges_thread.n_open];
    if (ranges_thread.n_open == RANGES_OPEN) {
        report(name, "more than 64 ranges that the spec names lie in one another");
    } else if (!open_sites(r, name)) {
        give_up(name);
    } else {
        r->domain = domain;
        r->at = depth;
        ranges_thread.n_open++;
        if (name->kind >= 0)
            ranges_thread.kind = name->kind + 1;
    }
}

void ranges_push(const void *domain, const char *text, size_t n)
{
    struct ranges_own *own = own_ranges();
    const struct nvtx_name *name = nvtx_name_of(text, n);
    struct depth *depth = own ? depth_in(own, domain) : NULL;
    if (!depth) {
        report(name, own ? "pushed in more than 16 domains" : "no memory for it");
        return;
    }
    if (nvtx_name_concerns(name))
        push(own, name, domain, depth->n);
    depth->n++;
}

/* A forward that no launch began does not begin after its range. */
static void forget_kind(const struct nvtx_name *name)
{
    if (name->kind >= 0 && ranges_thread.kind == name->kind + 1)
        ranges_thread.kind = 0;
}

/* Its place goes to those after it, with the memory that it had. */
static void close_at(struct ranges_own *own, uint32_t at)
{
    struct open_range closed = own->open[at];
    forget_kind(closed.name);
    ranges_thread.n_open--;
    memmove(&own->open[at], &own->open[at + 1], (ranges_thread.n_open - at) * sizeof closed);
    own->open[ranges_thread.n_open] = closed;
}

void ranges_pop(const void *domain)
{
    struct ranges_own *own = ranges_thread.own;
    struct depth *depth = own ? depth_in(own, domain) : NULL;
    if (!depth || !depth->n)
        return;
    depth->n--;
    for (uint32_t i = ranges_thread.n_open; i-- > 0;)
        if (own->open[i].domain == domain) {
            if (own->open[i].at == depth->n)
                close_at(own, i);
            return;
        }
}

/* ------------------------------------------------------------------------- start and end */

/* Under the lock. Return: why not, NULL: it is open. */
static const char *start(const struct nvtx_name *name, const void *domain, uint64_t id)
{
    struct open_range *r = &started[n_started];
    if (n_started == RANGES_STARTED)
        return "more than 1024 ranges that the spec names were started and not ended";
    if (!open_sites(r, name))
        return "no memory for it";
    r->domain = domain;
    r->at = id;
    atomic_store_relaxed(&ranges_n_started, ++n_started);
    return NULL;
}

void ranges_start(const void *domain, uint64_t id, const char *text, size_t n)
{
    const struct nvtx_name *name = nvtx_name_of(text, n);
    if (!nvtx_name_concerns(name))
        return;
    const char *why = LOCKED(&lock, start(name, domain, id));
    if (why)
        report(name, why);
    else if (name->kind >= 0)
        ranges_thread.kind = name->kind + 1;
}

void ranges_end(const void *domain, uint64_t id)
{
    if (!atomic_load_relaxed(&ranges_n_started))
        return;
    pthread_mutex_lock(&lock);
    uint32_t i = n_started;
    while (i > 0 && (started[i - 1].domain != domain || started[i - 1].at != id))
        i--;
    if (i-- > 0) {
        struct open_range ended = started[i];
        forget_kind(ended.name);
        atomic_store_relaxed(&ranges_n_started, --n_started);
        memmove(&started[i], &started[i + 1], (n_started - i) * sizeof ended);
        started[n_started] = ended;
    }
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------- launches */

static struct range_site *site_in(struct open_range *r, uint32_t site)
{
    return FIRST(i, r->name->n_sites, r->name->sites[i] == site, &r->sites[i], NULL);
}

/* A launch on its way through the ranges. */
struct picking {
    struct ranges_pick *pick;
    struct variant_facts facts;
};

/* Is the launch one that the site takes, by what was counted before it? */
static bool is_wanted(const struct spec_nvtx *nvtx, uint32_t number)
{
    return nvtx->which != SPEC_RANGE_NTH || number == nvtx->n;
}

static void add_site(struct picking *p, uint32_t site, const struct nvtx_name *name)
{
    const struct spec_nvtx *nvtx = &session_site(site)->nvtx;
    if (p->facts.n == SPEC_MAX_MATCHES) {
        session_problem(site, PROBLEM_UNSUPPORTED,
                        "a kernel in the range %.64s is of more than %d sites: not captured",
                        name->text, SPEC_MAX_MATCHES);
        return;
    }
    p->facts.sites[p->facts.n++] =
        (struct variant_site){ .site = site,
                               .layer = nvtx->layer ? name->layer : VARIANT_LAYER_OF_SITE };
}

static uint32_t *counter(const struct ranges_pick *pick, struct range_site *s)
{
    return pick->captured ? &s->n_captured : &s->n_launched;
}

/* @site within the innermost of the thread's own ranges that it asks for. Return: false: there is none. */
static bool pick_own(struct picking *p, uint32_t site)
{
    struct ranges_own *own = ranges_thread.own;
    for (uint32_t i = ranges_thread.n_open; i-- > 0;) {
        struct range_site *s = site_in(&own->open[i], site);
        if (!s)
            continue;
        uint32_t number = (*counter(p->pick, s))++;
        p->pick->counted[p->pick->n_counted++] = s;
        if (is_wanted(&session_site(site)->nvtx, number))
            add_site(p, site, own->open[i].name);
        return true;
    }
    return false;
}

/* The same of ranges that were started, the latest first. */
static void pick_started(struct picking *p, uint32_t site)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = n_started; i-- > 0;) {
        struct range_site *s = site_in(&started[i], site);
        if (!s)
            continue;
        uint32_t number = (*counter(p->pick, s))++;
        if (is_wanted(&session_site(site)->nvtx, number))
            add_site(p, site, started[i].name);
        break;
    }
    pthread_mutex_unlock(&lock);
}

const struct func *ranges_pick(const struct func *func, bool captured, struct ranges_pick *pick)
{
    struct picking p;
    pick->captured = captured;
    pick->kind = -1;
    pick->n_counted = 0;
    if (!ranges_any())
        return func;
    memset(&p, 0, sizeof p); /* of facts all bytes count */
    p.pick = pick;
    p.facts.kind = pick->kind = ranges_take_kind();
    for (uint32_t i = 0; i < func->match.n_ranged; i++)
        if (!pick_own(&p, func->match.ranged[i]) && atomic_load_relaxed(&ranges_n_started))
            pick_started(&p, func->match.ranged[i]);
    return variants_of(func, &p.facts);
}

void ranges_untake(const struct ranges_pick *pick)
{
    for (uint32_t i = 0; i < pick->n_counted; i++)
        --*counter(pick, pick->counted[i]);
    if (pick->kind >= 0)
        ranges_thread.kind = pick->kind + 1;
}

int ranges_take_kind(void)
{
    int kind = ranges_thread.kind - 1;
    ranges_thread.kind = 0;
    return kind;
}

void ranges_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    ranges_thread.n_open = 0;
    ranges_thread.kind = 0;
    ranges_n_started = n_started = 0;
    nvtx_names_reset();
}
