/* SPDX-License-Identifier: Apache-2.0 */
/* SIGINT and SIGTERM end a replay cleanly. A program of one thread. */
#ifndef TOOLS_REPLAY_STOP_H
#define TOOLS_REPLAY_STOP_H

#include <stdbool.h>
#include <stdint.h>

/* From now on both signals are noted, and SIGPIPE is ignored. */
void stop_install(void);

/* Has one of them come? */
bool stop_asked(void);

/* Waits, at most until a signal comes. */
void stop_sleep(uint64_t ns);

#endif
