/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/steps_private.h"

#include "core/any.h"
#include "core/clock.h"
#include "core/grow.h"
#include "core/locked.h"
#include "preload/base/current.h"
#include "preload/capture/said.h"
#include "preload/trace/events.h"

#include <dmi/format.h>

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

struct steps steps = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ------------------------------------------------------------------------- threads */

static __thread __attribute__((tls_model("initial-exec"))) uint32_t own_tid; /* 0: not asked yet */
static pthread_key_t thread_key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool have_key;

static void thread_ends(void *arg);

static void make_key(void)
{
    have_key = !pthread_key_create(&thread_key, thread_ends);
}

struct trace_thread *steps_self(void)
{
    struct trace_thread *t = trace_self;
    if (t)
        return t;
    pthread_once(&key_once, make_key);
    pthread_mutex_lock(&steps.lock);
    for (uint32_t i = 0; !t && i < TRACE_THREADS; i++)
        if (!steps.threads[i].used)
            t = &steps.threads[i];
    if (t)
        *t = (struct trace_thread){ .used = true, .last_gone = true };
    if (t == &steps.threads[steps.top])
        atomic_store_relaxed(&steps.top, steps.top + 1);
    pthread_mutex_unlock(&steps.lock);
    if (t && have_key)
        pthread_setspecific(thread_key, t);
    trace_self = t;
    return t;
}

struct trace_counts steps_counts(const struct trace_thread *t)
{
    return (struct trace_counts){ .launches = atomic_load_relaxed(&t->now.launches),
                                  .graphs = atomic_load_relaxed(&t->now.graphs),
                                  .own = atomic_load_relaxed(&t->now.own),
                                  .loads = atomic_load_relaxed(&t->now.loads),
                                  .allocations = atomic_load_relaxed(&t->now.allocations),
                                  .stall_ns = atomic_load_relaxed(&t->now.stall_ns),
                                  .waits = atomic_load_relaxed(&t->now.waits),
                                  .wait_ns = atomic_load_relaxed(&t->now.wait_ns) };
}

/* ------------------------------------------------------------------------- what a step is of */

/* Adds what the thread did since its base. Under the lock. Return: whether it launched anything. */
static bool add_counts(struct trace_step *step, const struct trace_thread *t)
{
    struct trace_counts now = steps_counts(t);
    uint64_t launches = now.launches - t->base.launches, graphs = now.graphs - t->base.graphs;
    step->at.launches += (uint32_t)launches;
    step->at.graph_launches += (uint32_t)graphs;
    step->at.own += (uint32_t)(now.own - t->base.own);
    step->at.loads += (uint32_t)(now.loads - t->base.loads);
    step->at.allocations += (uint32_t)(now.allocations - t->base.allocations);
    step->at.stall_ns += now.stall_ns - t->base.stall_ns;
    step->at.waits += (uint32_t)(now.waits - t->base.waits);
    step->at.wait_us += (uint32_t)((now.wait_ns - t->base.wait_ns) / 1000);
    uint64_t waited_ns = now.waits > t->base.waits ? atomic_load_relaxed(&t->waited_ns) : 0;
    if (step->at.waited_ns < waited_ns)
        step->at.waited_ns = waited_ns;
    return launches || graphs;
}

/* Where the thread's event stands in the step, which it may have launched for before. */
static uint32_t place_of_end(const struct trace_step *step, const struct trace_thread *t)
{
    return FIRST(i, step->n_ends, step->end_of[i] == t, i + 1, 0);
}

void steps_add_end(struct step_ending *e, struct trace_thread *t, bool unended)
{
    struct trace_step *step = e->step;
    if (t->end && t->recorded == steps_made(t))
        return;
    t->end = t->end ? t->end : place_of_end(step, t);
    if (unended) {
        step->end_flags |= DMI_STEP_ELSEWHERE;
        return;
    }
    if (atomic_load_relaxed(&t->last_gone)) {
        step->end_flags |= DMI_STEP_STREAM_GONE;
        return;
    }
    if (!t->end && step->n_ends == STEP_MAX_ENDS) {
        step->end_flags |= DMI_STEP_ELSEWHERE;
        return;
    }
    if (!t->end) {
        step->end_of[step->n_ends] = t;
        t->end = ++step->n_ends;
    }
    t->recorded = steps_made(t);
    e->at[e->n].i = t->end - 1;
    e->at[e->n].own = t == trace_self;
    e->at[e->n].context = atomic_load_relaxed(&t->last_context);
    e->at[e->n++].stream =
        (struct stream){ atomic_load_relaxed(&t->last), atomic_load_relaxed(&t->last_per_thread) };
}

