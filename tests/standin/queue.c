/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.c - operations wait for those they depend on, then run on worker threads
 *
 * Streams, events and graphs are all the same thing here: edges between operations. A stream is the
 * chain of its operations; an event is a reference to one; a graph launch is a bundle between two.
 * With a delay seed each operation starts after a random pause, and of those ready any may be next.
 * Functions of the user run on one thread of their own, as they do with a driver, so that a function
 * that blocks stops no kernel.
 */
#include "programmatic.h"
#include "times.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct ready_list {
    struct op *head, **tail;
    unsigned n;
    unsigned n_idle;
    pthread_cond_t cond;
} ready = { .tail = &ready.head, .cond = PTHREAD_COND_INITIALIZER },
  ready_host = { .tail = &ready_host.head, .cond = PTHREAD_COND_INITIALIZER };

/* A grid whose blocks several workers run; lives on the stack of the worker that began it. */
struct share {
    struct share *next;
    atomic_ullong next_block;
    uint64_t n_blocks, chunk;
    CUresult (*run)(uint64_t first, uint64_t n, void *data);
    void *data;
    atomic_int result;
    unsigned n_active; /* helpers in it */
    pthread_cond_t left;
};
static struct share *shares;

static pthread_cond_t done_cond = PTHREAD_COND_INITIALIZER;
static bool started, stopping;
static pthread_t workers[MAX_WORKERS + 1];
static unsigned n_workers;
static unsigned n_running;
static uint64_t n_ops;
static uint64_t pick_state;
static _Atomic uint64_t delay_seed; /* pauses; changed by standin_seed() */

struct op *op_ref(struct op *op)
{
    op->refs++;
    return op;
}

static struct op *op_cache;

void op_unref(struct op *op)
{
    if (!op || --op->refs > 0)
        return;
    work_unref(op->work);
    if (op->dependents != op->inline_dependents)
        free(op->dependents);
    op->next_ready = op_cache;
    op_cache = op;
}

/* An operation that nothing can run before op_commit(); the caller owns one reference. */
struct op *op_new(struct context *ctx, struct work *work)
{
    struct op *op = op_cache;

    if (op) {
        op_cache = op->next_ready;
        memset(op, 0, sizeof(*op));
    } else {
        op = calloc(1, sizeof(*op));
        if (!op)
            return NULL;
    }
    op->refs = 1;
    op->n_pending = 1;
    op->ctx = ctx;
    op->work = work;
    op->dependents = op->inline_dependents;
    op->cap_dependents = (int)ARRAY_SIZE(op->inline_dependents);
    op->order = op->correlation = ++n_ops;
    op->ready_ns = times_given() ? clock_ns() : 0;
    return op;
}

/** op_depend() - @op runs only after @on; both uncommitted or queued; @on may be NULL or done */
void op_depend(struct op *op, struct op *on)
{
    if (!on || on->done || on == op)
        return;
    /* The same edge again, as joins make them, costs a check of the last only. */
    if (on->n_dependents > 0 && on->dependents[on->n_dependents - 1] == op)
        return;
    if (on->n_dependents == on->cap_dependents) {
        int cap = 2 * on->cap_dependents;
        struct op **grown = malloc((size_t)cap * sizeof(struct op *));

        if (!grown)
            return;
        memcpy(grown, on->dependents, (size_t)on->n_dependents * sizeof(struct op *));
        if (on->dependents != on->inline_dependents)
            free(on->dependents);
        on->dependents = grown;
        on->cap_dependents = cap;
    }
    on->dependents[on->n_dependents++] = op_ref(op);
    op->n_pending++;
}

static bool leads_to(struct op *op, const struct op *target, uint64_t search)
{
    while (op != target) {
        if (op->searched == search || !op->n_dependents)
            return false;
        op->searched = search;
        for (int i = 1; i < op->n_dependents; i++) {
            if (leads_to(op->dependents[i], target, search))
                return true;
        }
        op = op->dependents[0]; /* chains are long: they are followed, not descended into */
    }
    return true;
}

bool op_precedes(struct op *first, struct op *second)
{
    static uint64_t n_searches;

    if (!first || first->done)
        return true;
    return second && !second->done && leads_to(first, second, ++n_searches);
}

static bool is_host(const struct op *op)
{
    return op->work && (op->work->kind == WORK_HOST || op->work->kind == WORK_CALLBACK);
}

static void op_complete(struct op *op);

static void make_ready(struct op *op)
{
    struct ready_list *list = is_host(op) ? &ready_host : &ready;

    op->next_ready = NULL;
    *list->tail = op;
    list->tail = &op->next_ready;
    list->n++;
    if (list->n_idle)
        pthread_cond_signal(&list->cond);
}

/* Nothing to run and nothing to delay: done at once, without a trip through a worker. */
static bool is_marker(const struct op *op)
{
    return !op->work || op->work->kind == WORK_EMPTY;
}

