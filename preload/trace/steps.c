/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/steps.h"

#include "core/clock.h"
#include "preload/trace/batch.h"
#include "preload/trace/events.h"
#include "preload/trace/lanes.h"
#include "preload/trace/named.h"

#include <dmi/format.h>

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

uint64_t trace_gate;
__thread __attribute__((tls_model("initial-exec"))) struct trace_thread *trace_self;

static struct {
    pthread_mutex_t lock; /* all below, and what threads.h says */
    struct trace_thread threads[TRACE_THREADS];
    uint32_t top;              /* places that were ever in use; atomic */
    struct trace_step *engine; /* the engine's step, NULL: none is under way */
    uint32_t source;           /* the best that came; atomic */
    uint32_t captures;         /* streams that are being captured */
    uint64_t deals;            /* the last deal (struct trace_thread) that was drawn */
    uint64_t deal;             /* the gate's; atomic */
    uint64_t said; /* one more than the sequence of the engine's step; 0: none; atomic */
} steps = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* What is to be recorded of a step, once the lock is released. */
struct ending {
    struct trace_step *step; /* NULL: nothing */
    struct {
        struct stream stream;
        uint32_t i; /* place in its ends */
        bool own;   /* the stream is of the calling thread */
    } at[STEP_MAX_ENDS];
    uint32_t n;
};

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

/* The calling thread's place, NULL: all are taken. */
static struct trace_thread *self(void)
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

static struct trace_counts counts_of(const struct trace_thread *t)
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

/* The gate without its bits. */
static uint64_t plain_gate(void)
{
    return atomic_load_relaxed(&trace_gate) & ~TRACE_GATE_BITS;
}

/* ------------------------------------------------------------------------- what a step is of */

/* Adds what the thread did since its base. Under the lock. Return: whether it launched anything. */
static bool add_counts(struct trace_step *step, const struct trace_thread *t)
{
    struct trace_counts now = counts_of(t);
    uint64_t launches = now.launches - t->base.launches, graphs = now.graphs - t->base.graphs;
    step->at.launches += (uint32_t)launches;
    step->at.graph_launches += (uint32_t)graphs;
    step->at.own += (uint32_t)(now.own - t->base.own);
    step->at.loads += (uint32_t)(now.loads - t->base.loads);
    step->at.allocations += (uint32_t)(now.allocations - t->base.allocations);
    step->at.stall_ns += now.stall_ns - t->base.stall_ns;
    step->at.waits += (uint32_t)(now.waits - t->base.waits);
    step->at.wait_us += (uint32_t)((now.wait_ns - t->base.wait_ns) / 1000);
    return launches || graphs;
}

/* How many launches the thread has made. */
static uint64_t made(const struct trace_thread *t)
{
    return atomic_load_relaxed(&t->now.launches) + atomic_load_relaxed(&t->now.graphs);
}

/*
 * An event after what the thread launched last is to be recorded, unless there is one. @unended: it is not, as the driver must not be called.
 * Under the lock.
 */
static void add_end(struct ending *e, struct trace_thread *t, bool unended)
{
    struct trace_step *step = e->step;
    if (t->end && t->recorded == made(t))
        return;
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
    if (!t->end)
        t->end = ++step->n_ends;
    t->recorded = made(t);
    e->at[e->n].i = t->end - 1;
    e->at[e->n].own = t == trace_self;
    e->at[e->n++].stream =
        (struct stream){ atomic_load_relaxed(&t->last), atomic_load_relaxed(&t->last_per_thread) };
}

/* Not under the lock. */
static void record(struct ending *e)
{
    for (uint32_t i = 0; i < e->n; i++)
        events_end(e->step, e->at[i].i, e->at[i].stream, e->at[i].own);
}

/* All of the step is known but what the device says. */
static void put(struct trace_step *step)
{
    step->at.end_ns = step->end_ns;
    step->at.flags |= step->end_flags;
    stepring_put(step);
}

/* The calling thread has recorded what it had to, of the step. Not under the lock. */
static void recorded(struct trace_step *step)
{
    pthread_mutex_lock(&steps.lock);
    step->timed = true;
    bool last = !--step->recording && step->over;
    pthread_mutex_unlock(&steps.lock);
    if (last)
        put(step);
}

/* ------------------------------------------------------------------------- the end of a step */

/* The step ended at @now_ns: nothing is added to it any more. The last thread that records puts it. Under the lock. */
static void take(struct ending *e, uint64_t now_ns, uint32_t flags)
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
    step->recording++; /* the calling thread, until finish() */
}

