/* SPDX-License-Identifier: Apache-2.0 */
/* Every query of a graph, with arrays too small, right and too large. */
#include "program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROOM = 160 };

/* A size for an array where @n would do. */
static size_t some_room(struct program *p, size_t n)
{
    size_t room = chance(p, 50) ? n : chance(p, 50) ? n + 1 + pick(p, 5) : pick(p, (uint32_t)n + 1);
    return room < ROOM ? room : ROOM;
}

static void unset_nodes(CUgraphNode *nodes)
{
    for (size_t i = 0; i < ROOM; i++)
        nodes[i] = UNSET;
}

/* What was written, and one place past the room that the call was given. */
static void say_nodes(struct program *p, const CUgraphNode *nodes, size_t room)
{
    for (size_t i = 0; i < room && i < ROOM; i++)
        say_node(p, nodes[i]);
    if (room < ROOM && nodes[room] != UNSET)
        say(p, " TOO MANY");
}

void op_nodes(struct program *p)
{
    int graph = some_graph(p, false);
    CUgraphNode nodes[ROOM];
    size_t n = 4711;
    if (graph < 0)
        return;
    bool roots = chance(p, 50);
    CUgraph handle = p->graphs[graph].handle;
    say(p, roots ? "roots of" : "nodes of");
    say_graph(p, handle);
    CUresult r = roots ? CALL(p, cuGraphGetRootNodes, handle, NULL, &n)
                       : CALL(p, cuGraphGetNodes, handle, NULL, &n);
    say(p, " %zu", n);
    say_result(p, r);
    size_t room = some_room(p, n);
    unset_nodes(nodes);
    n = room;
    say(p, "of these");
    r = roots ? CALL(p, cuGraphGetRootNodes, handle, nodes, &n)
              : CALL(p, cuGraphGetNodes, handle, nodes, &n);
    say(p, " %zu:", n);
    say_nodes(p, nodes, room);
    say_result(p, r);
}

void op_edges(struct program *p)
{
    int graph = some_graph(p, false);
    CUgraphNode from[ROOM], to[ROOM];
    CUgraphEdgeData data[ROOM];
    size_t n = 4711;
    if (graph < 0)
        return;
    CUgraph handle = p->graphs[graph].handle;
    say(p, "edges of");
    say_graph(p, handle);
    CUresult r = CALL(p, cuGraphGetEdges, handle, NULL, NULL, &n);
    say(p, " %zu", n);
    say_result(p, r);
    size_t room = some_room(p, n);
    bool old = older_form(p, 40, ENTRY_cuGraphGetEdges_v2), plain = chance(p, 20);
    unset_nodes(from);
    unset_nodes(to);
    memset(data, 0x7f, sizeof data);
    n = room;
    say(p, "of these%s%s", old ? " v1" : "", plain ? " without data" : "");
    r = old ? CALL(p, cuGraphGetEdges, handle, from, to, &n)
            : CALL(p, cuGraphGetEdges_v2, handle, from, to, plain ? NULL : data, &n);
    say(p, " %zu:", n);
    for (size_t i = 0; i < room; i++) {
        say_node(p, from[i]);
        say(p, ">");
        say_node(p, to[i]);
        say_edge(p, &data[i]);
    }
    say_result(p, r);
}

void op_neighbours(struct program *p)
{
    int node = some_node(p, some_graph(p, false));
    CUgraphNode nodes[ROOM];
    CUgraphEdgeData data[ROOM];
    size_t n = 4711;
    if (node < 0)
        return;
    bool before = chance(p, 50), plain = chance(p, 20);
    bool old = older_form(p, 40, ENTRY_cuGraphNodeGetDependencies_v2);
    CUgraphNode handle = p->nodes[node].handle;
    say(p, before ? "before" : "after");
    say_node(p, handle);
    CUresult r = before ? CALL(p, cuGraphNodeGetDependencies, handle, NULL, &n)
                        : CALL(p, cuGraphNodeGetDependentNodes, handle, NULL, &n);
    say(p, " %zu", n);
    say_result(p, r);
    size_t room = some_room(p, n);
    unset_nodes(nodes);
    memset(data, 0x7f, sizeof data);
    n = room;
    say(p, "of these%s%s", old ? " v1" : "", plain ? " without data" : "");
    CUgraphEdgeData *edges = plain ? NULL : data;
    if (before)
        r = old ? CALL(p, cuGraphNodeGetDependencies, handle, nodes, &n)
                : CALL(p, cuGraphNodeGetDependencies_v2, handle, nodes, edges, &n);
    else
        r = old ? CALL(p, cuGraphNodeGetDependentNodes, handle, nodes, &n)
                : CALL(p, cuGraphNodeGetDependentNodes_v2, handle, nodes, edges, &n);
    say(p, " %zu:", n);
    say_nodes(p, nodes, room);
    for (size_t i = 0; i < room; i++)
        say_edge(p, &data[i]);
    say_result(p, r);
}