void op_release(struct op *op)
{
    if (--op->n_pending > 0)
        return;
    if (is_marker(op))
        op_complete(op);
    else
        make_ready(op_ref(op));
}

/* Completion cascades through markers; depth is bounded by making them iterate over a list. */
static void op_complete(struct op *first)
{
    static struct op *pending; /* lock held throughout: one cascade at a time */
    static bool cascading;

    first->next_ready = pending;
    pending = op_ref(first);
    if (cascading)
        return;
    cascading = true;
    while (pending) {
        struct op *op = pending;
        struct op **dependents = op->dependents;
        int n = op->n_dependents;

        pending = op->next_ready;
        op->done = true;
        if (!op->end_ns)
            op->end_ns = times_given() && is_marker(op) ? op->ready_ns : clock_ns();
        op->n_dependents = 0;
        programmatic_end(op);
        if (op->on_done)
            op->on_done(op, op->on_done_data);
        if (op->n_waiters)
            pthread_cond_broadcast(&done_cond);
        for (int i = 0; i < n; i++) {
            if (dependents[i]->ready_ns < op->end_ns)
                dependents[i]->ready_ns = op->end_ns;
            op_release(dependents[i]);
            op_unref(dependents[i]);
        }
        op_unref(op);
    }
    cascading = false;
}

/** op_commit() - all edges are known; drops the creator's reference */
void op_commit(struct op *op)
{
    if (!started && !is_marker(op))
        queue_start();
    op_release(op);
    op_unref(op);
}

static struct op *take(struct ready_list *list)
{
    struct op **link = &list->head;
    struct op *op;

    if (driver.config.delay_seed && list->n > 1) {
        for (uint64_t skip = random_next(&pick_state) % list->n; skip; skip--)
            link = &(*link)->next_ready;
    }
    op = *link;
    *link = op->next_ready;
    if (!*link)
        list->tail = link;
    list->n--;
    return op;
}

/*
 * Another seed from here on, for many schedules in one process. No part of the Driver API: clients that know the
 * stand-in look it up by name. Does nothing in a process that began without a seed.
 */
__attribute__((visibility("default"))) void standin_seed(unsigned long long seed);
void standin_seed(unsigned long long seed)
{
    pthread_mutex_lock(&driver.lock);
    atomic_store(&delay_seed, seed);
    pick_state = seed;
    pthread_mutex_unlock(&driver.lock);
}

uint64_t op_draw(const struct op *op, uint64_t *state)
{
    *state = atomic_load(&delay_seed) * 0x100000001b3u + op->order;
    return driver.config.delay_seed ? random_next(state) : 0;
}

static void delay(const struct op *op)
{
    uint64_t state, ns = op_draw(op, &state);

    if (!driver.config.delay_seed || !driver.config.delay_max_ns)
        return;
    /* Mostly short, sometimes long: products of two draws. */
    ns %= driver.config.delay_max_ns + 1;
    if (random_next(&state) % 4)
        ns /= 16;
    nanosleep(&(struct timespec){ .tv_sec = (time_t)(ns / 1000000000u),
                                  .tv_nsec = (long)(ns % 1000000000u) },
              NULL);
}

static void share_run(struct share *share)
{
    for (;;) {
        uint64_t first = atomic_fetch_add(&share->next_block, share->chunk);
        uint64_t n = share->chunk;
        CUresult res;

        if (first >= share->n_blocks || atomic_load(&share->result) != CUDA_SUCCESS)
            return;
        if (n > share->n_blocks - first)
            n = share->n_blocks - first;
        res = share->run(first, n, share->data);
        if (res != CUDA_SUCCESS)
            atomic_store(&share->result, (int)res);
    }
}

/**
 * queue_share() - run(first, n, data) over blocks @first to @n_blocks, with the workers that are idle; no lock held
 * @chunk: how many at a time
 * Return: the first error that any part met.
 */
CUresult queue_share(uint64_t first, uint64_t n_blocks, uint64_t chunk,
                     CUresult (*run)(uint64_t first, uint64_t n, void *data), void *data)
{
    struct share share = {
        .next_block = first, .n_blocks = n_blocks, .chunk = chunk, .run = run, .data = data
    };
    struct share **link;

    pthread_cond_init(&share.left, NULL);
    pthread_mutex_lock(&driver.lock);
    share.next = shares;
    shares = &share;
    for (uint64_t n = ready.n_idle < n_blocks ? ready.n_idle : n_blocks; n; n--)
        pthread_cond_signal(&ready.cond);
    pthread_mutex_unlock(&driver.lock);
    share_run(&share);
    pthread_mutex_lock(&driver.lock);
    for (link = &shares; *link != &share;)
        link = &(*link)->next;
    *link = share.next;
    while (share.n_active)
        pthread_cond_wait(&share.left, &driver.lock);
    pthread_mutex_unlock(&driver.lock);
    pthread_cond_destroy(&share.left);
    return (CUresult)atomic_load(&share.result);
}

