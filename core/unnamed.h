/* SPDX-License-Identifier: Apache-2.0 */
/* A file without a name in TMPDIR, or /tmp: what does not fit into memory. It is gone with its descriptor. Any thread. */
#ifndef CORE_UNNAMED_H
#define CORE_UNNAMED_H

#include <stddef.h>
#include <stdint.h>

/* Return: a descriptor, which is closed on exec; -errno. */
int unnamed_open(void);

/* Writes all @n bytes at @at. Return: 0 or -errno. */
int unnamed_write(int fd, const void *data, size_t n, uint64_t at);

/* Reads all @n bytes at @at. Return: 0; -EIO: the file ends before; -errno. */
int unnamed_read(int fd, void *data, size_t n, uint64_t at);

#endif
