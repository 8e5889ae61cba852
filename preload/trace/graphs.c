/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/graphs.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/sorted.h"
#include "cupti/layouts.h"
#include "cupti/tracer.h"
#include "preload/base/handles.h"
#include "preload/trace/join.h"
#include "preload/trace/threads.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#define IDS     (1u << 20)   /* beyond, each id is taken for one that an exec had */
#define KEEP_NS 10000000000u /* after the end of an exec its records may come */

/* What is known of a place's layer. */
enum {
    LAYER_UNSEEN, /* it was not launched yet */
    LAYER_KNOWN,
    LAYER_NONE, /* launches differ, or their occurrences are not known */
};

/* A node that has a site. */
struct site_node {
    uint64_t node;       /* CUPTI's id */
    uint64_t name;       /* join_name() of its kernel */
    uint32_t position;   /* as struct graph_kernel has it */
    uint32_t site;       /* the first of its sites */
    uint32_t occurrence; /* at its last launch */
    int32_t layer;
    int state; /* of the layer; released by see_layer(), acquired by graphs_place() */
    int gone;  /* its site is another one now; atomic */
    bool kept; /* follow_update()'s: its kernel is the same */
};

struct graph {
    uint32_t id, n;
    struct site_node *places;   /* in the order of positions */
    struct site_node **by_node; /* the same in the order of nodes */
    uint32_t n_kernels;
    struct site_node **of; /* of the exec's kernels, NULL: none */
    uint64_t ended_ns;
    struct graph *next; /* that ended after it */
};

static struct handles ids = HANDLES_INIT;    /* of execs */
static struct handles graphs = HANDLES_INIT; /* of execs that have sites: struct graph */
static struct handles by_id = HANDLES_INIT;  /* the same, by CUPTI's id; also those that ended */
static uint64_t had[IDS / 64];               /* a bit each id; atomic */

static struct {
    pthread_mutex_t lock; /* the next two */
    struct graph *first, *last;
} ended = { .lock = PTHREAD_MUTEX_INITIALIZER };

static uint64_t n_looked, n_named; /* the collector's: records of graphs with sites, and of nodes */

/* ------------------------------------------------------------------------- places */

/* The first of the kernel's actions that are there. */
static uint32_t live_action(const struct graph_plan *plan, const struct graph_kernel *kernel)
{
    for (EACH_ACTION(plan, kernel, c))
        if (!plan->actions[c].dead)
            return c;
    return PLAN_NONE;
}

/* Does the kernel stand at a place whose records can be known? */
static bool has_place(const struct graph_plan *plan, const struct graph_kernel *kernel)
{
    return !kernel->is_tap && !kernel->in_body && kernel->node && kernel->func->name &&
           live_action(plan, kernel) != PLAN_NONE;
}

static bool make_place(const struct graph_plan *plan, const struct graph_kernel *kernel,
                       struct site_node *place)
{
    *place = (struct site_node){ .position = kernel->position };
    if (!has_place(plan, kernel) || !tracer_node_id(kernel->node, &place->node))
        return false;
    place->site = plan->actions[live_action(plan, kernel)].site;
    place->name = join_name(kernel->func->name);
    return true;
}

static int by_position(const void *pa, const void *pb)
{
    const struct site_node *a = pa, *b = pb;
    ORDER(a, b, position);
    return 0;
}

static int by_node(const void *pa, const void *pb)
{
    const struct site_node *const *a = pa, *const *b = pb;
    ORDER(*a, *b, node);
    return 0;
}

static struct site_node *at_position(const struct graph *g, uint32_t position)
{
    size_t i;
    SEARCH(i, g->n, g->places[i].position < position);
    bool found = i < g->n && g->places[i].position == position && position != PLAN_NONE;
    return found ? &g->places[i] : NULL;
}

