/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/lanes.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/locked.h"
#include "cupti/tracer.h"
#include "preload/base/current.h"
#include "preload/base/handles.h"
#include "preload/function/functions.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>

#define LANES 1024u /* threads times streams, at a time */
#define LOST  64u   /* streams with launches that are in no run; beyond, all may have some */
#define RUNS  4096u /* that are over, and that the collector has not taken */

/* What one thread launches in one stream. Its thread writes it, under the lock where another word is not there. */
struct lane {
    struct trace_thread *thread; /* NULL: not in use */
    struct lane *next;           /* of the thread */
    struct stream stream;
    bool gone;  /* the stream ended: atomic */
    bool known; /* CUPTI knows it, as: */
    uint32_t context, id;
    CUcontext of;
    uint64_t
        drained_ns; /* its thread had waited for the stream by then, and launched nothing in it since; 0: it did not */
    uint32_t lead;    /* DMI's own kernels that it launched in it for the run that comes, */
    uint64_t lead_ns; /* since then */

    /* the run under way */
    uint64_t deal;                /* 0: none; atomic. The collector may set it to 0 */
    uint32_t kernels, graphs;     /* relaxed */
    uint64_t graph_ids;           /* as in struct join_run; relaxed */
    const void *last;             /* function, or &a_graph; relaxed */
    uint64_t first;               /* as in struct join_run */
    uint32_t run_lead;            /* its lead */
    uint64_t begin_ns;            /* of CLOCK_MONOTONIC */
    uint64_t functions;           /* lanes.functions when it began */
    uint64_t idle_ns;             /* as in struct join_run */
    bool in_step, unsure, shared; /* likewise */
    bool own;                     /* its thread has steps of its own, */
    bool strand;                  /* and they are the engine's */
    uint32_t
        seen; /* launches when the collector saw first that it is over, and one; 0: it did not */
};

static struct {
    pthread_mutex_t lock; /* all below, and what is said of lanes */
    struct lane all[LANES];
    uint32_t top; /* places that were ever in use */
    struct join_run runs[RUNS];
    uint32_t n_runs;
    struct lost_in {
        uint32_t context, id;
    } lost_in[LOST]; /* where runs or launches had no room, since the collector looked */
    uint32_t n_lost_in;
    uint64_t lost, unknown;  /* beyond these; launches whose stream CUPTI did not know */
    uint64_t crowded;        /* launches without a place */
    const void *given_up_by; /* the thread whose places went to other streams; &lanes: several */
    uint64_t functions;      /* rises when functions may have ended; atomic */
} lanes = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const char a_graph;
static struct handles names = HANDLES_INIT; /* of functions: what join_name() says */
/* Held while the driver is asked for the name of a function that is not being launched: it does not end meanwhile. */
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

bool trace_by_stream;
uint64_t trace_gate;
__thread __attribute__((tls_model("initial-exec"))) struct trace_thread *trace_self;

void lanes_use(bool use)
{
    atomic_store_relaxed(&trace_by_stream, use);
}

/* ------------------------------------------------------------------------- names */

/* Without a call of the driver's. */
static uint64_t known_name(const void *function)
{
    if (function == &a_graph)
        return JOIN_GRAPH;
    return function ? (uint64_t)(uintptr_t)handles_find(&names, function) : JOIN_NO_NAME;
}

static uint64_t name_of(const void *function)
{
    uint64_t known = known_name(function);
    if (known || !function)
        return known;
    _cleanup_(freep) char *name = functions_name(function);
    uint64_t hash = name ? join_name(name) : JOIN_NO_NAME;
    if (hash)
        handles_set(&names, function, (void *)(uintptr_t)hash);
    return hash;
}

/* The name of the function that the lane launched last, unless that may have ended since. */
static uint64_t name_of_last(const struct lane *l)
{
    const void *last = atomic_load_relaxed(&l->last);
    uint64_t name = known_name(last);
    if (name)
        return name;
    pthread_mutex_lock(&asking);
    if (l->functions == atomic_load_relaxed(&lanes.functions))
        name = name_of(last);
    pthread_mutex_unlock(&asking);
    return name;
}

