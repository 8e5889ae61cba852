/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exec's state in device memory: where open leaves the ticket for the actions. States of execs that are gone are
 * used again once their last launch is over. Thread: any, one at a time per state.
 */
#pragma once

#include "core/err.h"
#include "preload/base/stream.h"
#include "preload/context/context.h"

#include <stdbool.h>
#include <stdint.h>

struct exec_state {
    CUdeviceptr
        memory; /* struct dmi_ticket, one or more, and a struct dmi_copy_mark an action; 0: none */
    uint32_t n_tickets, n_marks;
    uint64_t
        last_slot; /* after those of the last launch that held slots: the ring tells when it is over */
    CUevent event; /* after the last launch that held none; NULL: there was none */
    bool unknown;  /* nobody can say when one of its launches is over */
};

/* Memory for @n_tickets and @n_marks, zeroed. Return: 0 or -EIO. */
int exec_state_init(struct err *err, const struct context *context, uint32_t n_tickets,
                    uint32_t n_marks, struct exec_state *state);

/* The exec is gone: another may use the memory once the last launch is over. */
void exec_state_give_back(const struct context *context, const struct exec_state *state);

/* A launch that holds no slot of the ring is on its way: its open writes the state, its actions read it. */
void exec_state_by_event(struct exec_state *state, struct stream stream);

/* The context is gone, and the memory with it. */
void exec_state_forget_context(const struct context *context);

/* After fork, in the child. */
void exec_state_reset(void);