/* The engine's step is over. Under the lock. */
static void take_engine(struct ending *e, uint64_t now_ns, uint32_t flags)
{
    e->step = steps.engine;
    steps.engine = NULL;
    for (uint32_t i = 0; e->step && i < steps.top; i++) {
        struct trace_thread *t = &steps.threads[i];
        if (t->used && t->base_gate == e->step->gate && add_counts(e->step, t))
            add_end(e, t, flags & DMI_STEP_UNENDED);
    }
    if (e->step)
        take(e, now_ns, flags);
}

/* So is that of the thread. Under the lock. */
static void take_own(struct ending *e, struct trace_thread *t, uint64_t now_ns, uint32_t flags)
{
    e->step = t->step;
    t->step = NULL;
    if (!e->step)
        return;
    if (add_counts(e->step, t))
        add_end(e, t, flags & DMI_STEP_UNENDED);
    take(e, now_ns, flags);
}

/* What was taken is recorded. Not under the lock. */
static void finish(struct ending *e)
{
    if (!e->step)
        return;
    record(e);
    recorded(e->step);
}

/* ------------------------------------------------------------------------- launches */

/* The step's first launch comes next. */
static void first_launch(struct trace_step *step, struct stream stream)
{
    step->at.launch_ns = clock_mono_ns();
    events_begin(step, stream);
    recorded(step);
}

/* What the thread does from here on belongs to the step of @gate. Under the lock. */
static void rebase(struct trace_thread *t, uint64_t gate)
{
    if (t->base_gate == gate || t->step)
        return;
    t->base = counts_of(t);
    t->base_gate = gate;
    t->end = 0;
}

/* What the thread launches from here on is for @step, NULL: for none. Under the lock. */
static void launches_for(struct trace_thread *t, const struct trace_step *step)
{
    bool own = t->step != NULL;
    atomic_store_relaxed(&t->deal, own ? step->deal : steps.deal);
    t->in_step = step != NULL;
    if (atomic_load_relaxed(&trace_by_stream))
        t->entered_ns = clock_mono_ns();
}

