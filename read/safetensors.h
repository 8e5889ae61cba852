/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Safetensors files: mapped for reading, and the header of one that is written. Not locked: the owner's thread.
 * Source: https://github.com/huggingface/safetensors, "Format".
 */
#pragma once

#include "core/err.h"
#include "storage/text.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_MAX_HEADER 100000000u /* what the format's own package accepts */

struct st_entry {
    char *key; /* owned */
    uint32_t dtype;
    uint32_t n_dims;
    uint64_t dims[8];
    const void *data;
    uint64_t n_bytes;
};

struct safetensors {
    void *map;
    size_t n_map;
    struct st_entry *entries; /* sorted by key */
    size_t n;
    json_t *metadata; /* object of strings; NULL: none */
};

/* Checks every entry against the file's size. Return: 0 or -errno with a sentence in @err. */
int safetensors_open(struct err *err, const char *path, struct safetensors *out);
/* Accepts a zeroed struct. */
void safetensors_deinit(struct safetensors *st);

/* Return: NULL: no such key. */
const struct st_entry *safetensors_find(const struct safetensors *st, const char *key);

/* A header that is written: begin, an entry a tensor in the order of their bytes, end. */
struct st_header {
    struct text text;
    uint64_t n_data; /* bytes of the tensors so far */
};

/* @metadata: an object of strings, borrowed */
void safetensors_begin(struct st_header *header, const json_t *metadata);

/* Return: offset of the tensor's bytes after the header. */
uint64_t safetensors_add_dims(struct st_header *header, const char *key, uint32_t dtype,
                              const uint64_t *dims, uint32_t n_dims, uint64_t n_bytes);

/* As safetensors_add_dims(), of two dimensions. */
uint64_t safetensors_add(struct st_header *header, const char *key, uint32_t dtype, uint64_t n_rows,
                         uint64_t width, uint64_t n_bytes);

/* Return: 0, -ENOMEM, -EFBIG (a header that the format's own package would refuse). */
int safetensors_end(struct st_header *header);

/* Writes its size and the header, and makes the file as long as it will be. @data: gets where the tensors begin. Return: 0 or -errno. */
int safetensors_put(int fd, const struct st_header *header, uint64_t *data);
