/* SPDX-License-Identifier: Apache-2.0 */
/*
 * array.h - arrays, which are rows of elements in device memory here, and the textures and surfaces made of them
 */
#ifndef STANDIN_ARRAY_H
#define STANDIN_ARRAY_H

#include "driver.h"

/** struct array - a CUDA array, or one level of a mipmapped one */
struct array {
    struct object object; /* OBJECT_ARRAY */
    struct array *next;   /* of its context */
    struct context *ctx;
    struct mipmap *mipmap; /* that it is a level of, or NULL */
    CUDA_ARRAY3D_DESCRIPTOR desc;
    size_t element, rows, slices; /* bytes; rows and slices are 1 at least */
    size_t pitch;                 /* bytes from a row to the next */
    uint64_t address;
};

struct mipmap {
    struct object object; /* OBJECT_MIPMAP */
    struct mipmap *next;
    struct context *ctx;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    unsigned n_levels;
    struct array *levels[20];
};

/** array_format_bytes() - of one channel; 0 for formats that are not there */
size_t array_format_bytes(CUarray_format format);
/** array_resolve() - the array that a handle stands for, or NULL; lock held */
struct array *array_resolve(CUarray handle);
struct mipmap *mipmap_resolve(CUmipmappedArray handle);

struct ptx_texture;
const struct ptx_texture *texture_find(uint64_t handle);

/** arrays_destroy() - all that a context has; lock held, drained */
void arrays_destroy(struct context *ctx);
void textures_destroy(struct context *ctx);

#endif
