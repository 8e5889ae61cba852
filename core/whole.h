/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes all bytes at a place of a file, however few the kernel moves at a time. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Writes all @n bytes at @at. Return: 0 or -errno. */
int whole_write(int fd, const void *data, size_t n, uint64_t at);

/* Reads all @n bytes at @at. Return: 0; -ENODATA: the file ends before; -errno. */
int whole_read(int fd, void *data, size_t n, uint64_t at);
