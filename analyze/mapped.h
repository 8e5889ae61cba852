/* SPDX-License-Identifier: Apache-2.0 */
/* A file of a model's, in memory while it is read. The owner's thread. */
#ifndef ANALYZE_MAPPED_H
#define ANALYZE_MAPPED_H

#include "core/err.h"

#include <stddef.h>

struct mapped {
    char *path; /* of the file itself */
    const void *data;
    size_t n; /* above 0 */
};

/**
 * mapped_open() - maps a file, or the one named @in_folder where @path is a folder
 * Return: 0; -errno (-EINVAL: no regular file, or an empty one) with a sentence in @err. mapped_deinit() in any case.
 */
int mapped_open(struct err *err, const char *path, const char *in_folder, struct mapped *out);
/* Accepts a zeroed struct. */
void mapped_deinit(struct mapped *mapped);

#endif
