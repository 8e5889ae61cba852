/* SPDX-License-Identifier: Apache-2.0 */
/* Execs: instantiated in every form, asked, switched, launched, destroyed. */
#include "program.h"

#include <errno.h>
#include <string.h>

static unsigned long long some_flags(struct program *p)
{
    unsigned long long flags = 0;
    if (chance(p, 20))
        flags |= CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    if (chance(p, 20))
        flags |= CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if (chance(p, 2))
        flags |= CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
    return flags;
}

static CUresult instantiate_old(struct program *p, CUgraphExec *handle, CUgraph graph)
{
    char log[64];
    CUgraphNode error = UNSET;
    CUresult r;
    bool asked = chance(p, 70);
    memset(log, '#', sizeof log);
    if (chance(p, 50))
        r = CALL(p, cuGraphInstantiate, handle, graph, asked ? &error : NULL, log, sizeof log);
    else
        r = CALL(p, cuGraphInstantiate_v2, handle, graph, asked ? &error : NULL, asked ? log : NULL,
                 asked ? sizeof log : 0);
    say(p, " error node");
    say_node(p, error);
    say(p, " log \"%.*s\"", (int)sizeof log, log);
    return r;
}

static CUresult instantiate_params(struct program *p, CUgraphExec *handle, CUgraph graph)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS params = { .flags = some_flags(p),
                                             .hErrNode_out = UNSET,
                                             .result_out = (CUgraphInstantiateResult)77 };
    if (chance(p, 30)) {
        params.flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
        params.hUploadStream = p->streams[0];
    }
    say(p, " flags %llu", (unsigned long long)params.flags);
    CUresult r = chance(p, 20) ? CALL(p, cuGraphInstantiateWithParams_ptsz, handle, graph, &params)
                               : CALL(p, cuGraphInstantiateWithParams, handle, graph, &params);
    say(p, " error node");
    say_node(p, params.hErrNode_out);
    say(p, " result %d flags %llu", (int)params.result_out, (unsigned long long)params.flags);
    return r;
}

void op_instantiate(struct program *p)
{
    int graph = some_graph(p, chance(p, 90)), x = p->n_execs;
    CUgraphExec handle = (CUgraphExec)UNSET;
    CUresult r;
    if (graph < 0 || x == MAX_EXECS)
        return;
    CUgraph g = p->graphs[graph].handle;
    say(p, "instantiate");
    say_graph(p, g);
    switch (pick(p, 3)) {
    case 0: r = instantiate_old(p, &handle, g); break;
    case 1: {
        unsigned long long flags = some_flags(p);
        say(p, " flags %llu", flags);
        r = CALL(p, cuGraphInstantiateWithFlags, &handle, g, flags);
        break;
    }
    default: r = instantiate_params(p, &handle, g);
    }
    if (r == CUDA_SUCCESS) {
        p->n_execs++;
        p->execs[x] = (struct exec){ .handle = handle, .alive = true, .graph = graph };
        model_instantiate(p, x);
        say(p, " x%d", x);
    } else {
        say(p, (void *)handle == UNSET ? " untouched" : handle ? " touched" : " none");
    }
    say_result(p, r);
}

void op_exec_destroy(struct program *p)
{
    int x = some_exec(p);
    if (x < 0 || !chance(p, 60))
        return;
    say(p, "destroy");
    say_exec(p, p->execs[x].handle);
    CUresult r = CALL(p, cuGraphExecDestroy, p->execs[x].handle);
    say_result(p, r);
    if (r != CUDA_SUCCESS)
        return;
    p->execs[x].alive = false;
    model_destroy(p, x);
}

static CUstream some_stream(struct program *p)
{
    uint32_t which =
        pick(p, N_STREAMS + p->alone); /* the legacy stream breaks captures of other threads */
    say(p, " in s%u", which);
    return which == N_STREAMS ? NULL : p->streams[which];
}

void op_launch(struct program *p)
{
    int x = some_exec(p);
    if (x < 0)
        return;
    say(p, "launch");
    say_exec(p, p->execs[x].handle);
    CUstream stream = some_stream(p);
    for (uint32_t n = chance(p, 30) ? 1 + pick(p, 4) : 1; n; n--) {
        CUresult r;
        STREAM_CALL(p, cuGraphLaunch, stream, r, p->execs[x].handle, s_);
        if (r == CUDA_SUCCESS)
            model_launch(p, x);
        if (n > 1)
            say(p, " %d", (int)r);
        else
            say_result(p, r);
    }
}

void op_eager(struct program *p)
{
    struct work w = some_work(p);
    say(p, "run");
    say_work(p, &w);
    CUstream stream = some_stream(p);
    CUresult r = launch_work(p, &w, stream);
    if (r == CUDA_SUCCESS)
        model_eager(p, &w);
    if (chance(p, 30))
        tap(p, stream);
    say_result(p, r);
}

void op_exec_queries(struct program *p)
{
    int x = some_exec(p);
    cuuint64_t flags = 4711;
    if (x < 0)
        return;
    say(p, "flags of");
    say_exec(p, p->execs[x].handle);
    CUresult r = CALL(p, cuGraphExecGetFlags, p->execs[x].handle, &flags);
    say(p, " %llu", (unsigned long long)flags);
    say_result(p, r);
    say(p, "upload");
    CUstream stream = some_stream(p);
    r = CALL(p, cuGraphUpload, p->execs[x].handle, stream);
    say_result(p, r);
}

int some_node_for(struct program *p, int x)
{
    int nodes[512], graph = p->execs[x].graph;
    if (p->graphs[graph].alive && chance(p, 88)) {
        int n = flatten(p, graph, nodes, 512);
        return n ? nodes[pick(p, (uint32_t)(n < 512 ? n : 512))] : -1;
    }
    return some_node(p, some_graph(p, false));
}

void op_enable(struct program *p)
{
    int x = some_exec(p), node = x < 0 ? -1 : some_node_for(p, x);
    unsigned on = 4711;
    CUresult r;
    if (node < 0)
        return;
    say(p, "in");
    say_exec(p, p->execs[x].handle);
    say_node(p, p->nodes[node].handle);
    if (chance(p, 60)) {
        unsigned want = pick(p, 3);
        say(p, " enable %u", want);
        r = CALL(p, cuGraphNodeSetEnabled, p->execs[x].handle, p->nodes[node].handle, want);
        if (r == CUDA_SUCCESS)
            model_enable(p, x, node, want != 0);
    } else {
        r = CALL(p, cuGraphNodeGetEnabled, p->execs[x].handle, p->nodes[node].handle, &on);
        say(p, " enabled %u", on);
    }
    say_result(p, r);
}
