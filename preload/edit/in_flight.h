/* SPDX-License-Identifier: Apache-2.0 */
/* What edits have used in launches that are in flight goes when these are over. Thread: any that holds no context's lock. */
#pragma once

#include "preload/context/context.h"

#include <stdint.h>

/* The first member of what waits. */
struct in_flight {
    struct in_flight *next;
    void (*over)(struct in_flight *of);
    uint64_t until[CONTEXT_MAX]; /* of each context: launches before this one may use it */
};

/* Launches so far may use it, and no later one does. When they are over, in_flight_settle() calls @over, once. */
void in_flight_wait(struct in_flight *of, void (*over)(struct in_flight *of));

/* Those of which all launches are over go. A context that is gone uses nothing. */
void in_flight_settle(void);

/* After fork, in the child. */
void in_flight_reset(void);
