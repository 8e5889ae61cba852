/* SPDX-License-Identifier: Apache-2.0 */
/* A file of a model's, in memory while it is read. The owner's thread. */
#pragma once

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

struct mapped {
    char *path; /* of the file itself */
    const void *data;
    uint64_t n; /* above 0 */
};

/**
 * mapped_open() - maps a file, or the one named @in_folder where @path is a folder
 * Return: 0; -errno, as of regular_open(), with a sentence in @err. mapped_deinit() in any case.
 */
int mapped_open(struct err *err, const char *path, const char *in_folder, struct mapped *out);

/* Accepts a zeroed struct. */
void mapped_deinit(struct mapped *mapped);
