/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs without the nodes that the library added: for the application's eyes, and for the driver's answers. Thread: as
 * graph/exec.h.
 */
#pragma once

#include "preload/graph/exec.h"

/**
 * strip_exec() - an exec of the graph that @exec was created from, without anything of ours
 * What the driver says of an update that it refuses is said of the application's graph and one like this. Return: NULL
 * if it cannot be; else the caller destroys it, with the driver's cuGraphExecDestroy.
 */
CUgraphExec strip_exec(const struct exec *exec);

/*
 * What a launch of @exec on a capturing stream has embedded there becomes the application's alone: nodes of ours go.
 * NULL: of an exec that holds none; the graphs are new all the same. Return: false if there is no such thing: @stream is
 * not being captured, or the driver does not say.
 */
bool strip_embedded(const struct exec *exec, struct stream stream);
