/* SPDX-License-Identifier: Apache-2.0 */
/*
 * By which numbers tools name the kernels of a graph that runs as a clone. CUPTI's records hold a node's id; programs that annotate
 * their graphs ask for the ids of the nodes that they made. CUPTI is loaded where there is one; no header of it is needed.
 *
 * Source: cupti_activity.h, CUpti_ActivityKernel5 to 13: kind at 0, graphNodeId at 144, graphId at 156; from CUDA 13.5 on sourceGraphNodeId at 240
 */
#include "facts.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES           3
#define KIND_KERNEL     3u
#define KIND_CONCURRENT 10u /* CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL */
#define NODE_ID_OFFSET  144
#define GRAPH_ID_OFFSET 156
#define SOURCE_OFFSET   240
#define HAS_SOURCE      130500u /* as cuptiGetVersion() says it */
#define BUFFER_BYTES    (1u << 20)
#define FLUSH_FORCED    1u

typedef void request_fn(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void complete_fn(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                         size_t valid);

static struct cupti {
    void *library;
    int (*get_version)(uint32_t *version);
    int (*activity_enable)(unsigned kind);
    int (*register_callbacks)(request_fn *request, complete_fn *complete);
    int (*next_record)(uint8_t *buffer, size_t valid, void **record);
    int (*flush_all)(uint32_t flag);
    int (*node_id)(CUgraphNode node, uint64_t *id);
    int (*graph_id)(CUgraph graph, uint32_t *id);
    int (*exec_id)(CUgraphExec exec, uint32_t *id);
} cupti;

static uint64_t printed[NODES], sources[NODES];
static uint32_t graphs[NODES], version;
static unsigned n_printed;

static bool open_cupti(void)
{
    static const char *const names[] = { "libcupti.so.13", "libcupti.so.12",
                                         "/usr/local/cuda/lib64/libcupti.so" };
    static const struct {
        const char *name;
        void *to;
    } calls[] = {
        { "cuptiGetVersion", &cupti.get_version },
        { "cuptiActivityEnable", &cupti.activity_enable },
        { "cuptiActivityRegisterCallbacks", &cupti.register_callbacks },
        { "cuptiActivityGetNextRecord", &cupti.next_record },
        { "cuptiActivityFlushAll", &cupti.flush_all },
        { "cuptiGetGraphNodeId", &cupti.node_id },
        { "cuptiGetGraphId", &cupti.graph_id },
        { "cuptiGetGraphExecId", &cupti.exec_id },
    };

    for (size_t i = 0; i < LENGTH(names) && !cupti.library; i++)
        cupti.library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; cupti.library && i < LENGTH(calls); i++) {
        void *function = dlsym(cupti.library, calls[i].name);
        if (!function)
            return false;
        memcpy(calls[i].to, &function, sizeof function);
    }
    return cupti.library != NULL;
}

static void request(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    void *record = NULL;
    uint32_t kind;

    (void)context;
    (void)stream;
    (void)size;
    while (!cupti.next_record(buffer, valid, &record)) {
        memcpy(&kind, record, sizeof kind);
        if ((kind != KIND_KERNEL && kind != KIND_CONCURRENT) || n_printed == NODES)
            continue;
        memcpy(&printed[n_printed], (char *)record + NODE_ID_OFFSET, sizeof *printed);
        memcpy(&graphs[n_printed], (char *)record + GRAPH_ID_OFFSET, sizeof *graphs);
        if (version >= HAS_SOURCE)
            memcpy(&sources[n_printed], (char *)record + SOURCE_OFFSET, sizeof *sources);
        n_printed++;
    }
    free(buffer);
}

/* ------------------------------------------------------------------ a graph that runs as a clone */

struct cloned {
    CUgraph graph, clone;
    CUgraphNode nodes[NODES], twins[NODES];
    CUgraphExec exec;
    CUstream stream;
};

