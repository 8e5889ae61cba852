/* SPDX-License-Identifier: Apache-2.0 */
/* Which execs are named by graphs that live, and what becomes of them when those end. */
#include "preload/graph/exec.h"

#include "core/atomic.h"
#include "core/locked.h"

#include <pthread.h>

/* Those whose graph lives, for the call that destroys it or nodes of it. The lock is for the node maps of all execs too. */
static struct exec *named;
static uint64_t n_ends;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Under the lock. */
static void take_out(struct exec *x)
{
    if (!x->prev)
        return;
    atomic_store_release(x->prev, x->next); /* to exec_any() */
    if (x->next)
        x->next->prev = x->prev;
    x->prev = NULL;
}

void exec_named(struct exec *x)
{
    pthread_mutex_lock(&lock);
    x->next = named;
    x->prev = &named;
    if (named)
        named->prev = &x->next;
    atomic_store_release(&named, x); /* to exec_any() */
    pthread_mutex_unlock(&lock);
}

void exec_unnamed(struct exec *x)
{
    UNDER(&lock, take_out(x));
}

bool exec_any(void)
{
    return atomic_load_acquire(&named) != NULL; /* of exec_named(), take_out() */
}

void exec_reset_names(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    named = NULL;
}

/* ------------------------------------------------------------------------- names */

bool exec_pair(const struct exec *x, CUgraphNode app, struct node_pair *pair)
{
    pthread_mutex_lock(&lock);
    const struct node_pair *p = node_map_find(&x->plan.map, app);
    if (p)
        *pair = *p;
    pthread_mutex_unlock(&lock);
    return p != NULL;
}

bool exec_pair_at(const struct exec *x, uint32_t position, struct node_pair *pair)
{
    const struct node_map *map = &x->plan.map;
    pthread_mutex_lock(&lock);
    bool there = node_map_has(map, position);
    const struct node_pair *p = node_map_at(map, position);
    *pair =
        p ? *p : (struct node_pair){ .position = position, .off = node_map_is_off(map, position) };
    pthread_mutex_unlock(&lock);
    return there;
}

CUgraphNode exec_node(const struct exec *x, CUgraphNode app)
{
    struct node_pair p;
    return x && exec_pair(x, app, &p) ? p.node : app;
}

void exec_node_enabled(struct exec *x, CUgraphNode app, bool on)
{
    for (uint32_t i = 0; i < x->plan.n_kernels; i++)
        if (x->plan.kernels[i].app == app)
            x->plan.kernels[i].enabled = on;
    repeat_pass(&x->repeat);
    pthread_mutex_lock(&lock);
    struct node_pair *p = node_map_find(&x->plan.map, app);
    if (p)
        p->off = !on; /* it may become a site later */
    pthread_mutex_unlock(&lock);
}

uint64_t exec_nodes_end(CUgraphNode node, const CUgraph *graphs, size_t n)
{
    uint64_t end = 0;
    pthread_mutex_lock(&lock);
    if (named)
        end = ++n_ends;
    for (struct exec *x = named; x; x = x->next) {
        if (node)
            node_map_end(&x->plan.map, node, end);
        for (size_t i = 0; i < n && !x->plan.map.gone; i++)
            if (x->template == graphs[i])
                x->plan.map.gone = end;
    }
    pthread_mutex_unlock(&lock);
    return end;
}

void exec_nodes_ended(uint64_t end, bool success)
{
    struct exec *next;
    if (!end)
        return;
    pthread_mutex_lock(&lock);
    for (struct exec *x = named; x; x = next) {
        next = x->next;
        if (!success) {
            node_map_undo_end(&x->plan.map, end);
        } else if (x->plan.map.gone == end) {
            node_map_trim(&x->plan.map);
            take_out(x);
        }
    }
    pthread_mutex_unlock(&lock);
}
