/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/tap.h"

#include "core/any.h"
#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/sorted.h"
#include "preload/base/driver.h"
#include "preload/graph/edges.h"
#include "preload/graph/node_map.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- noting */

static CUgraphNode *copy_nodes(const CUgraphNode *nodes, size_t n)
{
    CUgraphNode *copy = malloc((n + 1) * sizeof(CUgraphNode));
    if (copy && n)
        memcpy(copy, nodes, n * sizeof *copy);
    return copy;
}

static bool holds(const CUgraphNode *nodes, size_t n, CUgraphNode node)
{
    return ANY(i, n, nodes[i] == node);
}

/* Adds those of @more that are not there. Return: false without memory. */
static bool merge(CUgraphNode **nodes, size_t *n, const CUgraphNode *more, size_t n_more)
{
    CUgraphNode *grown = realloc(*nodes, (*n + n_more + 1) * sizeof *grown);
    if (!grown)
        return false;
    *nodes = grown;
    for (size_t i = 0; i < n_more; i++)
        if (!holds(grown, *n, more[i]))
            grown[(*n)++] = more[i];
    return true;
}

static bool roots_of(CUgraph graph, CUgraphNode **nodes, size_t *n)
{
    size_t n_roots = 0;
    if (driver_table.cuGraphGetRootNodes(graph, NULL, &n_roots) != CUDA_SUCCESS)
        return false;
    _cleanup_(freep) CUgraphNode *roots = calloc(n_roots + 1, sizeof *roots);
    return roots &&
           (!n_roots || driver_table.cuGraphGetRootNodes(graph, roots, &n_roots) == CUDA_SUCCESS) &&
           merge(nodes, n, roots, n_roots);
}

/* What depends on any of @after now or, where there are none, all roots; each once. */
static bool dependents_of(CUgraph graph, const CUgraphNode *after, size_t n_after,
                          CUgraphNode **nodes, size_t *n)
{
    bool known = n_after || roots_of(graph, nodes, n);
    for (size_t i = 0; i < n_after && known; i++) {
        struct edges out;
        known = edges_out(after[i], &out);
        if (known) {
            known = merge(nodes, n, out.nodes, out.n);
            edges_free(&out);
        }
    }
    return known;
}

struct graph_tap *graph_tap_new(struct stream stream, const struct func *func,
                                const struct dmi_tap *tap, CUgraph *graph)
{
    const CUgraphNode *after;
    size_t n;
    struct graph_tap *t = calloc(1, sizeof *t);
    if (t && stream_capture_nodes(stream, graph, &after, &n) && (t->after = copy_nodes(after, n)) &&
        dependents_of(*graph, t->after, n, &t->earlier, &t->n_earlier)) {
        t->n_after = n;
        t->func = func;
        t->tap = *tap;
        t->tap.name = func->name;
        return t;
    }
    graph_tap_free(t);
    return NULL;
}

void graph_tap_free(struct graph_tap *t)
{
    if (t) {
        free(t->after);
        free(t->earlier);
    }
    free(t);
}

void graph_tap_node_ends(struct graph_tap *t, CUgraphNode node)
{
    if (holds(t->after, t->n_after, node)) { /* drivers are asked of no node that has ended */
        t->lost = true;
        t->n_after = t->n_earlier = 0;
    }
    for (size_t i = t->n_earlier; i-- > 0;)
        if (t->earlier[i] == node) /* its handle may come back as that of a later one */
            t->earlier[i] = t->earlier[--t->n_earlier];
}

/* ------------------------------------------------------------------------- clones */

static bool find_in_clone(CUgraphNode *nodes, size_t n, CUgraph copy)
{
    return !ANY(i, n,
                driver_table.cuGraphNodeFindInClone(&nodes[i], nodes[i], copy) != CUDA_SUCCESS);
}

struct graph_tap *graph_tap_in_clone(const struct graph_tap *tap, CUgraph copy)
{
    struct graph_tap *t = malloc(sizeof *t);
    if (!t)
        return NULL;
    *t = *tap;
    t->after = copy_nodes(tap->after, tap->n_after);
    t->earlier = copy_nodes(tap->earlier, tap->n_earlier);
    if (t->after && t->earlier && find_in_clone(t->after, t->n_after, copy) &&
        find_in_clone(t->earlier, t->n_earlier, copy))
        return t;
    graph_tap_free(t);
    return NULL;
}

