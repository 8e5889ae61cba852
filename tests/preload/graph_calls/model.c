/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library should record of this program, launch by launch: p->told gets a line `launch`, then
 * one line `site place rows` for each record. What it may leave alone is left alone here too: graphs with
 * memory nodes, sites that came into a graph by new parameters, graphs that a capturing stream embedded.
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

static void add_entries(struct program *p, struct exec *x, int graph, const int *flat, int n)
{
    const struct graph *g = &p->graphs[graph];
    for (int i = 0; i < g->n_notes; i++) {
        const struct node *node = &p->nodes[g->notes[i]];
        if (node->child >= 0) {
            add_entries(p, x, node->child, flat, n);
            continue;
        }
        if (!sites_of(node->work.kind))
            continue;
        int position = 0;
        while (position < n && flat[position] != g->notes[i])
            position++;
        x->entries[x->n_entries++] = (struct entry){ .node = g->notes[i],
                                                     .position = position,
                                                     .enabled = true,
                                                     .sites = sites_of(node->work.kind),
                                                     .work = node->work };
    }
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
    if (!p->graphs[x->graph].memory)
        add_entries(p, x, x->graph, flat, n);
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

static void take(struct program *p, struct exec *x, struct span *to, int graph)
{
    struct span spans[MAX_SPANS];
    int flat[MAX_FLAT], n = flatten(p, graph, flat, MAX_FLAT), n_spans = 0;
    fill_spans(p, graph, -1, 0, spans, &n_spans);
    for (int i = 0; i < x->n_entries; i++) {
        int at = x->entries[i].position - to->first;
        if (at >= 0 && at < to->n && at < n)
            x->entries[i].work = p->nodes[flat[at]].work;
    }
    take_users(p, to, spans, n_spans < to->n_spans ? n_spans : to->n_spans);
}

void model_update(struct program *p, int exec, int graph)
{
    take(p, &p->execs[exec], &p->execs[exec].spans[0], graph);
}

void model_set_child(struct program *p, int exec, int node, int graph)
{
    struct exec *x = &p->execs[exec];
    for (int i = 1; i < x->n_spans; i++)
        if (x->spans[i].node == node)
            take(p, x, &x->spans[i], graph);
}

/* ------------------------------------------------------------------------- records */

static void say_records(struct program *p, const struct work *w, unsigned sites)
{
    for (int site = 0; site < MAX_SITES; site++)
        if (sites >> site & 1 && w->rows && p->told)
            fprintf(p->told, "%d %u %u\n", site, w->slot, w->rows);
}

static void say_launch(struct program *p)
{
    if (p->told)
        fprintf(p->told, "launch\n");
}

void model_launch(struct program *p, int exec)
{
    struct exec *x = &p->execs[exec];
    say_launch(p);
    for (int i = 0; i < x->n_entries; i++)
        if (x->entries[i].enabled)
            say_records(p, &x->entries[i].work,
                        x->entries[i].sites & sites_of(x->entries[i].work.kind));
}

void model_eager(struct program *p, const struct work *w)
{
    say_launch(p);
    say_records(p, w, sites_of(w->kind));
}
