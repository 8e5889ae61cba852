/* SPDX-License-Identifier: Apache-2.0 */
/* What instantiating costs, and by which nodes an exec is addressed. */
#include "facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES 500
#define TIMES 5

void ask_instantiate_cost(void)
{
    static CUgraphNode nodes[NODES];
    double plain[TIMES], clone_ms[TIMES], find_ms[TIMES], both[TIMES];
    CUfunction function;
    CUdeviceptr p;
    uint32_t value = 1;
    void *params[] = { &p, &value };
    CUgraph graph, clone;
    CUgraphNode twin;
    CUgraphExec exec;

    TRY(device_memory(&p, 64));
    TRY(kernel(&function, "poke"));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(add_chain(graph, nodes, NODES, function, params));
    TRY(new_exec(&exec, graph)); /* the first one loads the kernel */
    for (int i = 0; i < TIMES; i++) {
        uint64_t a = now_ns();
        TRY(new_exec(&exec, graph));
        uint64_t b = now_ns();
        TRY(CU(cuGraphClone, &clone, graph));
        uint64_t c = now_ns();
        for (unsigned k = 0; k < NODES; k++)
            TRY(CU(cuGraphNodeFindInClone, &twin, nodes[k], clone));
        uint64_t d = now_ns();
        CUgraphExec of_clone;
        TRY(new_exec(&of_clone, clone));
        uint64_t e = now_ns();
        plain[i] = (double)(b - a) / 1e6;
        clone_ms[i] = (double)(c - b) / 1e6;
        find_ms[i] = (double)(d - c) / 1e6;
        both[i] = (double)(e - b) / 1e6;
        TRY(CU(cuGraphExecDestroy, exec));
        exec = of_clone;
    }
    figure("instantiate", median(plain, TIMES), "ms");
    figure("clone", median(clone_ms, TIMES), "ms");
    figure("finding 500 nodes in the clone", median(find_ms, TIMES), "ms");
    figure("clone, find and instantiate", median(both, TIMES), "ms");
}

/* ------------------------------------------------------------------ templates */

struct template
{
    CUdeviceptr p;
    CUfunction poke;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUstream stream;
};

