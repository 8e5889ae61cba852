/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/launch.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "preload/forward.h"
#include "preload/gather.h"
#include "preload/graphs.h"
#include "preload/hooks.h"
#include "preload/process.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define COPY_MAX_BLOCKS 1024u
#define WAIT_POLL_NS    50000

struct plan {
    uint32_t n;
    struct want want[16];
    uint64_t forward;
};

const struct func *launch_lookup(CUfunction function)
{
    const struct func *func = funcs_find(function);
    if (func)
        return func;
    if (!process_run())
        return &func_unmatched;
    return funcs_add(process.spec, function, FUNC_FUNCTION, NULL, NULL);
}

/* ------------------------------------------------------- 1. which sites, under the lock */

static void note_occurrences(struct arena *a, const struct func *func, struct plan *plan,
                             struct launch_job *job)
{
    forward_advance(a, func->match.kind);
    plan->n = 0;
    plan->forward = a->forward.sequence;
    for (uint32_t i = 0; i < func->match.n_sites; i++) {
        uint32_t id = func->match.sites[i];
        const struct spec_site *site = &process.spec->sites[id];
        uint32_t occ;
        if (!forward_occurrence(a, id, &occ))
            continue;
        job->noted[job->n_noted++] = id;
        atomic_add_relaxed(&process.counters->sites[id].launches, 1);
        struct want *w = &plan->want[plan->n];
        *w = (struct want){ .site = id, .occurrence = occ };
        w->range = a->sites[id].ranges[occ % ARENA_RANGES];
        /* those outside the selected occurrences, or switched off, were counted, and are not wanted */
        if (occ >= site->first_occurrence && occ <= site->last_occurrence && process_site_on(id))
            plan->n++;
    }
}

/* ------------------------------------------------------- 2. what and where, no lock */

static void fail_want(struct want *w, enum problem problem, enum dmi_drop drop, const char *what)
{
    process_problem(w->site, problem, "occurrence %u: %s", w->occurrence, what);
    w->error = (int)drop + 1;
}

/* The allocation that the tensor lies in must be live and hold all of it. */
static bool within_allocation(struct want *w)
{
    uint64_t first = w->plan.first, n = w->plan.n_touched;
    uint64_t epoch = atomic_load_acquire(&process.memory_epoch);
    if (!w->range.size || w->range.epoch != epoch || first < w->range.base ||
        first - w->range.base >= w->range.size) {
        CUdeviceptr base = 0;
        size_t size = 0;
        if (driver_table.cuMemGetAddressRange_v2(&base, &size, first) != CUDA_SUCCESS)
            return false;
        w->range = (struct arena_range){ .base = base, .size = size, .epoch = epoch };
    }
    uint64_t at = first - w->range.base;
    return at <= w->range.size && n <= w->range.size - at;
}

void want_check_memory(struct want *w)
{
    if (!w->error && w->plan.n_bytes && !within_allocation(w))
        fail_want(w, PROBLEM_BAD_POINTER, DMI_DROP_BAD_POINTER,
                  "the tensor lies outside a live device allocation");
}

void want_layer(struct want *w, struct expr_env *env)
{
    const struct spec_site *site = &process.spec->sites[w->site];
    int64_t layer;
    w->layer = RUN_NO_LAYER;
    env->occ = w->occurrence;
    if (w->error || !site->layer)
        return;
    if (expr_eval(site->layer, env, &layer) || layer < 0 || layer > INT32_MAX)
        fail_want(w, PROBLEM_BAD_EXPR, DMI_DROP_BAD_EXPR, "no layer number");
    else
        w->layer = (int32_t)layer;
}

void want_plan(struct want *w, struct expr_env *env)
{
    env->occ = w->occurrence;
    switch (gather_plan(&process.spec->sites[w->site], env, &w->plan)) {
    case 0: want_check_memory(w); break;
    case GATHER_E_PARAM:
        fail_want(w, PROBLEM_NO_PARAMS, DMI_DROP_BAD_EXPR,
                  "the launch has no such parameter, or the driver does not tell the kernel's "
                  "parameters (param[OFFSET] needs no such help with packed ones)");
        break;
    case GATHER_E_TOO_LARGE:
        fail_want(w, PROBLEM_TOO_LARGE, DMI_DROP_TOO_LARGE, "2 GiB or more in one record");
        break;
    case GATHER_E_POINTER:
        fail_want(w, PROBLEM_BAD_POINTER, DMI_DROP_BAD_POINTER, "the pointer is null or wild");
        break;
    default:
        fail_want(w, PROBLEM_BAD_EXPR, DMI_DROP_BAD_EXPR,
                  "an expression overflows, divides by zero or gives a senseless size");
    }
}