static void forget(const void *handle, void *value, void *ctx)
{
    (void)value;
    (void)ctx;
    handles_set(&names, handle, NULL);
}

void lanes_forget(void)
{
    if (!atomic_load_relaxed(&trace_by_stream))
        return;
    pthread_mutex_lock(&asking);
    atomic_add_relaxed(&lanes.functions, 1);
    handles_each(&names, forget, NULL);
    pthread_mutex_unlock(&asking);
}

/* ------------------------------------------------------------------------- runs */

/* What was launched in the stream is in no run. Under the lock. */
static void lose(uint32_t context, uint32_t id)
{
    for (uint32_t i = 0; i < lanes.n_lost_in; i++)
        if (lanes.lost_in[i].context == context && lanes.lost_in[i].id == id)
            return;
    if (lanes.n_lost_in < LOST)
        lanes.lost_in[lanes.n_lost_in++] = (struct lost_in){ context, id };
    else
        lanes.lost++;
}

/* The lane's run is over, with @last. Under the lock. */
static void close_run(struct lane *l, uint64_t last)
{
    bool same = l->functions == atomic_load_relaxed(&lanes.functions);
    struct join_run run = { .deal = l->deal,
                            .context = l->context,
                            .stream = l->id,
                            .kernels = atomic_load_relaxed(&l->kernels),
                            .graphs = atomic_load_relaxed(&l->graphs),
                            .graph_ids = atomic_load_relaxed(&l->graph_ids),
                            .first = l->first,
                            .last = same ? last : JOIN_NO_NAME,
                            .lead = l->run_lead,
                            .begin_ns = l->begin_ns,
                            .in_step = l->in_step,
                            .unsure = l->unsure,
                            .idle_ns = l->idle_ns,
                            .shared = l->shared };
    atomic_store_relaxed(&l->deal, (uint64_t)0);
    if (!l->known) { /* its records may name a stream that CUPTI knows by the next run */
        lanes.unknown += run.kernels + run.graphs;
        return;
    }
    if (lanes.n_runs < RUNS)
        lanes.runs[lanes.n_runs++] = run;
    else
        lose(l->context, l->id);
}

/* Is the lane some thread's, in the stream with these ids? Under the lock. */
static bool is_of(const struct lane *l, uint32_t context, uint32_t id)
{
    return l->thread && l->context == context && l->id == id;
}

/* Do both threads launch for steps that differ, as far as anybody knows? */
static bool differ(const struct lane *a, const struct lane *b)
{
    return (a->own && b->own) || a->unsure || b->unsure;
}

/* Another thread launches in the stream for another step: nothing says in which order. Under the lock. */
static void mark_shared(struct lane *l)
{
    for (uint32_t i = 0; i < lanes.top; i++) {
        struct lane *other = &lanes.all[i];
        if (is_of(other, l->context, l->id) && other->thread != l->thread && other->deal &&
            differ(l, other) && other->known)
            other->shared = l->shared = true;
    }
}

/* No other thread has launched in the stream. Under the lock. */
static bool is_alone(const struct lane *l)
{
    if (lanes.given_up_by && lanes.given_up_by != l->thread)
        return false; /* a place of another thread's may have been one in this stream */
    for (uint32_t i = 0; i < lanes.top; i++) {
        const struct lane *other = &lanes.all[i];
        if (other != l && is_of(other, l->context, l->id))
            return false;
    }
    return true;
}

/* What is asked before the lock is taken. */
struct opening {
    bool ask; /* for the stream's ids */
    bool known;
    uint32_t context, id;
    CUcontext of;
    uint64_t first, last; /* of the run that begins, and of the one that ends */
};

