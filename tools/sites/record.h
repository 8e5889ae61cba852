/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-sites record: becomes a command with the library in front of it, which records. One thread. */
#pragma once

#include <stdbool.h>

struct record_options {
    const char *out;   /* file; must not exist */
    bool force;        /* a recording that is there goes first */
    const char *begin; /* pattern of the kernels that begin a forward; NULL: all launches count */
    const char *forwards; /* so many; NULL: all */
    const char *budget;   /* bytes in decimal; NULL: the library's own limit */
    char **command;
};

/* Return: the status to exit with; only where the command could not be run. */
int record(const struct record_options *options);
