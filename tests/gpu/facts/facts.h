/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the questions of facts share. A question runs in a process of its own with the first device's
 * primary context current, on one thread, and leaves its cleaning up to the process's end.
 */
#ifndef TESTS_GPU_FACTS_H
#define TESTS_GPU_FACTS_H

#define __CUDA_API_VERSION_INTERNAL /* every variant by its exported name */
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

/* ------------------------------------------------------------------ the driver: driver.c */

extern struct driver {
    void *library;
    const char *last_call;
    const char *missing; /* last_call, if this driver has no such function */
#define USE(name) __typeof__(name) *name;
#include "driver.def"
#undef USE
    CUdevice device;
    CUcontext context;
    bool standin;   /* tests/standin, no GPU */
    int capability; /* 90: 9.0 */
} driver;

/** driver_open() - find libcuda.so.1 and the first device. Return: NULL, or a sentence that says why there is none. */
const char *driver_open(void);

/** driver_setup() - make the device's primary context current. */
CUresult driver_setup(void);

CUresult driver_missing(void);

/* A driver function's result; CUDA_ERROR_NOT_FOUND where this driver has no such function. */
#define CU(name, ...)                                                                              \
    (driver.last_call = #name, driver.name ? driver.name(__VA_ARGS__) : driver_missing())

/* ------------------------------------------------------------------ answers: report.c */

/** says() - an answer that is good to know. @what: a few words, no tab. */
void says(const char *what, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** holds() - an answer that the design relies on: yes, or no. */
void holds(const char *what, bool yes);

/** figure() - a number that was measured. */
void figure(const char *what, double value, const char *unit);

/** result() - the driver's answer by its name, whichever it is. */
void result(const char *what, CUresult r);

/** skipped() - this device or driver cannot be asked. */
void skipped(const char *why);

/** failed() - the question could not be finished: what the last call returned. */
void failed(CUresult r);

#define TRY(call)                                                                                  \
    do {                                                                                           \
        CUresult try_result = (call);                                                              \
        if (try_result != CUDA_SUCCESS) {                                                          \
            failed(try_result);                                                                    \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* The same in a helper, which returns the error. */
#define PASS(call)                                                                                 \
    do {                                                                                           \
        CUresult pass_result = (call);                                                             \
        if (pass_result != CUDA_SUCCESS)                                                           \
            return pass_result;                                                                    \
    } while (0)

/* ------------------------------------------------------------------ kit.c */

/** kernel() - a kernel of kernels.c; every call asks the one module that the process loads. */
CUresult kernel(CUfunction *function, const char *name);
CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream,
                void **params);
CUresult new_stream(CUstream *stream);            /* non-blocking */
CUresult device_memory(CUdeviceptr *p, size_t n); /* zeroed */
/** pinned_memory() - zeroed; @host: where to put its address */
CUresult pinned_memory(void *host, CUdeviceptr *p, size_t n);

/* A kernel's description for a node: one block. */
CUDA_KERNEL_NODE_PARAMS_v2 node_params(CUfunction function, unsigned blocks, unsigned threads,
                                       void **params);
CUresult add_kernel(CUgraph graph, CUgraphNode *node, const CUgraphNode *dependency,
                    CUfunction function, void **params);
/** add_edge() - @type: CU_GRAPH_DEPENDENCY_TYPE_DEFAULT or _PROGRAMMATIC */
CUresult add_edge(CUgraph graph, CUgraphNode from, CUgraphNode to, CUgraphDependencyType type);
/** add_chain() - @n kernels one after the other; @nodes: room for them, or NULL */
CUresult add_chain(CUgraph graph, CUgraphNode *nodes, unsigned n, CUfunction function,
                   void **params);
CUresult new_exec(CUgraphExec *exec, CUgraph graph);
/** list_nodes() - at most @max; Return: how many there are, -1: the call failed */
int list_nodes(CUgraph graph, CUgraphNode *nodes, size_t max);

bool capture_is_active(CUstream stream);
const char *capture_status_text(CUstream stream);

uint64_t now_ns(void);
double median(double *values, size_t n);
/** rounds() - @n on a GPU, fewer where kernels run on the CPU */
unsigned rounds(unsigned n);

typedef CUresult timed_call(void *arg, unsigned i);
/**
 * time_calls() - median time of @call in ns
 * @batch: calls a sample; clock and loop cost some 20 ns a sample
 */
CUresult time_calls(double *ns, unsigned samples, unsigned batch, timed_call *call, void *arg);
/** time_replays() - median time of one launch of @exec in us on the device, by events, over runs of @n launches */
CUresult time_replays(double *us, CUgraphExec exec, CUstream stream, unsigned n);

/* ------------------------------------------------------------------ a gate for streams: gate.c */

/*
 * A kernel that waits, at most two seconds, until the host opens the gate. Its words are pinned: [0] is 1 once it
 * runs, 2 if nobody opened it in time; [1] opens it.
 */
struct gate {
    volatile uint32_t *words;
    CUdeviceptr device;
    uint64_t limit_ns;
    void *params[3];
    CUdeviceptr addresses[2];
};
CUresult gate_init(struct gate *gate);
CUresult gate_launch(struct gate *gate, CUstream stream);
CUresult gate_add(struct gate *gate, CUgraph graph, CUgraphNode *node);
bool gate_wait_started(struct gate *gate); /* at most a second */
void gate_open(struct gate *gate);
bool gate_expired(const struct gate *gate); /* once its kernel is done */

/* ------------------------------------------------------------------ kernels.c */

extern const char kernels_ptx[];
extern const char kernels_sm90_ptx[]; /* programmatic dependent launch */

/* special.c */
/** has_programmatic_launch() - false: the question is skipped, and says so */
bool has_programmatic_launch(void);
/** sm90_kernel() - a kernel of kernels_sm90_ptx */
CUresult sm90_kernel(CUfunction *function, const char *name);

/* ranges.c */
/** continue_ipc() - the other process of ask_address_range_ipc(), which gets the memory's handle on its stdin */
void continue_ipc(void);

#define QUESTION(name, text) void ask_##name(void);
#define BARE(name, text)     void ask_##name(void);
#define CROSSED(name, text)  void ask_##name(void);
#include "questions.def"
#undef QUESTION
#undef BARE
#undef CROSSED

#endif
