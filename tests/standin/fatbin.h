/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fatbin.h - finds the PTX in what a module is loaded from. Any thread; reads memory only.
 */
#ifndef STANDIN_FATBIN_H
#define STANDIN_FATBIN_H

#include <cuda.h>
#include <stddef.h>

/**
 * fatbin_find_ptx() - the PTX text in @image: text itself, a fatbin, or the wrapper around one
 * @sm: compute capability that must be able to run it, times ten
 * @newest: PTX version that the driver reads up to, times ten
 * @text: borrowed, points into @image; not always terminated, @n_text bounds it
 * An image carries no length: every read is bounded by the headers that came before it.
 * Return: CUDA_SUCCESS; NO_BINARY_FOR_GPU when there is machine code or PTX for newer devices only, or
 * when the PTX is compressed (fatbinaries for the stand-in are built with --compress-mode=none);
 * UNSUPPORTED_PTX_VERSION when all PTX for it is newer than @newest (the driver takes other PTX of a fatbin where there
 * is some); INVALID_IMAGE for anything else.
 * Source: layout as seen in output of nvcc 13.0, see fatbin.c
 */
CUresult fatbin_find_ptx(const void *image, int sm, int newest, const char **text, size_t *n_text);

#endif
