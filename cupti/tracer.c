/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/tracer.h"

#include "core/any.h"
#include "core/atomic.h"
#include "cupti/layouts.h"
#include "cupti/library.h"
#include "cupti/pool.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#define FORCED         1u           /* CUPTI_ACTIVITY_FLAG_FLUSH_FORCED */
#define DEVICE_BYTES   0            /* CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE */
#define DEVICE_BUFFERS 2            /* CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT */
#define MOST_DEVICE    (256u << 20) /* bytes of device memory a context for records */
#define PAUSE_NS       100000       /* between looks at a call that is under way, */
#define MOST_PAUSES    10000        /* and so many of them: a second */

/* Kinds that are asked for. */
static const int kinds[] = { LAYOUTS_KERNEL, LAYOUTS_COPY, LAYOUTS_SET, LAYOUTS_COPY_PEER };
static const char *const words[] = { "kernels", "copies", "fills", "copies between devices" };
#define N_KINDS (sizeof kinds / sizeof *kinds)

static struct {
    struct library library;
    uint32_t version;
    int state; /* enum state; atomic */
    int busy;  /* 1: a thread of ours is in a call of CUPTI's, for the tracer; atomic */
    struct tracer_counts counts;
    char lacks[128]; /* kinds that it does not record */

    /* the other user's; atomic */
    library_request *asked; /* in the place of the pool; NULL: the pool is asked */
    library_complete *given;
} tracer;

enum state { TRACER_NEW = 0, TRACER_RUNS = 1, TRACER_OVER = 2, TRACER_LENT = 3 };

static bool is_in(enum state state)
{
    return atomic_load_acquire(&tracer.state) == (int)state; /* of the thread that changed it */
}

/* ------------------------------------------------------------------------- CUPTI's threads */

static void request(uint8_t **buffer, size_t *n_bytes, size_t *most_records)
{
    library_request *asked = atomic_load_acquire(&tracer.asked); /* of tracer_route() */
    if (asked) {
        asked(buffer, n_bytes, most_records);
        return;
    }
    *buffer = pool_take(n_bytes);
    *most_records = 0; /* as many as it holds */
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t n_bytes,
                     size_t n_valid)
{
    if (!pool_owns(buffer)) { /* it may have been out when CUPTI changed hands */
        library_complete *given = atomic_load_acquire(&tracer.given); /* of tracer_route() */
        if (given)
            given(context, stream, buffer, n_bytes, n_valid);
        return;
    }
    if (n_bytes) /* none: the reserve, given again, which its first owner still writes */
        pool_fill(buffer, n_valid < n_bytes ? n_valid : n_bytes);
}

/* ------------------------------------------------------------------------- start */

/*
 * Bounds what CUPTI allocates of device memory in a context: a version that refuses the attribute keeps its own bound. Counts only before contexts are there.
 */
static void bound_device_memory(void)
{
    size_t n = sizeof(size_t), bytes = 0;
    if (!tracer.library.set_attribute)
        return;
    bytes = 4u << 20;
    tracer.library.set_attribute(DEVICE_BYTES, &n, &bytes);
    size_t limit = MOST_DEVICE / bytes;
    tracer.library.set_attribute(DEVICE_BUFFERS, &n, &limit);
}

/* Kernels are needed, the others are not. */
static int enable(void)
{
    int r = tracer.library.enable(kinds[0]);
    size_t n = 0;
    for (size_t i = 1; !r && i < N_KINDS; i++) {
        int refused = tracer.library.enable(kinds[i]);
        if (refused)
            n += (size_t)snprintf(tracer.lacks + n, sizeof tracer.lacks - n, "%s%s (error %d)",
                                  n ? ", " : "", words[i], refused);
    }
    return r;
}

static int ask(struct err *err)
{
    struct library *l = &tracer.library;
    int r = l->get_version(&tracer.version);
    if (r)
        return err_set(err, -ENOTSUP, "%s does not say its version (error %d)", l->path, r);
    if (tracer.version < LAYOUTS_FIRST)
        return err_set(err, -ENOTSUP, "%s is older than CUDA 11.8", l->path);
    bound_device_memory();
    r = l->register_callbacks(request, complete);
    r = r ? r : enable();
    if (r == LIBRARY_TAKEN)
        return err_set(err, -EBUSY, "another profiler has CUPTI (error %d)", r);
    return r ? err_set(err, -ENOTSUP, "%s records no kernels here (error %d)", l->path, r) : 0;
}

int tracer_start(struct err *err, library_lookup *lookup, const char *path, int major)
{
    if (!is_in(TRACER_NEW))
        return err_set(err, -EBUSY, "it was started before");
    int r = library_find(err, &tracer.library, lookup, path, major);
    r = r ? r : ask(err);
    atomic_store_release(&tracer.state, r ? TRACER_OVER : TRACER_RUNS); /* to is_in() */
    return r;
}

bool tracer_runs(void)
{
    return is_in(TRACER_RUNS);
}

bool tracer_brought(void)
{
    return !is_in(TRACER_NEW) && tracer.library.brought;
}

bool tracer_has_kind(int kind)
{
    return ANY(i, N_KINDS, kinds[i] == kind);
}

const char *tracer_path(void)
{
    return tracer.library.path;
}

