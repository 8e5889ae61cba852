/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/order.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/grow.h"
#include "core/locked.h"
#include "preload/base/driver.h"
#include "preload/base/handles.h"
#include "preload/graph/tap.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct graph_user {
    CUuserObject object;
    int count;
};

/* Kept by graph handle; changed under the lock only. */
struct note {
    size_t n, cap;
    struct order_item *items;
    size_t n_users;
    struct graph_user *users;
    bool moved; /* into a node */
};

static struct handles notes = HANDLES_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool append(struct note *note, struct order_item item)
{
    for (size_t i = 0; i < note->n && !item.tap; i++)
        if (note->items[i].node == item.node && note->items[i].body == item.body &&
            note->items[i].condition == item.condition)
            return true;
    if (PUSH(note->items, note->n, note->cap, 16, item))
        return false;
    return true;
}

static void note_free(struct note *note)
{
    if (note) {
        for (size_t i = 0; i < note->n; i++)
            graph_tap_free(note->items[i].tap);
        free(note->items);
        free(note->users);
    }
    free(note);
}

/* Under the lock. NULL: no memory, or too many graphs. */
static struct note *note_of(CUgraph graph)
{
    struct note *note = handles_find(&notes, graph);
    if (note)
        return note;
    note = calloc(1, sizeof *note);
    if (note && handles_set(&notes, graph, note) == note) {
        note_free(note);
        note = NULL;
    }
    return note;
}

static void add(CUgraph graph, struct order_item item)
{
    pthread_mutex_lock(&lock);
    struct note *note = note_of(graph);
    bool added = note && append(note, item);
    pthread_mutex_unlock(&lock);
    if (!added && item.tap) {
        functions_give_up(item.tap->func, "is in a graph that there is no memory for");
        graph_tap_free(item.tap);
    }
}

/* A kernel of the spec became a node of @graph. Once per node. */
static void order_note(CUgraph graph, CUgraphNode node, bool is_child)
{
    struct order_item item = { .node = node, .is_child = is_child };
    driver_table.cuCtxGetCurrent(&item.context); /* NULL without one: such a node is not captured */
    add(graph, item);
}

void order_note_kernel(CUgraph graph, CUgraphNode node, const struct func *func)
{
    struct order_item item = { .node = node, .func = func };
    driver_table.cuCtxGetCurrent(&item.context); /* as above */
    add(graph, item);
}

void order_note_condition(CUgraph graph, CUgraphConditionalHandle condition)
{
    add(graph, (struct order_item){ .condition = condition });
}

struct conditional {
    CUgraphNode node;
    CUgraphConditionalHandle handle;
};

/* The node is new: what is noted of another one was of a graph that ended unseen, as with a capture that broke. */
static void begin_conditional(const void *handle, void *value, void *ctx)
{
    const struct conditional *c = ctx;
    struct note *note = value;
    size_t kept = 0;
    (void)handle;
    for (size_t i = 0; i < note->n; i++)
        if (note->items[i].node != c->node &&
            (!note->items[i].condition || note->items[i].condition != c->handle))
            note->items[kept++] = note->items[i];
    note->n = kept;
}

void order_note_conditional(CUgraph graph, CUgraphNode node, const CUDA_CONDITIONAL_NODE_PARAMS *p)
{
    struct conditional conditional = { node, p->handle };
    UNDER(&lock, handles_each(&notes, begin_conditional, &conditional));
    for (unsigned i = 0; p->phGraph_out && i < p->size; i++) {
        order_forget(p->phGraph_out[i]); /* a new graph */
        add(graph, (struct order_item){ .node = node, .body = p->phGraph_out[i] });
    }
}

bool order_lacks_conditional(CUgraph graph)
{
    size_t n;
    _cleanup_(freep) struct order_item *items = order_items(graph, &n);
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || items[i].condition;
    return any;
}

void order_note_tap(CUgraph graph, struct graph_tap *tap)
{
    struct order_item item = { .tap = tap };
    driver_table.cuCtxGetCurrent(&item.context);
    add(graph, item);
}

void order_note_user(CUgraph graph, CUuserObject object, int count)
{
    pthread_mutex_lock(&lock);
    struct note *note = note_of(graph);
    struct graph_user *user = NULL;
    for (size_t i = 0; note && i < note->n_users; i++)
        if (note->users[i].object == object)
            user = &note->users[i];
    if (note && !user && !ONE_MORE(note->users, note->n_users)) {
        user = &note->users[note->n_users++];
        *user = (struct graph_user){ .object = object };
    }
    if (user) {
        user->count += count;
        if (user->count <= 0)
            *user = note->users[--note->n_users];
    }
    pthread_mutex_unlock(&lock);
}

