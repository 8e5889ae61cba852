/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a writer says of a run before it begins. Strings are borrowed until run_open() returns. Plain structs: any
 * thread. Source: docs/format.md 4 and 8.
 */
#pragma once

#include <dmi/site.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct run_text {
    const char *key;
    const char *value;
};

struct run_options {
    const char *out_dir; /* made (one level) if it is not there */
    const char *spec_path;
    const char *spec_text; /* copied into the folder as spec.yaml */
    size_t n_spec_text;
    const char *model; /* NULL: not said */
    const char *job;   /* one id for all processes of one command; NULL: none */
    const char *library_version;
    const struct dmi_site *sites; /* index = site id; borrowed until run_open() returns */
    uint32_t n_sites;
    const struct run_text *conventions;
    size_t n_conventions;
    const struct run_text *absent; /* tensor name, why it is not in memory */
    size_t n_absent;
    uint64_t
        segment_bytes; /* a new segment begins after this many; 0: 1 GiB, less where less is kept */
    uint64_t
        segment_ns; /* and after this time, counted from what was first written to it; 0: never */
    uint64_t keep_bytes; /* of segments: the oldest closed ones are deleted; 0: all are kept */
    uint64_t keep_ns;    /* how long a segment is kept after it was closed; 0: for ever */
    uint32_t durability; /* enum run_durability */
    uint64_t sync_ns;    /* of RUN_DURABILITY_INTERVAL; 0: 5 s */
    bool live;   /* with the file `live`, for dmi-top; where that cannot be had, without it */
    bool latest; /* a link `latest` beside the run's folder names it */
    void (*in_thread)(
        void); /* called at the start of a thread that the run starts; NULL: nothing */
};

/* When what was committed is on the disk. All of it survives a kill of the process. */
enum run_durability {
    RUN_DURABILITY_NONE = 0, /* when the kernel likes */
    RUN_DURABILITY_INTERVAL, /* after sync_ns and another half of it (at most 1 s), and what the disk takes */
    RUN_DURABILITY_EACH, /* when an append returns */
};
