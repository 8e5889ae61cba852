/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library should expect of this program, launch by launch: p->told gets a line `launch`, then
 * one line `site place rows` for each record, with `left` after it where the record must come out as a drop for the
 * reason `unsupported`: in graphs with memory nodes or conditional nodes, whose bodies run in no account; of sites that came into a graph by new parameters; and of all
 * kernels of a site in a graph of which one came unseen (set before it was instantiated, or embedded by a capture), as
 * then nobody knows which occurrence is which.
 */
#include "program.h"

#include <stdlib.h>
#include <string.h>

int flatten(struct program *p, int graph, int *nodes, int room)
{
    const struct graph *g = &p->graphs[graph];
    int n = g->n_nodes;
    for (int i = 0; i < n && i < room; i++)
        nodes[i] = g->nodes[i];
    for (int i = 0; i < g->n_nodes; i++)
        if (p->nodes[g->nodes[i]].child >= 0)
            n += flatten(p, p->nodes[g->nodes[i]].child, nodes + (n < room ? n : room),
                         room > n ? room - n : 0);
    return n;
}

bool has_conditional(struct program *p, int graph)
{
    const struct graph *g = &p->graphs[graph];
    for (int i = 0; i < g->n_nodes; i++) {
        const struct node *n = &p->nodes[g->nodes[i]];
        if (n->n_bodies || (n->child >= 0 && has_conditional(p, n->child)))
            return true;
    }
    return false;
}

/* ------------------------------------------------------------------------- spans */

enum { MAX_FLAT = 1024, MAX_SPANS = 256 };

/* Spans of @graph, whose first node has position @first. Return: number of its nodes */
static int fill_spans(struct program *p, int graph, int node, int first, struct span *spans,
                      int *n_spans)
{
    const struct graph *g = &p->graphs[graph];
    struct span *mine = &spans[*n_spans];
    int n = g->n_nodes, before = (*n_spans)++;
    if (*n_spans == MAX_SPANS)
        abort();
    *mine = (struct span){ .node = node, .first = first };
    memcpy(mine->users, g->users, sizeof mine->users);
    for (int i = 0; i < g->n_nodes; i++)
        if (p->nodes[g->nodes[i]].child >= 0)
            n += fill_spans(p, p->nodes[g->nodes[i]].child, g->nodes[i], first + n, spans, n_spans);
    mine->n = n;
    mine->n_spans = *n_spans - before;
    return n;
}

/* References go over from the graphs of an update to those of the exec. */
static void take_users(struct program *p, struct span *to, const struct span *from, int n)
{
    for (int i = 0; i < n; i++) {
        unsigned old[MAX_OBJECTS];
        memcpy(old, to[i].users, sizeof old);
        memset(to[i].users, 0, sizeof to[i].users);
        users_add(p, to[i].users, from[i].users);
        users_drop(p, old);
    }
}

/* ------------------------------------------------------------------------- execs */

/* Entries in the making: of a graph and its child graphs, whose flat list begins at position @first of the exec. */
struct listing {
    const int *flat;
    int n_flat, first, n;
    struct entry *entries;
};

static int position_of(const struct listing *l, int node)
{
    int at = 0;
    while (at < l->n_flat && l->flat[at] != node)
        at++;
    return l->first + at;
}

static void list(struct program *p, struct listing *l, int node, bool ordered)
{
    const struct node *n = &p->nodes[node];
    l->entries[l->n++] = (struct entry){ .node = node,
                                         .position = position_of(l, node),
                                         .kernel = n->type == CU_GRAPH_NODE_TYPE_KERNEL,
                                         .enabled = true,
                                         .ordered = ordered,
                                         .work = n->work };
}

static void list_noted(struct program *p, struct listing *l, int graph)
{
    const struct graph *g = &p->graphs[graph];
    for (int i = 0; i < g->n_notes; i++) {
        const struct node *node = &p->nodes[g->notes[i]];
        if (node->child < 0 && !sites_of(node->work.kind))
            continue; /* it was a site when it was added */
        list(p, l, g->notes[i], true);
        if (node->child >= 0)
            list_noted(p, l, node->child);
    }
}

static bool is_listed(const struct listing *l, int node)
{
    for (int i = 0; i < l->n; i++)
        if (l->entries[i].node == node)
            return true;
    return false;
}

/* All kernels and child graphs of @graph: those with a known order first. */
static void list_graph(struct program *p, struct listing *l, int graph)
{
    list_noted(p, l, graph);
    for (int i = 0; i < l->n_flat; i++)
        if ((p->nodes[l->flat[i]].type == CU_GRAPH_NODE_TYPE_KERNEL ||
             p->nodes[l->flat[i]].child >= 0) &&
            !is_listed(l, l->flat[i]))
            list(p, l, l->flat[i], false);
}

void model_instantiate(struct program *p, int exec)
{
    struct exec *x = &p->execs[exec];
    struct span spans[MAX_SPANS];
    int flat[MAX_FLAT], n = flatten(p, x->graph, flat, MAX_FLAT);
    if (n > MAX_FLAT)
        abort();
    fill_spans(p, x->graph, -1, 0, spans, &x->n_spans);
    x->spans = calloc((size_t)x->n_spans, sizeof *x->spans);
    x->entries = calloc((size_t)n + 1, sizeof *x->entries);
    if (!x->spans || !x->entries)
        abort();
    memcpy(x->spans, spans, (size_t)x->n_spans * sizeof *spans);
    for (int i = 0; i < x->n_spans; i++) {
        memset(x->spans[i].users, 0, sizeof x->spans[i].users);
        users_add(p, x->spans[i].users, spans[i].users);
    }
    struct listing l = { .flat = flat, .n_flat = n, .entries = x->entries };
    list_graph(p, &l, x->graph);
    x->n_entries = l.n;
    bool left = p->graphs[x->graph].memory || has_conditional(p, x->graph);
    for (int i = 0; i < x->n_entries; i++)
        if (x->entries[i].ordered && x->entries[i].kernel && !left)
            x->entries[i].sites = sites_of(x->entries[i].work.kind);
}

