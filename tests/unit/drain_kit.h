/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of the drain stand on: a driver whose copies to the host happen at once, counters, and the
 * random steps of schedules. Defines driver_table and session_run() in the library's place.
 */
#ifndef TESTS_UNIT_DRAIN_KIT_H
#define TESTS_UNIT_DRAIN_KIT_H

#include "preload/base/driver.h"
#include "preload/session/session.h"

#include <stdint.h>

#define SECOND 1000000000ull

struct context;

struct kit {
    uint64_t n_copies, fail_copy_at; /* cuMemcpyDtoHAsync calls; the one from which on they fail */
    uint64_t n_encodes, fail_encode_at; /* run_encode() calls; the one that fails */
    uint32_t encoding, most_encoding;   /* threads in run_encode(): now, and at most */
    uint32_t meet;                /* run_encode() waits until that many are in it; 0: it does not */
    uint64_t slow_ns;             /* what run_encode() takes on the first rung, beside its nap */
    uint32_t n_rung[CODEC_RUNGS]; /* run_encode() calls */
    uint32_t n_sites;
};

extern struct kit kit;

/* What run_append_chunk() does here, of the records that run_encode() had. The test's. Return: 0 or -errno. */
int kit_append(const struct run_record *records, size_t n_records);

/* A new world: counters of @n_sites at 0, nothing fails. Thread: one, while no other runs. */
void kit_reset(uint32_t n_sites);
void kit_free(void);

/* Records over all sites. Thread: any; exact once the others have ended. */
uint64_t kit_captured(void);
uint64_t kit_dropped(enum dmi_drop reason);

/*
 * workers_stop(), and the end of the threads: a machine that pauses for longer than the stop's grace ends them later, as
 * context_stop()'s callers allow. Who tests that a stop ends needs no clock: it returns only then.
 */
void kit_stop(struct context *context, uint64_t timeout_ns, enum dmi_drop reason);

/* The next number of a schedule (splitmix64). */
uint64_t kit_next(uint64_t *state);

/* Up to three times: another thread may go first. Now and then it may take its time. */
void kit_nap(uint64_t *state);

/* For who waits for another thread: yielding alone starves that thread where others do the same. */
void kit_wait(void);

#endif
