/* SPDX-License-Identifier: Apache-2.0 */
#include "facts.h"

#define GATE_LIMIT_NS  2000000000u
#define START_LIMIT_NS 1000000000u

CUresult gate_init(struct gate *gate)
{
    void *words;

    PASS(pinned_memory(&words, &gate->device, 256));
    gate->words = words;
    gate->limit_ns = GATE_LIMIT_NS;
    gate->addresses[0] = gate->device;
    gate->addresses[1] = gate->device + 4;
    gate->params[0] = &gate->addresses[0];
    gate->params[1] = &gate->addresses[1];
    gate->params[2] = &gate->limit_ns;
    return CUDA_SUCCESS;
}

CUresult gate_launch(struct gate *gate, CUstream stream)
{
    CUfunction function;

    PASS(kernel(&function, "gate"));
    return launch(function, 1, 1, stream, gate->params);
}

CUresult gate_add(struct gate *gate, CUgraph graph, CUgraphNode *node)
{
    CUfunction function;

    PASS(kernel(&function, "gate"));
    return add_kernel(graph, node, NULL, function, gate->params);
}

bool gate_wait_started(struct gate *gate)
{
    uint64_t end = now_ns() + START_LIMIT_NS;

    while (!__atomic_load_n(&gate->words[0], __ATOMIC_ACQUIRE))
        if (now_ns() > end)
            return false;
    return true;
}

void gate_open(struct gate *gate)
{
    __atomic_store_n(&gate->words[1], 1, __ATOMIC_RELEASE);
}

bool gate_expired(const struct gate *gate)
{
    return __atomic_load_n(&gate->words[0], __ATOMIC_ACQUIRE) == 2;
}
