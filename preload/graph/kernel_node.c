/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/kernel_node.h"

#include "preload/base/driver.h"

#include <stdbool.h>

static CUDA_KERNEL_NODE_PARAMS_v1 version_1(const CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    return (CUDA_KERNEL_NODE_PARAMS_v1){
        .func = p->func,
        .gridDimX = p->gridDimX,
        .gridDimY = p->gridDimY,
        .gridDimZ = p->gridDimZ,
        .blockDimX = p->blockDimX,
        .blockDimY = p->blockDimY,
        .blockDimZ = p->blockDimZ,
        .sharedMemBytes = p->sharedMemBytes,
        .kernelParams = p->kernelParams,
        .extra = p->extra,
    };
}

CUresult kernel_node_get(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    if (driver_table.cuGraphKernelNodeGetParams_v2)
        return driver_table.cuGraphKernelNodeGetParams_v2(node, params);
    CUDA_KERNEL_NODE_PARAMS_v1 old;
    CUresult r = driver_table.cuGraphKernelNodeGetParams(node, &old);
    if (r == CUDA_SUCCESS)
        *params = KERNEL_NODE_PARAMS_V2(&old, old.func);
    return r;
}

CUresult kernel_node_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
                         const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    if (driver_table.cuGraphAddKernelNode_v2)
        return driver_table.cuGraphAddKernelNode_v2(node, graph, deps, n_deps, params);
    CUDA_KERNEL_NODE_PARAMS_v1 old = version_1(params);
    return driver_table.cuGraphAddKernelNode(node, graph, deps, n_deps, &old);
}

CUresult kernel_node_set(CUgraphExec exec, CUgraphNode node,
                         const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    if (driver_table.cuGraphExecKernelNodeSetParams_v2)
        return driver_table.cuGraphExecKernelNodeSetParams_v2(exec, node, params);
    CUDA_KERNEL_NODE_PARAMS_v1 old = version_1(params);
    return driver_table.cuGraphExecKernelNodeSetParams(exec, node, &old);
}

int kernel_node_priority(CUgraphNode node)
{
    CUkernelNodeAttrValue value = { .priority = 0 };
    bool said = driver_table.cuGraphKernelNodeGetAttribute &&
                driver_table.cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY,
                                                           &value) == CUDA_SUCCESS;
    return said ? value.priority : 0;
}

void kernel_node_set_priority(CUgraphNode node, int priority)
{
    CUkernelNodeAttrValue value = { .priority = priority };
    if (priority && driver_table.cuGraphKernelNodeSetAttribute)
        driver_table.cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value);
}
