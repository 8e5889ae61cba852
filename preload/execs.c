/* SPDX-License-Identifier: Apache-2.0 */
/* Which execs hold copies of ours, their states in device memory, and what the host changes in them. */
#include "preload/exec_private.h"

#include "core/atomic.h"
#include "core/log.h"
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

void execs_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    execs = fresh;
}

/* ------------------------------------------------------------------------- device states */

/* State memory of execs that are gone; it may be used again once their last launch is over. */
struct spare {
    struct spare *next;
    const struct arena *arena;
    CUdeviceptr state;
    uint64_t last_slot;
};
static struct spare *spares;
static pthread_mutex_t spares_lock = PTHREAD_MUTEX_INITIALIZER;

static CUdeviceptr state_reuse(const struct arena *a)
{
    CUdeviceptr state = 0;
    uint64_t settled = atomic_load_acquire(&a->settled); /* of encoder_main() */
    pthread_mutex_lock(&spares_lock);
    for (struct spare **at = &spares; *at && !state;) {
        struct spare *s = *at;
        if (s->arena == a && s->last_slot <= settled) {
            state = s->state;
            *at = s->next;
            free(s);
        } else {
            at = &s->next;
        }
    }
    pthread_mutex_unlock(&spares_lock);
    return state;
}

CUresult exec_state_new(struct exec *x)
{
    struct arena *a = x->arena;
    CUresult r = CUDA_SUCCESS;
    x->state = state_reuse(a);
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
    struct spare *s = x->state ? malloc(sizeof *s) : NULL;
    if (!s)
        return; /* lost until the context ends */
    *s = (struct spare){.arena = x->arena, .state = x->state, .last_slot = x->last_slot};
    pthread_mutex_lock(&spares_lock);
    s->next = spares;
    spares = s;
    pthread_mutex_unlock(&spares_lock);
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

int exec_twin_compare(const void *a, const void *b)
{
    const struct twin *x = a, *y = b;
    return x->host < y->host ? -1 : x->host > y->host;
}

const struct twin *exec_twin(const struct exec *x, CUgraphNode host)
{
    struct twin key = {.host = host};
    return bsearch(&key, x->twins, x->n_twins, sizeof key, exec_twin_compare);
}

CUgraphNode execs_node(const struct exec *x, CUgraphNode node)
{
    const struct twin *t = x ? exec_twin(x, node) : NULL;
    return t ? t->node : node;
}

CUgraphNode execs_host_node(const struct exec *x, CUgraphNode node)
{
    for (size_t i = 0; i < x->n_twins; i++)
        if (x->twins[i].node == node)
            return x->twins[i].host;
    return NULL;
}

/* ------------------------------------------------------------------------- birth and end */

void execs_made(struct exec *x, CUgraphExec handle)
{
    if (!handle) {
        for (uint32_t i = 0; i < x->n_copies; i++)
            process_problem(x->copies[i].want.site, PROBLEM_UNSUPPORTED,
                            "its graph could not be instantiated with our copies: not captured");
        exec_state_give_back(x);
        exec_free(x);
        return;
    }
    x->handle = handle;
    if (handles_set(&execs, handle, x) == x)
        log_line("too many graph execs: the sites of this one are not captured");
}

struct exec *execs_take(CUgraphExec handle)
{
    return execs_find(handle) ? handles_set(&execs, handle, NULL) : NULL;
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
    CUresult r = exec_set_params(x, c->node, x->arena->copy_graph, exec_copy_blocks(&param), COPY_THREADS, &param);
    if (r != CUDA_SUCCESS && !c->want.error && c->want.plan.n_bytes) /* else nothing would be copied anyway */
        c->want.error = DMI_DROP_COPY_FAILED + 1;
}

static bool same_plan(const struct copy *a, const struct copy *b)
{
    return a->want.error == b->want.error && !memcmp(&a->want.plan, &b->want.plan, sizeof a->want.plan);
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
                            "kernel %s came into a graph after it was instantiated: not captured", func->name);
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
