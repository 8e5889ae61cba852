/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph_memory.c - memory that graphs allocate and free
 *
 * An allocation node has its addresses from its creation on. Memory is put there by the first launch or
 * upload of an exec, can be used between the node and its free, and stays with the device's graphs until
 * cuDeviceGraphMemTrim(): as with a driver, so that the next launch need not ask for it again. An
 * allocation that its graph does not free lives on until cuMemFree(), cuMemFreeAsync(), a free node of
 * another graph, or the next launch of an exec that frees automatically.
 * Source: cuGraphAddMemAllocNode() in the driver API reference
 */
#include "graph_exec.h"
#include "impl.h"
#include "memory.h"

#include <string.h>

static bool is_memory(const struct graph_node *node)
{
    return node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
}

bool graph_has_memory(const struct graph *graph)
{
    for (const struct graph_node *node = graph->first; node; node = node->next) {
        if (is_memory(node) || (node->child && graph_has_memory(node->child)))
            return true;
    }
    return false;
}

static struct alloc *find(uint64_t address)
{
    struct alloc *alloc = memory_find(address);

    return alloc && alloc->address == address && alloc->kind == ALLOC_GRAPH ? alloc : NULL;
}

/* ---- nodes ---- */

CUresult node_work_alloc(struct context *ctx, int device, size_t bytes, struct work **out)
{
    struct alloc *alloc;

    if (device < 0 || device >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    alloc = memory_place(device, NULL, bytes, ALLOC_GRAPH);
    *out = alloc ? work_new(WORK_ALLOC, ctx) : NULL;
    if (!*out) {
        if (alloc)
            memory_remove(alloc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    alloc->has_node = true;
    (*out)->alloc.address = alloc->address;
    (*out)->alloc.bytes = bytes;
    return CUDA_SUCCESS;
}

CUresult node_work_free(struct context *ctx, uint64_t address, struct work **out)
{
    if (!find(address))
        return CUDA_ERROR_INVALID_VALUE;
    *out = work_new(WORK_ALLOC_FREE, ctx);
    if (!*out)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*out)->alloc.address = address;
    return CUDA_SUCCESS;
}

static bool frees(const struct graph *graph, uint64_t address)
{
    for (const struct graph_node *node = graph->first; node; node = node->next) {
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && node->work->alloc.address == address)
            return true;
    }
    return false;
}

CUresult graph_memory_own(const struct graph *graph, const struct work *work)
{
    struct alloc *alloc = find(work->alloc.address);
    bool own;

    if (!alloc)
        return CUDA_ERROR_INVALID_VALUE;
    if (work->kind == WORK_ALLOC) {
        alloc->graph = graph->id;
        return CUDA_SUCCESS;
    }
    own = alloc->graph == graph->id;
    if (frees(graph, alloc->address) || (own ? alloc->freed_elsewhere : alloc->freed_in_graph))
        return CUDA_ERROR_INVALID_VALUE;
    alloc->freed_in_graph |= own;
    alloc->freed_elsewhere |= !own;
    return CUDA_SUCCESS;
}

/* The addresses go with the node, unless there is memory: then with that. */
void graph_memory_unref(uint64_t address)
{
    struct alloc *alloc = find(address);

    if (!alloc)
        return;
    alloc->has_node = false;
    if (!alloc->backed)
        memory_remove(alloc);
}

/* "Allocation and free nodes cannot be added to the returned graph" (cuGraphChildGraphNodeGetGraph()). */
static bool is_child(CUgraph graph)
{
    return graph_is(graph) && ((struct graph *)graph)->owner;
}

CUresult graph_memory_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
                          const CUgraphEdgeData *data, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    struct context *ctx;
    struct work *work;
    uint64_t address;
    CUresult res;

    if (!p->bytesize || p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_child(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = node_work_alloc(ctx, p->poolProps.location.id, p->bytesize, &work);
    if (res != CUDA_SUCCESS)
        return res;
    address = work->alloc.address;
    res = graph_add_entry(out, graph, deps, data, n, CU_GRAPH_NODE_TYPE_MEM_ALLOC, work);
    if (res == CUDA_SUCCESS)
        p->dptr = address;
    return res;
}

CUresult graph_memory_add_free(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
                               const CUgraphEdgeData *data, size_t n, CUdeviceptr dptr)
{
    struct context *ctx;
    struct work *work;
    CUresult res;

    if (is_child(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = node_work_free(ctx, dptr, &work);
    if (res != CUDA_SUCCESS)
        return res;
    return graph_add_entry(out, graph, deps, data, n, CU_GRAPH_NODE_TYPE_MEM_FREE, work);
}

CUresult impl_cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                     const CUgraphNode *dependencies, size_t numDependencies,
                                     CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    DRIVER_LOCKED;

    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    return graph_memory_add(phGraphNode, hGraph, dependencies, NULL, numDependencies, nodeParams);
}

CUresult impl_cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                    const CUgraphNode *dependencies, size_t numDependencies,
                                    CUdeviceptr dptr)
{
    DRIVER_LOCKED;

    return graph_memory_add_free(phGraphNode, hGraph, dependencies, NULL, numDependencies, dptr);
}

CUresult impl_cuGraphMemAllocNodeGetParams(CUgraphNode hNode,
                                           CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
    struct graph_node *node;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params_out, &node);
    if (res == CUDA_SUCCESS)
        *params_out = (CUDA_MEM_ALLOC_NODE_PARAMS){
            .poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                           .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE,
                                         .id = find(node->work->alloc.address)->device } },
            .bytesize = node->work->alloc.bytes,
            .dptr = node->work->alloc.address,
        };
    return res;
}

