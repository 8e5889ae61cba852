/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-sites check: does a HookSpec still say what a recorded engine does? One thread. */
#pragma once

#include "core/err.h"

#include <stdbool.h>

struct check_options {
    const char *spec, *recording;
    const char *reference; /* NULL: values are not compared */
};

/* Prints a line a site to stdout, and what was found instead. *@good: nothing drifted. Return: 0 or an error in @err. */
int check(struct err *err, const struct check_options *options, bool *good);
