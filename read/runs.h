/* SPDX-License-Identifier: Apache-2.0 */
/* The runs in a folder, such as those of several processes of one command. Any thread. */
#pragma once

#include "core/err.h"

#include <stddef.h>

struct runs {
    char **paths; /* sorted */
    size_t n;
};

/**
 * runs_find() - the folders in @folder that hold a run; hidden ones, which are still made, and the link to the latest are passed over
 * Return: 0 or -errno with a sentence in @err.
 */
int runs_find(struct err *err, const char *folder, struct runs *out);
/* Those that runs_find() finds, or @path itself where there are none. Return: 0 or -ENOMEM. */
int runs_at(const char *path, struct runs *out);
/* Accepts a zeroed struct. */
void runs_deinit(struct runs *runs);
