/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graphs.h"

#include "preload/handles.h"
#include "preload/hooks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Kept by graph handle; changed under the lock only. */
struct note {
    size_t n, cap;
    struct graph_item *items;
};

static struct handles notes = HANDLES_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool append(struct note *note, struct graph_item item)
{
    for (size_t i = 0; i < note->n; i++)
        if (note->items[i].node == item.node)
            return true;
    if (note->n == note->cap) {
        size_t cap = note->cap ? note->cap * 2 : 16;
        struct graph_item *items = realloc(note->items, cap * sizeof *items);
        if (!items)
            return false;
        note->items = items;
        note->cap = cap;
    }
    note->items[note->n++] = item;
    return true;
}

static void note_free(struct note *note)
{
    if (note)
        free(note->items);
    free(note);
}

static void add(CUgraph graph, struct graph_item item)
{
    pthread_mutex_lock(&lock);
    struct note *note = handles_find(&notes, graph);
    if (!note) {
        note = calloc(1, sizeof *note);
        if (note && handles_set(&notes, graph, note) == note) {
            note_free(note);
            note = NULL;
        }
    }
    if (note)
        append(note, item);
    pthread_mutex_unlock(&lock);
}

void graphs_note(CUgraph graph, CUgraphNode node, bool is_child)
{
    struct graph_item item = {.node = node, .is_child = is_child};
    driver_table.cuCtxGetCurrent(&item.context); /* NULL without one: such a node is not captured */
    add(graph, item);
}

struct graph_item *graphs_items(CUgraph graph, size_t *n)
{
    struct graph_item *copy = NULL;
    *n = 0;
    pthread_mutex_lock(&lock);
    struct note *note = handles_find(&notes, graph);
    if (note && note->n) {
        copy = malloc(note->n * sizeof *copy);
        if (copy) {
            memcpy(copy, note->items, note->n * sizeof *copy);
            *n = note->n;
        }
    }
    pthread_mutex_unlock(&lock);
    return copy;
}

/* What is noted of @from is noted of @to, its copy, too. */
static void carry_over(CUgraph from, CUgraph to)
{
    size_t n;
    struct graph_item *items = graphs_items(from, &n);
    for (size_t i = 0; i < n; i++) {
        CUgraphNode twin;
        if (driver_table.cuGraphNodeFindInClone(&twin, items[i].node, to) != CUDA_SUCCESS)
            continue;
        struct graph_item item = items[i];
        item.node = twin;
        add(to, item);
        CUgraph inner_from, inner_to;
        if (items[i].is_child &&
            driver_table.cuGraphChildGraphNodeGetGraph(items[i].node, &inner_from) == CUDA_SUCCESS &&
            driver_table.cuGraphChildGraphNodeGetGraph(twin, &inner_to) == CUDA_SUCCESS)
            carry_over(inner_from, inner_to);
    }
    free(items);
}

void graphs_note_child(CUgraph graph, CUgraphNode node, CUgraph child)
{
    CUgraph held;
    size_t n;
    free(graphs_items(child, &n));
    if (!n || driver_table.cuGraphChildGraphNodeGetGraph(node, &held) != CUDA_SUCCESS)
        return;
    carry_over(child, held);
    graphs_note(graph, node, true);
}

void graphs_note_clone(CUgraph graph, CUgraph copy)
{
    carry_over(graph, copy);
}

void graphs_forget(CUgraph graph)
{
    pthread_mutex_lock(&lock);
    struct note *note = handles_find(&notes, graph);
    if (note) {
        handles_set(&notes, graph, NULL);
        note_free(note); /* read under the lock only */
    }
    pthread_mutex_unlock(&lock);
}

static void forget_node_in(const void *handle, void *value, void *ctx)
{
    struct note *note = value;
    (void)handle;
    for (size_t i = 0; i < note->n; i++)
        if (note->items[i].node == ctx) {
            memmove(&note->items[i], &note->items[i + 1], (note->n - i - 1) * sizeof note->items[0]);
            note->n--;
            return;
        }
}

void graphs_forget_node(CUgraphNode node)
{
    pthread_mutex_lock(&lock);
    handles_each(&notes, forget_node_in, node);
    pthread_mutex_unlock(&lock);
}

void graphs_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    notes = fresh;
    lock = unlocked;
}
