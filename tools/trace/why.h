/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace why. A program of one thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define WHY_ALL UINT64_MAX

/*
 * Which turns took too long, and where the time of these and of usual ones goes, in each run of @path; @all: not the ten greatest alone. With @step, not WHY_ALL: of that step beside
 * those of its kind. Return: an exit status; 1: a slow one is listed.
 */
int trace_why(const char *path, bool json, bool all, uint64_t step);
