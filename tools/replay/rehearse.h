/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy tried out: what the `overload` of a HookSpec would have kept of a run, had the ring and the link been of such a size.
 * Decisions are those of the capturing library (policy/shedding.h). The rest is a model: launches come when they came, the
 * link empties the ring at an even rate, and what a step costs is known when it begins. A program of one thread.
 */
#pragma once

#include "policy/spec.h"
#include "storage/reader/reader.h"

#include <stdio.h>

struct rehearsal_terms {
    const struct spec *spec;
    uint64_t link_bytes_per_s, ring_bytes;
    double speed; /* recorded seconds a second */
};

/* What became of a request. */
enum rehearsal_fate {
    REHEARSAL_KEPT = 0,
    REHEARSAL_REFUSED = 1, /* nothing of it was kept */
    REHEARSAL_CUT = 2,     /* shed after some of its steps were kept */
    REHEARSAL_TORN = 3,    /* records with rows of it were dropped, here and there */
};

struct rehearsal_request {
    char *id; /* owned; up to its first NUL, as an engine would say it */
    enum rehearsal_fate fate;
    uint64_t step; /* the engine's number of the first step of which rows are missing */
    uint64_t n_rows, n_rows_kept, n_bytes, n_bytes_kept;
};

struct rehearsal_tally {
    uint64_t n_records, n_rows, n_bytes;
};

/* What the run holds at sites of the spec: wanted = kept + shed + dropped, but for records of which a part was shed. */
struct rehearsal {
    struct rehearsal_request *requests; /* those with rows, as the run has them */
    size_t n_requests;
    struct rehearsal_tally wanted, kept, shed, dropped;
    uint64_t n_elsewhere;     /* records of sites that the spec does not have */
    double seconds;           /* from the first launch to the last, waits included */
    double most_full;         /* the ring, 0 to 1 */
    uint64_t n_waits, n_over; /* launches that waited; of these, those that gave up */
    double wait_s, longest_wait_s;
};

/**
 * rehearse() - try the spec's policy on all that is selected of a run
 * Return: 0, or -errno with a sentence in @err: -ENOENT, the spec has none of the run's sites; -ENOMEM.
 */
int rehearse(struct err *err, const struct reader *reader, const struct rehearsal_terms *terms,
             struct rehearsal *out);

/* Accepts a zeroed struct. */
void rehearsal_deinit(struct rehearsal *r);
