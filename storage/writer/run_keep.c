/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run does because time has passed or room is short: it closes a segment that has grown old, deletes closed
 * segments beyond what is to be kept, and brings what was committed to the disk.
 */
#include "core/clock.h"
#include "core/log.h"
#include "storage/folder.h"
#include "storage/writer/run_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------- the disk */

/* What is to be synced, if its time has come. Return: a descriptor of our own, or -1. */
static int take_unsynced(struct run *run)
{
    RUN_HOLD(run);
    uint64_t now = clock_mono_ns();
    if (run->durability != RUN_DURABILITY_INTERVAL || !run->unsynced ||
        now - run->synced_ns < run->sync_ns)
        return -1;
    int fd = file_dup(&run->segment.file);
    if (fd < 0)
        return -1;
    run->synced_ns = now;
    run->unsynced = false;
    return fd;
}

static void note_failed(struct run *run, int failure)
{
    char sentence[160];
    snprintf(sentence, sizeof sentence,
             "what was committed may not be on the disk yet, a sync failed: %s", strerror(failure));
    run_problem(run, NULL, "sync_failed", sentence);
    RUN_HOLD(run);
    if (!run->sync_failed)
        log_line("%s; further ones are only counted", sentence);
    run->sync_failed = run->unsynced = true;
}

/* Without the lock: appending goes on meanwhile. */
static void sync_if_due(struct run *run)
{
    _cleanup_(closep) int fd = take_unsynced(run);
    if (fd < 0)
        return;
    uint64_t start = clock_mono_ns();
    int failure = fdatasync(fd) ? errno : -folder_sync(run->path);
    live_note_sync(&run->live, clock_mono_ns() - start, failure != 0);
    if (failure)
        note_failed(run, failure);
}

/* ------------------------------------------------------------------------- the keeper's round */

static void close_if_old(struct run *run)
{
    RUN_HOLD(run);
    if (run_is_old(run))
        run_rotate(run);
    run_release(run);
}

void run_keep(void *arg)
{
    struct run *run = arg;
    close_if_old(run);
    sync_if_due(run);
}
