/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-sites match: from a recording and reference activations to a HookSpec. One thread. */
#pragma once

#include "core/err.h"

struct match_options {
    const char *recording, *reference;
    const char *spec;  /* file to write; what people wrote into it stays */
    const char *model; /* for the `model` of a new one; NULL: none */
};

/* Prints the report to stdout. Return: 0 or an error in @err. */
int match(struct err *err, const struct match_options *options);
