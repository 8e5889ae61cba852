/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of ours that may wait for those of the application. */
#pragma once

#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#define PRIORITY_LOW 10 /* nice */

/* The calling thread alone, as Linux has it, gets a low priority; one that is as low already keeps what it has. */
static inline void priority_lower(void)
{
    id_t thread = (id_t)gettid();
    if (getpriority(PRIO_PROCESS, thread) < PRIORITY_LOW)
        setpriority(PRIO_PROCESS, thread, PRIORITY_LOW);
}