CUresult impl_cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
    struct graph_node *node;
    CUresult res;
    DRIVER_LOCKED;

    res = graph_node_of(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, dptr_out, &node);
    if (res == CUDA_SUCCESS)
        *dptr_out = node->work->alloc.address;
    return res;
}

/* ---- launches ---- */

/* Calls fn(alloc, data) for what @body allocates (or frees), until one fails. */
static CUresult each(struct exec_body *body, enum work_kind kind,
                     CUresult (*fn)(struct alloc *alloc, void *data), void *data)
{
    CUresult res = CUDA_SUCCESS;

    for (size_t i = 0; i < body->n && res == CUDA_SUCCESS; i++) {
        struct exec_node *node = &body->nodes[i];
        struct alloc *alloc =
            node->work && node->work->kind == kind ? find(node->work->alloc.address) : NULL;

        if (alloc)
            res = fn(alloc, data);
        if (res == CUDA_SUCCESS && node->child)
            res = each(node->child, kind, fn, data);
    }
    return res;
}

static CUresult back(struct alloc *alloc, void *unused)
{
    struct device *dev = &driver.devices[alloc->device];
    CUresult res;

    (void)unused;
    if (alloc->backed)
        return CUDA_SUCCESS;
    res = memory_back(alloc, -1, 0, PROT_NONE);
    if (res != CUDA_SUCCESS)
        return res;
    dev->graph_bytes += alloc->mapped;
    if (dev->graph_used_high < dev->graph_bytes)
        dev->graph_used_high = dev->graph_bytes;
    if (dev->graph_reserved_high < dev->graph_bytes)
        dev->graph_reserved_high = dev->graph_bytes;
    return CUDA_SUCCESS;
}

static CUresult is_free(struct alloc *alloc, void *unused)
{
    (void)unused;
    return alloc->live ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult set_live(struct alloc *alloc, void *live)
{
    alloc->live = *(bool *)live;
    return CUDA_SUCCESS;
}

static CUresult set_last(struct alloc *alloc, void *end)
{
    op_unref(alloc->last);
    alloc->last = op_ref(end);
    return CUDA_SUCCESS;
}

CUresult graph_memory_back(struct graph_exec *exec)
{
    return each(exec->body, WORK_ALLOC, back, NULL);
}

CUresult graph_memory_begin(struct graph_exec *exec)
{
    bool yes = true, no = false;
    CUresult res = CUDA_SUCCESS;

    if (!(exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH))
        res = each(exec->body, WORK_ALLOC, is_free, NULL);
    if (res == CUDA_SUCCESS)
        res = graph_memory_back(exec);
    if (res != CUDA_SUCCESS)
        return res;
    each(exec->body, WORK_ALLOC, set_live, &yes);
    each(exec->body, WORK_ALLOC_FREE, set_live, &no);
    return CUDA_SUCCESS;
}

void graph_memory_end(struct graph_exec *exec, struct op *end)
{
    each(exec->body, WORK_ALLOC, set_last, end);
    each(exec->body, WORK_ALLOC_FREE, set_last, end);
}

void graph_memory_stop(struct alloc *alloc)
{
    if (!alloc->backed)
        return;
    memory_protect(alloc->address, alloc->mapped, PROT_READ | PROT_WRITE);
    memory_poison(alloc->address, alloc->mapped, STALE);
    memory_protect(alloc->address, alloc->mapped, PROT_NONE);
}

void graph_memory_work(const struct work *work)
{
    struct alloc *alloc;
    DRIVER_LOCKED;

    alloc = find(work->alloc.address);
    if (!alloc || !alloc->backed)
        return;
    if (work->kind == WORK_ALLOC_FREE) {
        graph_memory_stop(alloc);
        return;
    }
    memory_protect(alloc->address, alloc->mapped, PROT_READ | PROT_WRITE);
    memory_poison(alloc->address, alloc->mapped, FRESH);
}

/* ---- a device's graph memory ---- */

CUresult impl_cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    struct device *dev;
    DRIVER_LOCKED;

    if (device < 0 || device >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    dev = &driver.devices[device];
    switch (attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = dev->graph_bytes; break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *(uint64_t *)value = dev->graph_used_high; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = dev->graph_reserved_high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    struct device *dev;
    DRIVER_LOCKED;

    if (device < 0 || device >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value || *(uint64_t *)value)
        return CUDA_ERROR_INVALID_VALUE;
    dev = &driver.devices[device];
    if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        dev->graph_used_high = dev->graph_bytes;
    else if (attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        dev->graph_reserved_high = dev->graph_bytes;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static void trim(struct alloc *alloc)
{
    if (!alloc->backed || alloc->live || (alloc->last && !alloc->last->done))
        return;
    driver.devices[alloc->device].graph_bytes -= alloc->mapped;
    memory_unback(alloc);
    op_unref(alloc->last);
    alloc->last = NULL;
    if (!alloc->has_node)
        memory_remove(alloc);
}

CUresult impl_cuDeviceGraphMemTrim(CUdevice device)
{
    struct alloc *alloc;
    uint64_t at = DEVICE_BASE;
    DRIVER_LOCKED;

    if (device < 0 || device >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    while ((alloc = memory_after(at)) && memory_is_device(alloc->address)) {
        at = alloc->address + alloc->size;
        if (alloc->kind == ALLOC_GRAPH && alloc->device == device)
            trim(alloc);
    }
    return CUDA_SUCCESS;
}
