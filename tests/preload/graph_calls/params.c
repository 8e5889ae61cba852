/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of nodes in graphs: read, set, and attributes of kernels. */
#include "program.h"

#include <errno.h>
#include <string.h>

static void get_kernel(struct program *p, struct node *n)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k = { .func = UNSET };
    CUresult r;
    struct work w;
    if (older_form(p, 40, ENTRY_cuGraphKernelNodeGetParams_v2)) {
        CUDA_KERNEL_NODE_PARAMS_v1 old = { .func = UNSET };
        say(p, " v1");
        r = CALL(p, cuGraphKernelNodeGetParams, n->handle, &old);
        memcpy(&k, &old, sizeof old);
    } else {
        r = CALL(p, cuGraphKernelNodeGetParams_v2, n->handle, &k);
    }
    if (r == CUDA_SUCCESS) {
        say_params(p, &k, &w);
        n->work = w;
    }
    say_result(p, r);
}

void get_node(struct program *p, int node)
{
    struct node *n = &p->nodes[node];
    CUDA_MEMSET_NODE_PARAMS set = { .dst = (uintptr_t)UNSET };
    CUDA_MEMCPY3D copy = { .srcDevice = (uintptr_t)UNSET };
    CUDA_HOST_NODE_PARAMS host = { .userData = UNSET };
    CUDA_MEM_ALLOC_NODE_PARAMS alloc = { .dptr = (uintptr_t)UNSET };
    CUdeviceptr at = (uintptr_t)UNSET;
    CUevent event = UNSET;
    CUresult r;
    say(p, "params");
    say_node(p, n->handle);
    switch (n->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: get_kernel(p, n); return;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        r = CALL(p, cuGraphMemsetNodeGetParams, n->handle, &set);
        say_memset(p, &set);
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        r = CALL(p, cuGraphMemcpyNodeGetParams, n->handle, &copy);
        say_memcpy(p, &copy);
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        r = CALL(p, cuGraphHostNodeGetParams, n->handle, &host);
        say_host(p, &host);
        break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        r = CALL(p, cuGraphEventRecordNodeGetEvent, n->handle, &event);
        say_event(p, event);
        break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        r = CALL(p, cuGraphEventWaitNodeGetEvent, n->handle, &event);
        say_event(p, event);
        break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        r = CALL(p, cuGraphMemAllocNodeGetParams, n->handle, &alloc);
        say_pointer(p, alloc.dptr);
        say(p, " of %zu", alloc.bytesize);
        break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        r = CALL(p, cuGraphMemFreeNodeGetParams, n->handle, &at);
        say_pointer(p, at);
        break;
    default: /* of empty nodes and graphs: as kernels, which they are not */
        r = CALL(p, cuGraphHostNodeGetParams, n->handle, &host);
        say_host(p, &host);
    }
    say_result(p, r);
}

void op_get_node(struct program *p)
{
    int node = some_node(p, some_graph(p, false));
    if (node >= 0)
        get_node(p, node);
}

/* ------------------------------------------------------------------------- setting */

static CUresult set_kernel(struct program *p, struct node *n, struct work *w)
{
    struct arguments a;
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    *w = some_work(p);
    say_work(p, w);
    node_params(p, w, &a, chance(p, 40), &k);
    if (older_form(p, 30, ENTRY_cuGraphKernelNodeSetParams_v2)) {
        CUDA_KERNEL_NODE_PARAMS_v1 old;
        memcpy(&old, &k, sizeof old);
        if (w->as_kernel)
            old.func = (CUfunction)k.kern;
        return CALL(p, cuGraphKernelNodeSetParams, n->handle, &old);
    }
    if (chance(p, 50))
        return CALL(p, cuGraphKernelNodeSetParams_v2, n->handle, &k);
    CUgraphNodeParams any = { .type = CU_GRAPH_NODE_TYPE_KERNEL };
    memcpy(&any.kernel, &k, sizeof k);
    return CALL(p, cuGraphNodeSetParams, n->handle, &any);
}

/* As the node's type asks for, and rarely as another's. */
void set_node(struct program *p, int node)
{
    struct node *n = &p->nodes[node];
    CUgraphNodeType type = chance(p, 92) ? n->type : (CUgraphNodeType)pick(p, 8);
    CUevent event = p->events[pick(p, N_EVENTS)];
    CUDA_MEMSET_NODE_PARAMS set;
    CUDA_MEMCPY3D copy;
    CUDA_HOST_NODE_PARAMS host;
    struct work w;
    CUresult r;
    say(p, "set");
    say_node(p, n->handle);
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        r = set_kernel(p, n, &w);
        if (r == CUDA_SUCCESS)
            n->work = w;
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        some_memset(p, &set);
        say_memset(p, &set);
        r = CALL(p, cuGraphMemsetNodeSetParams, n->handle, &set);
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        some_memcpy(p, &copy);
        say_memcpy(p, &copy);
        r = CALL(p, cuGraphMemcpyNodeSetParams, n->handle, &copy);
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        some_host(p, &host);
        say_host(p, &host);
        r = CALL(p, cuGraphHostNodeSetParams, n->handle, &host);
        break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        say(p, " record");
        say_event(p, event);
        r = CALL(p, cuGraphEventRecordNodeSetEvent, n->handle, event);
        break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        say(p, " wait");
        say_event(p, event);
        r = CALL(p, cuGraphEventWaitNodeSetEvent, n->handle, event);
        break;
    default: {
        CUgraphNodeParams any = { .type = CU_GRAPH_NODE_TYPE_EMPTY };
        say(p, " as empty");
        r = CALL(p, cuGraphNodeSetParams, n->handle, &any);
    }
    }
    say_result(p, r);
}

void op_set_node(struct program *p)
{
    int node = some_node(p, some_graph(p, false));
    if (node >= 0)
        set_node(p, node);
}

void op_attributes(struct program *p)
{
    int graph = some_graph(p, false), a = some_node(p, graph),
        b = some_node_of(p, graph, CU_GRAPH_NODE_TYPE_KERNEL);
    CUkernelNodeAttrValue value = { .priority = 4711 };
    CUresult r;
    if (a < 0 || b < 0)
        return;
    say(p, "attribute");
    say_node(p, p->nodes[a].handle);
    switch (pick(p, 4)) {
    case 3:
        value.cooperative = (int)pick(p, 2);
        say(p, " cooperative %d", value.cooperative);
        r = CALL(p, cuGraphKernelNodeSetAttribute, p->nodes[a].handle,
                 CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value);
        break;
    case 0:
        value.priority = -(int)pick(p, 3);
        say(p, " set %d", value.priority);
        r = CALL(p, cuGraphKernelNodeSetAttribute, p->nodes[a].handle, CU_LAUNCH_ATTRIBUTE_PRIORITY,
                 &value);
        break;
    case 1:
        say(p, " of");
        say_node(p, p->nodes[b].handle);
        r = CALL(p, cuGraphKernelNodeCopyAttributes, p->nodes[a].handle, p->nodes[b].handle);
        break;
    default:
        r = CALL(p, cuGraphKernelNodeGetAttribute, p->nodes[a].handle, CU_LAUNCH_ATTRIBUTE_PRIORITY,
                 &value);
        say(p, " is %d", value.priority);
    }
    say_result(p, r);
}
