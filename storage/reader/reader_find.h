/* SPDX-License-Identifier: Apache-2.0 */
/* Which runs a path stands for. Any thread. */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>

/* What a path stands for. */
struct reader_found {
    char **paths;    /* a lone segment's, a run's, or those of the runs of one command; owned */
    size_t n;        /* at least 1 */
    char *folder;    /* that holds them; NULL: the path is that of the run itself; owned */
    size_t newest;   /* index of the run that was started last */
    size_t n_beside; /* runs of other commands in the folder, which are passed over */
    bool is_named;   /* the user named the newest one: FOLDER/latest */
};

/* Looks at @path and into its folder. Return: 0 or -errno with a sentence. Call reader_found_deinit() in any case. */
int reader_find_runs(struct err *err, const char *path, struct reader_found *out);
/* Accepts a zeroed struct. */
void reader_found_deinit(struct reader_found *found);
/* -ENOTUNIQ, and a sentence that names them. */
int reader_say_several(struct err *err, const struct reader_found *found);
