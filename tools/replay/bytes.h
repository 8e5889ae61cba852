/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes into files and pipes. A program of one thread. */
#pragma once

#include "tools/replay/format.h"

#include <stdint.h>

/* The same of an item. */
int bytes_put(int fd, bool may_block, const struct coded *coded);

/* Whether a write may have to wait for a reader. */
bool bytes_may_block(int fd);