const char *tracer_lacks(void)
{
    return tracer.lacks;
}

bool tracer_knows_layouts(void)
{
    return layouts_bytes(tracer.version, LAYOUTS_KERNEL);
}

bool tracer_stream_ids(void *context, void *stream, bool per_thread, uint32_t *context_id,
                       uint32_t *stream_id)
{
    const struct library *l = &tracer.library;
    return tracer_runs() && !l->get_context_id(context, context_id) &&
           !l->get_stream_id(context, stream, per_thread, stream_id);
}

bool tracer_graph_id(void *exec, uint32_t *id)
{
    const struct library *l = &tracer.library;
    if (!tracer_runs() || !l->get_exec_id || l->get_exec_id(exec, id))
        *id = 0;
    return *id;
}

bool tracer_node_id(void *node, uint64_t *id)
{
    const struct library *l = &tracer.library;
    if (!tracer_runs() || !l->get_node_id || l->get_node_id(node, id))
        *id = 0;
    return *id;
}

/* ------------------------------------------------------------------------- records */

/* A thread of ours is about to call CUPTI for the tracer. Return: false: it may not. leave() follows a true. */
static bool enter(void)
{
    __atomic_store_n(
        &tracer.busy, 1,
        __ATOMIC_SEQ_CST); /* before the look: tracer_lend() does it the other way round */
    if (__atomic_load_n(&tracer.state, __ATOMIC_SEQ_CST) == TRACER_RUNS)
        return true;
    atomic_store_release(&tracer.busy, 0);
    return false;
}

static void leave(void)
{
    atomic_store_release(&tracer.busy, 0); /* to wait_for_call() */
}

/* 0: CUPTI does not say it. */
static uint64_t timestamp(void)
{
    uint64_t ns = 0;
    return tracer.library.get_timestamp(&ns) == LIBRARY_OK ? ns : 0;
}

bool tracer_clock(struct clock_pair *now)
{
    *now = (struct clock_pair){ 0 };
    if (!tracer.library.get_timestamp || !enter())
        return false;
    *now = clock_pair(timestamp);
    leave();
    return now->other != 0;
}

bool tracer_says_clock(void)
{
    return tracer.library.get_timestamp != NULL;
}

int tracer_flush(bool forced)
{
    if (!enter())
        return LIBRARY_OK;
    int r = tracer.library.flush_all(forced ? FORCED : 0);
    leave();
    return r;
}

void tracer_take(void (*fn)(void *ctx, const struct records_event *event), void *ctx)
{
    struct pool_full full;
    size_t dropped = 0;
    while (pool_next(&full)) {
        records_walk(tracer.library.next_record, tracer.version, full.buffer, full.n_valid,
                     &tracer.counts.walk, fn, ctx);
        pool_give(full.buffer);
    }
    if (!enter())
        return;
    tracer.counts.untold = tracer.library.dropped(NULL, 0, &dropped);
    tracer.counts.n_untold += tracer.counts.untold != LIBRARY_OK;
    tracer.counts.dropped += dropped;
    leave();
}

static void disable(void)
{
    for (size_t i = 0; i < N_KINDS; i++)
        tracer.library.disable(kinds[i]);
}

void tracer_stop(void)
{
    if (is_in(TRACER_NEW))
        return;
    if (is_in(TRACER_RUNS)) /* else kinds are another user's */
        disable();
    atomic_store_release(&tracer.state, TRACER_OVER); /* to is_in() */
}

/* ------------------------------------------------------------------------- another user */

/* Not for ever: CUPTI may wait for the caller. */
static void wait_for_call(void)
{
    for (int i = 0; atomic_load_acquire(&tracer.busy) && i < MOST_PAUSES; i++) /* of leave() */
        nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
}

bool tracer_lend(void)
{
    int runs = TRACER_RUNS;
    if (!__atomic_compare_exchange_n(&tracer.state, &runs, TRACER_LENT, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST))
        return false;
    wait_for_call();
    tracer.library.flush_all(FORCED);
    disable();
    return true;
}

bool tracer_lent(void)
{
    return is_in(TRACER_LENT);
}

void tracer_route(const struct tracer_user *user)
{
    if (is_in(TRACER_RUNS))
        return;
    atomic_store_release(&tracer.given, user->complete); /* to complete() */
    atomic_store_release(&tracer.asked, user->request);  /* to request() */
}

int tracer_register(library_register *real)
{
    return real(request, complete);
}

void tracer_flush_user(void)
{
    if (is_in(TRACER_LENT) && atomic_load_relaxed(&tracer.given))
        tracer.library.flush_all(FORCED);
}

int tracer_take_back(void)
{
    atomic_store_release(&tracer.asked, (library_request *)NULL); /* to request() */
    int r = tracer.library.register_callbacks(request, complete);
    r = r ? r : enable();
    atomic_store_release(&tracer.state, r ? TRACER_OVER : TRACER_RUNS); /* to is_in() */
    return r;
}

struct tracer_counts tracer_counts(void)
{
    return tracer.counts;
}

void tracer_reset(void)
{
    if (tracer.state != TRACER_NEW)
        tracer.state = TRACER_OVER;
    tracer.busy = 0;
    pool_reset();
}
