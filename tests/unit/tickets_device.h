/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver and a device in miniature, for tests of launches with tickets. Streams go in order, launches
 * of one exec one after another, branches within a graph in any order, all on threads of the device's.
 * A kernel of the engine fills each of its tensors with a pattern of the launch; kernels of ours do what
 * kernels/copy.cu does. Addresses are host addresses.
 */
#ifndef TESTS_UNIT_TICKETS_DEVICE_H
#define TESTS_UNIT_TICKETS_DEVICE_H

#include "preload/context/context.h"
#include "preload/base/cuda_abi.h"

#include <dmi/ring.h>

#include <stdbool.h>
#include <stdint.h>

#define DEVICE_STREAMS 3
#define DEVICE_SITES   12
#define DEVICE_KERNELS 4 /* engine's kernels in a graph, at most */
#define DEVICE_COPIES  8
#define DEVICE_LEDGER  (1u << 18) /* launch sequences a schedule */

/* The parameters of a kernel of the engine: @n bytes for each of its tensors, one after the other. */
struct engine_kernel {
    unsigned char *out;
    uint32_t n;
    uint32_t n_tensors, site; /* the first one's site, the next one's is the next */
    uint64_t seed[2];         /* of each tensor: the launch that it is written by */
};

enum node_kind { NODE_OPEN, NODE_ENGINE, NODE_COPY, NODE_CLOSE, NODE_EAGER_COPY };

/* What a CUgraphNode points to. */
struct device_node {
    enum node_kind kind;
    bool enabled;
    bool is_again;   /* NODE_OPEN: its kernel is dmi_reopen */
    uint32_t behind; /* NODE_COPY: number of the engine's kernel that it reads the tensor of */
    union {
        struct dmi_open open;
        struct dmi_reopen again;
        struct engine_kernel engine;
        struct dmi_graph_copy copy;
        struct dmi_close close;
        struct dmi_copy eager;
    };
};

/* What a CUgraphExec points to. Nodes: the host thread; the rest: the device thread. */
struct device_exec {
    struct device_node open, engine[DEVICE_KERNELS], copy[DEVICE_COPIES], close;
    uint32_t n_engine, n_copies;
    struct dmi_ticket state; /* followed, as in an exec's, by: */
    struct dmi_copy_mark marks[DEVICE_COPIES];
    uint64_t n_launched, n_finished; /* launches of one exec run one after another */
};

/* What happened to the records of one launch sequence, a bit a site. Atomic. */
struct device_fate {
    uint16_t published, captured;
    uint64_t seed; /* of what an eager copy of that number reads; 0: the number itself */
};

struct device {
    struct context *context;
    uint64_t refuse_params_every; /* cuGraphExecKernelNodeSetParams fails so often; 0: never */
    uint64_t refuse_copy_every;   /* the launch of an eager copy does */
    uint64_t n_params, n_copies;  /* atomic */
    uint64_t n_again;             /* launches that repeated the last one of their exec; atomic */
    uint64_t published[DEVICE_SITES], skipped[DEVICE_SITES]; /* records; atomic */
    struct device_fate fate[DEVICE_LEDGER];
    bool in_pieces; /* a launch was copied in pieces: more copies than records. Atomic */
};

extern struct device device;

/* Seed of the calling thread's eager launch under way. */
extern __thread uint64_t device_eager_seed;

/* Puts the device's entry points into driver_table. */
void device_install(void);

/* The device's threads begin, and end once all that was launched has run. */
void device_start(struct context *context, uint64_t seed);
void device_finish(void);

/* What launches of the engine's come to. @skip: a bit for each copy that shall not run. Thread: any. */
void device_launch_graph(struct device_exec *exec, CUstream stream, uint64_t seed, uint32_t skip);
void device_launch_kernel(const struct engine_kernel *kernel, CUstream stream);

/* The @i-th byte of what launch @seed writes for @site. */
static inline unsigned char device_pattern(uint64_t seed, uint32_t site, uint64_t i)
{
    return (unsigned char)(seed * 37 + site * 11 + i * 3);
}

#endif
