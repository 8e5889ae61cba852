/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runs that are looked at: one that was named, or those of a folder that are being written, with the others of
 * the same command. Each has the snapshot of now and the one before. A program of one thread.
 */
#pragma once

#include "tools/top/snapshot.h"

struct top_run {
    char *path;
    const char *name; /* the last part of @path */
    uint8_t uuid[16];
    char *job, *host; /* NULL: not said */
    uint64_t pid, start_ns;
    struct alive_process process;
    bool has_process; /* the manifest says it */
    char **sites;     /* names, of the dictionary's entries */
    size_t n_sites;
    struct snapshot before, now;
    struct err refused;      /* why there is no new snapshot; code 0: there is */
    struct err live_refused; /* why `live` is not believed */
    uint64_t ended_ns;       /* monotonic: when it was first seen not to go on; 0: it does */
    bool said;               /* what is refused was printed */
    bool shown; /* it was running when it was looked at first, or is of a command that was */
};

struct top_runs {
    char *path;
    bool one;              /* @path is a run */
    struct top_run **list; /* by path */
    size_t n, room;
};

/**
 * runs_open() - the runs at @path
 * @path: a run's folder, or one with runs; NULL: $DMI_OUT, else dmi-out, else the current folder
 * Return: 0; -errno with a sentence in @err: there is nothing to look at.
 */
int runs_open(struct err *err, const char *path, struct top_runs *out);

/* New snapshots of all, and runs that have come. Return: 0; -errno with a sentence in @err. */
int runs_refresh(struct err *err, struct top_runs *runs);

/* Does any run that is shown go on? */
bool runs_any_running(const struct top_runs *runs);

/* Frees all. */
void runs_deinit(struct top_runs *runs);
