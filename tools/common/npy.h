/* SPDX-License-Identifier: Apache-2.0 */
/* The head of an npy file. Pure: any thread. Source: numpy.lib.format, versions 1.0 to 3.0. */
#pragma once

#include "storage/text.h"

#include <stdint.h>

/* numpy has no bf16 and no 8-bit floats: their bits go out as integers. */
const char *npy_type(uint32_t dtype);

/* Adds all that stands before the elements; @to is empty. */
void npy_header(struct text *to, uint32_t dtype, const uint64_t *dims, uint32_t n_dims);

/**
 * npy_read() - what an npy file of one or two dimensions says of its elements
 * @data: the whole file, @n bytes
 * @head: bytes before the elements, all of which are there then
 * Return: NULL; or why it cannot be read, in words.
 */
const char *npy_read(const char *data, size_t n, uint32_t *dtype, uint64_t dims[2],
                     uint32_t *n_dims, size_t *head);
