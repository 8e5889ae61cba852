/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace diff. A program of one thread. */
#pragma once

#include "tools/trace/kernels.h"

/* What ran on the device in @a and in @b, by name; of these steps alone, unless they are all. Return: an exit status; 1: other kernels. */
int trace_diff(const char *a, const char *b, struct kernels_form form,
               const struct runs_steps *steps);
