/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands about the trace, and their answers, as of control/command.h:
 *
 *     trace keep [N]    {"ok": true, "kept": {"first": 90, "end": 100}, "gone": 0, "records": 16000}
 *
 * The steps that ended last are stored, kernel by kernel: N of them, or all that are in memory. "gone": how many of these were not in memory any
 * more; "records": how many kernels, copies and fills were stored now. Thread: the control thread alone, which waits
 * for a few seconds, and serves other clients meanwhile.
 */
#pragma once

#include "preload/control/line.h"

/* The words after "trace". */
void trace_command(char *rest, const struct line_peer *peer, struct text *answer);