void steps_record(struct step_ending *e)
{
    for (uint32_t i = 0; i < e->n; i++)
        events_end(e->step, e->at[i].i, e->at[i].stream, e->at[i].own, e->at[i].context);
}

/* All of the step is known but what the device says. */
static void put(struct trace_step *step)
{
    step->at.end_ns = step->end_ns;
    step->at.flags |= step->end_flags;
    stepring_put(step);
}

void steps_recorded(struct trace_step *step)
{
    pthread_mutex_lock(&steps.lock);
    step->timed = true;
    bool last = !--step->recording && step->over;
    pthread_mutex_unlock(&steps.lock);
    if (last)
        put(step);
}

/* ------------------------------------------------------------------------- the end of a step */

void steps_take(struct step_ending *e, uint64_t now_ns, uint32_t flags)
{
    struct trace_step *step = e->step;
    step->end_ns = now_ns;
    step->end_flags |= flags | (step->n_ends > 1 ? DMI_STEP_SEVERAL : 0);
    step->end_flags |= step->at.launches || step->at.graph_launches ? 0 : DMI_STEP_NO_LAUNCH;
    if (step->begun && !step->timed) /* an event now would be before the first one */
        step->end_flags |= DMI_STEP_ELSEWHERE;
    if (step->end_flags >= DMI_STEP_NO_LAUNCH)
        e->n = 0;
    step->over = true;
    step->recording++; /* the calling thread, until steps_finish() */
}

void steps_collect(struct step_ending *e, bool unended)
{
    e->step = steps.engine;
    steps.engine = NULL;
    for (uint32_t i = 0; e->step && i < steps.top; i++) {
        struct trace_thread *t = &steps.threads[i];
        if (t->used && t->base_gate == e->step->gate && add_counts(e->step, t))
            steps_add_end(e, t, unended);
    }
}

void steps_collect_own(struct step_ending *e, struct trace_thread *t, bool unended)
{
    e->step = t->step;
    t->step = NULL;
    if (e->step && add_counts(e->step, t))
        steps_add_end(e, t, unended);
}

/* The engine's step is over. Under the lock. */
static void take_engine(struct step_ending *e, uint64_t now_ns, uint32_t flags)
{
    steps_collect(e, flags & DMI_STEP_UNENDED);
    if (e->step)
        steps_take(e, now_ns, flags);
}

/* So is that of the thread. Under the lock. */
static void take_own(struct step_ending *e, struct trace_thread *t, uint64_t now_ns, uint32_t flags)
{
    steps_collect_own(e, t, flags & DMI_STEP_UNENDED);
    if (e->step)
        steps_take(e, now_ns, flags);
}

void steps_put_aside(struct step_ending *e, uint64_t now_ns)
{
    struct trace_step *step = e->step;
    if (!step)
        return;
    if (!step->pauses) {
        steps_take(e, now_ns, 0);
        return;
    }
    if (step->begun && !step->timed) { /* as steps_take() has it */
        step->end_flags |= DMI_STEP_ELSEWHERE;
        e->n = 0;
    }
    step->recording += e->n != 0;
    e->pauses = true;
    step->paused = steps.paused;
    steps.paused = step;
}

void steps_unpause(struct trace_step *step)
{
    struct trace_step **at = &steps.paused;
    while (*at && *at != step)
        at = &(*at)->paused;
    if (*at)
        *at = step->paused;
    step->paused = NULL;
}

void steps_finish(struct step_ending *e)
{
    if (!e->step)
        return;
    steps_record(e);
    if (!e->pauses || e->n)
        steps_recorded(e->step);
}

/* Does it go on no more? */
typedef bool ends_fn(const struct trace_step *step, const void *arg);

