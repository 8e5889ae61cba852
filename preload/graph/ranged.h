/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes within NVTX ranges: ranges are open while a graph is captured or built, and not when it is launched, so what they
 * say of a kernel is noted with its node. Thread: any that entered.
 */
#ifndef PRELOAD_GRAPH_RANGED_H
#define PRELOAD_GRAPH_RANGED_H

#include "preload/base/cuda_abi.h"
#include "preload/base/functions.h"
#include "preload/nvtx/ranges.h"

/**
 * ranged_note() - a kernel of the spec became a node of @graph
 * @func: what ranges_pick() made of it, with @pick. Where it is the last kernel of a range so far, the one before is so no more.
 */
void ranged_note(CUgraph graph, CUgraphNode node, const struct func *func,
                 const struct ranges_pick *pick);

#endif
