/* SPDX-License-Identifier: Apache-2.0 */
/* Chance, names for handles, and the printing of answers. */
#include "program.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- chance */

/* Each operation has numbers of its own: leaving one out changes no other's. */
void random_start(struct program *p, long at)
{
    p->random = p->seed * 0x9E3779B97F4A7C15u ^ (uint64_t)(at + 1) * 0xD1342543DE82EF95u;
    p->at = at;
}

/* Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014): SplitMix64 */
static uint64_t next(struct program *p)
{
    uint64_t z = p->random += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint32_t pick(struct program *p, uint32_t n)
{
    return (uint32_t)((next(p) >> 32) * n >> 32);
}

bool chance(struct program *p, unsigned percent)
{
    return pick(p, 100) < percent;
}

/* ------------------------------------------------------------------------- handles */

/* Of nodes n > 0, of graphs n < 0; a handle that is given again takes its place over. */
enum { INDEX_SIZE = 1 << 17 };

static int *slot_of(struct program *p, const void *handle)
{
    size_t at = (uintptr_t)handle * 0x9E3779B97F4A7C15u >> (64 - 17);
    for (;; at = (at + 1) % INDEX_SIZE) {
        int known = p->index[at];
        if (!known || (known > 0 && p->nodes[known - 1].handle == handle) ||
            (known < 0 && (void *)p->graphs[-known - 1].handle == handle))
            return &p->index[at];
    }
}

int find_node(struct program *p, CUgraphNode handle)
{
    int known = handle ? *slot_of(p, handle) : 0;
    return known > 0 && p->nodes[known - 1].alive ? known - 1 : -1;
}

int find_graph(struct program *p, CUgraph handle)
{
    int known = handle ? *slot_of(p, handle) : 0;
    return known < 0 && p->graphs[-known - 1].alive ? -known - 1 : -1;
}

static void push(int **list, int *n, int *room, int what)
{
    if (*n == *room) {
        *room = *room ? *room * 2 : 8;
        *list = realloc(*list, (size_t)*room * sizeof **list);
        if (!*list)
            abort();
    }
    (*list)[(*n)++] = what;
}

static void take_out(int *list, int *n, int what)
{
    for (int i = 0; i < *n; i++)
        if (list[i] == what) {
            memmove(list + i, list + i + 1, (size_t)(*n - i - 1) * sizeof *list);
            --*n;
            return;
        }
}

int new_node(struct program *p, int graph, CUgraphNode handle, CUgraphNodeType type)
{
    if (p->n_nodes == MAX_NODES) {
        fprintf(stderr, "graph_calls: too many nodes for one program\n");
        exit(2);
    }
    int n = p->n_nodes++;
    p->nodes[n] =
        (struct node){ .handle = handle, .type = type, .alive = true, .graph = graph, .child = -1 };
    *slot_of(p, handle) = n + 1;
    if (graph >= 0)
        push(&p->graphs[graph].nodes, &p->graphs[graph].n_nodes, &p->graphs[graph].room, n);
    return n;
}

int new_graph(struct program *p, CUgraph handle, int owner)
{
    if (p->n_graphs == MAX_GRAPHS) {
        fprintf(stderr, "graph_calls: too many graphs for one program\n");
        exit(2);
    }
    int g = p->n_graphs++;
    p->graphs[g] = (struct graph){ .handle = handle, .alive = true, .owner = owner };
    *slot_of(p, handle) = -(g + 1);
    return g;
}

void note(struct program *p, int graph, int node)
{
    struct graph *g = &p->graphs[graph];
    if (p->nodes[node].noted)
        return;
    p->nodes[node].noted = true;
    push(&g->notes, &g->n_notes, &g->notes_room, node);
}

void forget_node(struct program *p, int node)
{
    struct node *n = &p->nodes[node];
    if (n->child >= 0)
        forget_graph(p, n->child);
    for (int i = 0; i < n->n_bodies; i++)
        forget_graph(p, n->bodies[i]);
    n->alive = false;
    take_out(p->graphs[n->graph].nodes, &p->graphs[n->graph].n_nodes, node);
    take_out(p->graphs[n->graph].notes, &p->graphs[n->graph].n_notes, node);
}

void forget_graph(struct program *p, int graph)
{
    struct graph *g = &p->graphs[graph];
    while (g->n_nodes)
        forget_node(p, g->nodes[g->n_nodes - 1]);
    users_drop(p, g->users);
    free(g->nodes);
    free(g->notes);
    g->nodes = g->notes = NULL;
    g->n_notes = g->room = g->notes_room = 0;
    g->alive = false;
}

bool in_body(struct program *p, int graph)
{
    int owner = p->graphs[graph].owner;
    return owner >= 0 && (p->nodes[owner].n_bodies || in_body(p, p->nodes[owner].graph));
}

int some_graph(struct program *p, bool own)
{
    for (int tries = 0; tries < 24 && p->n_graphs; tries++) {
        /* recent ones more often */
        int back = (int)pick(p, (uint32_t)(p->n_graphs < 8 || chance(p, 20) ? p->n_graphs : 8));
        struct graph *g = &p->graphs[p->n_graphs - 1 - back];
        if (g->alive && (!own || g->owner < 0))
            return p->n_graphs - 1 - back;
    }
    return -1;
}

int some_node(struct program *p, int graph)
{
    if (graph < 0 || !p->graphs[graph].n_nodes)
        return -1;
    return p->graphs[graph].nodes[pick(p, (uint32_t)p->graphs[graph].n_nodes)];
}

int some_node_of(struct program *p, int graph, CUgraphNodeType type)
{
    for (int tries = 0; tries < 12; tries++) {
        int node = some_node(p, graph);
        if (node >= 0 && p->nodes[node].type == type)
            return node;
    }
    return -1;
}

int some_exec(struct program *p)
{
    for (int tries = 0; tries < 24 && p->n_execs; tries++) {
        int back = (int)pick(p, (uint32_t)(p->n_execs < 6 || chance(p, 20) ? p->n_execs : 6));
        if (p->execs[p->n_execs - 1 - back].alive)
            return p->n_execs - 1 - back;
    }
    return -1;
}

/* ------------------------------------------------------------------------- answers */

void say(struct program *p, const char *format, ...)
{
    va_list args;
    if (!p->in_line)
        fprintf(p->out, "@%ld ", p->at);
    p->in_line = true;
    va_start(args, format);
    vfprintf(p->out, format, args);
    va_end(args);
}

void say_end(struct program *p)
{
    say(p, "\n");
    p->in_line = false;
}

void say_result(struct program *p, CUresult r)
{
    say(p, " -> %d", (int)r);
    if (errno != 4242)
        say(p, ", errno %d", errno);
    say_end(p);
}

void say_node(struct program *p, CUgraphNode handle)
{
    int n = find_node(p, handle);
    if (handle == UNSET)
        say(p, " -");
    else if (!handle)
        say(p, " none");
    else if (n >= 0)
        say(p, " n%d", n);
    else
        say(p, " unknown");
}

void say_graph(struct program *p, CUgraph handle)
{
    int g = find_graph(p, handle);
    if ((void *)handle == UNSET)
        say(p, " -");
    else if (!handle)
        say(p, " none");
    else if (g >= 0)
        say(p, " g%d", g);
    else
        say(p, " unknown");
}

void say_exec(struct program *p, CUgraphExec handle)
{
    if ((void *)handle == UNSET || !handle) {
        say(p, handle ? " -" : " none");
        return;
    }
    for (int x = p->n_execs - 1; x >= 0; x--)
        if (p->execs[x].alive && p->execs[x].handle == handle) {
            say(p, " x%d", x);
            return;
        }
    say(p, " unknown");
}

void say_event(struct program *p, CUevent event)
{
    for (int i = 0; i < N_EVENTS; i++)
        if (p->events[i] == event) {
            say(p, " e%d", i);
            return;
        }
    say(p, (void *)event == UNSET ? " -" : event ? " unknown" : " none");
}

void say_pointer(struct program *p, uint64_t address)
{
    const struct {
        const char *name;
        uint64_t base, n;
    } areas[] = {
        { "slots", p->slots, N_SLOTS * SLOT_BYTES },
        { "fills", p->fills, N_SLOTS * SLOT_BYTES },
        { "copies", p->copies, N_SLOTS * SLOT_BYTES },
        { "source", p->source, N_SLOTS * SLOT_BYTES },
        { "host", (uintptr_t)p->host_copies, N_SLOTS * SLOT_BYTES },
        { "pattern", (uintptr_t)p->pattern, N_SLOTS * SLOT_BYTES },
    };
    for (size_t i = 0; i < sizeof areas / sizeof areas[0]; i++)
        if (address >= areas[i].base && address - areas[i].base < areas[i].n) {
            say(p, " %s+%u", areas[i].name, (unsigned)(address - areas[i].base));
            return;
        }
    for (int i = p->n_allocs - 1; i >= 0; i--) /* an address may come again */
        if (p->allocs[i] == address) {
            say(p, " alloc%d", i);
            return;
        }
    say(p, address == (uintptr_t)UNSET ? " -" : address ? " unknown" : " 0");
}

void say_edge(struct program *p, const CUgraphEdgeData *data)
{
    say(p, "/%u.%u.%u", data->from_port, data->to_port, data->type);
}
