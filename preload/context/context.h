/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A capture context: what one CUDA context has of ours. Device memory for payload, descriptors that the device
 * writes, the threads that take both away, and where the context stands within a forward.
 */
#pragma once

#include "core/atomic.h"
#include "kernels/ring.h"
#include "policy/spec.h"
#include "preload/base/cuda_abi.h"
#include "preload/context/ladder.h"
#include "preload/context/references.h"
#include "preload/context/row_lists.h"
#include "preload/context/unslotted.h"
#include "storage/writer/run.h"

#include <dmi/counters.h>
#include <dmi/live.h>

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define CONTEXT_NO_DEVICE (-1) /* as DMI_NO_DEVICE in records */
#define CONTEXT_MAX       64   /* a process; launches in further ones are reported, not captured */
#define CONTEXT_RANGES    32
#define CONTEXT_LAYERS    (SPEC_MAX_PLACE_LAYER + 2) /* and none */

static_assert(CONTEXT_MAX == DMI_LIVE_RINGS, "each has an entry in the file `live`");

/* The handle of the host context, whose tensors lie in host memory and whose copies the tapping threads make. No context of the driver's has it. */
#define CONTEXT_HOST ((CUcontext)(uintptr_t)1)

struct assembly;
struct context_side;

/* What the host knows of a record when it reserves its slot: the slot's user data, later a run_record. */
struct record_note {
    RECORD_NOTED(RECORD_DECLARE)
    uint64_t step;
    uint32_t dtype;
    uint32_t n_dims;
    uint32_t dims[RUN_MAX_DIMS];
    /* a piece of a record: where its bytes belong; NULL: the slot holds all of the record */
    struct assembly *assembly;
    uint64_t offset;
    uint32_t kept; /* where its list of kept rows lies, ROW_LISTS_NONE: all in order */
};
static_assert(sizeof(struct record_note) <= RING_USER_BYTES, "it is a slot's user data");

/* An allocation, or adjacent mappings that the device may read, in which a pointer was last found. */
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
    struct memory_range plus;          /* the tensor that is added to it */
};

/* Of a site of the spec; under the lock, by eager/launch.c. */
struct context_site {
    struct memory_ranges ranges[CONTEXT_RANGES]; /* by occurrence: layers recur */
};

/* Why nobody knows which occurrence comes next. */
enum context_doubt {
    CONTEXT_NO_DOUBT = 0,
    CONTEXT_UNCOUNTED = 1, /* launches that the library could not count came before it */
    CONTEXT_OVERLAPS = 2,  /* so did launches of a thread whose steps overlap another's */
};

/* A site in the forward under way. */
struct context_counts {
    uint32_t occurrence; /* of the next matching launch in this forward */
    enum context_doubt doubt;
    uint32_t n_layers; /* of those below: the others are 0 */
    uint8_t
        passes[CONTEXT_LAYERS]; /* by 1 + layer: how often it ran in the forward; it stays at 255 */
};

/* The forward under way of launches that follow one another (capture/said.h); under the lock, by capture/forward.c. */
struct context_strand {
    struct context_strand *next;
    uint64_t strand; /* as struct said has it */
    uint64_t steps;  /* that began in it, as far as launches say */
    bool in_step;    /* the launch that is counted is of a step that is known, */
    bool overlaps;   /* or of one that overlaps another */
    bool begun;
    int kind; /* index in spec->kinds; -1: none */
    uint64_t sequence;
    uint64_t step_forward;         /* steps when it began */
    struct context_counts sites[]; /* per site of the spec */
};

#define CONTEXT_KERNELS 56 /* of actions */

/* Kernels of ours, loaded in this CUDA context. */
struct context_kernels {
    CUfunction open, reopen, close;
    CUfunction actions[CONTEXT_KERNELS]; /* in the order of device_use_kernels() */
};

#define CONTEXT_MAX_ENCODERS 8u

struct context_thread {
    pthread_t id;
    bool runs;
};

struct staging;

/* Calls that may end the CUDA context and are under way; context.c's, under its lock. */
struct context_calls {
    uint32_t
        enders; /* for which our threads stop: after such a call the CUDA context may be gone */
    uint32_t others;  /* that are certain to leave it alive */
    uint32_t awaited; /* others that began before an ender: the driver may see them after it */
    uint64_t epoch;   /* counts the enders */
};

/* For edits; by edit_region.c, but for the addresses of counters. */
struct context_edits {
    CUdeviceptr region;     /* of tables; 0: there is none */
    CUdeviceptr counters;   /* as kernels see them */
    const uint64_t *counts; /* the same memory: three counts an account */
    uint64_t *seen;         /* what was collected of each */
    uint64_t placed;        /* how many tables were placed when it last had all; atomic */
    uint64_t followed_ns;   /* the drain's */
};

/* Rows that edits save; by bank.c. */
struct context_bank {
    CUdeviceptr at; /* 0: there is none */
    uint32_t n_cells;
    CUfunction drop; /* by device.c */
    /* under the context's lock: donors whose rows are to be forgotten */
    uint32_t *dropped;
    size_t n_dropped, room_dropped;
};