static struct opening look(const struct lane *l, struct stream stream, const void *function)
{
    struct opening o = { .first = name_of(function) };
    bool is_default = (uintptr_t)stream.handle <= 2; /* of the current context, or of the thread */
    o.ask = !l || is_default || atomic_load_relaxed(&l->gone) || !l->known;
    if (l && atomic_load_relaxed(&l->deal))
        o.last = name_of_last(l);
    if (!o.ask)
        return o;
    o.of = stream_context(stream);
    o.of = o.of ? o.of : current_context();
    o.known = tracer_stream_ids(o.of, stream.handle, stream.per_thread, &o.context, &o.id);
    return o;
}

/* Under the lock. */
static void open_run(struct lane *l, const struct trace_thread *t, const struct opening *o)
{
    if (atomic_load_relaxed(&l->deal))
        close_run(l, o->last);
    if (o->ask) {
        l->known = o->known;
        l->context = o->context;
        l->id = o->id;
        l->drained_ns = l->of == o->of ? l->drained_ns : 0;
        l->of = o->of;
        atomic_store_relaxed(&l->gone, false);
    }
    atomic_store_relaxed(&l->kernels, 0u);
    atomic_store_relaxed(&l->graphs, 0u);
    atomic_store_relaxed(&l->graph_ids, (uint64_t)JOIN_NO_GRAPHS);
    l->first = o->first;
    l->begin_ns = l->lead && l->lead_ns < t->entered_ns ? l->lead_ns : t->entered_ns;
    l->run_lead = l->lead;
    l->lead = 0;
    l->functions = atomic_load_relaxed(&lanes.functions);
    l->in_step = t->in_step;
    l->unsure = t->unsure;
    l->own = t->apart;
    l->strand = t->strand;
    l->shared = false;
    l->idle_ns = is_alone(l) ? l->drained_ns : 0;
    l->begin_ns = l->begin_ns > l->idle_ns ? l->begin_ns : l->idle_ns;
    l->seen = 0;
    atomic_store_relaxed(&l->deal, t->deal);
    mark_shared(l);
}

/* ------------------------------------------------------------------------- launches */

static bool is_in(const struct lane *l, struct stream stream)
{
    return l->stream.handle == stream.handle && l->stream.per_thread == stream.per_thread;
}

/* Does the lane's run count what its thread @t launches now? */
static bool is_open(const struct lane *l, const struct trace_thread *t)
{
    return atomic_load_relaxed(&l->deal) == t->deal && !atomic_load_relaxed(&l->gone);
}

static struct lane *find(const struct trace_thread *t, struct stream stream)
{
    for (struct lane *l = t->lanes; l; l = l->next)
        if (is_in(l, stream))
            return l;
    return NULL;
}

/* Is nothing launched for its run any more, by the thread, which calls? */
static bool is_spare(const struct lane *l)
{
    bool over = !l->deal || l->deal != l->thread->deal || atomic_load_relaxed(&l->gone);
    return over && (!l->lead || atomic_load_relaxed(&l->gone));
}

/* Takes the lane from its thread, which calls. @at: where it hangs. Under the lock. */
static void give_up(struct lane **at)
{
    struct lane *l = *at;
    if (l->deal)
        close_run(l, known_name(l->last));
    *at = l->next;
    if (l->thread->lane == l)
        l->thread->lane = NULL;
    l->thread = NULL;
}

/* Places of the thread in streams that have ended are free again. Under the lock. */
static void give_up_ended(struct trace_thread *t)
{
    for (struct lane **at = &t->lanes; *at;)
        if (atomic_load_relaxed(&(*at)->gone))
            give_up(at);
        else
            at = &(*at)->next;
}

/* So is the oldest one in which nothing is launched now. Under the lock. */
static void give_up_oldest(struct trace_thread *t)
{
    struct lane **oldest = NULL;
    for (struct lane **at = &t->lanes; *at; at = &(*at)->next)
        if (is_spare(*at))
            oldest = at;
    if (!oldest)
        return;
    bool other = lanes.given_up_by && lanes.given_up_by != t;
    lanes.given_up_by = other ? (const void *)&lanes : t;
    give_up(oldest);
}

static struct lane *free_lane(void)
{
    return FIRST(i, LANES, !lanes.all[i].thread, &lanes.all[i], NULL);
}

