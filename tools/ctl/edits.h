/* SPDX-License-Identifier: Apache-2.0 */
/* What dmi-ctl does for `edit add FILE` and `edit check FILE`: reads file and vectors, and hands them on in a sealed memory file. One thread. */
#pragma once

#include "core/err.h"

/**
 * edits_memory() - the edits of a file as a run's process takes them
 * @run: folder of the run, whose HookSpec says what places there are
 * What is wrong with the file stands on stderr. Return: a descriptor, to be closed; below 0 with a sentence in @err.
 */
int edits_memory(struct err *err, const char *run, const char *path);
