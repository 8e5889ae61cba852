/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a buffer of CUPTI's records, and any distances as what its walker says, those out of the buffer included. What is read lies
 * in the buffer; each record is handed on or counted.
 */
#include "cupti/layouts.h"
#include "cupti/records.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static const uint8_t *steps;
static size_t n_steps, at;

/* The next byte says how far the next record is, in fours; 255: before the buffer. */
static int next(uint8_t *buffer, size_t n_valid, uint8_t **record)
{
    if (at == n_steps)
        return 12;
    uint8_t step = steps[at++];
    (void)n_valid;
    *record = step == 255 ? buffer - 8 : (*record ? *record : buffer) + 4 * (size_t)step;
    return 0;
}

static uint64_t n_given;

static void take(void *ctx, const struct records_event *e)
{
    (void)ctx;
    n_given++;
    require(layouts_prefix(e->kind) && e->begin_ns && e->begin_ns <= e->end_ns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct records_walk walk = { 0 };
    uint32_t version;
    if (n < sizeof version + 1)
        return 0;
    memcpy(&version, data, sizeof version);
    n_steps = data[4] < n - 5 ? data[4] : n - 5;
    steps = data + 5;
    at = 0;
    n_given = 0;
    size_t n_buffer = n - 5 - n_steps;
    uint8_t *buffer = malloc(n_buffer ? n_buffer : 1); /* its end is where reading must stop */
    if (!buffer)
        return 0;
    memcpy(buffer, data + 5 + n_steps, n_buffer);
    records_walk(next, version, buffer, n_buffer, &walk, take, NULL);
    require(walk.n == n_given + walk.n_no_time + walk.n_unread);
    free(buffer);
    return 0;
}
