/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes in a thread of the application: a pipe without a reader raises SIGPIPE in the writing thread, a write beyond RLIMIT_FSIZE
 * SIGXFSZ. Either ends a process that has not said otherwise. Between quiet_begin() and quiet_end() both are blocked in the calling
 * thread, and one that a write raised meanwhile is taken back: the application never sees it.
 */
#pragma once

#include <signal.h>

struct quiet {
    sigset_t before, before_pending;
};

/* Thread: the one that writes. */
void quiet_begin(struct quiet *quiet);

/* Thread: the same. errno is kept. */
void quiet_end(const struct quiet *quiet);