static void plan_all(const struct launch *l, const struct func *func, struct plan *plan)
{
    struct params params;
    params_init(&params, func->layout, l->kernel_params, l->extra);
    struct expr_env env = {
        .grid = l->grid,
        .block = l->block,
        .shared_bytes = l->shared_bytes,
        .param = params_read,
        .param_ctx = &params,
    };
    for (uint32_t i = 0; i < plan->n; i++) {
        want_plan(&plan->want[i], &env);
        want_layer(&plan->want[i], &env);
    }
}

/* ------------------------------------------------------- 3. room in the ring, under the lock */

static void fill_copy(struct arena *a, const struct want *w, uint64_t seq, uint64_t slot,
                      uint64_t payload, struct dmi_copy *copy)
{
    uint64_t at = slot & (a->ring.n_slots - 1);
    *copy = (struct dmi_copy){
        .gather = w->plan.gather,
        .record =
            {
                .ready = seq,
                .payload = payload,
                .n_bytes = w->plan.n_bytes,
                .site = w->site,
                .n_rows = w->plan.dims[0],
                .occurrence = w->occurrence,
                .src = w->plan.gather.src,
            },
        .payload = a->payload,
        .desc = a->desc_device + at * sizeof(struct dmi_desc),
        .retired = a->retired + at * sizeof(uint32_t),
    };
}

void want_fill_pending(struct arena *a, const struct want *w, uint64_t forward, uint64_t slot)
{
    struct arena_pending *p = &a->pending[slot & (a->ring.n_slots - 1)];
    p->forward = forward;
    p->step = atomic_load_acquire(&process.step); /* of dmi_step_begin() */
    p->time_ns = clock_real_ns();
    p->layer = w->layer;
    p->occurrence = w->occurrence;
    p->dtype = process.spec->sites[w->site].about.dtype;
    p->n_dims = w->plan.n_dims;
    memcpy(p->dims, w->plan.dims, sizeof p->dims);
}

static int reserve_one(struct arena *a, const struct plan *plan, const struct want *w,
                       struct launch_item *item)
{
    int r = DMI_DROP_CONTEXT_GONE + 1;
    pthread_mutex_lock(&a->lock);
    /* acquires arena_stop(), and fail() in drain.c */
    if (atomic_load_acquire(&a->broken)) {
        r = DMI_DROP_DEVICE_ERROR + 1;
    } else if (atomic_load_acquire(&a->state) == ARENA_FAILED) {
        r = DMI_DROP_UNSUPPORTED + 1;
    } else if (atomic_load_acquire(&a->state) == ARENA_READY) {
        uint64_t seq = atomic_add_relaxed(&process.next_launch, 1);
        uint64_t payload;
        r = ring_reserve(&a->ring, seq, w->site, w->plan.n_bytes, &item->slot, &payload);
        if (r == 0) {
            fill_copy(a, w, seq, item->slot, payload, &item->copy);
            want_fill_pending(a, w, plan->forward, item->slot);
            a->sites[w->site].ranges[w->occurrence % ARENA_RANGES] = w->range;
        } else {
            r = (r == RING_E_FULL ? DMI_DROP_RING_FULL : DMI_DROP_TOO_LARGE) + 1;
        }
    }
    pthread_mutex_unlock(&a->lock);
    return r;
}

bool launch_wait(uint64_t *end_ns)
{
    if (process.spec->overload != SPEC_OVERLOAD_COMPLETE)
        return false;
    uint64_t now = clock_mono_ns();
    if (!*end_ns)
        *end_ns = now + process.spec->overload_wait_ns;
    struct timespec pause = { .tv_nsec = WAIT_POLL_NS };
    return now < *end_ns && (nanosleep(&pause, NULL), true);
}

void want_expect(const struct want *w)
{
    process_count(&process.counters->sites[w->site].expected, 1, 1, w->plan.dims[0],
                  w->plan.n_bytes);
}

void want_drop(const struct arena *a, const struct want *w, int drop)
{
    process_drop(w->site, (enum dmi_drop)(drop - 1), w->plan.dims[0], w->plan.n_bytes);
    if (drop == DMI_DROP_UNSUPPORTED + 1)
        process_problem(w->site, PROBLEM_UNSUPPORTED, "this context has no ring: not captured");
    if (drop == DMI_DROP_TOO_LARGE + 1)
        process_problem(w->site, PROBLEM_TOO_LARGE,
                        "a record of %llu bytes does not fit the ring of %llu",
                        (unsigned long long)w->plan.n_bytes, (unsigned long long)a->ring.n_bytes);
}

