/* SPDX-License-Identifier: Apache-2.0 */
/* SIGINT and SIGTERM end a program cleanly. A program of one thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Once the user wants to stop, a reader or server has so long to take what it is being given. */
#define STOP_GRACE_MS 1000

/* From now on both signals are noted, and SIGPIPE is ignored. */
void stop_install(void);

/* Has one of them come? */
bool stop_asked(void);

/* Waits, at most until a signal comes. */
void stop_sleep(uint64_t ns);
