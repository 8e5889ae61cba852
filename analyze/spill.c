/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/spill.h"

#include "core/unnamed.h"
#include "core/whole.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int spill_init(struct spill *s, size_t n_bytes, size_t n_blocks)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *s = (struct spill){ .fd = -1,
                         .n_bytes = (n_bytes + page - 1) / page * page,
                         .n_blocks = n_blocks };
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

const void *spill_map(const struct spill *s, size_t number)
{
    if (number >= s->n_blocks || !s->there[number])
        return NULL;
    void *data = mmap(NULL, s->n_bytes, PROT_READ, MAP_SHARED, s->fd, (off_t)(number * s->n_bytes));
    return data == MAP_FAILED ? NULL : data;
}

void spill_unmap(const struct spill *s, const void *data)
{
    if (data)
        munmap((void *)(uintptr_t)data, s->n_bytes);
}

void spill_store(struct spill *s, size_t number, const void *data, size_t n_bytes)
{
    if (s->fd >= 0 && number < s->n_blocks)
        s->there[number] = !whole_write(s->fd, data, n_bytes, (uint64_t)number * s->n_bytes);
}
