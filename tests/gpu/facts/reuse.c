/* SPDX-License-Identifier: Apache-2.0 */
/* Handles that the library knows things by, and that no call of their own ends: bodies of conditional nodes, memory. */
#include "facts.h"

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define TIMES 9

/* How often a value is the one of the time before, and how often any before it. */
static void tell_reuse(const char *what, const uint64_t values[TIMES])
{
    unsigned same = 0, known = 0;
    for (int n = 1; n < TIMES; n++) {
        bool seen = false;
        same += values[n] == values[n - 1];
        for (int k = 0; k < n; k++)
            seen |= values[k] == values[n];
        known += seen;
    }
    says(what, "%u of %d times that of the one before, %u times that of any before", same,
         TIMES - 1, known);
}

/* ------------------------------------------------------------------ bodies of conditional nodes */

static CUresult add_conditional(CUgraph graph, CUgraphNode *node, CUgraph *body)
{
    CUgraphNodeParams params = { .type = CU_GRAPH_NODE_TYPE_CONDITIONAL };

    PASS(CU(cuGraphConditionalHandleCreate, &params.conditional.handle, graph, driver.context, 1,
            CU_GRAPH_COND_ASSIGN_DEFAULT));
    params.conditional.type = CU_GRAPH_COND_TYPE_IF;
    params.conditional.size = 1;
    params.conditional.ctx = driver.context;
    PASS(CU(cuGraphAddNode, node, graph, NULL, 0, &params));
    *body = params.conditional.phGraph_out[0];
    return CUDA_SUCCESS;
}

/* One after the other, each with its graph, or (@in_one) each in the same graph, of which its node is taken. */
static void ask_bodies(const char *how, bool in_one)
{
    uint64_t bodies[TIMES], nodes[TIMES], insides[TIMES], values[TIMES];
    CUgraph graph = NULL, body, plain;
    CUgraphNode node, inside;
    CUfunction empty;
    char what[96];

    TRY(kernel(&empty, "empty"));
    for (int n = 0; n < TIMES; n++) {
        if (!graph)
            TRY(CU(cuGraphCreate, &graph, 0));
        TRY(add_conditional(graph, &node, &body));
        TRY(add_kernel(body, &inside, NULL, empty, NULL));
        bodies[n] = (uintptr_t)body;
        nodes[n] = (uintptr_t)node;
        insides[n] = (uintptr_t)inside;
        if (in_one)
            TRY(CU(cuGraphDestroyNode, node));
        else
            TRY(CU(cuGraphDestroy, graph));
        graph = in_one ? graph : NULL;
        TRY(CU(cuGraphCreate, &plain, 0));
        values[n] = plain == body;
        TRY(CU(cuGraphDestroy, plain));
    }
    snprintf(what, sizeof what, "a body, %s", how);
    tell_reuse(what, bodies);
    snprintf(what, sizeof what, "the conditional node, %s", how);
    tell_reuse(what, nodes);
    snprintf(what, sizeof what, "a node in the body, %s", how);
    tell_reuse(what, insides);
    unsigned as_graph = 0;
    for (int n = 0; n < TIMES; n++)
        as_graph += values[n] != 0;
    snprintf(what, sizeof what, "a body's handle is a new graph's, %s", how);
    says(what, "%u of %d times", as_graph, TIMES);
}

void ask_body_reuse(void)
{
    ask_bodies("its graph destroyed", false);
    ask_bodies("its node destroyed", true);
}

/* ------------------------------------------------------------------ handles of memory */

struct piece {
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    CUdeviceptr reserved;
    size_t n;
};

static CUresult new_piece(struct piece *p)
{
    *p = (struct piece){ .prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                   .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE,
                                                 .id = driver.device } } };
    p->access = (CUmemAccessDesc){ .location = p->prop.location,
                                   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    PASS(CU(cuMemGetAllocationGranularity, &p->n, &p->prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return CU(cuMemAddressReserve, &p->reserved, p->n, 0, 0, 0);
}

static CUresult map_piece(const struct piece *p, CUmemGenericAllocationHandle handle)
{
    PASS(CU(cuMemMap, p->reserved, p->n, 0, handle, 0));
    return CU(cuMemSetAccess, p->reserved, p->n, &p->access, 1);
}

/* @mapped: as PyTorch does it, released while it is mapped; @exported: a descriptor of it is open to the end. */
static void ask_memory(const char *what, bool mapped, bool exported)
{
    uint64_t handles[TIMES];
    CUmemGenericAllocationHandle handle;
    struct piece p;
    int fd = -1;

    TRY(new_piece(&p));
    for (int n = 0; n < TIMES; n++) {
        TRY(CU(cuMemCreate, &handle, p.n, &p.prop, 0));
        handles[n] = handle;
        if (exported)
            TRY(CU(cuMemExportToShareableHandle, &fd, handle,
                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        if (mapped)
            TRY(map_piece(&p, handle));
        TRY(CU(cuMemRelease, handle));
        if (mapped)
            TRY(CU(cuMemUnmap, p.reserved, p.n));
        if (fd >= 0)
            close(fd);
    }
    tell_reuse(what, handles);
}

/* Which handles one piece of memory has, and whether a handle that was released comes back while it is mapped. */
static void ask_one_piece(void)
{
    CUmemGenericAllocationHandle first, retained = 0, imported = 0, other = 0;
    struct piece p;
    int fd = -1;

    TRY(new_piece(&p));
    TRY(CU(cuMemCreate, &first, p.n, &p.prop, 0));
    TRY(map_piece(&p, first));
    TRY(CU(cuMemRetainAllocationHandle, &retained, (void *)(uintptr_t)p.reserved));
    says("cuMemRetainAllocationHandle gives the handle that was mapped",
         retained == first ? "yes" : "no");
    CUresult r =
        CU(cuMemExportToShareableHandle, &fd, first, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    result("exporting it as a descriptor", r);
    if (r == CUDA_SUCCESS) {
        TRY(CU(cuMemImportFromShareableHandle, &imported, (void *)(uintptr_t)fd,
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        says("importing that in the same process gives the same handle",
             imported == first ? "yes" : "no");
        TRY(CU(cuMemRelease, imported));
        close(fd);
    }
    TRY(CU(cuMemRelease, retained));
    TRY(CU(cuMemRelease, first));
    TRY(CU(cuMemCreate, &other, p.n, &p.prop, 0));
    says("a handle comes back while what it was is still mapped", other == first ? "yes" : "no");
}

void ask_memory_handle_reuse(void)
{
    ask_memory("released, never mapped", false, false);
    ask_memory("released while it is mapped", true, false);
    ask_memory("exported, released while it is mapped", true, true);
    ask_one_piece();
}
