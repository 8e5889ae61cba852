/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the process that writes a run still lives. The writer holds a lock on `counters` that ends with its process, and
 * that no close, copy or fork ends or takes along. Where a file system has no such lock, the manifest says which process
 * it is. Writer: the thread that opens and closes the run. Reader: any thread. Source: docs/format.md 10.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* With the pid, enough to find a process again on its machine. */
struct alive_process {
    uint64_t pid, start_ticks; /* since boot: /proc/PID/stat, field 22 */
    uint64_t inode;            /* of `counters`: a copy of the folder has another */
    char boot_id[64];          /* of the machine, since it was started */
    char namespaces[64];       /* "pid:[...] time:[...]", in which pid and ticks count */
};

struct alive {
    void *page;                   /* its mapping keeps the locked open file; NULL: none does */
    struct alive_process process; /* start_ticks 0: the lock tells */
};

/**
 * alive_hold() - from now on readers find the caller's process alive, until it ends or alive_release()
 * @path: the run's `counters`
 * @fd: the same file, open for writing
 */
void alive_hold(struct alive *alive, const char *path, int fd);
void alive_release(struct alive *alive);

/**
 * alive_is() - does the process live that writes the run in folder @dir?
 * @process: as the manifest says; NULL: it says none
 */
bool alive_is(int dir, const struct alive_process *process);

struct json_t;

/* What a manifest says of the process, in @out. Return: @out; NULL: nothing, so the lock tells. */
const struct alive_process *alive_said(const struct json_t *manifest, struct alive_process *out);
