/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-run as the parent of its command, for who started dmi-run the command itself: it passes on each signal once, stops when the command
 * stops, and ends as it ends. A command whose dmi-run is killed by SIGKILL is killed, too. One thread.
 */
#pragma once

#include "tools/run/holder.h"

#include <signal.h>
#include <stdbool.h>

/* How signals were before parent_begin(). */
struct parent {
    sigset_t mask;
    struct sigaction child;
};

/* From now on no signal ends this process; it waits until parent_run(). */
void parent_begin(struct parent *parent);

/* Signals are as they were. */
void parent_give_up(const struct parent *parent);

/**
 * parent_run() - run a command until it ends
 * @become: called in the new process, with signals as they were; returns the status to exit with where it could not become the command
 * @ran: set to whether it did
 * Standard input and output, and what else was open, are the command's alone afterwards.
 * Return: the status, as waitpid() has it; -1: there is no new process (errno).
 */
int parent_run(const struct parent *parent, const struct holder *holder, int (*become)(void *),
               void *arg, bool *ran);

/* The command has ended: signals that end a process end this one again, though a line on stderr should wait for its reader. */
void parent_may_end(const struct parent *p);

/* Ends as the command did: by the same signal, or with its status. Return: the status to exit with. */
int parent_status(int wait_status);