/* As PyTorch does it: AUTO_FREE_ON_LAUNCH | USE_NODE_PRIORITY. */
static CUresult make_template(struct template *t)
{
    uint32_t value = 1;
    void *params[] = { &t->p, &value };

    PASS(device_memory(&t->p, 64));
    PASS(kernel(&t->poke, "poke"));
    PASS(new_stream(&t->stream));
    PASS(CU(cuGraphCreate, &t->graph, 0));
    PASS(add_kernel(t->graph, &t->node, NULL, t->poke, params));
    return CU(cuGraphInstantiateWithFlags, &t->exec, t->graph,
              CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                  CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
}

static CUresult set_value(struct template *t, CUgraphNode node, uint32_t value)
{
    void *params[] = { &t->p, &value };
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(t->poke, 1, 1, params);
    return CU(cuGraphExecKernelNodeSetParams_v2, t->exec, node, &k);
}

/* What the node of a launch has written, 0: it did not run. */
static CUresult launch_and_read(struct template *t, uint32_t *got)
{
    PASS(CU(cuMemsetD8_v2, t->p, 0, 4));
    PASS(CU(cuCtxSynchronize));
    PASS(CU(cuGraphLaunch, t->exec, t->stream));
    PASS(CU(cuStreamSynchronize, t->stream));
    return CU(cuMemcpyDtoH_v2, got, t->p, 4);
}

/* Return: false if a call failed; it was reported. */
static bool ask_by_node(struct template *t, bool *set, bool *enabled)
{
    uint32_t got = 0;
    CUresult r = set_value(t, t->node, 7);
    result("setting parameters", r);
    *set = r == CUDA_SUCCESS && launch_and_read(t, &got) == CUDA_SUCCESS && got == 7;
    r = CU(cuGraphNodeSetEnabled, t->exec, t->node, 0);
    result("switching off", r);
    *enabled = r == CUDA_SUCCESS && launch_and_read(t, &got) == CUDA_SUCCESS && got == 0;
    return CU(cuGraphNodeSetEnabled, t->exec, t->node, 1) == CUDA_SUCCESS;
}

void ask_template_alive(void)
{
    struct template t;
    bool set, enabled;

    TRY(make_template(&t));
    ask_by_node(&t, &set, &enabled);
    holds("parameters set by the template's node are used", set);
    holds("a node switched off by the template's node does not run", enabled);
}

void ask_template_gone(void)
{
    struct template t;
    bool set, enabled;
    uint32_t got = 0;

    TRY(make_template(&t));
    TRY(CU(cuGraphDestroy, t.graph));
    TRY(launch_and_read(&t, &got));
    holds("the exec runs", got == 1);
    ask_by_node(&t, &set, &enabled);
    says("parameters set by the template's node are used", set ? "yes" : "no");
    says("a node switched off by the template's node does not run", enabled ? "yes" : "no");
}

void ask_original_of_clone(void)
{
    struct template t;
    CUgraph clone;
    CUgraphNode twin;
    uint32_t got = 0;

    TRY(make_template(&t));
    TRY(CU(cuGraphClone, &clone, t.graph));
    TRY(CU(cuGraphNodeFindInClone, &twin, t.node, clone));
    TRY(new_exec(&t.exec, clone));
    result("setting parameters by the original's node", set_value(&t, t.node, 5));
    TRY(set_value(&t, twin, 6));
    TRY(launch_and_read(&t, &got));
    holds("the clone's node addresses it", got == 6);
}

/* ------------------------------------------------------------------ updates */

static const char *update_text(CUgraphExecUpdateResult r)
{
    static const char *const texts[] = {
        "success",
        "error",
        "topology changed",
        "node type changed",
        "function changed",
        "parameters changed",
        "not supported",
        "unsupported function change",
        "attributes changed",
    };
    return (size_t)r < LENGTH(texts) ? texts[r] : "another";
}

static CUresult update(const char *what, CUgraphExec exec, CUgraph graph,
                       CUgraphExecUpdateResultInfo *info)
{
    char text[96];
    memset(info, 0, sizeof *info);
    CUresult r = CU(cuGraphExecUpdate_v2, exec, graph, info);
    result(what, r);
    snprintf(text, sizeof text, "%s: it says", what);
    says(text, "%s", update_text(info->result));
    return r;
}

static const char *whose(CUgraphNode node, CUgraph given, CUgraph template)
{
    CUgraphNode nodes[8];
    if (!node)
        return "none";
    for (int which = 0; which < 2; which++) {
        int n = list_nodes(which ? template : given, nodes, 8);
        for (int i = 0; i < n && i < 8; i++)
            if (nodes[i] == node)
                return which ? "of the exec's template" : "of the given graph";
    }
    return "of neither graph";
}

void ask_exec_update(void)
{
    CUdeviceptr p;
    uint32_t value = 1, got = 0;
    void *params[] = { &p, &value };
    CUfunction poke, empty;
    CUgraph graph, longer, other, clone;
    CUgraphNode nodes[3], node;
    CUgraphExec exec;
    CUstream stream;
    CUgraphExecUpdateResultInfo info;

    TRY(device_memory(&p, 64));
    TRY(new_stream(&stream));
    TRY(kernel(&poke, "poke"));
    TRY(kernel(&empty, "empty"));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(add_chain(graph, nodes, 3, poke, params));
    TRY(CU(cuGraphClone, &clone, graph));
    TRY(new_exec(&exec, clone));
    value = 2;
    TRY(CU(cuGraphCreate, &other, 0));
    TRY(add_chain(other, NULL, 3, poke, params));
    holds("a graph built alike updates an exec of a clone",
          update("the same topology", exec, other, &info) == CUDA_SUCCESS);
    TRY(CU(cuGraphLaunch, exec, stream));
    TRY(CU(cuStreamSynchronize, stream));
    TRY(CU(cuMemcpyDtoH_v2, &got, p, 4));
    holds("what it set is used", got == 2);

    TRY(CU(cuGraphCreate, &longer, 0));
    TRY(add_chain(longer, NULL, 4, poke, params));
    holds("a node more is refused", update("a node more", exec, longer, &info) != CUDA_SUCCESS);
    says("a node more: the node that is blamed", "%s", whose(info.errorNode, longer, clone));
    says("a node more: the other end", "%s", whose(info.errorFromNode, longer, clone));

    CUgraph changed;
    TRY(CU(cuGraphCreate, &changed, 0));
    TRY(add_kernel(changed, &node, NULL, poke, params));
    CUgraphNode second, third;
    TRY(add_kernel(changed, &second, &node, empty, NULL));
    TRY(add_kernel(changed, &third, &second, poke, params));
    update("another kernel in the middle", exec, changed, &info);
    says("another kernel: the node that is blamed", "%s", whose(info.errorNode, changed, clone));

    CUgraphNode twin;
    unsigned enabled = 9;
    TRY(CU(cuGraphNodeFindInClone, &twin, nodes[0], clone));
    TRY(CU(cuGraphNodeSetEnabled, exec, twin, 0));
    TRY(CU(cuGraphExecUpdate_v2, exec, other, &info));
    TRY(CU(cuGraphNodeGetEnabled, exec, twin, &enabled));
    says("a node that was switched off is, after an update", enabled ? "on" : "off");
}
