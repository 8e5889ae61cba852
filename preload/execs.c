/* SPDX-License-Identifier: Apache-2.0 */
/* Which execs hold copies of ours, their states in device memory, and what the host changes in them. */
#include "preload/exec_private.h"

#include "core/atomic.h"
#include "core/log.h"
#include "preload/graphs.h"
#include "preload/handles.h"
#include "preload/hooks.h"
#include "preload/process.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct handles execs = HANDLES_INIT;

struct exec *execs_find(CUgraphExec exec)
{
    return handles_find(&execs, exec);
}

CUgraph execs_graph(const struct exec *exec)
{
    return exec->clone;
}

/* ------------------------------------------------------------------------- device states */

/*
 * State memory of execs that are gone; it may be used again once their last launch is over. Of a launch with a ticket
 * the ring tells, as its slots are settled behind close; of one without an event does.
 */
struct spare {
    struct spare *next;
    const struct arena *arena;
    CUdeviceptr state;
    uint64_t last_slot;
    CUevent event; /* NULL: there is none to wait for */
};
static struct spare *spares;
static pthread_mutex_t spares_lock = PTHREAD_MUTEX_INITIALIZER;

static void spare_add(struct spare *s)
{
    pthread_mutex_lock(&spares_lock);
    s->next = spares;
    spares = s;
    pthread_mutex_unlock(&spares_lock);
}

/* One of @a's whose slots are settled, NULL: there is none. It is the caller's. */
static struct spare *spare_take(const struct arena *a, uint64_t settled)
{
    struct spare *found = NULL;
    pthread_mutex_lock(&spares_lock);
    for (struct spare **at = &spares; *at && !found; at = &(*at)->next)
        if ((*at)->arena == a && (*at)->last_slot <= settled) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&spares_lock);
    return found;
}

/* Also the event goes over: it is recorded anew when it is needed. */
static void state_reuse(struct exec *x)
{
    uint64_t settled = atomic_load_acquire(&x->arena->settled); /* of encoder_main() */
    struct spare *waiting = NULL, *s;
    while ((s = spare_take(x->arena, settled))) {
        if (!s->event || driver_table.cuEventQuery(s->event) == CUDA_SUCCESS)
            break;
        s->next = waiting;
        waiting = s;
    }
    while (waiting) {
        struct spare *next = waiting->next;
        spare_add(waiting);
        waiting = next;
    }
    if (s) {
        x->state = s->state;
        x->event = s->event;
    }
    free(s);
}

CUresult exec_state_new(struct exec *x)
{
    struct arena *a = x->arena;
    CUresult r = CUDA_SUCCESS;
    state_reuse(x);
    if (!x->state)
        r = driver_table.cuMemAlloc_v2(&x->state, sizeof(struct dmi_ticket));
    /* on our own stream: the NULL stream would wait for the host's */
    if (r == CUDA_SUCCESS)
        r = driver_table.cuMemsetD8Async(x->state, 0, sizeof(struct dmi_ticket), a->stream);
    if (r == CUDA_SUCCESS)
        r = driver_table.cuStreamSynchronize(a->stream);
    return r;
}

void exec_state_give_back(const struct exec *x)
{
    struct spare *s = x->state && !x->untold ? malloc(sizeof *s) : NULL;
    if (!s)
        return; /* lost until the context ends */
    *s = (struct spare){
        .arena = x->arena, .state = x->state, .last_slot = x->last_slot, .event = x->event
    };
    spare_add(s);
}