/* The exec's kernels get their places. Return: false without memory. */
static bool pair(struct graph *g, const struct graph_plan *plan)
{
    struct site_node **of = calloc(plan->n_kernels + 1, sizeof *of);
    if (!of)
        return false;
    for (uint32_t i = 0; i < plan->n_kernels; i++)
        of[i] =
            has_place(plan, &plan->kernels[i]) ? at_position(g, plan->kernels[i].position) : NULL;
    free(g->of);
    g->of = of;
    g->n_kernels = plan->n_kernels;
    return true;
}

static void graph_free(struct graph *g)
{
    if (g) {
        free(g->places);
        free(g->by_node);
        free(g->of);
    }
    free(g);
}

/* Orders the places. Return: false without memory. */
static bool order(struct graph *g)
{
    g->by_node = calloc(g->n, sizeof *g->by_node);
    if (!g->by_node)
        return false;
    SORT(g->places, g->n, by_position);
    for (uint32_t i = 0; i < g->n; i++)
        g->by_node[i] = &g->places[i];
    SORT(g->by_node, g->n, by_node);
    return true;
}

/* NULL: it has no sites, or there is no memory. */
static struct graph *graph_new(uint32_t id, const struct graph_plan *plan)
{
    struct graph *g = calloc(1, sizeof *g);
    if (g)
        g->places = calloc(plan->n_kernels, sizeof *g->places);
    for (uint32_t i = 0; g && g->places && i < plan->n_kernels; i++)
        g->n += make_place(plan, &plan->kernels[i], &g->places[g->n]);
    if (g && g->n && order(g) && pair(g, plan)) {
        g->id = id;
        return g;
    }
    graph_free(g);
    return NULL;
}

static void lose_places(struct graph *g)
{
    for (uint32_t i = 0; i < g->n; i++)
        atomic_store_relaxed(&g->places[i].gone, 1);
}

/* What is another kernel, or has another site, than before the update has no place any more. */
static void follow_update(struct graph *g, uint32_t id, const struct graph_plan *plan)
{
    if (id != g->id || !pair(g, plan)) {
        lose_places(g);
        return;
    }
    for (uint32_t i = 0; i < g->n; i++)
        g->places[i].kept = false;
    for (uint32_t k = 0; k < g->n_kernels; k++)
        if (g->of[k])
            g->of[k]->kept |= join_name(plan->kernels[k].func->name) == g->of[k]->name;
    for (uint32_t i = 0; i < g->n; i++)
        if (!g->places[i].kept)
            atomic_store_relaxed(&g->places[i].gone, 1);
}

static void find_places(CUgraphExec handle, uint32_t id, const struct exec *x)
{
    struct graph *g = handles_find(&graphs, handle);
    if (g) {
        follow_update(g, id, &x->plan);
        return;
    }
    g = id && x->plan.has_sites ? graph_new(id, &x->plan) : NULL;
    if (!g)
        return;
    const void *key = (void *)(uintptr_t)id;
    if (handles_set(&by_id, key, g) == g || handles_set(&graphs, handle, g) == g)
        lose_places(g); /* no memory: it may be found, and stays */
}

/* ------------------------------------------------------------------------- execs */

void graphs_made(CUgraphExec handle, const struct exec *x)
{
    uint32_t id = 0;
    if (!atomic_load_relaxed(&trace_by_stream))
        return;
    if (tracer_graph_id(handle, &id) && id < IDS) /* noted before a launch of it can be */
        __atomic_fetch_or(&had[id / 64], 1ull << id % 64, __ATOMIC_RELAXED);
    handles_set(&ids, handle, (void *)(uintptr_t)id);
    if (x)
        find_places(handle, id, x);
}

void graphs_ends(CUgraphExec handle)
{
    if (!graphs_id(handle))
        return;
    handles_set(&ids, handle, NULL);
    struct graph *g = handles_set(&graphs, handle, NULL);
    if (!g)
        return;
    g->ended_ns = clock_mono_ns();
    pthread_mutex_lock(&ended.lock);
    if (ended.last)
        ended.last->next = g;
    else
        ended.first = g;
    ended.last = g;
    pthread_mutex_unlock(&ended.lock);
}

uint32_t graphs_id(CUgraphExec handle)
{
    return (uint32_t)(uintptr_t)handles_find(&ids, handle);
}