/* Steps that paused, and of which @ends says so, are over. Not under the lock. */
static void end_paused(ends_fn *ends, const void *arg, uint32_t flags)
{
    struct step_ending e;
    do {
        e = (struct step_ending){ 0 };
        pthread_mutex_lock(&steps.lock);
        e.step = steps.paused;
        while (e.step && !ends(e.step, arg))
            e.step = e.step->paused;
        if (e.step) {
            steps_unpause(e.step);
            steps_take(&e, clock_mono_ns(), flags);
        }
        pthread_mutex_unlock(&steps.lock);
        steps_finish(&e);
    } while (e.step);
}

static bool is_any(const struct trace_step *step, const void *arg)
{
    (void)step;
    (void)arg;
    return true;
}

static bool is_named(const struct trace_step *step, const void *arg)
{
    (void)arg;
    return step->at.source != DMI_STEP_ENGINE;
}

static bool is_of_thread(const struct trace_step *step, const void *arg)
{
    return step->of == arg;
}

/* The engine has paused too many, or begun another of its number. */
static bool is_forgotten(const struct trace_step *step, const void *arg)
{
    (void)arg;
    return step->at.source == DMI_STEP_ENGINE && said_is_gone(step->at.step);
}

void steps_end_forgotten(void)
{
    end_paused(is_forgotten, NULL, DMI_STEP_UNENDED);
}

/* ------------------------------------------------------------------------- launches */

void steps_first_launch(struct trace_step *step, struct stream stream)
{
    step->at.launch_ns = clock_mono_ns();
    events_begin(step, stream);
    steps_recorded(step);
}

/* What the thread does from here on belongs to the step of @gate, if to any. Under the lock. */
static void rebase(struct trace_thread *t, uint64_t gate)
{
    if (t->base_gate == gate || t->step)
        return;
    t->base = steps_counts(t);
    t->base_gate = t->apart || t->unsure ? 0 : gate;
    t->end = 0;
}

void steps_follow(struct trace_thread *t)
{
    if (steps_source() != DMI_STEP_ENGINE) {
        t->unsure = t->lost;
    } else if (!t->step) {
        struct said now = said_now(false);
        t->apart = t->strand = now.own;
        t->unsure = now.overlaps || (now.own ? t->lost : steps.lost);
    }
    rebase(t, steps_plain_gate());
}

/* What the thread launches from here on is for @step, NULL: for none. Under the lock. */
static void launches_for(struct trace_thread *t, const struct trace_step *step)
{
    bool alone = t->apart || t->unsure;
    uint64_t deal = t->step ? t->step->deal : alone ? ++steps.deals : steps.deal;
    atomic_store_relaxed(&t->deal, deal);
    t->in_step = step != NULL;
    if (atomic_load_relaxed(&trace_by_stream))
        t->entered_ns = clock_mono_ns();
}

struct trace_step *steps_see_gate(struct trace_thread *t)
{
    pthread_mutex_lock(&steps.lock);
    steps_follow(t);
    t->gate = steps_plain_gate(); /* no older one than the deal */
    struct trace_step *step = t->step ? t->step : t->apart || t->unsure ? NULL : steps.engine;
    t->beside = step && step->at.thread != own_tid;
    atomic_store_relaxed(&t->last_context, NULL);
    launches_for(t, step);
    if (step && step->begun)
        step = NULL;
    if (step) {
        step->begun = true;
        step->recording++;
    }
    pthread_mutex_unlock(&steps.lock);
    return step;
}

/* The thread that ends the step has to know in which context the default stream of this one is: an autograd engine's thread launches there. */
void steps_note_context(struct trace_thread *t)
{
    int saved = errno;
    atomic_store_relaxed(&t->last_context, current_context());
    errno = saved;
}

/* ------------------------------------------------------------------------- one step after another */

void steps_next_gate(void)
{
    uint64_t gate = atomic_load_relaxed(&trace_gate);
    if (gate)
        atomic_store_release(&trace_gate, gate + 1);
    atomic_store_relaxed(&steps.deal, ++steps.deals);
}

