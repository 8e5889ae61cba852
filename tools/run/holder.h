/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process beside the command that holds the edits in memory, for each process of the command that begins to use CUDA: whatever it was
 * started by, with descriptors closed or not, also after dmi-run has ended. It ends once none is left, and nothing stays on the disk.
 * It is in dmi-run's process group and takes no signal, so it knows which signals went to all of the group. One thread.
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define HOLDER_VARIABLE "DMI_EDITS" /* by which processes of the command learn of its path */

struct holder {
    pid_t pid; /* 0: there is none */
    int ask, answer;
    char path[64]; /* by which processes open what it holds */
};

/**
 * holder_start() - the process is there
 * @memory: descriptor of what it holds, close-on-exec; taken over
 * @argv: this program's, by which the process is not to be found
 * Call with all signals blocked. Return: 0 or -errno with a sentence in @err.
 */
int holder_start(struct holder *holder, struct err *err, int memory, char **argv);

/* Did a signal that this process has taken go to the holder, too, so that it went to the whole group? Waits 20 ms for it. */
bool holder_got(const struct holder *holder, int signal);

/* Is some process of the command there: one that was started with the holder's path in its environment? */
bool holder_is_used(const struct holder *holder);

/* This process needs it no more. */
void holder_leave(struct holder *holder);
