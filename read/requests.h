/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose tokens a run holds, and which were not computed because a prefix cache had them. Ids are borrowed from the
 * reader. Not locked: the owner's thread.
 */
#pragma once

#include "storage/map.h"
#include "read/range.h"
#include "storage/reader/reader.h"

#include <dmi/dmi.h>

enum request_state {
    REQUEST_RUNNING = 0,
    REQUEST_FINISHED = 1,
    REQUEST_ABORTED = 2,   /* ended by its client or by the engine */
    REQUEST_PREEMPTED = 3, /* its positions went back, and it has not come as far again */
};

/* What the engine said of one request, over all steps. */
struct request {
    const char *id; /* any bytes, not terminated */
    size_t n_id;
    uint64_t n_steps;
    uint64_t
        n_tokens[DMI_PHASE_DRAFT + 1]; /* by enum dmi_phase: computed, so with rows to capture */
    uint64_t n_cached;                 /* from a prefix cache: no rows of theirs were computed */
    uint64_t n_rejected;               /* of those computed */
    int64_t end;                       /* after the last position that counts */
    const char *tags; /* as a span of it said them last; any bytes, not terminated; NULL: none */
    size_t n_tags;
    int64_t cached_end;  /* after the positions that a prefix cache had when it began */
    bool has_beams;      /* its rows are of several sequences: the engine searched with beams */
    int64_t n_prompt;    /* where generation begins; -1: not known */
    bool prompt_is_said; /* else it follows from the first step that decodes */
    uint64_t n_preemptions;
    enum request_state state;
    uint32_t reason;    /* enum dmi_end, once it ended */
    bool shed;          /* under pressure or over a budget: rows of it are missing */
    uint64_t shed_step; /* the engine's number of the step from which on, the last time */

    /* what its capture cost, rejected and superseded rows included: see requests_add_costs() */
    uint64_t n_records, n_rows, n_bytes;
    double n_stored; /* its share of bytes in the files */

    /* private: how far it is, as of the step before (firm) and of this one (now) */
    int64_t firm, now;
    size_t step, last_record;
    bool decoded, decodes, resumes, ended;
};

struct requests {
    struct request *all; /* in the order of their first steps */
    size_t n, room;
    uint64_t n_computed, n_cached, n_rejected; /* of all */
    struct map by_id;
    size_t *first_span; /* by step: where its spans begin in @of_span */
    uint32_t *of_span;  /* index of a span's request; UINT32_MAX: padding */
    size_t n_steps;     /* taken before those of @first_span */
    bool owns_ids;
};

/**
 * requests_take() - the next steps of a run, all or some at a time
 * @out: zeroed the first time. With @out->owns_ids the steps may go afterwards: ids are copied, and tags are not kept
 * @first_span and @of_span are those of these steps. Return: 0 or -ENOMEM.
 */
int requests_take(struct requests *out, const struct reader_steps *steps);
/* Padding spans are passed over. Return: 0 or -ENOMEM. */
int requests_build(const struct reader *reader, struct requests *out);
void requests_deinit(struct requests *requests);

/* Return: NULL: no such request. */
const struct request *requests_find(const struct requests *requests, const char *id, size_t n_id);

/**
 * requests_add_costs() - add to each request the rows that were captured of it
 * Takes time in proportion to records and spans, not to tensors. Return: 0 or -ENOMEM.
 */
int requests_add_costs(const struct reader *reader, struct requests *requests);

/* Positions that are generated tokens'; 0 where it is not known where they begin. */
uint64_t request_generated(const struct request *request);

/* The positions that @kind means; empty where they are not known. */
struct range request_tokens(const struct request *request, enum token_kind kind);

/* "running", "finished", "aborted", "preempted" */
const char *request_state_name(enum request_state state);

/* "stop", "length", "aborted"; "unknown" for any other number. */
const char *request_reason_name(uint32_t reason);

/* "prefill", "decode", "draft"; "unknown" for any other number. */
const char *request_phase_name(uint32_t phase);

/* Tokens of all phases. */
uint64_t request_computed(const struct request *request);