void op_find_in_clone(struct program *p)
{
    int node = some_node(p, some_graph(p, false)), graph = some_graph(p, false);
    CUgraphNode found = UNSET;
    if (node < 0 || graph < 0)
        return;
    say(p, "find");
    say_node(p, p->nodes[node].handle);
    say(p, " in");
    say_graph(p, p->graphs[graph].handle);
    CUresult r =
        CALL(p, cuGraphNodeFindInClone, &found, p->nodes[node].handle, p->graphs[graph].handle);
    say_node(p, found);
    say_result(p, r);
}

/* A picture of the graph, which numbers nodes as the driver does: they get names in the order in which they appear. */
void op_dot(struct program *p)
{
    int graph = some_graph(p, false);
    char path[] = "/tmp/graph_calls.XXXXXX", line[512];
    unsigned long long seen[512];
    size_t n_seen = 0;
    int fd = graph < 0 ? -1 : mkstemp(path);
    if (fd < 0)
        return;
    say(p, "picture of");
    say_graph(p, p->graphs[graph].handle);
    CUresult r = CALL(p, cuGraphDebugDotPrint, p->graphs[graph].handle, path, 0);
    say_result(p, r);
    FILE *f = fdopen(fd, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        say(p, "|");
        for (char *c = line; *c; c++) {
            char *end = c;
            unsigned long long number =
                c[0] == 'n' && c[1] >= '0' && c[1] <= '9' ? strtoull(c + 1, &end, 10) : 0;
            size_t i = 0;
            if (end == c) {
                say(p, "%c", *c);
                continue;
            }
            while (i < n_seen && seen[i] != number)
                i++;
            if (i == n_seen && n_seen < sizeof seen / sizeof seen[0])
                seen[n_seen++] = number;
            say(p, "n%zu", i);
            c = end - 1;
        }
        say_end(p);
    }
    if (f)
        fclose(f);
    unlink(path);
}

/* Calls that the driver answers with an error, and that must not touch what they were given. */
void op_mistakes(struct program *p)
{
    int graph = some_graph(p, false), exec = some_exec(p), node = some_node(p, graph);
    CUgraph g = graph >= 0 && chance(p, 70) ? p->graphs[graph].handle : NULL;
    CUgraphExec x = exec >= 0 && chance(p, 70) ? p->execs[exec].handle : NULL,
                made = (CUgraphExec)UNSET;
    CUgraphNode n = node >= 0 && chance(p, 70) ? p->nodes[node].handle : NULL, error = UNSET;
    CUgraphExecUpdateResult result = (CUgraphExecUpdateResult)99;
    uint32_t which = pick(p, 14);
    size_t count = 3;
    CUgraph held = (CUgraph)UNSET;
    CUresult r = CUDA_SUCCESS;
    say(p, "mistake %u", which);
    say_graph(p, g);
    say_exec(p, x);
    say_node(p, n);
    switch (which) {
    case 0: r = CALL(p, cuGraphExecUpdate, x, g, &error, NULL); break;
    case 1: r = CALL(p, cuGraphExecUpdate, x, NULL, &error, &result); break;
    case 2: r = CALL(p, cuGraphExecUpdate_v2, x, g, NULL); break;
    case 3: r = CALL(p, cuGraphInstantiate_v2, NULL, g, &error, NULL, 0); break;
    case 4: r = CALL(p, cuGraphInstantiate_v2, &made, NULL, &error, NULL, 0); break;
    case 5: r = CALL(p, cuGraphInstantiateWithFlags, &made, g, 1ull << 40); break;
    case 6: r = CALL(p, cuGraphInstantiateWithParams, &made, g, NULL); break;
    case 7: r = CALL(p, cuGraphNodeGetEnabled, x, n, NULL); break;
    case 8: r = CALL(p, cuGraphExecKernelNodeSetParams_v2, x, n, NULL); break;
    case 9: r = CALL(p, cuGraphExecNodeSetParams, x, n, NULL); break;
    case 10: r = CALL(p, cuGraphExecChildGraphNodeSetParams, x, n, NULL); break;
    case 11: r = CALL(p, cuGraphGetNodes, NULL, &error, &count); break;
    case 12: r = CALL(p, cuGraphLaunch, NULL, p->streams[0]); break;
    default: r = CALL(p, cuGraphClone, &held, NULL); break;
    }
    say_node(p, error);
    say_exec(p, made);
    say_graph(p, held);
    say(p, " %zu %d", count, (int)result);
    say_result(p, r);
}
