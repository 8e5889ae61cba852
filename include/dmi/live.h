/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file `live` of a run: what is of use only while the process runs, for dmi-top. A shared mapping that the capturing
 * process stores into with relaxed atomics; counts only rise, and no thread waits for another. The file may be missing, and
 * readers of segments ignore it: the accounting is in `counters`. A clean close deletes it.
 *
 * A single number is never torn; two numbers may be of different moments. An entry of a request can be torn: its sequence is
 * odd while it is written, and another one after that. Source: docs/format.md 10.1.
 */
#ifndef DMI_LIVE_H
#define DMI_LIVE_H

#include <assert.h>
#include <stdint.h>

#define DMI_LIVE_MAGIC    0x003156494c494d44ull /* the bytes "DMILIV1" and 0 */
#define DMI_LIVE_VERSION  1
#define DMI_LIVE_RINGS    64
#define DMI_LIVE_REQUESTS 256 /* of the latest steps; the oldest is forgotten */
#define DMI_LIVE_ID_BYTES 256

/*
 * A capture context: its ring, and the threads that empty it. Launching threads, drain and encoders store into 64 bytes each:
 * a cache line of their own.
 */
struct dmi_live_ring {
    uint64_t n_bytes; /* size of the payload ring; 0: the entry is not in use, or was never */
    uint64_t n_slots;
    uint64_t head_bytes, head_slots; /* reserved: running counts */
    uint64_t most_bytes, most_slots; /* that were in flight at a time */
    uint64_t floor_bytes; /* released when something was reserved last: an empty ring restarts */
    uint32_t device;      /* ordinal */
    uint32_t n_encoders;  /* threads */

    uint64_t tail_bytes, tail_slots; /* released: running counts */
    uint64_t drained_bytes; /* of the records among it: counts of bytes skip what stays empty */
    uint64_t given;         /* batches that were filled */
    uint64_t reserved1[4];

    uint64_t ended;     /* batches that were appended or given up */
    uint64_t encode_ns; /* of all encoder threads together */
    uint32_t rung;      /* of the codecs' ladder, of the batch appended last */
    uint32_t reserved2;
    uint64_t reserved3[5];
};

/* Bytes of the ring that are in flight, at most as many as it has. Pure function: any thread. */
static inline uint64_t dmi_live_in_flight(const struct dmi_live_ring *r)
{
    uint64_t tail = r->tail_bytes > r->floor_bytes ? r->tail_bytes : r->floor_bytes;
    uint64_t n = r->head_bytes > tail ? r->head_bytes - tail : 0;
    return n < r->n_bytes ? n : r->n_bytes;
}

enum dmi_live_request_state {
    DMI_LIVE_REQUEST_FREE = 0,
    DMI_LIVE_REQUEST_RUNS = 1, /* it was in a step, and no call said that it has ended */
    DMI_LIVE_REQUEST_SHED = 2, /* its rows are not captured any more */
    DMI_LIVE_REQUEST_ENDED = 3,
};

struct dmi_live_request {
    uint64_t sequence;   /* odd: it is being written */
    uint64_t first_step; /* sequence numbers of the run's steps */
    uint64_t last_step;
    uint64_t begin_ns; /* times of these steps, CLOCK_REALTIME */
    uint64_t last_ns;
    uint64_t n_tokens; /* rows of the steps that were its own */
    uint64_t rows;     /* captured, of all sites */
    uint64_t bytes;    /* the same, raw */
    uint32_t state;    /* enum dmi_live_request_state */
    uint32_t n_id;
    uint64_t reserved[7];
    char id[DMI_LIVE_ID_BYTES]; /* any bytes, n_id of them */
};

struct dmi_live {
    uint64_t magic;
    uint32_t version;
    uint32_t n_bytes; /* of the file */
    uint8_t run_uuid[16];
    uint64_t pid;
    uint32_t n_rings, ring_bytes; /* entries, and bytes of one */
    uint32_t n_requests, request_bytes;
    /* encoder: of records that were written */
    uint64_t raw_bytes, stored_bytes;
    /* disk */
    uint64_t written_bytes; /* of segments, headers and metadata included */
    uint64_t write_ns;      /* what that took, without syncs */
    uint64_t writes, write_failures;
    uint64_t sync_ns, syncs, sync_failures;
    /* what overload policies learned and did */
    uint64_t link_bytes_s;  /* at which rings are emptied while they are full; 0: not known */
    uint64_t step_requests; /* of the step that was judged last */
    uint64_t step_kept;     /* of these */
    uint64_t requests_shed; /* in the run */
    uint64_t requests_seen; /* entries that began; an id that comes again counts again */
    uint64_t stray_rows;    /* captured, of steps that were forgotten when they came to the disk */
    /* of a trace: its steps that are done, in sums */
    uint64_t traces; /* 1: the run has a trace */
    uint64_t trace_steps;
    uint64_t trace_host_ns;
    uint64_t trace_timed; /* steps with a time on the device */
    uint64_t trace_device_ns;
    uint64_t trace_gap_ns; /* between steps, where the device had nothing of either to do */
    uint64_t trace_lost;   /* steps that are in no file */
    uint64_t reserved[35];
    struct dmi_live_ring rings[DMI_LIVE_RINGS];
    struct dmi_live_request requests[DMI_LIVE_REQUESTS];
};

static_assert(sizeof(struct dmi_live_ring) == 192, "on-disk layout");
static_assert(__builtin_offsetof(struct dmi_live_ring, tail_bytes) == 64, "on-disk layout");
static_assert(__builtin_offsetof(struct dmi_live_ring, ended) == 128, "on-disk layout");
static_assert(sizeof(struct dmi_live_request) == 384, "on-disk layout");
static_assert(__builtin_offsetof(struct dmi_live, rings) == 512, "on-disk layout");
static_assert(sizeof(struct dmi_live) == 512 + 64 * 192 + 256 * 384, "on-disk layout");

#endif
