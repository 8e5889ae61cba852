/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/spill.h"

#include "core/unnamed.h"
#include "core/whole.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int spill_init(struct spill *s, size_t n_bytes, size_t n_blocks)
{
    *s = (struct spill){ .fd = -1, .n_bytes = n_bytes, .n_blocks = n_blocks };
    s->there = calloc(n_blocks + 1, sizeof *s->there);
    if (!s->there)
        return -ENOMEM;
    if (n_blocks)
        s->fd = unnamed_open();
    return 0;
}

void spill_deinit(struct spill *s)
{
    if (s->fd >= 0)
        close(s->fd);
    free(s->there);
    *s = (struct spill){ .fd = -1 };
}

void spill_clear(struct spill *s)
{
    memset(s->there, 0, s->n_blocks * sizeof *s->there);
}

bool spill_load(struct spill *s, size_t number, void *data, size_t n_bytes)
{
    return number < s->n_blocks && s->there[number] &&
           !whole_read(s->fd, data, n_bytes, (uint64_t)number * s->n_bytes);
}

void spill_store(struct spill *s, size_t number, const void *data, size_t n_bytes)
{
    if (s->fd >= 0 && number < s->n_blocks)
        s->there[number] = !whole_write(s->fd, data, n_bytes, (uint64_t)number * s->n_bytes);
}