void exec_unticketed(struct exec *x, CUstream stream, bool per_thread)
{
    __typeof__(cuEventRecord) *record =
        per_thread ? driver_table.cuEventRecord_ptsz : driver_table.cuEventRecord;
    if (!x->event && driver_table.cuEventCreate &&
        driver_table.cuEventCreate(&x->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        x->event = NULL;
    if (!x->event || !record || record(x->event, stream) != CUDA_SUCCESS)
        x->untold = true;
}

void exec_free(struct exec *x)
{
    if (!x)
        return;
    if (x->clone)
        driver_table.cuGraphDestroy(x->clone);
    free(x->entries);
    free(x->copies);
    free(x->twins);
    free(x);
}

/* ------------------------------------------------------------------------- nodes and their twins */

/* All execs with copies, for those who destroy graphs and nodes that they are named by. */
static struct exec *all;
static uint64_t n_ends;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static void all_add(struct exec *x)
{
    pthread_mutex_lock(&all_lock);
    x->next = all;
    x->prev = &all;
    if (all)
        all->prev = &x->next;
    atomic_store_release(&all, x); /* to execs_any() */
    pthread_mutex_unlock(&all_lock);
}

static void all_remove(struct exec *x)
{
    pthread_mutex_lock(&all_lock);
    if (x->prev) {
        atomic_store_release(x->prev, x->next); /* to execs_any() */
        if (x->next)
            x->next->prev = x->prev;
    }
    x->prev = NULL;
    pthread_mutex_unlock(&all_lock);
}

bool execs_any(void)
{
    return atomic_load_acquire(&all) != NULL; /* of all_add(), all_remove() */
}

static struct twin *find_twin(const struct exec *x, CUgraphNode host)
{
    size_t low = 0, high = x->n_twins;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (x->twins[middle].host == host)
            return &x->twins[middle];
        if (x->twins[middle].host < host)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const struct twin *exec_twin(const struct exec *x, CUgraphNode host)
{
    const struct twin *t = x->template_gone ? NULL : find_twin(x, host);
    return t && !t->gone ? t : NULL;
}

CUgraphNode execs_node(const struct exec *x, CUgraphNode node)
{
    const struct twin *t = x ? exec_twin(x, node) : NULL;
    return t ? t->node : node;
}

static void mark_node(struct exec *x, CUgraphNode node, uint64_t end)
{
    struct twin *t = x->template_gone ? NULL : find_twin(x, node);
    if (!t || t->gone)
        return;
    t->gone = end;
    for (size_t i = 0; t->n && i < x->n_twins; i++)
        if (x->twins[i].position - t->first < t->n && !x->twins[i].gone)
            x->twins[i].gone = end;
}

/*
 * A node that the host destroys is not the exec's any more, and its handle may come back as that of another node,
 * of which the exec knows nothing.
 */
uint64_t execs_end(CUgraphNode node, const CUgraph *graphs, size_t n)
{
    uint64_t end = 0;
    pthread_mutex_lock(&all_lock);
    if (all)
        end = ++n_ends;
    for (struct exec *x = all; x; x = x->next) {
        if (node)
            mark_node(x, node, end);
        for (size_t i = 0; i < n && !x->template_gone; i++)
            if (x->template == graphs[i])
                x->template_gone = end;
    }
    pthread_mutex_unlock(&all_lock);
    return end;
}

void execs_ended(uint64_t end, bool success)
{
    if (!end || success)
        return;
    pthread_mutex_lock(&all_lock);
    for (struct exec *x = all; x; x = x->next) {
        if (x->template_gone == end)
            x->template_gone = 0;
        for (size_t i = 0; i < x->n_twins; i++)
            if (x->twins[i].gone == end)
                x->twins[i].gone = 0;
    }
    pthread_mutex_unlock(&all_lock);
}

/* ------------------------------------------------------------------------- birth and end */

/* The exec holds references of its own to the user objects of its graphs; those of the clone are one too many. */
static void release_users(struct exec *x)
{
    graphs_release_users(x->template, x->clone);
    for (size_t i = 0; i < x->n_twins; i++) {
        const struct twin *t = &x->twins[i];
        CUgraph inner, copy;
        if (t->is_graph &&
            driver_table.cuGraphChildGraphNodeGetGraph(t->host, &inner) == CUDA_SUCCESS &&
            driver_table.cuGraphChildGraphNodeGetGraph(t->node, &copy) == CUDA_SUCCESS)
            graphs_release_users(inner, copy);
    }
}

bool execs_made(struct exec *x, CUgraphExec handle)
{
    if (!handle) {
        for (uint32_t i = 0; i < x->n_copies; i++)
            process_problem(x->copies[i].want.site, PROBLEM_UNSUPPORTED,
                            "its graph could not be instantiated with our copies: not captured");
        exec_state_give_back(x);
        exec_free(x);
        return false;
    }
    x->handle = handle;
    if (handles_set(&execs, handle, x) == x) {
        log_line("too many graph execs: the sites of this one are not captured");
        driver_table.cuGraphExecDestroy(handle);
        exec_state_give_back(x);
        exec_free(x);
        return false;
    }
    release_users(x);
    all_add(x);
    return true;
}

struct exec *execs_take(CUgraphExec handle)
{
    struct exec *x = execs_find(handle) ? handles_set(&execs, handle, NULL) : NULL;
    if (x)
        all_remove(x);
    return x;
}

void execs_destroyed(struct exec *x)
{
    exec_state_give_back(x);
    exec_free(x);
}

static void forget_if_of(const void *handle, void *value, void *ctx)
{
    struct exec *x = value;
    if (x->arena != ctx)
        return;
    handles_set(&execs, handle, NULL);
    all_remove(x);
    x->clone = NULL; /* graphs outlive contexts no better than their kernels do: leave it be */
    exec_free(x);
}

void execs_forget_arena(const struct arena *arena)
{
    handles_each(&execs, forget_if_of, (void *)arena);
    pthread_mutex_lock(&spares_lock);
    for (struct spare **at = &spares; *at;) {
        struct spare *s = *at;
        if (s->arena == arena) {
            *at = s->next;
            free(s);
        } else {
            at = &s->next;
        }
    }
    pthread_mutex_unlock(&spares_lock);
}

void execs_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    execs = fresh;
    all = NULL;
    all_lock = unlocked;
    spares_lock = unlocked;
}

/* ------------------------------------------------------------------------- changes by the host */

static struct entry *entry_of(struct exec *x, CUgraphNode host)
{
    for (uint32_t i = 0; i < x->n_entries; i++)
        if (x->entries[i].host == host)
            return &x->entries[i];
    return NULL;
}

/* The copy node reads what its plan says now. If the driver refuses, it must not read what it said. */
static void refresh(struct exec *x, struct copy *c)
{
    struct dmi_graph_copy param;
    exec_fill_copy(x, c, &param);
    CUresult r = exec_set_params(x, c->node, x->arena->copy_graph, exec_copy_blocks(&param),
                                 COPY_THREADS, &param);
    if (r != CUDA_SUCCESS && !c->want.error &&
        c->want.plan.n_bytes) /* else nothing would be copied anyway */
        c->want.error = DMI_DROP_COPY_FAILED + 1;
}

static bool same_plan(const struct copy *a, const struct copy *b)
{
    return a->want.error == b->want.error &&
           !memcmp(&a->want.plan, &b->want.plan, sizeof a->want.plan);
}

static bool matches_site(const struct func *func, uint32_t site)
{
    for (uint32_t i = 0; func && i < func->match.n_sites; i++)
        if (func->match.sites[i] == site)
            return true;
    return false;
}

void exec_tell_new_sites(const struct exec *x, const struct entry *e, const struct func *func)
{
    for (uint32_t i = 0; func && i < func->match.n_sites; i++) {
        bool there = false;
        for (uint32_t c = 0; e && c < e->n_copies; c++)
            there = there || x->copies[e->first_copy + c].want.site == func->match.sites[i];
        if (!there)
            process_problem(func->match.sites[i], PROBLEM_UNSUPPORTED,
                            "kernel %s came into a graph after it was instantiated: not captured",
                            func->name);
    }
}

void execs_kernel_changed(struct exec *x, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    int saved = errno;
    struct entry *e = entry_of(x, node);
    const struct func *func = exec_func_of(k);
    if (!e || func != e->func)
        exec_tell_new_sites(x, e, func);
    for (uint32_t i = 0; e && i < e->n_copies; i++) {
        struct copy *c = &x->copies[e->first_copy + i], old = *c;
        c->dead = !matches_site(func, c->want.site);
        if (!c->dead)
            exec_plan_copy(c, func, k);
        if (!same_plan(c, &old) && !c->dead)
            refresh(x, c);
    }
    if (e)
        e->func = func ? func : &func_unmatched;
    errno = saved;
}

void execs_node_enabled(struct exec *x, CUgraphNode node, bool on)
{
    struct entry *e = entry_of(x, node);
    if (e)
        e->enabled = on;
}
