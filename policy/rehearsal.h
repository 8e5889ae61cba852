/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy tried out: what the `overload` of a HookSpec would have kept of a run, had the ring and the link been of such a size.
 * Decisions are those of the capturing library (policy/shedding.h). The rest is a model: launches come when they came, the
 * link empties the ring at an even rate, and what a step costs is known when it begins. It looks at nothing but its arguments. Any thread.
 */
#pragma once

#include "policy/spec.h"

#include <stddef.h>

struct rehearsal_terms {
    const struct spec *spec;
    uint64_t link_bytes_per_s, ring_bytes;
    double speed; /* recorded seconds a second */
};

#define REHEARSAL_NO_STEP SIZE_MAX
#define REHEARSAL_NOBODY  UINT32_MAX

/* Rows of one request in one record. */
struct rehearsal_part {
    uint32_t request; /* index in struct rehearsal's */
    uint32_t n_rows;
};

struct rehearsal_record {
    size_t step;            /* REHEARSAL_NO_STEP */
    size_t first_part, end; /* its parts; rows that are in none are nobody's */
    uint32_t n_rows;
    uint32_t budgets; /* bit i: it counts for budget i */
    uint64_t row_bytes;
    uint64_t launch, time_ns;
};

struct rehearsal_span {
    uint32_t request; /* REHEARSAL_NOBODY: padding */
    uint32_t n_rows;
    bool is_prompt, is_last;
    const char *tags; /* NULL: none; borrowed, as what follows is */
    size_t n_tags;
};

struct rehearsal_step {
    uint64_t number, time_ns;        /* the engine's */
    size_t first_span, end_span;     /* of the run's */
    size_t first_record, end_record; /* of the run's @of_step */
    size_t
        end_end; /* of the run's @ended, those before the step; the others are before later ones */
};

/* What the run holds at sites of the spec. Its requests are struct rehearsal's. */
struct rehearsal_run {
    struct rehearsal_record *records; /* in launch order */
    size_t n_records;
    struct rehearsal_part *parts;
    struct rehearsal_step *steps;
    size_t n_steps;
    struct rehearsal_span *spans;
    size_t *of_step; /* indices in @records, step by step */
    uint32_t *ended; /* requests, in the order of their ends; spans may say it, too */
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
    struct rehearsal_request *requests; /* as the run has them; in the end those with rows */
    size_t n_requests;
    struct rehearsal_tally wanted, kept, shed, dropped;
    uint64_t n_elsewhere;     /* records of sites that the spec does not have */
    double seconds;           /* from the first launch to the last, waits included */
    double most_full;         /* the ring, 0 to 1 */
    uint64_t n_waits, n_over; /* launches that waited; of these, those that gave up */
    double wait_s, longest_wait_s;
};

/**
 * rehearse() - try the spec's policy on a run
 * @out: its requests, with their ids and what they have; else zeroed
 * Return: 0 or -ENOMEM.
 */
int rehearse(const struct rehearsal_run *run, const struct rehearsal_terms *terms,
             struct rehearsal *out);

/* Accepts a zeroed struct. */
void rehearsal_deinit(struct rehearsal *r);
