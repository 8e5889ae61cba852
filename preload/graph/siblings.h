/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes of a graph that may run at the same time as another: an action that writes before its kernel would race with them. Thread: as
 * graph/plan.h.
 */
#ifndef PRELOAD_GRAPH_SIBLINGS_H
#define PRELOAD_GRAPH_SIBLINGS_H

#include "preload/base/cuda_abi.h"

#include <stdbool.h>

/* Does every other node of @graph come before or after @node? false also where the driver does not say, or without memory. */
bool siblings_are_none(CUgraph graph, CUgraphNode node);

#endif
