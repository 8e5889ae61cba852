/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket: `control` in the run's folder, for the user alone who runs the process. A thread of its own, which is
 * there only if DMI_CONTROL asks for it; it waits in poll(), and calls nothing of the driver's. A client sends lines
 * (control/command.h), some with a descriptor, and gets a line for each. Bounded: 8 clients at a time, 16 KiB a line, 5 s of silence.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Once the run is open; nothing happens unless DMI_CONTROL=1. What fails is logged. Thread: one at a time. */
void server_start(void);

/* Takes no more commands. Return: false if the thread did not end by @end_ns (monotonic). Thread: the last flush's. */
bool server_stop(uint64_t end_ns);

/* In a child of fork(): thread and socket are the parent's. */
void server_reset(void);