struct context {
    /* these outlive a capture context: a thread that comes late finds out by them */
    int state;                           /* enum context_state; written by context.c alone */
    uint32_t users;                      /* context_use(); atomic */
    CUcontext handle;                    /* atomic: context_handle() */
    struct context_calls calls;          /* of a primary context they are counted by its device */
    struct context_calls *primary_calls; /* where, once such a call has found this one; else NULL */
    bool stuck;           /* our threads did not end in time; under the owner's lock */
    pthread_mutex_t lock; /* of launching threads and drain; never held across a driver call */

    int device;            /* ordinal; CONTEXT_NO_DEVICE: of the host context */
    bool closed;           /* it takes no records any more, and does not go on; atomic */
    unsigned long long id; /* the driver's, of the CUDA context; 0: it has none */

    /* launching threads */
    struct ring ring; /* reserve under the lock; poll and release by the drain */
    uint64_t
        drained_bytes; /* of records that left the ring; atomic, the drain's. The ring's own counts skip what stays empty */
    uint32_t
        n_taken; /* of the oldest slot, a launch's: records whose fate is known with a batch; the drain's */
    struct row_lists row_lists; /* that slots use */
    struct unslotted unslotted;
    struct context_strand *forward; /* that of the launch that is counted */
    struct context_strand *strands; /* all; the process's is the last */
    struct context_site *sites;     /* per site of the spec */

    /* fixed once created */
    const struct context_side *side; /* side_ops.h; NULL: nothing was created */
    CUmodule module;
    struct context_kernels kernels;
    CUdeviceptr payload;
    CUdeviceptr desc_device;  /* the descriptors as kernels see them */
    CUdeviceptr lists_device; /* the row lists, likewise */
    CUdeviceptr retired;      /* per slot a u32 */
    struct context_edits edits;
    struct context_bank bank;
    CUstream stream; /* the drain's */
    void *desc_map;
    size_t n_desc_map;
    bool desc_is_drivers; /* the driver allocated it: it ends with the CUDA context */
    uint64_t keep_free;   /* bytes of device memory that graphs with copies leave alone */

    /* drain and encoders; of workers.c */
    struct context_thread drain, encoders[CONTEXT_MAX_ENCODERS];
    uint32_t n_encoders;
    struct ladder ladder;
    uint64_t last_full_ns; /* of the batch that was appended last; in turn */
    uint64_t stop_ns;   /* monotonic: when to give up on what is in flight; 0: not asked to stop */
    uint64_t stop_slot; /* what is reserved from this slot on stays; written before stop_ns */
    enum dmi_drop stop_reason; /* the same */
    int broken; /* CUresult of a sticky error, 0: none. Released by the drain, acquired by launches */
    struct staging *staging;
    struct dmi_live_ring
        *live;        /* its numbers for dmi-top (gauge.h); NULL: the run has no file for them */
    uint64_t settled; /* slots whose fate is counted; released by encoders, in turn */
};

/*
 * context.c is the one owner of a capture context's state: it makes all transitions, under one lock, which it holds across
 * no call of the driver's and no wait. The thread to which it grants a transition does the work of the new state (lifetime.c).
 *
 *   FREE --claim--> COUNTING --builds--> STARTING --built--> READY <-----------------+
 *                                            |                 |                     | resumed
 *                                            | not built       | stops               |
 *                                            v                 v                 RESUMING
 *                                         FAILED           STOPPING <--+             ^
 *                                                       stopped |      | stops       | the CUDA context lives on
 *                                                               v      | again       |
 *                                                   STOPPED, or STUCK -+-------------+
 *
 *   all but FREE --ends: the CUDA context is gone--> GONE --nobody uses it--> DISMANTLED --freed--> FREE
 *
 * A call that may end the CUDA context is an ender. It waits until our threads have ended, then calls the driver. Several may be
 * under way. The last one to return finds out whether the context lives, and resumes or says that it is gone; a call that
 * certainly ended it says so at once. No thread makes a ring meanwhile. Before the call returns the driver may give the handle
 * to another context: the thread to which it gives that one notices by its id (context_is_same()) that the one before has ended.
 * A call that is certain to end nothing (another reference is left) changes nothing, and waits for nothing. But if an ender
 * begins after it, the driver may see it after the ender: then it counts as one of those that the last one leaves.
 *
 * Records are reserved in READY, and from STOPPING to RESUMING too: the ring is there, and our threads take them once they go
 * on. If the CUDA context is gone, they are counted drops.
 */
enum context_state {
    CONTEXT_FREE = 0,
    CONTEXT_STARTING = 1, /* a thread makes its ring */
    CONTEXT_READY = 2,
    CONTEXT_FAILED =
        3, /* no ring could be created here: reported once, its records are counted drops */
    CONTEXT_STOPPED = 4,  /* our threads have ended */
    CONTEXT_COUNTING = 5, /* it has no ring yet: its records are counted drops */
    CONTEXT_STOPPING = 6, /* a thread waits for ours to end */
    CONTEXT_STUCK = 7,    /* they did not end in time, and still look at it */
    CONTEXT_RESUMING = 8,
    CONTEXT_GONE = 9,
    CONTEXT_DISMANTLED = 10, /* a thread frees its memory */
};

