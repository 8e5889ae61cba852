/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taps on streams that are being captured. A tap is no node of the application's graph: what is noted is the nodes that the
 * stream waited for, and which of their dependents were there before. The action of the clone comes after the former and
 * before all later dependents, so before whatever the application adds to that stream next. Nodes that were there before it
 * never wait for it, so there is no circle.
 */
#pragma once

#include "preload/base/stream.h"
#include "preload/function/functions.h"

#include <dmi/dmi.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A tap in a graph of the application's. Not changed once it is noted, but by graph_tap_node_ends(). */
struct graph_tap {
    struct dmi_tap tap; /* its name is the func's */
    const struct func *func;
    CUgraphNode *after; /* what its stream waited for; none: it comes first in its graph */
    CUgraphNode
        *earlier; /* dependents of those (where there are none: roots) that were there before it */
    size_t n_after, n_earlier;
    bool lost; /* a node that it came after has ended */
};

/**
 * graph_tap_new() - a tap on @stream, which is being captured into *@graph
 * Thread: any that holds no lock. Return: NULL without memory, or where the driver does not say what there is.
 */
struct graph_tap *graph_tap_new(struct stream stream, const struct func *func,
                                const struct dmi_tap *tap, CUgraph *graph);

/* The same tap in @copy, a clone of its graph. Return: NULL without memory, or where the driver does not find its nodes. */
struct graph_tap *graph_tap_in_clone(const struct graph_tap *tap, CUgraph copy);

/* @node is about to end. */
void graph_tap_node_ends(struct graph_tap *tap, CUgraphNode node);

/* NULL is fine. */
void graph_tap_free(struct graph_tap *tap);

/* Where a tap lies in a graph of some shape: positions of node_map.h. Shared by plans; immutable. */
struct tap_place {
    int users; /* atomic */
    uint32_t n_after, n_before;
    uint32_t at[]; /* of the nodes that it comes after, then of those that it comes before */
};

struct node_map;

/**
 * tap_place_find() - where @tap lies in @graph, whose nodes @map has
 * Return: NULL where a node is not there any more, or without memory. To be released with tap_place_release().
 */
struct tap_place *tap_place_find(const struct graph_tap *tap, CUgraph graph,
                                 const struct node_map *map);

/* The same place where all positions are @by higher (or, below 0, lower). Return: NULL without memory. */
struct tap_place *tap_place_moved(const struct tap_place *place, int64_t by);

/**
 * tap_place_within() - @place of an exec's tap, its positions @by higher, in the graph of @map, which lacks the tap
 * It comes before those nodes only that depend there on a node that it comes after. Otherwise a copy would stand in for an edge that
 * the graph lacks, and drivers would take an update that they refuse. Return: NULL without memory, or where the driver does not say.
 */
struct tap_place *tap_place_within(const struct tap_place *place, int64_t by,
                                   const struct node_map *map);

/* Are these one place, the second's positions taken @by higher? */
bool tap_place_same(const struct tap_place *a, const struct tap_place *b, int64_t by);

/* Does @place come after all nodes that @other comes after? */
bool tap_place_covers(const struct tap_place *place, const struct tap_place *other);

/* One user more, and one less; NULL is fine. */
struct tap_place *tap_place_hold(struct tap_place *place);
void tap_place_release(struct tap_place *place);

/* Any position of the place, UINT32_MAX: it has none. */
uint32_t tap_place_anchor(const struct tap_place *place);
