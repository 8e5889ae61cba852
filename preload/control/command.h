/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands that change what is captured while the engine serves, a line each, and their answers, a JSON object each:
 *
 *     status                        what is in force
 *     sites on|off PATTERN...       switches sites whose names match (control/switch.h)
 *     overload MAPPING              another `overload` of the HookSpec, as YAML on one line
 *
 * What changes something is noted in the run. Thread: the control thread alone.
 */
#ifndef PRELOAD_CONTROL_COMMAND_H
#define PRELOAD_CONTROL_COMMAND_H

#include "storage/text.h"

#define COMMAND_MAX_BYTES (16u << 10) /* of a line */

/* @line: without its end, NUL-terminated; it is written to. @answer: appended, a line. */
void command_run(char *line, struct text *answer);

/* The answer to something that is no command. */
void command_refuse(struct text *answer, const char *why);

#endif