static CUresult make_cloned(struct cloned *c)
{
    CUfunction empty;

    PASS(kernel(&empty, "empty"));
    PASS(new_stream(&c->stream));
    PASS(CU(cuGraphCreate, &c->graph, 0));
    PASS(add_chain(c->graph, c->nodes, NODES, empty, NULL));
    PASS(CU(cuGraphClone, &c->clone, c->graph));
    for (int i = 0; i < NODES; i++)
        PASS(CU(cuGraphNodeFindInClone, &c->twins[i], c->nodes[i], c->clone));
    return new_exec(&c->exec, c->clone);
}

static void tell_ids(const struct cloned *c)
{
    uint64_t original = 0, twin = 0;
    uint32_t ids[3] = { 0 };
    unsigned same = 0;

    for (int i = 0; i < NODES; i++)
        same += !cupti.node_id(c->nodes[i], &original) && !cupti.node_id(c->twins[i], &twin) &&
                original == twin;
    says("CUPTI's ids of a clone's nodes are those of their originals", "%u of %d", same, NODES);
    if (cupti.graph_id(c->graph, &ids[0]) || cupti.graph_id(c->clone, &ids[1]) ||
        cupti.exec_id(c->exec, &ids[2]))
        says("CUPTI's ids of graphs", "an error");
    else
        says("CUPTI's id of the clone's exec is", ids[2] == ids[1]   ? "the clone's"
                                                  : ids[2] == ids[0] ? "the original's"
                                                                     : "another");
}

static unsigned count_ids(const uint64_t *ids, const CUgraphNode *nodes, uint64_t mask)
{
    unsigned n = 0;
    uint64_t id = 0;

    for (unsigned i = 0; i < n_printed; i++)
        for (int k = 0; k < NODES; k++)
            n += !cupti.node_id(nodes[k], &id) && (id & mask) == (ids[i] & mask);
    return n;
}

static unsigned count_graphs(uint32_t id)
{
    unsigned n = 0;

    for (unsigned i = 0; i < n_printed; i++)
        n += graphs[i] == id;
    return n;
}

static void tell_records(const struct cloned *c)
{
    uint32_t exec = 0, clone = 0;

    says("kernels that CUPTI recorded", "%u of %d", n_printed, NODES);
    says("recorded by the ids of the clone's nodes", "%u",
         count_ids(printed, c->twins, UINT64_MAX));
    says("recorded by the ids of the originals", "%u", count_ids(printed, c->nodes, UINT64_MAX));
    says("whose lower halves are those of the clone's nodes", "%u",
         count_ids(printed, c->twins, UINT32_MAX));
    if (!cupti.exec_id(c->exec, &exec) && !cupti.graph_id(c->clone, &clone))
        says("recorded by the id of the exec, and of the clone", "%u, %u", count_graphs(exec),
             count_graphs(clone));
    if (version >= HAS_SOURCE)
        says("whose source is a node of the clone", "%u", count_ids(sources, c->twins, UINT64_MAX));
}

void ask_graph_ids(void)
{
    struct cloned c;

    if (driver.standin) { /* CUPTI asks a driver for what the stand-in has not */
        driver.last_call = "CUPTI";
        failed(CUDA_ERROR_NOT_SUPPORTED);
        return;
    }
    if (!open_cupti()) {
        skipped("there is no libcupti.so.13 or .12 here, or it lacks a call");
        return;
    }
    /* before there is a context, as a profiler does */
    if (cupti.register_callbacks(request, complete) || cupti.activity_enable(KIND_CONCURRENT)) {
        skipped("CUPTI records no kernels here");
        return;
    }
    TRY(driver_setup());
    cupti.get_version(&version);
    TRY(make_cloned(&c));
    tell_ids(&c);
    TRY(CU(cuGraphLaunch, c.exec, c.stream));
    TRY(CU(cuStreamSynchronize, c.stream));
    cupti.flush_all(FLUSH_FORCED);
    tell_records(&c);
}
