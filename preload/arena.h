/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one CUDA context has of ours: payload ring, descriptors, copy kernel, drain, and where its
 * engine stands within a forward. Made at the first launch that needs it.
 */
#ifndef PRELOAD_ARENA_H
#define PRELOAD_ARENA_H

#include "kernels/ring.h"
#include "preload/cuda_abi.h"
#include "storage/run.h"

#include <dmi/counters.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define ARENA_MAX    64 /* contexts a process; those behind are reported, not captured */
#define ARENA_RANGES 32

/* What the host knows of a record when it reserves its place: becomes a run_record. */
struct arena_pending {
    uint64_t forward, step, time_ns;
    int32_t layer;
    uint32_t occurrence;
    uint32_t dtype;
    uint32_t n_dims;
    uint32_t dims[RUN_MAX_DIMS];
};

/* Allocations that a site's pointers were last found in, by occurrence: layers recur. */
struct arena_range {
    uint64_t base, size; /* bytes; size 0: nothing known */
    uint64_t epoch;      /* process.memory_epoch when asked */
};

struct arena_site {
    uint32_t occurrence; /* of the next matching launch in this forward */
    struct arena_range ranges[ARENA_RANGES];
};

struct arena_forward {
    bool begun;
    int kind; /* index in spec->kinds; -1: none */
    uint64_t sequence;
    uint64_t step_forward; /* process.step_forward when it began */
};

struct staging;

struct arena {
    int state; /* enum arena_state; released by arena.c, acquired by arena_find() */
    CUcontext context;
    int device; /* ordinal */

    /* launching threads */
    pthread_mutex_t lock;          /* never held across a driver call */
    struct ring ring;              /* reserve under the lock; poll and release by the drain */
    struct arena_pending *pending; /* per slot; under the lock, then the drain's */
    struct arena_forward forward;
    struct arena_site *sites; /* per site of the spec */

    /* fixed once made */
    CUmodule module;
    CUfunction copy, copy_graph, open, close;
    CUdeviceptr payload;
    CUdeviceptr desc_device; /* the descriptors as kernels see them */
    CUdeviceptr retired;     /* per slot a u32 */
    CUstream stream;         /* the drain's */
    void *desc_map;
    size_t n_desc_map;

    /* drain and encoder */
    pthread_t drain, encoder;
    bool drain_runs, encoder_runs;
    uint64_t stop_ns; /* monotonic: when to give up on what is in flight; 0: not asked to stop */
    enum dmi_drop stop_reason; /* written before stop_ns */
    int broken; /* CUresult of a sticky error, 0: none. Released by the drain, acquired by launches */
    struct staging *staging;
    uint64_t settled; /* slots whose fate is counted; released by the encoder or drain */
};

enum arena_state {
    ARENA_FREE = 0,
    ARENA_MAKING = 1,
    ARENA_READY = 2,
    ARENA_FAILED = 3, /* no ring could be made here: told once, its records are counted drops */
    ARENA_STOPPED = 4,
};

/**
 * arena_current() - the arena of the calling thread's current context, made if need be
 * Thread: any, not under a lock; calls the driver. Return: NULL (no context, too many contexts) or
 * an arena that is READY, FAILED or STOPPED.
 */
struct arena *arena_current(void);

/* The arena of @context, NULL: none was made. Thread: any. */
struct arena *arena_find(CUcontext context);

/**
 * arena_stop() - drain what is in flight, within @timeout_ns, and end our threads
 * What is not drained by then is counted under @reason. Its device memory stays: it ends with the
 * context. Thread: any but the drain. Return: false if a thread of ours did not end in time.
 */
bool arena_stop(struct arena *arena, uint64_t timeout_ns, enum dmi_drop reason);

/*
 * Whoever is given the context's handle from here on finds no arena under it; and its opposite, where
 * the context did not end. After arena_stop().
 */
void arena_detach(struct arena *arena);
void arena_attach(struct arena *arena, CUcontext context);

/* The context lives on after all: threads start again. */
void arena_resume(struct arena *arena);

/* The context is gone and its handle may be reused. After arena_stop(). */
void arena_forget(struct arena *arena);

/* Calls @fn for every arena that was made, or failed to be. Thread: any. */
void arena_each(void (*fn)(struct arena *arena, void *ctx), void *ctx);

/* After fork, in the child: the parent's threads and contexts are not ours. */
void arena_reset(void);

/* drain.c: start and stop of the two threads. Return: 0 or -errno. */
int drain_start(struct arena *arena);
/* Return: true if both threads ended within the time; if not, they and their memory stay. */
bool drain_stop(struct arena *arena, uint64_t timeout_ns, enum dmi_drop reason);
/* Waits until all slots before @slot are settled. Return: true if they are. */
bool drain_wait(struct arena *arena, uint64_t slot, uint64_t timeout_ns);

/* Frees the staging memory; the threads have ended. */
void drain_free(struct arena *arena);

#endif
