/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.h - executable code translated from PTX: the stand-in's side of the translator in ptx/
 */
#ifndef STANDIN_IMAGE_H
#define STANDIN_IMAGE_H

#include "driver.h"

/** image_init() - tell the translator where device memory is; once, from cuInit() */
void image_init(void);

/**
 * image_load() - translate and load PTX; any thread, lock not held
 * The first load of a text runs the compiler, later ones read the cache. On failure @message says where.
 */
CUresult image_load(const char *text, size_t n_text, struct image **image, char *message,
                    size_t n_message);
struct ptx_dependents;
struct ptx_together;
struct image *image_ref(struct image *image);
void image_unref(struct image *image);

unsigned image_n_kernels(const struct image *image);
const struct kernel_info *image_kernel(const struct image *image, unsigned index);

/** image_globals_size() - bytes that a module's variables take together */
size_t image_globals_size(const struct image *image);
/** image_globals_bind() - variables live at @device on; writes what they are initialised with */
void image_globals_bind(struct image *image, uint64_t device);
bool image_global(const struct image *image, const char *name, size_t *offset, size_t *size);

/** image_run() - execute a part of a launch in the calling thread; @together: of a cooperative one, or NULL; @dependents: or NULL */
CUresult image_run(const struct image *image, unsigned index, const struct kernel_work *kernel,
                   uint64_t first_block, uint64_t n_blocks, struct ptx_together *together,
                   const struct ptx_dependents *dependents);

#endif
