/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands that change what is captured while the engine serves, a line each, and their answers, a JSON object each:
 *
 *     status                        what is in force
 *     sites on|off PATTERN...       switches sites whose names match (control/switch.h)
 *     overload MAPPING              another `overload` of the HookSpec, as YAML on one line
 *     trace ...                     the trace: control/trace_command.h
 *     edit ...                      edits: control/edit_command.h
 *
 * What changes something is noted in the run. Thread: the control thread alone.
 */
#pragma once

#include "preload/control/line.h"

#define COMMAND_MAX_BYTES (16u << 10) /* of a line */

/* @line: without its end, NUL-terminated; it is written to. @answer: appended, a line. */
void command_run(char *line, const struct line_peer *peer, struct text *answer);
