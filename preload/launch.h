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
    int drop;      /* enum dmi_drop + 1 that it was counted under, 0: none */
    struct dmi_copy copy;
};

/* What has to be undone or done once the real call returned. */
struct launch_job {
    struct arena *arena;
    uint32_t n_noted;
    uint32_t noted[16]; /* sites whose occurrence this launch is, taken or not */
    uint32_t n_items;
    struct launch_item items[16];
};

/* The entry of @function, from the cache or, once, from the driver. */
const struct func *launch_lookup(CUfunction function);

void launch_before(const struct launch *launch, const struct func *func, struct launch_job *job);
void launch_after(const struct launch *launch, struct launch_job *job, CUresult result);

#endif
