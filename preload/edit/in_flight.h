/* SPDX-License-Identifier: Apache-2.0 */
/* Launches in flight that may still use something of edits: it goes when they are over. Thread: any that holds no context's lock. */
#ifndef PRELOAD_EDIT_IN_FLIGHT_H
#define PRELOAD_EDIT_IN_FLIGHT_H

#include "preload/context/context.h"

#include <stdbool.h>
#include <stdint.h>

struct in_flight {
    uint64_t until[CONTEXT_MAX]; /* of each context: launches before this one may use it */
};

/* Launches so far may use it, and no later one does. */
void in_flight_note(struct in_flight *in_flight);

/* Is it in use no more? Those of a context that is gone use nothing. */
bool in_flight_is_over(struct in_flight *in_flight);

#endif
