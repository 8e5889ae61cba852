/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes for other processes, in memory that nobody can change. Any thread. */
#pragma once

#include "core/err.h"

#include <stddef.h>

/* A memory file that holds @data and is sealed; @name: as /proc shows it. Return: its descriptor, close-on-exec; -errno with a sentence in @err. */
int sealed_memory(struct err *err, const char *name, const void *data, size_t n);