struct trace_step *steps_new(enum dmi_step_source source, uint64_t sequence, uint64_t now_ns)
{
    struct trace_step *step = stepring_take();
    if (!step) {
        stepring_lose();
        return NULL;
    }
    step->at.step = sequence;
    step->at.engine_step = DMI_NO_STEP;
    step->at.begin_ns = now_ns;
    step->real_ns = clock_real_ns();
    step->at.thread = own_tid ? own_tid : (own_tid = (uint32_t)gettid());
    step->at.source = source;
    if (source == DMI_STEP_NAMED_RANGE)
        step->range = atomic_add_relaxed(&steps.ranges, 1) + 1;
    return step;
}

void steps_put_own(struct trace_thread *t, struct trace_step *step, bool begun)
{
    t->step = step;
    t->apart = true;
    t->base = steps_counts(t);
    t->base_gate = 0;
    t->end = 0;
    t->gate = begun ? steps_plain_gate() : 0;
    t->unsure = t->lost;
    launches_for(t, step);
}

void steps_draw_deal(struct trace_step *step)
{
    uint64_t deal = step->of ? ++steps.deals : steps.deal;
    bool more = step->deal && atomic_load_relaxed(&trace_by_stream);
    if (more && !GROW(step->deals, step->n_deals, step->room_deals))
        step->deals[step->n_deals++] = step->deal;
    step->deal = deal;
}

void steps_end_own(bool all)
{
    for (uint32_t i = 0; i < atomic_load_relaxed(&steps.top); i++) {
        struct trace_thread *t = &steps.threads[i];
        struct step_ending e = { 0 };
        pthread_mutex_lock(&steps.lock);
        if (t->step && (all || is_named(t->step, NULL)))
            take_own(&e, t, clock_mono_ns(), DMI_STEP_UNENDED);
        pthread_mutex_unlock(&steps.lock);
        steps_finish(&e);
    }
    end_paused(all ? is_any : is_named, NULL, DMI_STEP_UNENDED);
}

/* The driver is not called here: of what the thread launched last no end is known. */
static void thread_ends(void *arg)
{
    struct trace_thread *t = arg;
    struct step_ending e = { 0 };
    lanes_leave(t);
    pthread_mutex_lock(&steps.lock);
    take_own(&e, t, clock_mono_ns(), DMI_STEP_UNENDED);
    if (steps.engine && t->base_gate == steps.engine->gate && add_counts(steps.engine, t))
        steps.engine->end_flags |= DMI_STEP_ELSEWHERE;
    pthread_mutex_unlock(&steps.lock);
    steps_finish(&e);
    end_paused(is_of_thread, t, DMI_STEP_UNENDED);
    UNDER(&steps.lock, t->used = false);
    trace_self = NULL;
}

uint64_t steps_deal(void)
{
    return steps_source() == DMI_STEP_ENGINE ? atomic_load_relaxed(&steps.deal) : 0;
}

uint32_t steps_source(void)
{
    return atomic_load_relaxed(&steps.source);
}

/* ------------------------------------------------------------------------- start and stop */

void steps_set_captures(void)
{
    uint64_t gate = atomic_load_relaxed(&trace_gate);
    uint64_t bit = steps.captures ? TRACE_GATE_CAPTURES : 0;
    if (gate)
        atomic_store_release(&trace_gate, (gate & ~TRACE_GATE_CAPTURES) | bit); /* to enter() */
}

void steps_start(bool kernels)
{
    pthread_mutex_lock(&steps.lock);
    atomic_store_release(&trace_gate, 1 | (kernels ? TRACE_GATE_KERNELS : 0)); /* to enter() */
    steps.deals = steps.deal = 1;
    steps_set_captures();
    pthread_mutex_unlock(&steps.lock);
}

void steps_stop(void)
{
    struct step_ending e = { 0 };
    pthread_mutex_lock(&steps.lock);
    atomic_store_release(&trace_gate, (uint64_t)0);
    take_engine(&e, clock_mono_ns(), DMI_STEP_UNENDED);
    pthread_mutex_unlock(&steps.lock);
    steps_finish(&e);
    steps_end_own(true);
}

void steps_reset(void)
{
    steps.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (uint32_t i = 0; i < TRACE_THREADS; i++)
        steps.threads[i] = (struct trace_thread){ 0 };
    steps.engine = steps.paused = NULL;
    steps.deals = steps.deal = 0;
    steps.lost = false;
    steps.source = steps.captures = 0;
    trace_gate = 0;
    trace_self = NULL;
    own_tid = 0;
}
