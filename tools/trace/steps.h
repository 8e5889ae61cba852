/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace steps and check. A program of one thread. */
#ifndef TOOLS_TRACE_STEPS_H
#define TOOLS_TRACE_STEPS_H

#include <stdbool.h>

/* Times of steps by phase and rows or, with @each, a line a step. @paths: NULL-terminated. Return: an exit status. */
int trace_steps(char **paths, bool json, bool each);

/* Whether each trace is complete. Return: likewise; 1: one is not. */
int trace_check(char **paths, bool json);

#endif
