/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One launch of a kernel that the spec names: launch_before() decides, reserves and launches the
 * copies that read the tensor before the kernel; the caller makes the real call; launch_after()
 * launches the copies that read it behind the kernel, or takes everything back.
 * Thread: the host's launching thread. Neither changes errno.
 */
#ifndef PRELOAD_LAUNCH_H
#define PRELOAD_LAUNCH_H

#include "preload/arena.h"
#include "preload/cuda_abi.h"
#include "preload/funcs.h"
#include "preload/gather.h"

/* The host's call, borrowed while it lasts. */
struct launch {
    CUfunction function;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    CUstream stream;
    void **kernel_params, **extra;
    bool per_thread; /* NULL stream means the thread's own (_ptsz) */
};

struct launch_item {
    uint32_t site;
    uint64_t rows, n_bytes;
    uint64_t slot;
    bool reserved; /* slot and copy are filled in */
    bool given_up; /* by the drain, which has counted it */
    int drop;      /* enum dmi_drop + 1 that it was counted under, 0: none */
    struct dmi_copy copy;
};

/* What has to be undone or done once the real call returned. */
struct launch_job {
    struct arena *arena;
    bool captured; /* it becomes a node of a graph */
    uint32_t n_noted;
    uint32_t noted[16]; /* sites whose occurrence this launch is, taken or not */
    uint32_t n_items;
    struct launch_item items[16];
};

/* What one site wants of one launch. */
struct want {
    uint32_t site;
    uint32_t occurrence;
    int32_t layer;
    struct arena_range range; /* what was known of this pointer */
    struct gather_plan plan;
    int error; /* enum dmi_drop + 1, 0: may be captured */
};

/* want_*(): shared by eager launches and graphs (execs.c). Thread: launching, no lock held. */

/* What is read: fills plan, or error, for the parameters in @env. */
void want_plan(struct want *want, struct expr_env *env);
/* Which layer it is, now that the occurrence is known; may set error. */
void want_layer(struct want *want, struct expr_env *env);
/* Is it still inside a live allocation? May set error. */
void want_check_memory(struct want *want);
/* Counts it as expected: before the launch, so that a kill in between shows as lost. */
void want_expect(const struct want *want);
/* Counts it as dropped, and tells where a user can do something about it. */
void want_drop(const struct arena *arena, const struct want *want, int drop);
/* What the drain will make a record of. Under the arena's lock. */
void want_fill_pending(struct arena *arena, const struct want *want, uint64_t forward,
                       uint64_t slot);

/* Blocks of the copy kernel for @n_bytes moved @access bytes at a time, and its threads a block. */
#define COPY_THREADS 256u
uint32_t copy_blocks(uint64_t n_bytes, uint32_t access);

/* Is @stream being captured? Also true where asking is an error: then the launch would be one too. */
bool launch_is_captured(CUstream stream, bool per_thread);

/*
 * Where @stream's capture goes, and (@node may be NULL) the node that the last launch there has become.
 * Return: false if it is not being captured, or the driver does not say.
 */
bool launch_captured(CUstream stream, bool per_thread, CUgraph *graph, CUgraphNode *node);

/* Waits for the drain as the spec's overload policy allows. Return: false once the time is over. */
bool launch_wait(uint64_t *end_ns);

/* The entry of @function, from the cache or, once, from the driver. */
const struct func *launch_lookup(CUfunction function);

void launch_before(const struct launch *launch, const struct func *func, struct launch_job *job);
void launch_after(const struct launch *launch, struct launch_job *job, CUresult result);

#endif
