/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/counters.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "storage/codec/hash.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

int counters_create(struct counters *c, const char *path, uint32_t n_sites,
                    const uint8_t run_uuid[16], uint64_t pid, uint64_t start_ns)
{
    size_t n = sizeof(struct dmi_counters) + n_sites * sizeof(struct dmi_site_counters);
    _cleanup_(freep) struct dmi_counters *first = calloc(1, n);
    if (!first)
        return -ENOMEM;
    first->magic = DMI_COUNTERS_MAGIC;
    first->version = DMI_COUNTERS_VERSION;
    first->n_sites = n_sites;
    memcpy(first->run_uuid, run_uuid, sizeof first->run_uuid);
    first->state = DMI_COUNTERS_RUNNING;
    first->pid = pid;
    first->start_realtime_ns = start_ns;
    TRY(file_create(&c->file, path));
    /* written, not only sized: a store to a hole on a full disk would be a SIGBUS in the application */
    struct iovec buffer = { first, n };
    TRY(file_write_at(&c->file, &buffer, 1, 0));
    void *map = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, c->file.fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    c->map = map;
    c->n_bytes = n;
    alive_hold(&c->alive, path, c->file.fd);
    return 0;
}

int counters_hash(const struct counters *c, uint64_t *hash)
{
    _cleanup_(freep) struct dmi_counters *copy = malloc(c->n_bytes);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, c->map, c->n_bytes);
    copy->state = DMI_COUNTERS_CLOSED;
    *hash = hash_bytes(copy, c->n_bytes);
    return 0;
}

void counters_mark_closed(struct counters *c)
{
    /* acquired by nobody: another process reads the file, and finds everything else in place */
    atomic_store_release(&c->map->state, (uint64_t)DMI_COUNTERS_CLOSED);
}

void counters_deinit(struct counters *c)
{
    if (c->map)
        munmap(c->map, c->n_bytes);
    c->map = NULL;
    alive_release(&c->alive);
    file_deinit(&c->file);
}
