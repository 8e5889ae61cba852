/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/node_map.h"

#include "core/cleanup.h"
#include "preload/base/driver.h"

#include <errno.h>
#include <stdlib.h>

bool node_is_updatable(CUgraphNode node)
{
    CUlaunchAttributeValue value = { 0 };
    return driver_table.cuGraphKernelNodeGetAttribute &&
           driver_table.cuGraphKernelNodeGetAttribute(
               node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &value) == CUDA_SUCCESS &&
           value.deviceUpdatableKernelNode.deviceUpdatable;
}

/* Why a clone cannot stand in for a graph with this node, NULL: it can. */
static const char *unfit(CUgraphNode node, CUgraphNodeType type)
{
    if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return "it holds a conditional node, whose handle and body belong to the application's "
               "graph";
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return "it holds a memory node, which drivers do not clone";
    if (type == CU_GRAPH_NODE_TYPE_KERNEL && node_is_updatable(node))
        return "it holds a node that kernels update, by a handle of the application's graph";
    return NULL;
}

const char *node_map_unfit(CUgraph graph)
{
    size_t n = 0;
    const char *why = NULL;
    if (driver_table.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
        return NULL;
    _cleanup_(freep) CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
    if (!nodes || driver_table.cuGraphGetNodes(graph, nodes, &n) != CUDA_SUCCESS)
        return NULL;
    for (size_t i = 0; i < n && !why; i++) {
        CUgraphNodeType type;
        CUgraph inner;
        if (driver_table.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        why = unfit(nodes[i], type);
        if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
            driver_table.cuGraphChildGraphNodeGetGraph(nodes[i], &inner) == CUDA_SUCCESS)
            why = node_map_unfit(inner);
    }
    return why;
}

static int cannot_pair(struct err *err)
{
    return err_set(err, -EIO, "its nodes and its clone's cannot be paired");
}

/* The nodes of @graph itself: pairs [first, first + n). */
static int add_nodes(struct err *err, struct node_map *map, CUgraph graph, CUgraph clone, size_t *n)
{
    if (driver_table.cuGraphGetNodes(graph, NULL, n) != CUDA_SUCCESS)
        return cannot_pair(err);
    _cleanup_(freep) CUgraphNode *nodes = calloc(*n + 1, sizeof *nodes);
    struct node_pair *grown = realloc(map->pairs, (map->n + *n + 1) * sizeof *grown);
    if (grown)
        map->pairs = grown;
    if (!nodes || !grown)
        return err_set(err, -ENOMEM, "no memory for the map of its nodes");
    if (driver_table.cuGraphGetNodes(graph, nodes, n) != CUDA_SUCCESS)
        return cannot_pair(err);
    for (size_t i = 0; i < *n; i++) {
        struct node_pair *p = &map->pairs[map->n];
        *p = (struct node_pair){ .app = nodes[i], .graph = clone, .position = (uint32_t)map->n++ };
        p->node = nodes[i];
        if (driver_table.cuGraphNodeGetType(nodes[i], &p->type) != CUDA_SUCCESS ||
            (clone &&
             driver_table.cuGraphNodeFindInClone(&p->node, nodes[i], clone) != CUDA_SUCCESS))
            return cannot_pair(err);
    }
    return 0;
}

/* The nodes inside the child graph of pair number @at. */
static int add_child(struct err *err, struct node_map *map, size_t at, bool cloned)
{
    CUgraph inner, clone = NULL;
    size_t first = map->n;
    if (driver_table.cuGraphChildGraphNodeGetGraph(map->pairs[at].app, &inner) != CUDA_SUCCESS ||
        (cloned &&
         driver_table.cuGraphChildGraphNodeGetGraph(map->pairs[at].node, &clone) != CUDA_SUCCESS))
        return cannot_pair(err);
    int r = node_map_build(err, map, inner, clone);
    map->pairs[at].first = (uint32_t)first;
    map->pairs[at].n = (uint32_t)(map->n - first);
    return r;
}

int node_map_build(struct err *err, struct node_map *map, CUgraph graph, CUgraph clone)
{
    size_t n = 0, first = map->n;
    int r = add_nodes(err, map, graph, clone, &n);
    for (size_t i = first; i < first + n && !r; i++) {
        const char *why = clone ? unfit(map->pairs[i].app, map->pairs[i].type) : NULL;
        if (why)
            return err_set(err, -ENOTSUP, "%s", why);
        if (map->pairs[i].type == CU_GRAPH_NODE_TYPE_GRAPH)
            r = add_child(err, map, i, clone != NULL);
    }
    return r;
}

static int compare(const void *a, const void *b)
{
    const struct node_pair *x = a, *y = b;
    return x->app < y->app ? -1 : x->app > y->app;
}

void node_map_sort(struct node_map *map)
{
    if (map->n)
        qsort(map->pairs, map->n, sizeof *map->pairs, compare);
}

static struct node_pair *find(const struct node_map *map, CUgraphNode app)
{
    struct node_pair key = { .app = app };
    return map->pairs && map->n && !map->gone
               ? bsearch(&key, map->pairs, map->n, sizeof key, compare)
               : NULL;
}

struct node_pair *node_map_find(const struct node_map *map, CUgraphNode app)
{
    struct node_pair *p = find(map, app);
    return p && !p->gone ? p : NULL;
}

struct node_pair *node_map_at(const struct node_map *map, uint32_t position)
{
    for (size_t i = 0; map->pairs && i < map->n; i++)
        if (map->pairs[i].position == position)
            return &map->pairs[i];
    return NULL;
}

bool node_map_has(const struct node_map *map, uint32_t position)
{
    return position < map->n;
}

bool node_map_is_off(const struct node_map *map, uint32_t position)
{
    const struct node_pair *p = node_map_at(map, position);
    if (p)
        return p->off;
    return map->off && node_map_has(map, position) && (map->off[position / 8] >> position % 8 & 1);
}

void node_map_without_clone(struct node_map *map)
{
    for (size_t i = 0; i < map->n; i++) {
        map->pairs[i].node = map->pairs[i].app;
        map->pairs[i].graph = NULL;
    }
}

void node_map_end(struct node_map *map, CUgraphNode app, uint64_t end)
{
    struct node_pair *p = find(map, app);
    if (!p || p->gone)
        return;
    p->gone = end;
    for (size_t i = 0; p->n && i < map->n; i++)
        if (map->pairs[i].position - p->first < p->n && !map->pairs[i].gone)
            map->pairs[i].gone = end;
}

void node_map_undo_end(struct node_map *map, uint64_t end)
{
    if (map->gone == end)
        map->gone = 0;
    for (size_t i = 0; map->pairs && i < map->n; i++)
        if (map->pairs[i].gone == end)
            map->pairs[i].gone = 0;
}

void node_map_trim(struct node_map *map)
{
    bool any = false;
    for (size_t i = 0; map->pairs && i < map->n; i++)
        any = any || map->pairs[i].off;
    if (any && !(map->off = calloc(map->n / 8 + 1, 1)))
        return; /* it stays as it is */
    for (size_t i = 0; any && i < map->n; i++)
        if (map->pairs[i].off)
            map->off[map->pairs[i].position / 8] |= (uint8_t)(1u << map->pairs[i].position % 8);
    free(map->pairs);
    map->pairs = NULL;
}

void node_map_deinit(struct node_map *map)
{
    free(map->pairs);
    free(map->off);
    *map = (struct node_map){ 0 };
}
