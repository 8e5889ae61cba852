/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace steps and check. A program of one thread. */
#pragma once

#include "tools/trace/kernels.h"

#include <dmi/trace.h>

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Times of steps by phase and rows; with @each a line a step; with @slowest, not 0, a line for each of so many that took longest. @paths:
 * NULL-terminated. Return: an exit status.
 */
int trace_steps(char **paths, bool json, bool each, size_t slowest);

/*
 * All that is known of step @number, in each run of @path that has it. Return: likewise.
 */
int trace_show(const char *path, struct kernels_form form, uint64_t number);

/* A step as JSON, with all that a trace says of it. NULL: no memory. */
json_t *trace_step_row(const struct dmi_step_times *at);

/* Whether each trace is complete. Return: likewise; 1: one is not, or contradicts itself. */
int trace_check(char **paths, bool json);
