/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel nodes, as CUDA 12.0 describes them. Drivers before that have the calls in an older form, without CUkernel and
 * context, and are asked in that one. The caller has resolved the driver. Any thread.
 */
#pragma once

#include "preload/base/cuda_abi.h"

#include <stddef.h>

/* The parameters of @node; what @params points to is the node's. Return: the driver's answer. */
CUresult kernel_node_get(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *params);

/* Adds a node to @graph, after the @n_deps nodes of @deps. @params has a CUfunction. Return: the driver's answer. */
CUresult kernel_node_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
                         const CUDA_KERNEL_NODE_PARAMS_v2 *params);

/* Sets the parameters that @node has in @exec. @params has a CUfunction. Return: the driver's answer. */
CUresult kernel_node_set(CUgraphExec exec, CUgraphNode node,
                         const CUDA_KERNEL_NODE_PARAMS_v2 *params);

/* The priority of the kernel node @node; 0 of another node, or where the driver does not say. */
int kernel_node_priority(CUgraphNode node);

/* Gives it to the kernel node @node; a driver that refuses leaves it without. */
void kernel_node_set_priority(CUgraphNode node, int priority);

/* @p, of any version, as version 2; @function: what it launches. */
#define KERNEL_NODE_PARAMS_V2(p, function)                                                         \
    (CUDA_KERNEL_NODE_PARAMS_v2)                                                                   \
    {                                                                                              \
        .func = (function), .gridDimX = (p)->gridDimX, .gridDimY = (p)->gridDimY,                  \
        .gridDimZ = (p)->gridDimZ, .blockDimX = (p)->blockDimX, .blockDimY = (p)->blockDimY,       \
        .blockDimZ = (p)->blockDimZ, .sharedMemBytes = (p)->sharedMemBytes,                        \
        .kernelParams = (p)->kernelParams, .extra = (p)->extra                                     \
    }
