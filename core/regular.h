/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that a user names and a tool reads: regular ones alone. A pipe would be waited for, a device may have no end, and neither can be read
 * twice. Any thread.
 */
#pragma once

#include "core/err.h"

#include <stdint.h>

/**
 * regular_open() - open a file to read, without waiting for it
 * @most: bytes that it may have
 * @n: gets how many it has; at least 1
 * Return: a descriptor; -EINVAL (a folder, a pipe, a device, an empty file), -EFBIG, -errno, with a sentence in @err that names @path.
 */
int regular_open(struct err *err, const char *path, uint64_t most, uint64_t *n);

/* All bytes, and a zero after them. Return: to be freed; NULL with a sentence in @err. */
char *regular_read(struct err *err, const char *path, uint64_t most, uint64_t *n);
/* The same of a file in a folder, which is no link. @path: of the folder, for the sentence. */
char *regular_read_at(struct err *err, int folder, const char *path, const char *name,
                      uint64_t most, uint64_t *n);
/* All bytes as a private mapping. Return: NULL with a sentence in @err. */
void *regular_map(struct err *err, const char *path, uint64_t *n);
