/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node map of a clone: which of its nodes stands for which node of the application's graph, child graphs included.
 * Positions: the graph's own nodes come first, as the driver lists them, then those of each child graph; a graph of the
 * same shape has the same positions. Thread: one at a time per map, but for the marks, which exec.c guards.
 */
#pragma once

#include "core/err.h"
#include "preload/base/cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct node_pair {
    CUgraphNode app, node; /* the application's; the clone's, where there is none the same */
    CUgraph graph;         /* that @node lies in: the clone, or a child graph of it */
    uint32_t position;
    CUgraphNodeType type;
    bool noted; /* graph/order.h knows its place */
    bool off;   /* the application switched it off in the exec */
    uint32_t first,
        n; /* of a child graph: positions of its nodes, those of its child graphs included */
    uint64_t gone; /* which destruction ended @app, 0: none */
};

struct node_map {
    struct node_pair *pairs; /* NULL after node_map_trim() */
    size_t n;
    uint64_t gone; /* which destruction ended the application's whole graph, 0: none */
    uint8_t *off;  /* after node_map_trim(): a bit a position; NULL: none is off */
};

/**
 * node_map_build() - pair all nodes of @graph with those of @clone, which is not yet added to
 * In the order of positions; @clone NULL: each stands for itself. Return: 0, -EIO where they cannot be paired, -ENOTSUP where @clone cannot stand in for
 * @graph (conditional and device-updatable nodes), -ENOMEM; @map is to be freed in any case.
 */
int node_map_build(struct err *err, struct node_map *map, CUgraph graph, CUgraph clone);

/* Why no clone can stand in for @graph: a node of it, or of a child graph. NULL: none is known to forbid it. */
const char *node_map_unfit(CUgraph graph);

/* May kernels on the device change @node, or switch it off? */
bool node_is_updatable(CUgraphNode node);

/* From now on it is searched by the application's nodes, and its order says nothing of positions. */
void node_map_sort(struct node_map *map);

/* The pair at a position, NULL: there is none, or none any more. Before or after node_map_sort(). */
struct node_pair *node_map_at(const struct node_map *map, uint32_t position);

/* Is there a node at @position, and did the application switch it off? These are known after node_map_trim() too. */
bool node_map_has(const struct node_map *map, uint32_t position);
bool node_map_is_off(const struct node_map *map, uint32_t position);

/* There is no clone any more: each node stands for itself. */
void node_map_without_clone(struct node_map *map);

/* The pair of a node that is still the application's, NULL: there is none. After node_map_sort(). */
struct node_pair *node_map_find(const struct node_map *map, CUgraphNode app);

/* Destruction number @end ends @app, with all that is inside it. After node_map_sort(). */
void node_map_end(struct node_map *map, CUgraphNode app, uint64_t end);

/* Destruction number @end was refused by the driver. */
void node_map_undo_end(struct node_map *map, uint64_t end);

/* The application's whole graph has ended, nobody names a node any more: all but node_map_is_off() is forgotten. */
void node_map_trim(struct node_map *map);

/* Frees what it holds. */
void node_map_deinit(struct node_map *map);