/* A place for the thread, which calls. Under the lock. NULL: all are taken. */
static struct lane *claim(struct trace_thread *t, struct stream stream)
{
    give_up_ended(t);
    struct lane *l = free_lane();
    if (!l) {
        give_up_oldest(t);
        l = free_lane();
    }
    if (!l)
        return NULL;
    uint32_t i = (uint32_t)(l - lanes.all);
    lanes.top = i < lanes.top ? lanes.top : i + 1;
    *l = (struct lane){ .thread = t, .next = t->lanes, .stream = stream };
    t->lanes = l;
    return l;
}

static struct lane *enter(struct trace_thread *t, const void *function, struct stream stream)
{
    struct lane *l = find(t, stream);
    if (!l || !is_open(l, t)) {
        struct opening o = look(l, stream, function);
        pthread_mutex_lock(&lanes.lock);
        l = l ? l : claim(t, stream);
        if (l)
            open_run(l, t, &o);
        else if (o.known)
            lose(o.context, o.id);
        lanes.unknown += !l && !o.known;
        lanes.crowded += !l;
        pthread_mutex_unlock(&lanes.lock);
    }
    t->lane = l;
    return l;
}

/* The lane of a launch that the driver took, NULL: there is no room for it. */
static struct lane *launched(struct trace_thread *t, const void *function, struct stream stream)
{
    struct lane *l = t->lane;
    if (!l || !is_in(l, stream) || !is_open(l, t)) {
        int saved = errno;
        l = enter(t, function, stream);
        errno = saved;
    }
    if (l) {
        atomic_store_relaxed(&l->last, function);
        l->drained_ns = 0;
    }
    return l;
}

void lanes_count(struct trace_thread *t, const void *function, struct stream stream)
{
    struct lane *l = launched(t, function, stream);
    if (l)
        atomic_store_relaxed(&l->kernels, atomic_load_relaxed(&l->kernels) + 1);
}

/* A launch of which there may be records, and which is not counted. */
static void launched_uncounted(const struct trace_thread *t, struct stream stream)
{
    struct lane *l = find(t, stream);
    if (l)
        l->drained_ns = 0;
}

void lanes_count_graph(struct trace_thread *t, uint32_t graph, struct stream stream)
{
    if (graph == TRACE_NO_RECORDS)
        return;
    if (graph == TRACE_PERHAPS) {
        launched_uncounted(t, stream);
        return;
    }
    struct lane *l = launched(t, &a_graph, stream);
    if (!l)
        return;
    atomic_store_relaxed(&l->graphs, atomic_load_relaxed(&l->graphs) + 1);
    atomic_store_relaxed(&l->graph_ids, join_graph(atomic_load_relaxed(&l->graph_ids), graph));
}

void lanes_own(uint32_t n, struct stream stream)
{
    struct trace_thread *t = n && atomic_load_relaxed(&trace_by_stream) ? trace_self : NULL;
    if (!t)
        return;
    struct lane *l = find(t, stream);
    bool ahead = t->gate != (atomic_load_relaxed(&trace_gate) & ~TRACE_GATE_BITS);
    if (l && is_open(l, t) && !ahead)
        return;
    UNDER(&lanes.lock, l = l ? l : claim(t, stream));
    if (!l)
        return;
    l->lead_ns = l->lead ? l->lead_ns : clock_mono_ns();
    l->lead += n;
}

static struct lane *own_lanes(void)
{
    bool use = atomic_load_relaxed(&trace_by_stream) && trace_self;
    return use ? trace_self->lanes : NULL;
}

void lanes_stream_idle(struct stream stream, uint64_t now_ns)
{
    struct lane *l = own_lanes() ? find(trace_self, stream) : NULL;
    if (l && !l->drained_ns)
        l->drained_ns = now_ns;
}

void lanes_context_idle(CUcontext context, uint64_t now_ns)
{
    if (!own_lanes())
        return;
    context = context ? context : current_context();
    for (struct lane *l = own_lanes(); l; l = l->next)
        l->drained_ns = l->of == context && !l->drained_ns ? now_ns : l->drained_ns;
}

