/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes of a graph that may run at the same time as another: an action that writes before its kernel would race with them. Thread: as
 * graph/plan.h.
 */
#pragma once

#include "preload/base/cuda_abi.h"
#include "preload/function/functions.h"

#include <stdbool.h>
#include <stdint.h>

/**
 * siblings_allow() - may the site's action have a node at its kernel's, @node of @graph?
 * Edits before a kernel may not, where another node of the graph is not ordered with the kernel: it may read the tensor while they
 * write. Then the run says so. @graph: NULL: a child graph, beside which others may run.
 * Return: false also where the driver does not say what is ordered, or without memory.
 */
bool siblings_allow(uint32_t site, const struct func *func, CUgraph graph, CUgraphNode node);