void model_destroy(struct program *p, int exec)
{
    struct exec *x = &p->execs[exec];
    for (int i = 0; i < x->n_spans; i++)
        users_drop(p, x->spans[i].users);
    free(x->entries);
    free(x->spans);
    x->entries = NULL;
    x->spans = NULL;
    x->n_entries = x->n_spans = 0;
}

void model_set(struct program *p, int exec, int node, const struct work *w)
{
    struct exec *x = &p->execs[exec];
    for (int i = 0; i < x->n_entries; i++)
        if (x->entries[i].node == node)
            x->entries[i].work = *w;
}

void model_enable(struct program *p, int exec, int node, bool on)
{
    struct exec *x = &p->execs[exec];
    for (int i = 0; i < x->n_entries; i++)
        if (x->entries[i].node == node)
            x->entries[i].enabled = on;
}

static const struct entry *entry_at(const struct exec *x, int position)
{
    for (int i = 0; i < x->n_entries; i++)
        if (x->entries[i].position == position)
            return &x->entries[i];
    return NULL;
}

/* What the exec had at the same place stays: its name, whether it is on, its copies. */
static void keep_place(struct entry *e, const struct exec *x, bool ordered)
{
    const struct entry *old = entry_at(x, e->position);
    if (!old)
        return;
    e->node = old->node;
    e->enabled = old->enabled;
    e->sites = old->sites;
    /* a place with copies that is no site now keeps them, and a place */
    e->ordered = e->ordered ? ordered : old->sites && !sites_of(e->work.kind);
}

/* The nodes of @to become those of @graph, at the place of child graph @node of the exec, -1: all of them. */
static void take(struct program *p, struct exec *x, struct span *to, int node, int graph)
{
    struct span spans[MAX_SPANS];
    int flat[MAX_FLAT], n = flatten(p, graph, flat, MAX_FLAT), n_spans = 0;
    fill_spans(p, graph, -1, 0, spans, &n_spans);
    struct entry *entries = calloc((size_t)(x->n_entries + n) + 1, sizeof *entries);
    struct entry *fresh = calloc((size_t)n + 1, sizeof *fresh);
    struct listing l = { .flat = flat, .n_flat = n, .first = to->first, .entries = fresh };
    if (!entries || !fresh)
        abort();
    list_graph(p, &l, graph);
    int at = 0;
    bool placed = false, ordered = node < 0;
    for (int i = 0; i < x->n_entries; i++) {
        const struct entry *e = &x->entries[i];
        if (e->position < to->first || e->position >= to->first + to->n)
            entries[at++] = *e;
        if (e->node != node || e->kernel)
            continue;
        placed = true;
        ordered = e->ordered;
        for (int k = 0; k < l.n; k++)
            entries[at++] = fresh[k];
    }
    for (int k = 0; k < l.n && !placed; k++)
        entries[at++] = fresh[k];
    for (int i = 0; i < at; i++)
        if (entries[i].position >= to->first && entries[i].position < to->first + to->n)
            keep_place(&entries[i], x, ordered);
    free(x->entries);
    free(fresh);
    x->entries = entries;
    x->n_entries = at;
    take_users(p, to, spans, n_spans < to->n_spans ? n_spans : to->n_spans);
}

void model_update(struct program *p, int exec, int graph)
{
    take(p, &p->execs[exec], &p->execs[exec].spans[0], -1, graph);
}

void model_set_child(struct program *p, int exec, int node, int graph)
{
    struct exec *x = &p->execs[exec];
    for (int i = 1; i < x->n_spans; i++)
        if (x->spans[i].node == node)
            take(p, x, &x->spans[i], node, graph);
}

/* ------------------------------------------------------------------------- records */

/* @copied: bit mask of the sites that are captured. */
static void say_records(struct program *p, const struct work *w, unsigned copied)
{
    unsigned sites = sites_of(w->kind);
    for (int site = 0; site < MAX_SITES; site++)
        if (sites >> site & 1 && w->rows && p->told)
            fprintf(p->told, "%d %u %u%s\n", site, w->slot, w->rows,
                    copied >> site & 1 ? "" : " left");
}

static void say_launch(struct program *p)
{
    if (p->told)
        fprintf(p->told, "launch\n");
}

void model_launch(struct program *p, int exec)
{
    struct exec *x = &p->execs[exec];
    unsigned doubted = 0;
    say_launch(p);
    for (int i = 0; i < x->n_entries; i++)
        if (x->entries[i].kernel && !x->entries[i].ordered)
            doubted |= sites_of(x->entries[i].work.kind);
    for (int i = 0; i < x->n_entries; i++)
        if (x->entries[i].kernel && x->entries[i].enabled)
            say_records(p, &x->entries[i].work, x->entries[i].sites & ~doubted);
}

void model_eager(struct program *p, const struct work *w)
{
    say_launch(p);
    say_records(p, w, ~0u);
}
