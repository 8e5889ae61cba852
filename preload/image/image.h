/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels in what a module is loaded from, and where their parameters lie: machine code (a cubin), a fatbin, or
 * PTX text. Drivers before CUDA 12.4 do not say it. Reads memory only; any thread.
 *
 * An image carries no length. What is read is what its headers say, within the limits below, and only of images that
 * the driver has accepted: so the reader goes nowhere that the driver has not been.
 */
#pragma once

#include "preload/image/layout.h"
#include "core/bytes.h"
#include "cupti/image/errors.h"

#include <stddef.h>
#include <stdint.h>

/**
 * image_read() - name the kernels in an image of a known length, as of a file
 * @arch: compute capability times ten whose code is wanted; 0: any
 * A kernel is named once for each place where it was found; one whose description contradicts itself is left out.
 * Return: 0, -ENOMEM or IMAGE_E_*: the kernels found before it have been named.
 */
int image_read(const void *image, size_t n_bytes, uint32_t arch, const struct layout_sink *sink);

/* As image_read(), of an image in memory whose length nobody knows, or the wrapper that nvcc puts around one. */
int image_read_loaded(const void *image, uint32_t arch, const struct layout_sink *sink);
