/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a run that a process writes into, read once: `counters`, `live` and `edits`. They are read, not mapped, and only where
 * they belong to whoever looks; nothing in them is believed before it was checked. A program of one thread. Source:
 * docs/format.md 10.
 */
#pragma once

#include "core/err.h"
#include "storage/alive.h"

#include <dmi/counters.h>
#include <dmi/edit_account.h>
#include <dmi/live.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum top_state {
    TOP_RUNNING,
    TOP_CLOSED,
    TOP_KILLED, /* the process has ended, and did not close its run */
};

/* Accepts being zeroed: nothing was read. */
struct snapshot {
    uint64_t mono_ns; /* when */
    enum top_state state;
    struct dmi_counters *counters;   /* NULL: none */
    struct dmi_live *live;           /* NULL: there is no such file, or it was refused */
    struct dmi_edit_accounts *edits; /* likewise; texts of its accounts end */
    bool *whole;                     /* per entry of live->requests: it is of one moment */
};

/* Which run it must be of. */
struct snapshot_of {
    int dir;          /* of the run's folder */
    const char *path; /* the same, for sentences */
    uint8_t uuid[16];
    size_t n_sites;
    const struct alive_process *process; /* NULL: the manifest says none */
};

/**
 * snapshot_take() - the numbers as they are now
 * @live_err: says why `live`, or else `edits`, was refused; then the rest is there
 * Return: 0; -errno with a sentence in @err that names the file: there is no snapshot.
 */
int snapshot_take(struct err *err, struct err *live_err, const struct snapshot_of *of,
                  struct snapshot *out);

/* Frees what it holds. */
void snapshot_deinit(struct snapshot *snapshot);

/**
 * snapshot_load() - all bytes of a regular file that belongs to the user
 * @most: bytes that it may have; not reached by what grows meanwhile
 * Return: 0, -ENOENT; -errno with a sentence in @err.
 */
int snapshot_load(struct err *err, int dir, const char *path, const char *name, size_t most,
                  void **data, size_t *n_bytes);
