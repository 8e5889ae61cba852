/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/ranged.h"

#include "preload/base/session.h"
#include "preload/base/variants.h"
#include "preload/graph/order.h"

/* What was captured before in the range was not its last kernel. */
static void replace(struct range_site *s, CUgraph graph, CUgraphNode node)
{
    if (s->node && s->graph == graph)
        order_lose_site(graph, s->node, s->site);
    else if (s->node)
        session_problem(s->site, PROBLEM_UNSUPPORTED,
                        "its range goes over several graphs, each of which has a last kernel: "
                        "captured in each");
    s->graph = graph;
    s->node = node;
}

void ranged_note(CUgraph graph, CUgraphNode node, const struct func *func,
                 const struct ranges_pick *pick)
{
    for (uint32_t i = 0; i < pick->n_last; i++)
        replace(pick->last[i], graph, node);
    order_note_kernel(graph, node, func);
}
