/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file `live` of a run that is being written, mapped: what dmi-top shows beside the counters. Threads that have a
 * number store it into the mapping (core/atomic.h); the functions here are for the one that holds the run's lock, or
 * opens and closes the run. Every function accepts a struct without a mapping, and does nothing then. Source:
 * docs/format.md 10.1.
 */
#pragma once

#include "storage/chunk.h"

#include <dmi/live.h>
#include <dmi/site.h>

#include <stdbool.h>
#include <stdint.h>

#define LIVE_FILE "live"

struct live_requests;

/* Accepts being zeroed. */
struct live {
    struct dmi_live *map; /* NULL: none */
    char *path;
    struct live_requests *requests;
};

/**
 * live_create() - the file in the folder @folder, mapped
 * @rows: for each site enum dmi_row; copied
 * Return: 0 or -errno; after a failure there is no file.
 */
int live_create(struct live *live, const char *folder, const uint8_t run_uuid[16], uint64_t pid,
                const uint8_t *rows, uint32_t n_sites);

/* The folder has another name now. Without memory the file stays where it is at the end. */
void live_moved(struct live *live, const char *folder);

/* A commit took @ns, and wrote @n_bytes; or it failed. */
void live_note_write(const struct live *live, uint64_t n_bytes, uint64_t ns, bool failed);

/* A sync took @ns. Thread: any. */
void live_note_sync(const struct live *live, uint64_t ns, bool failed);

/* A chunk was written: steps and outcomes say who the requests are, records whose rows came. */
void live_note_chunk(struct live *live, const struct chunk *chunk);

/* The run is closed: the file is deleted, nobody stores into it any more. */
void live_remove(struct live *live);

/* Unmaps it; the file stays. */
void live_deinit(struct live *live);

/* ---- live_requests.c, for live.c alone. */

/* Over the table in @map. Return: NULL without memory. */
struct live_requests *live_requests_new(struct dmi_live *map, const uint8_t *rows,
                                        uint32_t n_sites);

/* As live_note_chunk(). */
void live_requests_note(struct live_requests *requests, const struct chunk *chunk);

/* Accepts NULL. */
void live_requests_free(struct live_requests *requests);