/* Everything of one launch fits into an empty ring. */
static bool fits_at_all(const struct arena *a, const struct launch_job *job)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < job->n_items; i++)
        bytes += (job->items[i].n_bytes + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
    return bytes <= a->ring.n_bytes && job->n_items <= a->ring.n_slots;
}

/* Return: false if there was no room for one of them, and @stop said that this is worth stopping for. */
static bool reserve_items(struct arena *a, const struct plan *plan, const struct want *const *wants,
                          struct launch_job *job, bool stop)
{
    for (uint32_t i = 0; i < job->n_items; i++) {
        struct launch_item *item = &job->items[i];
        if (wants[i]->error || item->given_up)
            continue;
        item->drop = reserve_one(a, plan, wants[i], item);
        item->reserved = item->drop == 0;
        if (stop && item->drop == DMI_DROP_RING_FULL + 1)
            return false;
    }
    return true;
}

/* The item's place in the ring, which no copy will fill. Return: false if its record is counted already. */
static bool cancel(struct arena *a, struct launch_item *item)
{
    item->reserved = false;
    item->given_up = !ring_cancel(&a->ring, item->slot);
    return !item->given_up;
}

static void give_back(struct arena *a, struct launch_job *job)
{
    for (uint32_t i = 0; i < job->n_items; i++)
        if (job->items[i].reserved)
            cancel(a, &job->items[i]);
}

/*
 * Room for all that this launch wants. Waits only where the spec asks for completeness, bounded, and
 * holding nothing: a slot that was reserved and not launched stalls the drain, so threads that waited
 * with slots in their hands would wait for each other.
 */
static void admit(struct arena *a, const struct plan *plan, struct launch_job *job)
{
    const struct want *wants[16];
    uint64_t end = 0;
    for (uint32_t i = 0; i < plan->n; i++) {
        const struct want *w = &plan->want[i];
        if (!w->error && !w->plan.n_bytes)
            continue; /* a launch without rows has nothing to record */
        wants[job->n_items] = w;
        job->items[job->n_items++] = (struct launch_item){
            .site = w->site, .rows = w->plan.dims[0], .n_bytes = w->plan.n_bytes, .drop = w->error
        };
        want_expect(w);
    }
    bool wait = process.spec->overload == SPEC_OVERLOAD_COMPLETE && fits_at_all(a, job);
    while (!reserve_items(a, plan, wants, job, wait)) {
        give_back(a, job);
        wait = launch_wait(&end);
    }
    for (uint32_t i = 0; i < job->n_items; i++)
        if (job->items[i].drop)
            want_drop(a, wants[i], job->items[i].drop);
}

uint32_t copy_blocks(uint64_t n_bytes, uint32_t access)
{
    uint64_t blocks = (n_bytes / access + COPY_THREADS - 1) / COPY_THREADS;
    return blocks > COPY_MAX_BLOCKS ? COPY_MAX_BLOCKS : blocks ? (uint32_t)blocks : 1;
}

/* ------------------------------------------------------- the copies */

static void launch_copy(const struct launch *l, struct arena *a, struct launch_item *item)
{
    void *params[] = { &item->copy };
    __typeof__(cuLaunchKernel) *launch =
        l->per_thread ? driver_table.cuLaunchKernel_ptsz : driver_table.cuLaunchKernel;
    CUresult r = launch(a->copy, copy_blocks(item->n_bytes, item->copy.gather.access), 1, 1,
                        COPY_THREADS, 1, 1, 0, l->stream, params, NULL);
    if (r == CUDA_SUCCESS)
        return;
    if (cancel(a, item)) {
        item->drop = DMI_DROP_COPY_FAILED + 1;
        process_drop(item->site, DMI_DROP_COPY_FAILED, item->rows, item->n_bytes);
    }
    process_problem(item->site, PROBLEM_COPY_FAILED, "the driver refused our copy kernel: error %d",
                    (int)r);
}

static bool is_before(const struct launch_item *item)
{
    return process.spec->sites[item->site].when == SPEC_BEFORE;
}

