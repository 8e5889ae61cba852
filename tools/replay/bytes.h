/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes into files and pipes. A program of one thread. */
#ifndef TOOLS_REPLAY_BYTES_H
#define TOOLS_REPLAY_BYTES_H

#include "tools/replay/format.h"

#include <stdint.h>

/**
 * bytes_write() - write all of @data, waiting for room
 * @may_block: a pipe or a terminal, whose reader may take its time
 * Return: 0 or -errno; -EINTR: the user wants to stop, and nobody reads.
 */
int bytes_write(int fd, bool may_block, const void *data, size_t n);

/* The same of an item. */
int bytes_put(int fd, bool may_block, const struct coded *coded);

/* Whether a write may have to wait for a reader. */
bool bytes_may_block(int fd);

#endif
