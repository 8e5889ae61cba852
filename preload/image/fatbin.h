/* SPDX-License-Identifier: Apache-2.0 */
/* A fatbin: machine code and PTX for several devices, each entry perhaps compressed. Any thread. */
#ifndef PRELOAD_IMAGE_FATBIN_H
#define PRELOAD_IMAGE_FATBIN_H

#include "preload/image/layout.h"
#include "preload/image/span.h"

/* Does @image begin as a fatbin does? */
bool fatbin_is(struct span image);

/**
 * fatbin_read() - name the kernels of all entries that a device of @arch (0: any device) may run
 * Return: 0, -ENOMEM, IMAGE_E_BOUNDS, IMAGE_E_PACKED: entries after one that cannot be read are read all the same.
 */
int fatbin_read(struct span image, uint32_t arch, const struct layout_sink *sink);

#endif