bool launch_is_captured(CUstream stream, bool per_thread)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    __typeof__(cuStreamIsCapturing) *query =
        per_thread ? driver_table.cuStreamIsCapturing_ptsz : driver_table.cuStreamIsCapturing;
    /* an error here means that the launch itself would break somebody's capture: keep out of it */
    return query &&
           (query(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

static void tell_unsupported(const struct func *func, const char *why)
{
    for (uint32_t i = 0; i < func->match.n_sites; i++)
        process_problem(func->match.sites[i], PROBLEM_UNSUPPORTED, "kernel %s: %s", func->name,
                        why);
}

bool launch_captured(CUstream stream, bool per_thread, CUgraph *graph, CUgraphNode *node)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode *nodes = NULL;
    size_t n = 0;
    __typeof__(cuStreamGetCaptureInfo_v2) *info = per_thread
                                                      ? driver_table.cuStreamGetCaptureInfo_v2_ptsz
                                                      : driver_table.cuStreamGetCaptureInfo_v2;
    *graph = NULL;
    if (!info || info(stream, &status, NULL, graph, &nodes, &n) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return false;
    if (node)
        *node = n == 1 ? nodes[0] : NULL; /* what the stream's next one waits for */
    return *graph != NULL;
}

static void note_captured(const struct launch *l)
{
    CUgraph graph;
    CUgraphNode node;
    if (launch_captured(l->stream, l->per_thread, &graph, &node)) {
        if (node)
            graphs_note(graph, node, false);
        return;
    }
    const struct func *func = funcs_find(l->function);
    if (func)
        tell_unsupported(
            func, "the driver did not say what became of its launch: not captured, not counted");
}

void launch_before(const struct launch *l, const struct func *func, struct launch_job *job)
{
    int saved = errno;
    struct plan plan;
    /*
     * Read by process_finish() after it disarmed: either it sees us and waits, or we see that it
     * did. Both sides need the full order of the read-modify-write.
     */
    __atomic_fetch_add(&process.active, 1, __ATOMIC_SEQ_CST);
    job->n_items = job->n_noted = 0;
    job->arena = NULL;
    job->captured = false;
    if (!__atomic_load_n(&process.armed, __ATOMIC_SEQ_CST)) {
        errno = saved;
        return;
    }
    job->captured = launch_is_captured(l->stream, l->per_thread);
    if (job->captured) {
        errno = saved;
        return; /* nothing runs now: its copies are added when the graph is instantiated */
    }
    struct arena *a = arena_current();
    if (!a || !a->sites) {
        if (atomic_load_acquire(
                &process.armed)) /* else the run could not be made, and that was told */
            tell_unsupported(func, "no place for this context's state: not captured, not counted");
        errno = saved;
        return;
    }
    job->arena = a;
    atomic_add_relaxed(&process.counters->launches_matched, 1);
    pthread_mutex_lock(&a->lock);
    note_occurrences(a, func, &plan, job);
    pthread_mutex_unlock(&a->lock);
    plan_all(l, func, &plan);
    admit(a, &plan, job);
    for (uint32_t i = 0; i < job->n_items; i++)
        if (job->items[i].reserved && is_before(&job->items[i]))
            launch_copy(l, a, &job->items[i]);
    errno = saved;
}

/* The driver refused the launch: it is as if nobody had asked for its records. */
static void take_back(struct launch_job *job)
{
    struct arena *a = job->arena;
    pthread_mutex_lock(&a->lock);
    for (uint32_t i = 0; i < job->n_noted; i++) {
        forward_take_back(a, job->noted[i]);
        atomic_sub_relaxed(&process.counters->sites[job->noted[i]].launches, 1);
    }
    pthread_mutex_unlock(&a->lock);
    for (uint32_t i = 0; i < job->n_items; i++) {
        struct launch_item *item = &job->items[i];
        struct dmi_site_counters *c = &process.counters->sites[item->site];
        if (item->reserved && is_before(item))
            continue; /* the copy is on its way: the tensor was there, and is recorded */
        if (item->given_up || (item->reserved && !cancel(a, item)))
            continue; /* a counted drop, for good */
        if (item->drop)
            process_count(&c->dropped[item->drop - 1], -1, 1, item->rows, item->n_bytes);
        process_count(&c->expected, -1, 1, item->rows, item->n_bytes);
    }
}

void launch_after(const struct launch *l, struct launch_job *job, CUresult result)
{
    int saved = errno;
    if (job->captured && result == CUDA_SUCCESS)
        note_captured(l);
    if (job->arena && result != CUDA_SUCCESS)
        take_back(job);
    for (uint32_t i = 0; i < job->n_items && result == CUDA_SUCCESS; i++)
        if (job->items[i].reserved && !is_before(&job->items[i]))
            launch_copy(l, job->arena, &job->items[i]);
    atomic_sub_relaxed(&process.active, 1);
    errno = saved;
}