/* The state now. Thread: any. */
static inline enum context_state context_state(const struct context *c)
{
    return (enum context_state)atomic_load_acquire(&c->state); /* of move() in context.c */
}

/* The CUDA context; NULL: it is known to be gone, which another thread may say at any moment. Thread: any. */
static inline CUcontext context_handle(const struct context *context)
{
    return atomic_load_relaxed(&context->handle);
}

/* Are its tensors in host memory? Thread: any that uses it. */
static inline bool context_is_host(const struct context *context)
{
    return context_handle(context) == CONTEXT_HOST;
}

/* The capture context of @handle, NULL: none was created. It may end, unless the caller uses it. Thread: any. */
struct context *context_find(CUcontext handle);

/* The same, and where there is none a new one, COUNTING. NULL: too many, or no memory. Makes no call. Thread: any. */
struct context *context_claim(CUcontext handle);

/* One in which nothing has begun. Return: NULL without memory; free() it. Thread: any. */
struct context_strand *context_strand_new(uint32_t n_sites);

/* Why no record can be reserved here: a drop reason, or DROP_NONE. Thread: any. */
int context_refusal(const struct context *context);

/* Calls @fn for every capture context that was created, or failed to be. It stays while @fn lasts. Thread: any. */
void context_each(void (*fn)(struct context *context, void *arg), void *arg);

/* Its place among all of them, below CONTEXT_MAX. Thread: any. */
uint32_t context_index(const struct context *context);

/* Is @function a kernel of ours in this context? Thread: any. */
bool context_has_kernel(const struct context *context, CUfunction function);

/* ------------------------------------------------------------------------- transitions, for lifetime.c; any thread */

/* COUNTING to STARTING, if no call is under way that may end it. Return: true: the caller uses it, and makes the ring. */
bool context_builds(struct context *context);
/* STARTING to READY or FAILED. Return: false: the CUDA context ended meanwhile, what was built must go. */
bool context_built(struct context *context, bool good);

/* READY or STUCK to STOPPING. Return: true: the caller ends our threads. */
bool context_stops(struct context *context);
/* STOPPING to STOPPED, or to STUCK where they did not end. Return: true: the CUDA context ended meanwhile. */
bool context_stopped(struct context *context, bool ended);

/* STOPPED or STUCK to RESUMING, if no call is under way that may end it. Return: the state before, FREE: it is not granted. */
enum context_state context_resumes(struct context *context);
/* RESUMING to READY, or to STOPPED or STUCK again. Return: as context_built(). */
bool context_resumed(struct context *context, enum context_state state);

/* STOPPED to FAILED: its side on the device was given back. */
void context_fails(struct context *context);

/* The CUDA context has ended. Return: the state before, GONE: it was said already. */
enum context_state context_ends(struct context *context);

/* The driver has made @handle, which is no primary context: one that had this handle before has ended. */
void context_created(CUcontext handle);

/* A retaining of the primary context of @device begins. Return: for context_retained(). */
uint64_t context_retains(CUdevice device);
/*
 * The same ends, and gave @handle, NULL: nothing. Return: false: contexts have begun meanwhile, so that another handle than
 * the last one may be an old one. It is not noted, and the driver must be asked again.
 */
bool context_retained(CUdevice device, CUcontext handle, uint64_t before);
/* What the last one gave. NULL: there was none, or another context has begun with that handle. */
CUcontext context_primary(CUdevice device);
/* Return: false: one is under way. With equal stamps none has begun between two calls. */
bool context_retain_stamp(CUdevice device, uint64_t *stamp);

/* A call that may end the CUDA context, or one that is certain not to. On the stack of its thread. */
struct context_call {
    struct context *context;     /* it is used; NULL: there is none */
    struct context_calls *calls; /* among which it is counted; NULL: it is not */
    struct context_reference reference;
    uint64_t epoch;
};
/* For context_call_starts() of lifetime.h, which stops the threads. */
void context_call_begins(struct context_call *call, const struct context_reference *reference);
/*
 * The driver has returned. Return: FREE: the call is counted no longer; else the state before, STOPPED or STUCK: it was the last
 * one after which the context may be over. It is RESUMING now, and the caller finds out; nobody else calls the driver to end it
 * meanwhile.
 */
enum context_state context_call_returns(struct context_call *call);
/* The caller has found out. */
void context_call_leaves(struct context_call *call);

/* Did all threads of ours end in time, also those of contexts that are gone? Thread: any. */
bool context_threads_ended(void);

/* Its memory stays until context_unuse() of lifetime.h, whatever ends meanwhile. Return: false: it has ended. Thread: any. */
bool context_use(struct context *context);

/* One from GONE to DISMANTLED that nobody uses, NULL: there is none. The caller frees what it holds. */
struct context *context_dismantle(void);
/* DISMANTLED to FREE. */
void context_freed(struct context *context);

/* After fork, in the child: the parent's threads and CUDA contexts do not exist here. */
void context_reset(void);