/* The thread sees the gate of a step for the first time. Return: the step, if this launch is its first; NULL: it is not. */
static struct trace_step *see_gate(struct trace_thread *t, uint64_t gate)
{
    struct trace_step *step = NULL;
    pthread_mutex_lock(&steps.lock);
    gate = plain_gate(); /* no older one than the deal */
    rebase(t, gate);
    t->gate = gate;
    step = t->step ? t->step : steps.engine;
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

static struct trace_thread *enter(const void *function, struct stream stream)
{
    uint64_t gate =
        atomic_load_acquire(&trace_gate); /* of steps_start(), next_gate() and set_captures() */
    struct trace_thread *t = gate ? self() : NULL;
    if (!t || ((gate & TRACE_GATE_CAPTURES) && stream_is_capturing(stream)))
        return NULL;
    if ((gate & TRACE_GATE_KERNELS) && function && named_kernel(function))
        steps_begins(DMI_STEP_NAMED_KERNEL, stream);
    else if (!function && named_graph())
        steps_begins(DMI_STEP_NAMED_GRAPH, stream);
    gate &= ~TRACE_GATE_BITS;
    struct trace_step *step = t->gate == gate ? NULL : see_gate(t, gate);
    if (step)
        first_launch(step, stream);
    return t;
}

struct trace_thread *steps_enter(const void *function, struct stream stream)
{
    int saved = errno;
    struct trace_thread *t = enter(function, stream);
    errno = saved;
    return t;
}

/* ------------------------------------------------------------------------- the engine's steps */

/* Under the lock: launches from here on see another gate. Acquired by enter(). */
static void next_gate(void)
{
    uint64_t gate = atomic_load_relaxed(&trace_gate);
    if (gate)
        atomic_store_release(&trace_gate, gate + 1);
    atomic_store_relaxed(&steps.deal, ++steps.deals);
}

static struct trace_step *new_step(enum dmi_step_source source, uint64_t sequence, uint64_t now_ns)
{
    struct trace_step *step = stepring_take();
    if (!step) {
        stepring_lose();
        return NULL;
    }
    step->at.step = sequence;
    step->at.begin_ns = now_ns;
    step->at.thread = own_tid ? own_tid : (own_tid = (uint32_t)gettid());
    step->at.source = source;
    return step;
}

/* Steps that threads have of their own end where the engine says steps. */
static void end_own_steps(void)
{
    for (uint32_t i = 0; i < atomic_load_relaxed(&steps.top); i++) {
        struct ending e = { 0 };
        pthread_mutex_lock(&steps.lock);
        take_own(&e, &steps.threads[i], clock_mono_ns(), DMI_STEP_UNENDED);
        pthread_mutex_unlock(&steps.lock);
        finish(&e);
    }
}

void steps_engine_begins(const struct dmi_step *said, uint64_t sequence)
{
    struct ending e = { 0 };
    if (!atomic_load_relaxed(&trace_gate))
        return;
    uint64_t now = clock_mono_ns();
    if (atomic_load_relaxed(&steps.source) != DMI_STEP_ENGINE) {
        atomic_store_relaxed(&steps.source, DMI_STEP_ENGINE);
        end_own_steps();
    }
    struct trace_step *step = new_step(DMI_STEP_ENGINE, sequence, now);
    if (step)
        batch_describe(&step->at, said);
    pthread_mutex_lock(&steps.lock);
    take_engine(&e, now, 0);
    next_gate();
    if (step) {
        step->gate = plain_gate();
        step->deal = steps.deal;
    }
    steps.engine = step;
    atomic_store_relaxed(&steps.said, sequence + 1);
    pthread_mutex_unlock(&steps.lock);
    finish(&e);
}

void steps_engine_ends(void)
{
    struct ending e = { 0 };
    if (!atomic_load_relaxed(&trace_gate))
        return;
    pthread_mutex_lock(&steps.lock);
    take_engine(&e, clock_mono_ns(), 0);
    atomic_store_relaxed(&steps.said, (uint64_t)0);
    next_gate();
    pthread_mutex_unlock(&steps.lock);
    finish(&e);
}

/* ------------------------------------------------------------------------- a thread's own steps */

/* Is @source the best that came? */
static bool is_in_force(enum dmi_step_source source)
{
    uint32_t best = atomic_load_relaxed(&steps.source);
    while (best < source && !atomic_cas_acq_rel(&steps.source, &best, source))
        ;
    return best <= source;
}

/* @begun: a launch follows at once. */
static struct trace_step *begin_own(struct trace_thread *t, enum dmi_step_source source, bool begun)
{
    uint64_t now = clock_mono_ns();
    struct ending e = { 0 };
    struct trace_step *step = new_step(source, DMI_NO_STEP, now);
    pthread_mutex_lock(&steps.lock);
    take_own(&e, t, now, 0);
    steps.deals++;
    if (step)
        step->deal = steps.deals;
    else
        atomic_store_relaxed(&steps.deal, steps.deals); /* the step is lost */
    t->base = counts_of(t);
    t->base_gate = 0;
    t->end = 0;
    t->gate = begun ? plain_gate() : 0;
    t->step = step;
    launches_for(t, step);
    if (step) {
        step->begun = begun;
        step->recording = begun;
    }
    pthread_mutex_unlock(&steps.lock);
    finish(&e);
    return step;
}

void steps_begins(enum dmi_step_source source, struct stream stream)
{
    struct trace_thread *t = trace_self;
    struct trace_step *step = t && is_in_force(source) ? begin_own(t, source, true) : NULL;
    if (step)
        first_launch(step, stream);
}

void steps_begins_soon(enum dmi_step_source source)
{
    struct trace_thread *t = atomic_load_relaxed(&trace_gate) ? self() : NULL;
    if (t && is_in_force(source))
        begin_own(t, source, false);
}

/* The driver is not called here: of what the thread launched last no end is known. */
static void thread_ends(void *arg)
{
    struct trace_thread *t = arg;
    struct ending e = { 0 };
    lanes_leave(t);
    pthread_mutex_lock(&steps.lock);
    take_own(&e, t, clock_mono_ns(), DMI_STEP_UNENDED);
    if (steps.engine && t->base_gate == steps.engine->gate && add_counts(steps.engine, t))
        steps.engine->end_flags |= DMI_STEP_ELSEWHERE;
    t->used = false;
    pthread_mutex_unlock(&steps.lock);
    trace_self = NULL;
    finish(&e);
}

uint64_t steps_said(void)
{
    return atomic_load_relaxed(&steps.said) - 1; /* DMI_NO_STEP is the highest number */
}

uint64_t steps_deal(void)
{
    return steps_source() == DMI_STEP_ENGINE ? atomic_load_relaxed(&steps.deal) : 0;
}

uint32_t steps_source(void)
{
    return atomic_load_relaxed(&steps.source);
}

/* ------------------------------------------------------------------------- what happens beside */

static void set_captures(void)
{
    uint64_t gate = atomic_load_relaxed(&trace_gate);
    uint64_t bit = steps.captures ? TRACE_GATE_CAPTURES : 0;
    if (gate)
        atomic_store_release(&trace_gate, (gate & ~TRACE_GATE_CAPTURES) | bit); /* to enter() */
}

void steps_capture_begins(void)
{
    pthread_mutex_lock(&steps.lock);
    steps.captures++;
    set_captures();
    pthread_mutex_unlock(&steps.lock);
}

void steps_capture_ends(void)
{
    pthread_mutex_lock(&steps.lock);
    steps.captures -= steps.captures != 0;
    set_captures();
    pthread_mutex_unlock(&steps.lock);
}

void steps_stream_ends(CUstream stream)
{
    for (uint32_t i = 0; i < atomic_load_relaxed(&steps.top); i++)
        if (!stream || atomic_load_relaxed(&steps.threads[i].last) == stream)
            atomic_store_relaxed(&steps.threads[i].last_gone, true);
    lanes_stream_ends(stream);
    events_stream_ends(stream);
}

/* The calling thread's place, with the base of the step under way. Return: NULL: it has none. */
static struct trace_thread *based_self(void)
{
    struct trace_thread *t = self();
    if (!t)
        return NULL;
    pthread_mutex_lock(&steps.lock);
    rebase(t, plain_gate());
    pthread_mutex_unlock(&steps.lock);
    return t;
}

void steps_stalled(bool loads, uint64_t ns)
{
    struct trace_thread *t = based_self();
    if (!t)
        return;
    uint64_t *calls = loads ? &t->now.loads : &t->now.allocations;
    atomic_store_relaxed(calls, *calls + 1);
    atomic_store_relaxed(&t->now.stall_ns, t->now.stall_ns + ns);
}

/* The step that the thread launches for; NULL: none. Under the lock. */
static struct trace_step *step_of(const struct trace_thread *t)
{
    bool of_engine = steps.engine && t->base_gate == steps.engine->gate;
    return t->step ? t->step : of_engine ? steps.engine : NULL;
}

void steps_look(void)
{
    struct trace_thread *t = trace_self;
    struct ending e = { 0 };
    if (!t || (t->end && t->recorded == made(t)))
        return;
    int saved = errno;
    pthread_mutex_lock(&steps.lock);
    e.step = step_of(t);
    if (e.step && e.step->timed && !atomic_load_relaxed(&t->last_gone))
        add_end(&e, t, false);
    if (e.n)
        e.step->recording++;
    pthread_mutex_unlock(&steps.lock);
    if (e.n) {
        record(&e);
        recorded(e.step);
    }
    errno = saved;
}

void steps_waited(uint64_t ns)
{
    struct trace_thread *t = based_self();
    if (!t)
        return;
    atomic_store_relaxed(&t->now.waits, t->now.waits + 1);
    atomic_store_relaxed(&t->now.wait_ns, t->now.wait_ns + ns);
}

void steps_own(uint32_t n)
{
    struct trace_thread *t = n ? trace_self : NULL;
    if (t)
        atomic_store_relaxed(&t->now.own, t->now.own + n);
}

/* ------------------------------------------------------------------------- start and stop */

void steps_start(bool kernels)
{
    pthread_mutex_lock(&steps.lock);
    atomic_store_release(&trace_gate, 1 | (kernels ? TRACE_GATE_KERNELS : 0)); /* to enter() */
    steps.deals = steps.deal = 1;
    set_captures();
    pthread_mutex_unlock(&steps.lock);
}

void steps_stop(void)
{
    struct ending e = { 0 };
    pthread_mutex_lock(&steps.lock);
    atomic_store_release(&trace_gate, (uint64_t)0);
    take_engine(&e, clock_mono_ns(), DMI_STEP_UNENDED);
    pthread_mutex_unlock(&steps.lock);
    finish(&e);
    end_own_steps();
}

void steps_reset(void)
{
    steps.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (uint32_t i = 0; i < TRACE_THREADS; i++)
        steps.threads[i] = (struct trace_thread){ 0 };
    steps.engine = NULL;
    steps.said = steps.deals = steps.deal = 0;
    steps.source = steps.captures = 0;
    trace_gate = 0;
    trace_self = NULL;
    own_tid = 0;
}
