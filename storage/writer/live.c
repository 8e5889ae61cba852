/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/live.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "storage/file.h"
#include "storage/folder.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* ------------------------------------------------------------------------- the file */

int live_create(struct live *l, const char *folder, const uint8_t run_uuid[16], uint64_t pid,
                const uint8_t *rows, uint32_t n_sites)
{
    _cleanup_(freep) struct dmi_live *first = calloc(1, sizeof *first);
    *l = (struct live){ .path = folder_file(folder, LIVE_FILE) };
    int r = first && l->path ? 0 : -ENOMEM;
    if (!r) {
        first->magic = DMI_LIVE_MAGIC;
        first->version = DMI_LIVE_VERSION;
        first->n_bytes = sizeof *first;
        memcpy(first->run_uuid, run_uuid, sizeof first->run_uuid);
        first->pid = pid;
        first->n_rings = DMI_LIVE_RINGS;
        first->ring_bytes = sizeof first->rings[0];
        first->n_requests = DMI_LIVE_REQUESTS;
        first->request_bytes = sizeof first->requests[0];
        void *map = NULL;
        r = file_create_mapped(l->path, first, sizeof *first, &map);
        l->map = map;
    }
    if (!r && !(l->requests = live_requests_new(l->map, rows, n_sites)))
        r = -ENOMEM;
    if (r)
        live_remove(l);
    return r;
}

void live_moved(struct live *l, const char *folder)
{
    if (!l->map)
        return;
    free(l->path);
    l->path = folder_file(folder, LIVE_FILE);
}

void live_remove(struct live *l)
{
    if (l->map && l->path)
        unlink(l->path);
    live_deinit(l);
}

void live_deinit(struct live *l)
{
    live_requests_free(l->requests);
    if (l->map)
        munmap(l->map, sizeof *l->map);
    free(l->path);
    *l = (struct live){ 0 };
}

/* ------------------------------------------------------------------------- what is noted */

void live_note_write(const struct live *l, uint64_t n_bytes, uint64_t ns, bool failed)
{
    if (!l->map)
        return;
    atomic_add_relaxed(&l->map->write_ns, ns);
    atomic_add_relaxed(failed ? &l->map->write_failures : &l->map->writes, 1);
    atomic_add_relaxed(&l->map->written_bytes, n_bytes);
}

void live_note_sync(const struct live *l, uint64_t ns, bool failed)
{
    if (!l->map)
        return;
    atomic_add_relaxed(&l->map->sync_ns, ns);
    atomic_add_relaxed(failed ? &l->map->sync_failures : &l->map->syncs, 1);
}

static void note_bytes(struct dmi_live *map, const struct chunk *chunk)
{
    struct dmi_records_head head;
    struct dmi_record rec;
    uint64_t raw = 0;
    memcpy(&head, chunk->meta, sizeof head);
    for (uint32_t i = 0; i < head.n_records; i++) {
        memcpy(&rec, chunk->meta + sizeof head + i * sizeof rec, sizeof rec);
        raw += rec.n_bytes;
    }
    atomic_add_relaxed(&map->raw_bytes, raw);
    atomic_add_relaxed(&map->stored_bytes, chunk->header.n_payload);
}

void live_note_chunk(struct live *l, const struct chunk *chunk)
{
    if (!l->map)
        return;
    if (chunk_n_records(chunk))
        note_bytes(l->map, chunk);
    live_requests_note(l->requests, chunk);
}