/* Help with a grid that has blocks left; lock held, dropped meanwhile. Return: whether there was one. */
static bool help(void)
{
    struct share *share = shares;

    while (share && atomic_load(&share->next_block) >= share->n_blocks)
        share = share->next;
    if (!share)
        return false;
    share->n_active++;
    pthread_mutex_unlock(&driver.lock);
    share_run(share);
    pthread_mutex_lock(&driver.lock);
    if (--share->n_active == 0)
        pthread_cond_signal(&share->left);
    return true;
}

static void sleep_until(uint64_t ns)
{
    const struct timespec until = { .tv_sec = (time_t)(ns / 1000000000u),
                                    .tv_nsec = (long)(ns % 1000000000u) };

    if (ns > clock_ns())
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static CUresult execute(struct op *op)
{
    uint64_t begin = activity_observed() ? activity_clock() : 0, ns;
    CUresult res = work_execute(op->work, op);

    if (res != CUDA_SUCCESS)
        return res;
    if (times_of(op, op->ready_ns, &ns)) {
        op->end_ns = op->ready_ns + ns;
        sleep_until(op->end_ns);
        activity_tell(op, times_real(op->ready_ns), times_real(op->end_ns));
    } else if (begin) {
        activity_tell(op, begin, activity_clock());
    }
    return res;
}

static void *worker(void *data)
{
    struct ready_list *list = data;

    pthread_setname_np(pthread_self(), list == &ready ? "standin-worker" : "standin-host");
    pthread_mutex_lock(&driver.lock);
    for (;;) {
        struct op *op;
        CUresult res = CUDA_SUCCESS;
        bool skip;

        while (!list->head && !stopping) {
            if (list == &ready && help())
                continue;
            list->n_idle++;
            pthread_cond_wait(&list->cond, &driver.lock);
            list->n_idle--;
        }
        if (stopping)
            break;
        op = take(list);
        skip = op->ctx->sticky != CUDA_SUCCESS && op->work->kind != WORK_CALLBACK &&
               op->work->kind != WORK_CONDITION;
        n_running++;
        pthread_mutex_unlock(&driver.lock);
        if (!skip) {
            delay(op);
            res = execute(op);
        }
        pthread_mutex_lock(&driver.lock);
        programmatic_join(op);
        n_running--;
        if (res != CUDA_SUCCESS && op->ctx->sticky == CUDA_SUCCESS)
            context_fail(op->ctx, res);
        op_complete(op);
        op_unref(op);
    }
    pthread_cond_broadcast(&done_cond);
    pthread_mutex_unlock(&driver.lock);
    return NULL;
}

static bool thread_start(struct ready_list *list)
{
    sigset_t all, old;
    bool ok;

    /* Signals of the application are not for this thread; faults of kernels are. */
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    ok = pthread_create(&workers[n_workers], NULL, worker, list) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    n_workers += ok;
    return ok;
}

/** queue_start() - start the workers at the first operation; lock held */
CUresult queue_start(void)
{
    bool ok = true;

    if (started)
        return CUDA_SUCCESS;
    started = true;
    if (!atomic_load(&delay_seed)) {
        pick_state = driver.config.delay_seed;
        atomic_store(&delay_seed, driver.config.delay_seed);
    }
    for (int i = 0; i < driver.config.n_threads; i++)
        ok &= thread_start(&ready);
    ok &= thread_start(&ready_host);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/**
 * queue_stop() - start no further operation; wait a moment for those that run, never for long
 *
 * Where none runs any more, the workers have ended on return: dlclose() takes their code away next.
 */
void queue_stop(void)
{
    struct timespec until;
    bool idle;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 300000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&driver.lock);
    stopping = true;
    pthread_cond_broadcast(&ready.cond);
    pthread_cond_broadcast(&ready_host.cond);
    while (n_running > 0) {
        if (pthread_cond_timedwait(&done_cond, &driver.lock, &until) != 0)
            break;
    }
    idle = n_running == 0;
    pthread_cond_broadcast(&done_cond);
    pthread_mutex_unlock(&driver.lock);
    while (idle && n_workers > 0)
        pthread_join(workers[--n_workers], NULL);
}

void queue_fork_child(void)
{
    started = false;
    stopping = true;
}

/**
 * queue_wait() - until @op is done; drops the lock meanwhile. Also returns when the process exits.
 * Every call that waits for the GPU comes here, so what its kernels printed is written here.
 */
void queue_wait(struct op *op)
{
    op_ref(op);
    op->n_waiters++;
    while (!op->done && !stopping)
        pthread_cond_wait(&done_cond, &driver.lock);
    op->n_waiters--;
    if (!stopping)
        print_flush(op->ctx);
    op_unref(op);
}

bool queue_pause(struct op *op, const struct timespec *until)
{
    int res = ETIMEDOUT;

    op->n_waiters++;
    if (!stopping)
        res = pthread_cond_timedwait(&done_cond, &driver.lock, until);
    op->n_waiters--;
    return !res;
}

void queue_tell(void)
{
    pthread_cond_broadcast(&done_cond);
}