bool graphs_had(uint32_t id)
{
    return id >= IDS || atomic_load_relaxed(&had[id / 64]) >> id % 64 & 1;
}

/* ------------------------------------------------------------------------- layers */

/* The launch that is about to be is of @item's occurrence. */
static void see_layer(struct site_node *p, const struct admission *item)
{
    if (p->state == LAYER_KNOWN && p->occurrence == item->occurrence)
        return;
    bool known =
        !item->doubt && item->has_layer && (p->state == LAYER_UNSEEN || p->layer == item->layer);
    p->occurrence = item->occurrence;
    if (known && p->state == LAYER_UNSEEN)
        p->layer = item->layer;
    atomic_store_release(&p->state, known ? LAYER_KNOWN : LAYER_NONE); /* to graphs_place() */
}

static void look(struct site_node *p, const struct exec *x, const struct graph_kernel *kernel,
                 bool counted)
{
    uint32_t c = live_action(&x->plan, kernel);
    if (c == PLAN_NONE || x->plan.actions[c].site != p->site) {
        atomic_store_relaxed(&p->gone, 1);
        return;
    }
    const struct admission *item = &x->scratch.items[c];
    if (!kernel->enabled || p->state == LAYER_NONE)
        return;
    if (counted && item->state != ADMISSION_NONE)
        see_layer(p, item);
    else
        atomic_store_release(&p->state, LAYER_NONE); /* likewise */
}

void graphs_launches(const struct exec *x, bool counted)
{
    const struct graph *g = handles_find(&graphs, x->handle);
    for (uint32_t i = 0; g && i < g->n_kernels && i < x->plan.n_kernels; i++)
        if (g->of[i])
            look(g->of[i], x, &x->plan.kernels[i], counted);
}

/* ------------------------------------------------------------------------- the collector's */

/* The place of the record's node. NULL: it has none. */
static const struct site_node *place_of(const struct graph *g, const struct records_event *e)
{
    size_t i;
    SEARCH(i, g->n, g->by_node[i]->node < e->node);
    const struct site_node *p = i < g->n ? g->by_node[i] : NULL;
    bool found = p && p->node == e->node && e->name && join_name(e->name) == p->name;
    n_looked++;
    n_named += found;
    return found && !atomic_load_relaxed(&p->gone) ? p : NULL;
}

struct ran_place graphs_place(const struct records_event *e)
{
    const struct graph *g = e->kind == LAYOUTS_KERNEL && e->graph
                                ? handles_find(&by_id, (void *)(uintptr_t)e->graph)
                                : NULL;
    const struct site_node *p = g ? place_of(g, e) : NULL;
    struct ran_place place = { 0 };
    if (!p)
        return place;
    place.site = p->site + 1ull;
    if (atomic_load_acquire(&p->state) == LAYER_KNOWN) /* of see_layer(), look() */
        place.layer = (uint64_t)(p->layer + 1);
    return place;
}

/* The one that ended first, where that is long ago. */
static struct graph *take_old(uint64_t now)
{
    pthread_mutex_lock(&ended.lock);
    struct graph *g = ended.first;
    bool old = g && now - g->ended_ns > KEEP_NS;
    if (old)
        ended.first = g->next;
    if (!ended.first)
        ended.last = NULL;
    pthread_mutex_unlock(&ended.lock);
    return old ? g : NULL;
}

void graphs_sweep(void)
{
    struct graph *g;
    while ((g = take_old(clock_mono_ns()))) {
        const void *id = (void *)(uintptr_t)g->id;
        if (handles_find(&by_id, id) == g)
            handles_set(&by_id, id, NULL);
        graph_free(g);
    }
}

bool graphs_strange(void)
{
    return n_looked && !n_named;
}

void graphs_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    ids = graphs = by_id = fresh;
    ended.lock = unlocked;
    ended.first = ended.last = NULL; /* the parent's stay in its memory */
    /* @had stays: no record comes for which it is asked, as CUPTI does not come through a fork */
    n_looked = n_named = 0;
}
