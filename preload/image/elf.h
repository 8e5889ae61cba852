/* SPDX-License-Identifier: Apache-2.0 */
/* Machine code for GPUs (a cubin): an ELF file whose sections .nv.info.KERNEL describe parameters. Any thread. */
#ifndef PRELOAD_IMAGE_ELF_H
#define PRELOAD_IMAGE_ELF_H

#include "preload/image/layout.h"
#include "preload/image/span.h"

/* Does @image begin as an ELF file does? */
bool elf_is(struct span image);

/* Names its kernels. Return: 0, IMAGE_E_KIND (not for GPUs), IMAGE_E_BOUNDS. */
int elf_read(struct span image, const struct layout_sink *sink);

#endif