struct order_item *order_items(CUgraph graph, size_t *n)
{
    struct order_item *copy = NULL;
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

/* A copy of the user objects that @graph holds; free() it. */
static struct graph_user *users_of(CUgraph graph, size_t *n)
{
    struct graph_user *copy = NULL;
    *n = 0;
    pthread_mutex_lock(&lock);
    struct note *note = handles_find(&notes, graph);
    if (note && note->n_users && (copy = malloc(note->n_users * sizeof *copy))) {
        memcpy(copy, note->users, note->n_users * sizeof *copy);
        *n = note->n_users;
    }
    pthread_mutex_unlock(&lock);
    return copy;
}

static CUgraph child_of(CUgraphNode node)
{
    CUgraph child;
    return driver_table.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS ? child : NULL;
}

/* The child graph nodes of @graph; free() them. */
static CUgraphNode *child_nodes(CUgraph graph, size_t *n)
{
    size_t n_all = 0;
    *n = 0;
    if (driver_table.cuGraphGetNodes(graph, NULL, &n_all) != CUDA_SUCCESS || !n_all)
        return NULL;
    CUgraphNode *nodes = calloc(n_all, sizeof *nodes);
    if (!nodes || driver_table.cuGraphGetNodes(graph, nodes, &n_all) != CUDA_SUCCESS)
        n_all = 0;
    for (size_t i = 0; i < n_all; i++) {
        CUgraphNodeType type;
        if (driver_table.cuGraphNodeGetType(nodes[i], &type) == CUDA_SUCCESS &&
            type == CU_GRAPH_NODE_TYPE_GRAPH)
            nodes[(*n)++] = nodes[i];
    }
    return nodes;
}

static bool list_graph(struct order_nested *list, CUgraph graph)
{
    if (ONE_MORE(list->graphs, list->n))
        return false;
    list->graphs[list->n++] = graph;
    return true;
}

/* The driver lists child graphs. It does not list the bodies of conditional nodes: those are noted. */
static void add_nested(struct order_nested *list, CUgraph graph)
{
    size_t n, n_items;
    if (!list_graph(list, graph))
        return;
    _cleanup_(freep) CUgraphNode *nodes = child_nodes(graph, &n);
    _cleanup_(freep) struct order_item *items = order_items(graph, &n_items);
    for (size_t i = 0; i < n; i++) {
        CUgraph child = child_of(nodes[i]);
        if (child)
            add_nested(list, child);
    }
    for (size_t i = 0; i < n_items; i++)
        if (items[i].body)
            add_nested(list, items[i].body);
}

struct order_nested order_nested(CUgraph graph)
{
    struct order_nested list = { 0 };
    if (graph)
        add_nested(&list, graph);
    return list;
}

struct bodies {
    CUgraphNode node;
    struct order_nested list;
};

static void list_bodies(const void *handle, void *value, void *ctx)
{
    const struct note *note = value;
    struct bodies *bodies = ctx;
    (void)handle;
    for (size_t i = 0; i < note->n; i++)
        if (note->items[i].node == bodies->node && note->items[i].body)
            list_graph(&bodies->list, note->items[i].body);
}

static struct order_nested nested_in_bodies(CUgraphNode node)
{
    struct bodies bodies = { .node = node };
    struct order_nested all = { 0 };
    UNDER(&lock, handles_each(&notes, list_bodies, &bodies));
    for (size_t i = 0; i < bodies.list.n; i++)
        add_nested(&all, bodies.list.graphs[i]);
    free(bodies.list.graphs);
    return all;
}

struct order_nested order_nested_in(CUgraphNode node)
{
    CUgraphNodeType type;
    if (!node || driver_table.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
        return (struct order_nested){ 0 };
    return type == CU_GRAPH_NODE_TYPE_GRAPH         ? order_nested(child_of(node))
           : type == CU_GRAPH_NODE_TYPE_CONDITIONAL ? nested_in_bodies(node)
                                                    : (struct order_nested){ 0 };
}

bool order_has_sites(CUgraph graph)
{
    size_t n;
    struct order_item *items = order_items(graph, &n);
    bool any = false;
    for (size_t i = 0; i < n && !any; i++) {
        CUgraph inner = items[i].is_child ? child_of(items[i].node) : items[i].body;
        bool is_kernel = !items[i].is_child && !items[i].body && !items[i].condition;
        any = is_kernel || (inner && order_has_sites(inner));
    }
    free(items);
    return any;
}

/* ------------------------------------------------------------------------- copies */

/* Child graphs may hold something that is noted also where they came unseen: embedded by a capture. */
static void carry_over_children(CUgraph from, CUgraph to)
{
    size_t n;
    _cleanup_(freep) CUgraphNode *nodes = child_nodes(from, &n);
    for (size_t i = 0; i < n; i++) {
        CUgraphNode twin;
        CUgraph inner, copy;
        if (driver_table.cuGraphNodeFindInClone(&twin, nodes[i], to) == CUDA_SUCCESS &&
            (inner = child_of(nodes[i])) && (copy = child_of(twin)))
            order_note_clone(inner, copy);
    }
}

static void carry_over_tap(const struct order_item *from, CUgraph to)
{
    struct order_item item = *from;
    item.tap = graph_tap_in_clone(from->tap, to);
    if (item.tap)
        add(to, item);
    else
        functions_give_up(from->tap->func, "is in a graph whose clone could not be followed");
}

void order_note_clone(CUgraph from, CUgraph to)
{
    size_t n, n_users;
    order_forget(to);
    _cleanup_(freep) struct order_item *items = order_items(from, &n);
    _cleanup_(freep) struct graph_user *users = users_of(from, &n_users);
    for (size_t i = 0; i < n_users; i++)
        order_note_user(to, users[i].object, users[i].count);
    for (size_t i = 0; i < n; i++) {
        struct order_item item = items[i];
        if (item.tap) {
            carry_over_tap(&item, to);
            continue;
        }
        if (driver_table.cuGraphNodeFindInClone(&item.node, items[i].node, to) == CUDA_SUCCESS)
            add(to, item);
    }
    carry_over_children(from, to);
}

static void note_moved(CUgraph graph)
{
    pthread_mutex_lock(&lock);
    struct note *note = note_of(graph);
    if (note)
        note->moved = true;
    pthread_mutex_unlock(&lock);
}

bool order_is_moved(CUgraph graph)
{
    pthread_mutex_lock(&lock);
    const struct note *note = handles_find(&notes, graph);
    bool moved = note && note->moved;
    pthread_mutex_unlock(&lock);
    return moved;
}

/* Child graphs are noted whatever they hold: they may be added to later. */
void order_note_child(CUgraph graph, CUgraphNode node, CUgraph child)
{
    CUgraph held = child_of(node);
    if (held && held != child)
        order_note_clone(child, held);
    else if (held)
        note_moved(held);
    if (held)
        order_note(graph, node, true);
}

/* ------------------------------------------------------------------------- user objects */

bool order_has_users(CUgraph graph)
{
    struct order_nested nested = order_nested(graph);
    bool any = !nested.graphs; /* no memory for the list: it may have some */
    for (size_t i = 0; i < nested.n && !any; i++) {
        size_t n;
        free(users_of(nested.graphs[i], &n));
        any = n != 0;
    }
    free(nested.graphs);
    return any;
}

static void CUDA_CB nothing(void *data)
{
    (void)data;
}

/* A reference to @object goes to @graph. A release through its clone must leave it there. */
static bool graph_keeps_its_own(CUgraph graph, CUuserObject object)
{
    CUgraph clone;
    if (driver_table.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) !=
            CUDA_SUCCESS ||
        driver_table.cuGraphClone(&clone, graph) != CUDA_SUCCESS)
        return false;
    bool copied = driver_table.cuGraphReleaseUserObject(clone, object, 1) == CUDA_SUCCESS &&
                  driver_table.cuGraphReleaseUserObject(graph, object, 1) == CUDA_SUCCESS;
    driver_table.cuGraphDestroy(clone);
    return copied;
}

static bool ask_whether_copied(void)
{
    CUgraph graph;
    CUuserObject object;
    bool copied = false;
    if (!driver_table.cuUserObjectCreate || !driver_table.cuUserObjectRelease ||
        !driver_table.cuGraphRetainUserObject || !driver_table.cuGraphReleaseUserObject ||
        driver_table.cuGraphCreate(&graph, 0) != CUDA_SUCCESS)
        return false;
    /* the second reference stays with us: drivers read through the handle of an object that has ended */
    if (driver_table.cuUserObjectCreate(&object, NULL, nothing, 2,
                                        CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_SUCCESS) {
        copied = graph_keeps_its_own(graph, object);
        driver_table.cuUserObjectRelease(object, 1);
    }
    driver_table.cuGraphDestroy(graph);
    return copied;
}

bool order_users_are_copied(void)
{
    static int known; /* 1: yes, 2: no; every thread comes to the same */
    if (!atomic_load_relaxed(&known))
        atomic_store_relaxed(&known, ask_whether_copied() ? 1 : 2);
    return atomic_load_relaxed(&known) == 1;
}

bool order_release_users(CUgraph graph, CUgraph copy)
{
    size_t n;
    bool released = true;
    _cleanup_(freep) struct graph_user *users = users_of(graph, &n);
    for (size_t i = 0; i < n && released; i++)
        released = driver_table.cuGraphReleaseUserObject &&
                   driver_table.cuGraphReleaseUserObject(copy, users[i].object,
                                                         (unsigned)users[i].count) == CUDA_SUCCESS;
    return released;
}

/* ------------------------------------------------------------------------- ends */

void order_forget(CUgraph graph)
{
    pthread_mutex_lock(&lock);
    struct note *note = handles_find(&notes, graph);
    if (note) {
        handles_set(&notes, graph, NULL);
        note_free(note); /* read under the lock only */
    }
    pthread_mutex_unlock(&lock);
}

struct order_end_note {
    CUgraph graph;
    struct note *note;
};

struct order_end_item {
    CUgraph graph;
    size_t at; /* its place there */
    struct order_item item;
};

static void take_out(struct order_end *end, const struct order_nested *which)
{
    end->notes = calloc(which->n + 1, sizeof *end->notes);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < which->n && end->notes; i++) {
        struct note *note = handles_find(&notes, which->graphs[i]);
        if (!note)
            continue;
        handles_set(&notes, which->graphs[i], NULL);
        end->notes[end->n++] = (struct order_end_note){ which->graphs[i], note };
    }
    pthread_mutex_unlock(&lock);
}

void order_end_graphs(struct order_end *end, const struct order_nested *which)
{
    *end = (struct order_end){ 0 };
    take_out(end, which);
}

struct node_search {
    struct order_end *end;
    CUgraphNode node;
};

/* A conditional node has an item for each of its bodies. */
static void take_out_node(const void *handle, void *value, void *ctx)
{
    struct note *note = value;
    struct node_search *s = ctx;
    size_t kept = 0;
    for (size_t i = 0; i < note->n; i++)
        if (note->items[i].tap)
            graph_tap_node_ends(note->items[i].tap, s->node);
    for (size_t i = 0; i < note->n; i++) {
        struct order_end *end = s->end;
        if (note->items[i].node != s->node) {
            note->items[kept++] = note->items[i];
            continue;
        }
        if (grow((void **)&end->items, end->n_items, &end->items_cap, sizeof *end->items, 4))
            continue; /* if the driver refuses, the node has come unseen */
        end->items[end->n_items++] =
            (struct order_end_item){ (CUgraph)(uintptr_t)handle, i, note->items[i] };
    }
    note->n = kept;
}

void order_end_node(struct order_end *end, CUgraphNode node, const struct order_nested *inside)
{
    *end = (struct order_end){ 0 };
    struct node_search search = { end, node };
    UNDER(&lock, handles_each(&notes, take_out_node, &search));
    take_out(end, inside);
}

/* Items in the order in which they were taken out: each finds the place that it had. */
static void put_back(const struct order_end *end)
{
    for (size_t i = 0; i < end->n; i++)
        if (handles_set(&notes, end->notes[i].graph, end->notes[i].note) == end->notes[i].note)
            note_free(end->notes[i].note);
    for (size_t i = 0; i < end->n_items; i++) {
        const struct order_end_item *taken = &end->items[i];
        struct note *note = handles_find(&notes, taken->graph);
        if (!note || !append(note, taken->item))
            continue;
        size_t last = note->n - 1, at = taken->at < last ? taken->at : last;
        memmove(&note->items[at + 1], &note->items[at], (last - at) * sizeof note->items[0]);
        note->items[at] = taken->item;
    }
}

void order_ended(struct order_end *end, bool success)
{
    pthread_mutex_lock(&lock);
    if (!success)
        put_back(end);
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < end->n && success; i++)
        note_free(end->notes[i].note);
    free(end->notes);
    free(end->items);
}

void order_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    notes = fresh;
    lock = unlocked;
}