/* ------------------------------------------------------------------------- places */

/* In ascending order: two of one place are then alike. Return: false where a node is not in the map. */
static bool positions(const struct node_map *map, const CUgraphNode *nodes, size_t n, uint32_t *at)
{
    for (size_t i = 0; i < n; i++) {
        const struct node_pair *pair = node_map_find(map, nodes[i]);
        if (!pair)
            return false;
        at[i] = pair->position;
    }
    if (n)
        qsort(at, n, sizeof *at, order_u32);
    return true;
}

static struct tap_place *place_new(size_t n_after, size_t n_before)
{
    struct tap_place *p = calloc(1, sizeof *p + (n_after + n_before) * sizeof p->at[0]);
    if (p) {
        p->users = 1;
        p->n_after = (uint32_t)n_after;
        p->n_before = (uint32_t)n_before;
    }
    return p;
}

struct tap_place *tap_place_find(const struct graph_tap *t, CUgraph graph,
                                 const struct node_map *map)
{
    _cleanup_(freep) CUgraphNode *now = NULL;
    size_t n = 0, n_later = 0;
    if (t->lost || !dependents_of(graph, t->after, t->n_after, &now, &n))
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!holds(t->earlier, t->n_earlier, now[i]))
            now[n_later++] = now[i];
    struct tap_place *p = place_new(t->n_after, n_later);
    if (p && positions(map, t->after, t->n_after, p->at) &&
        positions(map, now, n_later, p->at + p->n_after))
        return p;
    free(p);
    return NULL;
}

struct tap_place *tap_place_moved(const struct tap_place *place, int64_t by)
{
    struct tap_place *p = place_new(place->n_after, place->n_before);
    for (uint32_t i = 0; p && i < p->n_after + p->n_before; i++)
        p->at[i] = (uint32_t)((int64_t)place->at[i] + by);
    return p;
}

/* Whether the application's node at position @at depends on one that @place comes after; a node that is not there does not. */
static bool depends(const struct tap_place *place, uint32_t at, const struct node_map *map,
                    bool *yes)
{
    struct edges in;
    const struct node_pair *node = node_map_at(map, at);
    *yes = false;
    if (!node)
        return true;
    if (!edges_in(node->app, &in))
        return false;
    for (uint32_t i = 0; i < place->n_after && !*yes; i++) {
        const struct node_pair *after = node_map_at(map, place->at[i]);
        *yes = after && holds(in.nodes, in.n, after->app);
    }
    edges_free(&in);
    return true;
}

struct tap_place *tap_place_within(const struct tap_place *place, int64_t by,
                                   const struct node_map *map)
{
    struct tap_place *p = tap_place_moved(place, by);
    uint32_t n = p && p->n_after ? p->n_before : 0, n_kept = 0;
    uint32_t *before = p ? p->at + p->n_after : NULL;
    for (uint32_t i = 0; i < n; i++) {
        bool yes;
        if (!depends(p, before[i], map, &yes)) {
            free(p);
            return NULL;
        }
        if (yes)
            before[n_kept++] = before[i];
    }
    if (n)
        p->n_before = n_kept;
    return p;
}

bool tap_place_same(const struct tap_place *a, const struct tap_place *b, int64_t by)
{
    bool same = a->n_after == b->n_after && a->n_before == b->n_before;
    for (uint32_t i = 0; same && i < a->n_after + a->n_before; i++)
        same = (int64_t)a->at[i] == (int64_t)b->at[i] + by;
    return same;
}

bool tap_place_covers(const struct tap_place *place, const struct tap_place *other)
{
    uint32_t found = 0; /* both are in ascending order */
    for (uint32_t i = 0; i < place->n_after && found < other->n_after; i++)
        found += place->at[i] == other->at[found];
    return found == other->n_after;
}

struct tap_place *tap_place_hold(struct tap_place *place)
{
    if (place)
        atomic_add_relaxed(&place->users, 1);
    return place;
}

void tap_place_release(struct tap_place *place)
{
    if (place && atomic_add_acq_rel(&place->users, -1) == 1)
        free(place);
}

uint32_t tap_place_anchor(const struct tap_place *place)
{
    return place->n_after + place->n_before ? place->at[0] : UINT32_MAX;
}
