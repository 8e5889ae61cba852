/* SPDX-License-Identifier: Apache-2.0 */
/* How far a replay is, on a terminal. A program of one thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool on;                    /* stderr is a terminal */
    uint64_t start_ns, last_ns; /* CLOCK_MONOTONIC */
    bool shown;
};

/* Begins the count. */
void progress_begin(struct progress *progress);

/* Shows it, four times a second, once it has taken a second. @open: the run grows, so that no end is known. */
void progress_show(struct progress *progress, uint64_t n_done, uint64_t n_all, uint64_t n_bytes,
                   bool open);

/* Takes the line away. */
void progress_end(struct progress *progress);
