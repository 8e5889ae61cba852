/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file `counters` of a run that is being written, mapped: any thread adds to the mapping (core/atomic.h); the
 * functions here are for the thread that opens and closes the run. Source: docs/format.md 10.
 */
#pragma once

#include "storage/alive.h"
#include "storage/file.h"

#include <dmi/counters.h>

struct counters {
    struct file file;
    struct alive alive;
    struct dmi_counters *map; /* NULL: none */
    size_t n_bytes;
};

/**
 * counters_create() - the file at @path, mapped; readers find the process alive
 * Return: 0 or -errno; counters_deinit() is the caller's to call in any case.
 */
int counters_create(struct counters *counters, const char *path, uint32_t n_sites,
                    const uint8_t run_uuid[16], uint64_t pid, uint64_t start_ns);

/* Hash of the file with the state "closed", which it gets last. Return: 0 or -ENOMEM. */
int counters_hash(const struct counters *counters, uint64_t *hash);

/* The very last act of a clean close. */
void counters_mark_closed(struct counters *counters);

/* Unmaps and closes the file. */
void counters_deinit(struct counters *counters);
