/* SPDX-License-Identifier: Apache-2.0 */
/* Launches, from the records of a stream, and whether they fit a run of one deal. */
#include "preload/trace/join_parts.h"

#include <string.h>

#define MOST_OTHERS 16u /* times that ids of graphs do not fit, where they never did */

bool next_unit(const struct join_stream *s, size_t at, struct unit *u)
{
    while (at < s->n_items && !s->items[at].name)
        at++;
    if (at == s->n_items)
        return false;
    *u = (struct unit){ at, at + 1, s->items[at].name };
    while (u->name == JOIN_GRAPH && u->end < s->n_items && s->items[u->end].name == JOIN_GRAPH &&
           s->items[u->end].event.correlation == s->items[at].event.correlation)
        u->end++;
    return true;
}

static bool fits_name(uint64_t wanted, uint64_t name)
{
    return wanted == JOIN_NO_NAME || wanted == name;
}

/* Do items @from to before @end name only graphs that were instantiated? */
static bool names_execs(const struct join *j, const struct join_stream *s, size_t from, size_t end)
{
    for (size_t i = from; i < end; i++)
        if (s->items[i].name == JOIN_GRAPH && !j->calls->is_exec(s->items[i].event.graph))
            return false;
    return true;
}

/* Are the graphs that items @from to before @end name, together @ids, those of the group? */
static bool fits_graphs(struct join *j, const struct join_stream *s, size_t from, size_t end,
                        struct dealt_runs *g, uint64_t ids)
{
    bool alike = g->run.graph_ids == ids;
    j->ids_fit |= alike && g->run.graphs;
    if (j->ids_differ || !g->run.graph_ids || alike)
        return true;
    j->ids_differ = !names_execs(j, s, from, end) || (!j->ids_fit && ++j->n_others == MOST_OTHERS);
    g->misnamed = !j->ids_differ;
    return j->ids_differ;
}

bool fits(struct join *j, const struct join_stream *s, size_t from, struct dealt_runs *g,
          size_t *end)
{
    struct unit u = { .end = from };
    uint32_t kernels = 0, graphs = 0, n = launches_of(g);
    uint64_t ids = JOIN_NO_GRAPHS;
    for (uint32_t i = 0; i < n; i++) {
        if (!next_unit(s, u.end, &u))
            return false;
        *(u.name == JOIN_GRAPH ? &graphs : &kernels) += 1;
        if (u.name == JOIN_GRAPH)
            ids = join_graph(ids, s->items[u.begin].event.graph);
        if (!i && !fits_name(g->run.first, u.name))
            return false;
        if (i == n - 1 && !fits_name(g->run.last, u.name))
            return false;
    }
    *end = u.end;
    return kernels == g->run.kernels && graphs == g->run.graphs &&
           fits_graphs(j, s, from, u.end, g, ids);
}
