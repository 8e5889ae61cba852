/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a writer says of a run before it begins. Strings are borrowed until run_open() returns. Plain structs: any
 * thread. Source: docs/format.md 4 and 8.
 */
#ifndef STORAGE_RUN_OPTIONS_H
#define STORAGE_RUN_OPTIONS_H

#include <dmi/site.h>

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
    uint64_t segment_bytes; /* a new segment starts after this many; 0: 1 GiB */
    uint32_t fsync;         /* enum run_fsync */
};

enum run_fsync {
    RUN_FSYNC_NEVER = 0, /* the kernel writes when it likes: survives a process, not a power cut */
    RUN_FSYNC_CLOSE = 1, /* when a segment is closed (the default) */
    RUN_FSYNC_CHUNK = 2, /* after each chunk */
};

#endif
