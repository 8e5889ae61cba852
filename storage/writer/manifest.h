/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON of a run: the site dictionary (in every segment and in the manifest) and the manifest.
 * Pure text building; any thread, the caller locks what it passes. Source: docs/format.md 4, 9.
 */
#pragma once

#include "storage/alive.h"
#include "storage/text.h"
#include "storage/writer/run_options.h"

#include <dmi/counters.h>
#include <dmi/format.h>

#include <stdbool.h>

struct manifest_segment {
    uint64_t n_bytes;  /* 0 while it is open */
    uint64_t n_chunks; /* footer included */
    uint64_t n_records;
    uint64_t closed_ns; /* monotonic */
    bool closed;
    bool released;
    struct dmi_footer_site *tallies; /* owned; what it holds, for when it is released */
    size_t n_tallies;
};

struct manifest_problem {
    char *site, *reason, *sentence; /* owned; site may be NULL */
    uint64_t n;                     /* times it was reported */
};

struct manifest_text {
    char *key, *value; /* owned */
};

struct manifest {
    uint8_t run_uuid[16];
    char host[256];
    uint64_t pid, start_ns;
    struct alive_process process; /* start_ticks 0: a lock tells whether it lives */
    char *spec_path;              /* owned; NULL: none */
    char *job;                    /* owned; NULL: none */
    char *library_version;
    char *sites; /* the dictionary as JSON, owned */
    uint64_t n_spec;
    uint64_t spec_hash;
    struct manifest_segment *segments;
    size_t n_segments, segments_room;
    size_t n_released;      /* of the first segments */
    struct dmi_tally *gone; /* owned; what the released ones held, by site; NULL: none were */
    uint32_t n_sites;       /* entries of @gone */
    struct manifest_problem *problems;
    size_t n_problems;
    struct manifest_text *about; /* owned; what dmi_describe() said */
    size_t n_about;
    bool closed;
    uint64_t n_counters;
    uint64_t counters_hash; /* of the closed file */
    bool has_places;        /* then it says of the file `edits`, too */
    uint64_t n_edits;       /* bytes of it; 0: there is none */
    uint64_t edits_hash;    /* of the closed file */
};

/* Model, conventions, sites and what is absent, as one JSON object. */
void manifest_sites(struct text *text, const struct run_options *options);

/* The manifest, its checksum filled in. */
void manifest_write(struct text *text, const struct manifest *manifest);

/* Return: 0 or -ENOMEM; a problem that was reported before only counts. At most 1000 are kept. */
int manifest_add_problem(struct manifest *manifest, const char *site, const char *reason,
                         const char *sentence);

/* A problem that somebody else counts: how often so far. Nothing where that is 0. Return: 0 or -ENOMEM. */
int manifest_set_problem(struct manifest *manifest, const char *reason, const char *sentence,
                         uint64_t times);

/* Notes a text under a key, in the place of what the key had. Return: as dmi_describe(). */
int manifest_describe(struct manifest *manifest, const char *key, const char *value);

/* The text under a key, NULL: there is none. */
const char *manifest_described(const struct manifest *manifest, const char *key);

/* Notes what a closed segment holds. @sites: struct dmi_footer_site by site. Without memory it is never released. */
void manifest_keep_tallies(struct manifest_segment *segment, const struct text *sites);

/**
 * manifest_release() - the first segment that is not released is
 * Return: 0; -ENOMEM, -ENODATA (nobody noted what it holds), and nothing has changed.
 */
int manifest_release(struct manifest *manifest, size_t number, uint32_t n_sites);
/* It is not: the manifest could not be written. */
void manifest_take_back(struct manifest *manifest, size_t number);
void manifest_forget_tallies(struct manifest *manifest, size_t number);

/* Frees all that it owns. */
void manifest_deinit(struct manifest *manifest);
