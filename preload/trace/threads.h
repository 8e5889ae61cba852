/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each thread has launched, counted in memory of its own. A launch costs the loads and stores below; the first one of a thread after a
 * step began goes to steps_enter(). Thread: the launching one, where nothing else is said.
 */
#pragma once

#include "core/atomic.h"
#include "preload/base/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_THREADS 256u /* that launch at a time */

struct trace_step;
struct lane;

/* Running counts. */
struct trace_counts {
    uint64_t launches, graphs, own, loads, allocations, stall_ns, waits, wait_ns;
};

/* Written by its thread: with relaxed stores, as others read, or under the lock of steps.c. */
struct trace_thread {
    bool used;                /* under that lock, as all up to @counts */
    uint64_t gate;            /* the trace_gate at its last launch */
    uint64_t base_gate;       /* and the one for which @base is */
    struct trace_counts base; /* when it saw that first, or when @step began */
    uint64_t recorded;        /* launches before the event that @end names */
    uint32_t
        end; /* of the step of @base: one more than the place of the event in its ends; 0: none */
    struct trace_step *step; /* of its own, where the engine says none */
    uint64_t
        deal; /* what it launches for: a step, or what lies between two; they rise. Written by it, relaxed */
    bool in_step; /* it is a step */
    bool apart;   /* it has, or had, steps of its own: what lies between them is its own, too */
    bool strand;  /* they are the engine's */
    bool unsure;  /* of which step its launches are is not known */
    bool lost;    /* its step had no room */
    uint64_t
        entered_ns; /* of CLOCK_MONOTONIC, with trace_by_stream: no later than its first launch for that */
    struct lane *lanes, *lane; /* of lanes.c: all of the thread's, and that of its last launch */
    struct trace_counts now;   /* relaxed */
    uint64_t waited_ns;     /* of CLOCK_MONOTONIC: end of its last wait for the device; relaxed */
    CUstream last;          /* of its last launch; relaxed */
    bool last_per_thread;   /* likewise */
    bool beside;            /* another thread said the step; written by it */
    CUcontext last_context; /* that was current at its last launch, while @beside; relaxed */
    bool last_gone;         /* it ended, or there was none; relaxed */
} __attribute__((aligned(64)));

/*
 * 0: no trace. Else a number that rises with each step that the engine begins or ends, and bits that send each launch to
 * steps_enter(). Released by steps.c, acquired by enter() of steps_own.c; launches need no order.
 */
extern uint64_t trace_gate __attribute__((visibility("hidden")));
#define TRACE_GATE_CAPTURES (1ull << 63) /* some stream is being captured */
#define TRACE_GATE_KERNELS  (1ull << 62) /* the user named a kernel */
#define TRACE_GATE_BITS     (TRACE_GATE_CAPTURES | TRACE_GATE_KERNELS)

/* The calling thread's; NULL: it launched nothing yet. */
extern __thread __attribute__((tls_model("initial-exec"),
                               visibility("hidden"))) struct trace_thread *trace_self;

/* A launch in @stream comes next, of @function (NULL: of a graph). Return: NULL: it is not counted. Keeps errno. */
struct trace_thread *steps_enter(const void *function, struct stream stream);

/* The same, in a few instructions where nothing has happened since the launch before. */
static inline struct trace_thread *trace_launch_begins(const void *function, struct stream stream)
{
    uint64_t gate = atomic_load_relaxed(&trace_gate);
    struct trace_thread *t = trace_self;
    if (__builtin_expect(!gate, 1))
        return NULL;
    return __builtin_expect(t && t->gate == gate, 1) ? t : steps_enter(function, stream);
}

/* Are launches counted by stream, too? By lanes.c; atomic. */
extern bool trace_by_stream __attribute__((visibility("hidden")));

/* In the place of CUPTI's id of a graph: a launch leaves no record, or perhaps none. */
#define TRACE_NO_RECORDS UINT32_MAX
#define TRACE_PERHAPS    (UINT32_MAX - 1)

/* The driver has taken a launch of @function in @stream, or of a graph that CUPTI knows as @graph (0: by no id). Keeps errno. */
void lanes_count(struct trace_thread *t, const void *function, struct stream stream);
void lanes_count_graph(struct trace_thread *t, uint32_t graph, struct stream stream);

/* The context of the launch is noted. Keeps errno. */
void steps_note_context(struct trace_thread *t);

/* The thread's last launch was in @stream. */
static inline void trace_launched_in(struct trace_thread *t, struct stream stream)
{
    atomic_store_relaxed(&t->last, stream.handle);
    atomic_store_relaxed(&t->last_per_thread, stream.per_thread);
    atomic_store_relaxed(&t->last_gone, false);
    if (__builtin_expect(t->beside, 0))
        steps_note_context(t);
}

/* The driver has taken the launch of @function. @t: of trace_launch_begins(). */
static inline void trace_launched(struct trace_thread *t, const void *function,
                                  struct stream stream, CUresult r)
{
    if (!t || r != CUDA_SUCCESS)
        return;
    atomic_store_relaxed(&t->now.launches, t->now.launches + 1);
    trace_launched_in(t, stream);
    if (__builtin_expect(atomic_load_relaxed(&trace_by_stream), 0))
        lanes_count(t, function, stream);
}

/* The same of a graph, which CUPTI knows as @graph and which holds @own kernels of DMI's. */
static inline void trace_graph_launched(struct trace_thread *t, struct stream stream, CUresult r,
                                        uint32_t graph, uint64_t own)
{
    if (!t || r != CUDA_SUCCESS)
        return;
    atomic_store_relaxed(&t->now.graphs, t->now.graphs + 1);
    atomic_store_relaxed(&t->now.own, t->now.own + own);
    trace_launched_in(t, stream);
    if (__builtin_expect(atomic_load_relaxed(&trace_by_stream), 0))
        lanes_count_graph(t, graph, stream);
}

/* A graph is about to be launched: as trace_launch_begins(). */
static inline struct trace_thread *trace_graph_begins(struct stream stream)
{
    return __builtin_expect(!atomic_load_relaxed(&trace_gate), 1) ? NULL
                                                                  : steps_enter(NULL, stream);
}
