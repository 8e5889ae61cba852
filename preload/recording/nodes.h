/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs during a recording: nobody sees what memory holds between two nodes of a graph. So a graph of kernels
 * is not launched: its kernels are, one after the other in the order of its edges, in the same stream, which gives the
 * same results. A graph that holds anything else is launched as it is, and named as unseen. Thread: any that entered.
 */
#pragma once

#include "preload/base/stream.h"

#include <stdbool.h>

/* @exec comes from @graph, which may end: what its nodes launch is copied. */
void nodes_created(CUgraphExec exec, CUgraph graph);

/* @node of @exec has other parameters. */
void nodes_changed(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *params);

/* @node of @exec is on or off. */
void nodes_switched(CUgraphExec exec, CUgraphNode node, bool on);

/* @exec was changed in a way that is not followed. */
void nodes_lost(CUgraphExec exec, const char *why);

/* @exec ends. */
void nodes_destroyed(CUgraphExec exec);

/**
 * nodes_launch() - launch the kernels of @exec, recorded, in its place
 * @result: the driver's answer to the last of the launches
 * Return: false: the graph is to be launched as it is.
 */
bool nodes_launch(CUgraphExec exec, struct stream stream, CUresult *result);

/* The child after fork has none. */
void nodes_reset(void);
