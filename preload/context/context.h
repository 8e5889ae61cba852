/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A capture context: what one CUDA context has of ours. Device memory for payload, descriptors that the device
 * writes, the threads that take both away, and where the context stands within a forward.
 */
#ifndef PRELOAD_CONTEXT_CONTEXT_H
#define PRELOAD_CONTEXT_CONTEXT_H

#include "kernels/ring.h"
#include "preload/base/cuda_abi.h"
#include "preload/context/ladder.h"
#include "preload/context/row_lists.h"
#include "storage/writer/run.h"

#include <dmi/counters.h>
#include <dmi/live.h>

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define CONTEXT_MAX        64 /* a process; launches in further ones are reported, not captured */
#define CONTEXT_RANGES     32
#define CONTEXT_TAP_LAYERS 256 /* further ones share a bit with others */

static_assert(CONTEXT_MAX == DMI_LIVE_RINGS, "each has an entry in the file `live`");

struct assembly;

/* Is a record wanted? Who changes it from UNDECIDED, its launching thread or the drain, decides. */
enum record_fate {
    RECORD_WANTED = 0,
    RECORD_UNDECIDED = 1, /* it waits in the ring: capture/undecided.h */
    RECORD_DISCARDED = 2, /* as if nobody had asked for it */
    RECORD_GIVEN_UP = 3,  /* the drain has counted it as a drop */
    RECORD_HELD = 4,      /* said of its slot: the drain has taken it out of the ring (held.h) */
};

/* What the host knows of a record when it reserves its slot: the slot's user data, later a run_record. */
struct record_note {
    uint64_t forward, step, time_ns;
    int32_t layer;
    uint32_t occurrence;
    uint32_t dtype;
    uint32_t n_dims;
    uint32_t dims[RUN_MAX_DIMS];
    /* a piece of a record: where its bytes belong; NULL: the slot holds all of the record */
    struct assembly *assembly;
    uint64_t offset;
    uint32_t kept; /* where its list of kept rows lies, ROW_LISTS_NONE: all in order */
    uint32_t fate; /* enum record_fate; atomic once it is launched */
};
static_assert(sizeof(struct record_note) <= RING_USER_BYTES, "it is a slot's user data");

/* An allocation, or adjacent mapped pieces that the device may read, in which a pointer was last found. */
struct memory_range {
    uint64_t base, size; /* bytes; size 0: nothing known, or nothing that may be read */
    uint64_t epoch;      /* session.memory_epoch when it was looked up; 0: it is looked up again */
    bool shared;         /* other processes write or read some of it */
    bool closed;         /* it ends there; else only so much of it was wanted */
    bool barred;         /* what follows is mapped, and the device may not read it */
};

/* Of one of a site's tensors. */
struct memory_ranges {
    struct memory_range tensor, slots; /* the tensor, and the list of slots that its rows are in */
};

/* Of a site of the spec; under the lock, by capture/forward.c and eager/launch.c. */
struct context_site {
    uint32_t occurrence;                      /* of the next matching launch in this forward */
    bool doubtful;                            /* launches that nobody could count came before it */
    uint64_t tapped[CONTEXT_TAP_LAYERS / 64]; /* bit 1 + layer: the forward has had that tap */
    struct memory_ranges ranges[CONTEXT_RANGES]; /* by occurrence: layers recur */
};

/* The forward under way; under the lock, by capture/forward.c. */
struct context_forward {
    bool begun;
    int kind; /* index in spec->kinds; -1: none */
    uint64_t sequence;
    uint64_t step_forward; /* session.step_forward when it began */
};

#define CONTEXT_KERNELS 16 /* of actions */

/* Kernels of ours, loaded in this CUDA context. */
struct context_kernels {
    CUfunction open, close;
    CUfunction actions[CONTEXT_KERNELS]; /* in the order of device_use_kernels() */
};

#define CONTEXT_MAX_ENCODERS 8u

struct context_thread {
    pthread_t id;
    bool runs;
};

struct staging;
struct held_record;

struct context {
    int state; /* enum context_state; released by context.c, acquired by context_find() */
    CUcontext handle;
    int device; /* ordinal */

    /* launching threads */
    pthread_mutex_t lock; /* never held across a driver call */
    struct ring ring;     /* reserve under the lock; poll and release by the drain */
    uint64_t
        drained_bytes; /* of records that left the ring; atomic, the drain's. The ring's own counts skip what stays empty */
    struct row_lists row_lists;
    struct context_forward forward;
    struct context_site *sites; /* per site of the spec */

    /* fixed once created */
    CUmodule module;
    struct context_kernels kernels;
    CUdeviceptr payload;
    CUdeviceptr desc_device; /* the descriptors as kernels see them */
    CUdeviceptr retired;     /* per slot a u32 */
    CUstream stream;         /* the drain's */
    void *desc_map;
    size_t n_desc_map;
    bool desc_is_drivers; /* the driver allocated it: it ends with the CUDA context */
    uint64_t keep_free;   /* bytes of device memory that graphs with copies leave alone */

    /* drain and encoders; of workers.c */
    struct context_thread drain, encoders[CONTEXT_MAX_ENCODERS];
    uint32_t n_encoders;
    struct ladder ladder;
    uint64_t last_full_ns; /* of the batch that was appended last; in turn */
    uint64_t stop_ns; /* monotonic: when to give up on what is in flight; 0: not asked to stop */
    enum dmi_drop stop_reason; /* written before stop_ns */
    int broken; /* CUresult of a sticky error, 0: none. Released by the drain, acquired by launches */
    struct staging *staging;
    struct dmi_live_ring
        *live;        /* its numbers for dmi-top (gauge.h); NULL: the run has no file for them */
    uint64_t settled; /* slots whose fate is counted; released by encoders, in turn */

    /* undecided records out of the ring; under the lock */
    struct held_record *held;
    uint64_t held_bytes;
    uint32_t n_held;
};

enum context_state {
    CONTEXT_FREE = 0,
    CONTEXT_STARTING = 1, /* a thread makes its ring */
    CONTEXT_READY = 2,
    CONTEXT_FAILED =
        3, /* no ring could be created here: reported once, its records are counted drops */
    CONTEXT_STOPPED = 4,
    CONTEXT_COUNTING = 5, /* it has no ring yet: its records are counted drops */
};

/* The capture context of @handle, NULL: none was created. Thread: any. */
struct context *context_find(CUcontext handle);

/* The same, and where there is none a new one, COUNTING. NULL: too many, or no memory. Makes no call. Thread: any. */
struct context *context_claim(CUcontext handle);

/* Why no record can be reserved here: a drop reason, or DROP_NONE. Thread: any. */
int context_refusal(const struct context *context);

/* Calls @fn for every capture context that was created, or failed to be. Thread: any. */
void context_each(void (*fn)(struct context *context, void *arg), void *arg);

/* Its place among all of them, below CONTEXT_MAX. Thread: any. */
uint32_t context_index(const struct context *context);

/* Is @function a kernel of ours in this context? Thread: any. */
bool context_has_kernel(const struct context *context, CUfunction function);

/* After fork, in the child: the parent's threads and CUDA contexts do not exist here. */
void context_reset(void);

#endif
