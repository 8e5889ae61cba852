/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose tokens a run holds, and which were not computed because a prefix cache had them. Ids are borrowed from the
 * reader. Not locked: the owner's thread.
 */
#ifndef READ_REQUESTS_H
#define READ_REQUESTS_H

#include "read/map.h"
#include "storage/reader.h"

#include <dmi/dmi.h>

/* What the engine said of one request, over all steps. */
struct request {
    const char *id; /* any bytes, not terminated */
    size_t n_id;
    uint64_t n_steps;
    uint64_t
        n_tokens[DMI_PHASE_DRAFT + 1]; /* by enum dmi_phase: computed, so with rows to capture */
    uint64_t n_cached;                 /* from a prefix cache: no rows of theirs were computed */
    int64_t end;                       /* after the last position */
};

struct requests {
    struct request *all; /* in the order of their first steps */
    size_t n, room;
    uint64_t n_computed, n_cached; /* of all */
    struct map by_id;
};

/* Padding spans are passed over. Return: 0 or -ENOMEM. */
int requests_build(const struct reader *reader, struct requests *out);
void requests_deinit(struct requests *requests);

/* Return: NULL: no such request. */
const struct request *requests_find(const struct requests *requests, const char *id, size_t n_id);

/* Tokens of all phases. */
uint64_t request_computed(const struct request *request);

#endif