void lanes_stream_ends(CUstream stream)
{
    if (!atomic_load_relaxed(&trace_by_stream))
        return;
    pthread_mutex_lock(&lanes.lock);
    for (uint32_t i = 0; i < lanes.top; i++)
        if (lanes.all[i].thread && (!stream || lanes.all[i].stream.handle == stream))
            atomic_store_relaxed(&lanes.all[i].gone, true);
    pthread_mutex_unlock(&lanes.lock);
}

void lanes_leave(struct trace_thread *t)
{
    pthread_mutex_lock(&lanes.lock);
    for (struct lane *l = t->lanes; l; l = l->next) {
        if (l->deal)
            close_run(l, known_name(l->last));
        l->thread = NULL;
    }
    t->lanes = t->lane = NULL;
    pthread_mutex_unlock(&lanes.lock);
}

/* ------------------------------------------------------------------------- the collector's */

/* Nothing is launched for the run any more: its thread, or the engine, is at another step. */
static bool is_over(const struct lane *l, uint64_t engine_deal)
{
    bool moved = l->own && l->deal != atomic_load_relaxed(&l->thread->deal);
    return moved || (!l->strand && l->deal < engine_deal);
}

/* A launch may be under way for a step that has just ended: the run is taken when it has not changed for a round. */
static bool is_settled(struct lane *l)
{
    uint32_t n = atomic_load_relaxed(&l->kernels) + atomic_load_relaxed(&l->graphs) + 1;
    bool settled = l->seen == n;
    l->seen = n;
    return settled;
}

void lanes_take(bool all, uint64_t engine_deal, void (*fn)(const struct join_run *run))
{
    pthread_mutex_lock(&lanes.lock);
    for (uint32_t i = 0; i < lanes.top; i++) {
        struct lane *l = &lanes.all[i];
        if (l->thread && l->deal && (all || (is_over(l, engine_deal) && is_settled(l))))
            close_run(l, known_name(atomic_load_relaxed(&l->last)));
    }
    for (uint32_t i = 0; i < lanes.n_runs; i++)
        fn(&lanes.runs[i]);
    lanes.n_runs = 0;
    pthread_mutex_unlock(&lanes.lock);
}

uint64_t lanes_lost(void)
{
    return LOCKED(&lanes.lock, lanes.lost);
}

uint64_t lanes_crowded(void)
{
    return LOCKED(&lanes.lock, lanes.crowded);
}

void lanes_take_lost(void (*fn)(uint32_t context, uint32_t stream))
{
    pthread_mutex_lock(&lanes.lock);
    for (uint32_t i = 0; i < lanes.n_lost_in; i++)
        fn(lanes.lost_in[i].context, lanes.lost_in[i].id);
    lanes.n_lost_in = 0;
    pthread_mutex_unlock(&lanes.lock);
}

uint64_t lanes_unknown(void)
{
    return LOCKED(&lanes.lock, lanes.unknown);
}

uint64_t lanes_open(uint32_t context, uint32_t stream)
{
    uint64_t lowest = UINT64_MAX;
    pthread_mutex_lock(&lanes.lock);
    for (uint32_t i = 0; i < lanes.top; i++) {
        const struct lane *l = &lanes.all[i];
        if (is_of(l, context, stream) && l->deal && l->known && l->deal < lowest)
            lowest = l->deal;
    }
    pthread_mutex_unlock(&lanes.lock);
    return lowest;
}

void lanes_reset(void)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    struct handles fresh = HANDLES_INIT;
    lanes.lock = asking = unlocked;
    names = fresh;
    for (uint32_t i = 0; i < lanes.top; i++)
        lanes.all[i] = (struct lane){ 0 };
    lanes.n_runs = lanes.top = lanes.n_lost_in = 0;
    lanes.lost = lanes.unknown = lanes.crowded = 0;
    lanes.given_up_by = NULL;
    trace_by_stream = false;
}
