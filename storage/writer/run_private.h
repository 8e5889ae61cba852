/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the writer share, nobody else:
 *
 *     run.c         opening and closing, what the engine says
 *     run_append.c  encoding and appending
 *     run_keep.c    what time asks for: closing segments, the disk
 *     run_release.c deleting segments
 *     run_manifest.c the manifest, and what is in it
 */
#pragma once

#include "core/cleanup.h"
#include "storage/direct.h"
#include "storage/writer/counters.h"
#include "storage/writer/edit_accounts.h"
#include "storage/writer/history.h"
#include "storage/writer/keeper.h"
#include "storage/writer/live.h"
#include "storage/writer/manifest.h"
#include "storage/writer/pending.h"
#include "storage/writer/run.h"
#include "storage/writer/segment.h"

#include <pthread.h>

#define RUN_MAX_CODECS 16

struct run {
    char *path;
    struct manifest manifest;
    bool manifest_stale;
    uint64_t segment_bytes, segment_ns; /* when the next one is begun; 0 ns: never for its age */
    uint64_t keep_bytes, keep_ns;       /* of closed segments; 0: for ever */
    enum run_durability durability;
    uint64_t sync_ns;

    struct direct direct; /* of segments; with the lock */
    struct counters counters;
    struct dmi_edit_accounts *edits; /* NULL: it has no places, or no file of them */
    struct pending
        pending; /* its lock is never held together with ours, except in pending_take() */
    struct keeper keeper;

    pthread_mutex_t lock; /* all below, and the manifest */
    struct segment segment;
    struct live live; /* live_note_sync() needs no lock */
    uint64_t
        segment_begun_ns; /* monotonic: when something was first committed to it; 0: nothing was */
    uint64_t next_sequence;
    bool unsynced;               /* something was committed since the last sync began */
    bool folder_synced;          /* the names of the files in it are on the disk */
    bool sync_failed;            /* once: the log has it */
    uint64_t synced_ns;          /* monotonic: when the last sync began */
    struct text steps, outcomes; /* metadata taken from @pending, not yet committed */
    struct text changes;         /* that the disk has not taken yet */
    uint64_t n_changes;          /* so far */
    struct history history;      /* metadata that later segments may have to repeat */
    struct codec *codecs[RUN_MAX_CODECS];
    unsigned n_codecs;
};

/* For RUN_HOLD. Thread: the one that holds the lock. */
static inline void run_lock_release(pthread_mutex_t **lock)
{
    pthread_mutex_unlock(*lock);
}

#define RUN_HOLD(run)                                                                              \
    _cleanup_(run_lock_release) pthread_mutex_t *held = &(run)->lock;                              \
    pthread_mutex_lock(held)

/* Whether files are to reach the disk when they are complete. */
static inline bool run_syncs(const struct run *run)
{
    return run->durability != RUN_DURABILITY_NONE;
}

/* ---- all with the lock held; each returns 0 or -errno */

/* run.c: the next segment's file, with header and dictionary. */
int run_add_segment(struct run *run, uint32_t number);
int run_write_manifest(struct run *run, bool sync);

/* run_append.c: what waits, and @records where there are any, in one commit. */
int run_commit_locked(struct run *run, struct chunk *records);
int run_close_segment(struct run *run);
/*
 * Closes the segment and begins the next one. If there is no room for that the full one is used on, or, where it was
 * closed already, tried again by the next commit: nothing that was committed depends on it.
 */
int run_rotate(struct run *run);

/* Whether the segment has something in it, and is open for as long as one may be. */
bool run_is_old(const struct run *run);

/* run_release.c: deletes closed segments beyond what is to be kept, the oldest first. */
void run_release(struct run *run);

/* ---- run_keep.c, without the lock: one round of the keeper. */
void run_keep(void *run);
