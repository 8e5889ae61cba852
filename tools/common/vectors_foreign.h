/* SPDX-License-Identifier: Apache-2.0 */
/* Files of vectors that Python reads (python/dmi/vectors): what it writes of them is a safetensors file. One thread. */
#ifndef TOOLS_COMMON_VECTORS_FOREIGN_H
#define TOOLS_COMMON_VECTORS_FOREIGN_H

#include "core/err.h"

/* What Python wrote, in a folder of its own. */
struct foreign {
    char *folder;
    char *path; /* of the safetensors file */
};

/**
 * foreign_convert() - a file of vectors as safetensors
 * The first python3 in PATH runs `python -m dmi vectors`, without LD_PRELOAD. It needs nothing but its standard library.
 * Return: 0; -EINVAL, and @err says what is wrong with the file, or that there is no Python; -ENOMEM. @out: foreign_deinit(), in
 * any case.
 */
int foreign_convert(struct err *err, const char *path, struct foreign *out);

/* Removes file and folder. Accepts what was zeroed. */
void foreign_deinit(struct foreign *foreign);

#endif
