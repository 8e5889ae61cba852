/* SPDX-License-Identifier: Apache-2.0 */
/*
 * activity.h - what the stand-in driver has executed, as the stand-in libcupti asks for it
 *
 * No part of the Driver API: cupti/cupti.c looks these functions up by name.
 */
#ifndef STANDIN_ACTIVITY_H
#define STANDIN_ACTIVITY_H

#include <stdint.h>

enum activity_kind { ACTIVITY_COPY = 1, ACTIVITY_SET = 2, ACTIVITY_KERNEL = 10 };

/** struct activity - one operation that a worker has executed */
struct activity {
    enum activity_kind kind;
    uint32_t correlation; /* of the call that queued it; they rise */
    uint32_t device, context, stream;
    uint32_t graph;            /* id of the exec; 0: none */
    uint64_t node;             /* by which its graph's creator knows the node; 0: none */
    uint64_t begin_ns, end_ns; /* CLOCK_REALTIME */
    unsigned grid[3], block[3];
    unsigned static_shared, dynamic_shared, registers;
    const char *name; /* of a kernel; borrowed during the call */
    uint64_t bytes;
    unsigned how; /* of a copy: CUpti_ActivityMemcpyKind */
};

/** standin_observe() - @fn gets each activity from now on, before anything that waits for it goes on; any worker */
void standin_observe(void (*fn)(const struct activity *activity));
/** standin_stream_id() - the number of a stream of the current context; 0: it has none */
uint32_t standin_stream_id(void *stream, int per_thread);
/** standin_context_id() - @context NULL: the current one; 0: there is none */
uint32_t standin_context_id(void *context);
/** standin_exec_id() - the number that activities of a graph have; 0: @exec is none */
uint32_t standin_exec_id(void *exec);
/** standin_node_id() - the number that activities of its execs have; 0: @node is none */
uint64_t standin_node_id(void *node);

#endif
