/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file `counters` of a run: a shared mapping that the capturing process updates with atomic
 * adds, so that it survives the process. For every site, in records, rows and bytes:
 *
 *     captured + dropped[reason...] = expected        after a clean close; `released` is the part of `captured` whose
 *                                                     segments were deleted since
 *     lost_at_kill = expected - captured - dropped    when the process was killed
 *
 * `expected` is added before the launch that makes the record is handed to the driver (and taken
 * back if the driver refuses that launch); `captured` after the record's chunk was written to its
 * segment. After a kill the segments themselves say what was captured: a chunk may have been
 * written and not yet counted. Source: docs/format.md 10.
 */
#ifndef DMI_COUNTERS_H
#define DMI_COUNTERS_H

#include <assert.h>
#include <stdint.h>

#define DMI_COUNTERS_MAGIC   0x31544e43494d44ull /* "DMICNT1" and a zero byte */
#define DMI_COUNTERS_VERSION 2

/* Why a record that a spec asked for is in no segment. Numbers are part of the format. */
enum dmi_drop {
    DMI_DROP_RING_FULL = 0,   /* no room in the payload or descriptor ring (after the wait) */
    DMI_DROP_TOO_LARGE = 1,   /* larger than the ring will ever hold */
    DMI_DROP_BAD_POINTER = 2, /* outside a live device allocation */
    DMI_DROP_BAD_EXPR = 3, /* an expression of the spec overflowed, or gave a size that cannot be */
    DMI_DROP_COPY_FAILED = 4,   /* the driver refused our copy kernel */
    DMI_DROP_NOT_RUN = 5,       /* the launch ended without its copy having run */
    DMI_DROP_DEVICE_ERROR = 6,  /* a sticky error of the context */
    DMI_DROP_UNSUPPORTED = 7,   /* fell into a graph, stream or context that we leave alone */
    DMI_DROP_WRITE_FAILED = 8,  /* disk full or another I/O error */
    DMI_DROP_EXIT_TIMEOUT = 9,  /* not finished when the exit flush ended */
    DMI_DROP_CONTEXT_GONE = 10, /* the context was destroyed before the record was drained */
    DMI_DROP_MISMATCH = 11,     /* a descriptor did not say what its reservation said */
    DMI_DROP_NO_MEMORY = 12,    /* the host ran out of memory */
    DMI_DROP_LOST = 13, /* killed or damaged: of a run that was recovered, by dmi-dump recover */
    DMI_DROP_SHED = 14, /* of a request that the spec's overload policy did not keep */
    DMI_DROP_COUNT,
    DMI_DROP_ROOM = 16 /* entries on disk */
};

/* As tools and metrics spell it; "unknown" for a number that is none. Pure function: any thread. */
static inline const char *dmi_drop_name(uint32_t reason)
{
    static const char *const names[DMI_DROP_COUNT] = {
        "ring_full",    "too_large",    "bad_pointer", "bad_expr",     "copy_failed",
        "not_run",      "device_error", "unsupported", "write_failed", "exit_timeout",
        "context_gone", "mismatch",     "no_memory",   "lost",         "shed",
    };
    return reason < DMI_DROP_COUNT ? names[reason] : "unknown";
}

struct dmi_tally {
    uint64_t records;
    uint64_t rows;
    uint64_t bytes; /* raw, before encoding */
};

/* Whether both are the same; pure function: any thread. */
static inline int dmi_tally_is(const struct dmi_tally *a, const struct dmi_tally *b)
{
    return a->records == b->records && a->rows == b->rows && a->bytes == b->bytes;
}

/* Whether @b has all that @a has; likewise. */
static inline int dmi_tally_within(const struct dmi_tally *a, const struct dmi_tally *b)
{
    return a->records <= b->records && a->rows <= b->rows && a->bytes <= b->bytes;
}

struct dmi_site_counters {
    struct dmi_tally expected;
    struct dmi_tally captured;
    struct dmi_tally dropped[DMI_DROP_ROOM];
    uint64_t launches;         /* that the site's kernel pattern matched, in any forward */
    struct dmi_tally released; /* captured, and deleted with their segment since */
    uint64_t
        uncounted; /* graph launches that may have run its kernel: the driver does not say how often */
    uint64_t reserved[5];
};

enum dmi_counters_state {
    DMI_COUNTERS_RUNNING = 1,
    DMI_COUNTERS_CLOSED = 2, /* written last by a clean close; everything is accounted for */
};

struct dmi_counters {
    uint64_t magic;
    uint32_t version;
    uint32_t n_sites; /* entries of sites[], one per site entry of the spec, in its order */
    uint8_t run_uuid[16];
    uint64_t state; /* enum dmi_counters_state */
    uint64_t pid;
    uint64_t start_realtime_ns;
    uint64_t forwards;         /* begun */
    uint64_t launches_matched; /* launches with at least one site or a forward boundary */
    uint64_t steps;            /* dmi_step_begin() calls noted */
    uint64_t steps_refused;    /* that could not be noted: no memory, or numbers that cannot be */
    uint64_t waits;      /* launches, and pieces of a record, that waited for room in a ring */
    uint64_t waits_over; /* that ended without room, after the spec's wait_ms */
    uint64_t wait_ns;    /* of all of them together */
    uint64_t reserved[2];
    struct dmi_site_counters sites[];
};

static_assert(sizeof(struct dmi_site_counters) == 512, "on-disk layout");
static_assert(sizeof(struct dmi_counters) == 128, "on-disk layout");

#endif
