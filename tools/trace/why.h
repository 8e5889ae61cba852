/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace why. A program of one thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define WHY_ALL UINT64_MAX

/*
 * Where the time of turns goes, by phase and rows, in each run of @path; with @step, not WHY_ALL, of that step beside those of its kind. Return: an exit status.
 */
int trace_why(const char *path, bool json, uint64_t step);
