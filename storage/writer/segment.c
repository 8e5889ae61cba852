/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/segment.h"

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/err.h"
#include "storage/codec/hash.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

static uint8_t *meta_copy(const void *data, size_t n)
{
    uint8_t *meta = calloc(1, chunk_pad(n) + 1);
    if (meta)
        memcpy(meta, data, n);
    return meta;
}

int segment_open(struct segment *s, const char *dir, uint32_t number, const uint8_t run_uuid[16],
                 uint64_t sequence, const char *sites)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/" DMI_SEGMENT_NAME, dir, number) >= sizeof path)
        return -ENAMETOOLONG;
    *s = (struct segment){ .file = { .fd = -1 }, .number = number, .first_sequence = sequence };
    memcpy(s->run_uuid, run_uuid, sizeof s->run_uuid);
    int r = file_create(&s->file, path);
    if (r == -EEXIST &&
        !unlink(path)) /* left by a try that could not take it away: nobody else writes here */
        r = file_create(&s->file, path);
    if (r)
        return r;
    struct dmi_segment_header header = {
        .magic = DMI_SEGMENT_MAGIC,
        .version = DMI_FORMAT_VERSION,
        .n_bytes = sizeof header,
        .segment = number,
        .created_ns = clock_real_ns(),
        .first_sequence = sequence,
    };
    memcpy(header.run_uuid, run_uuid, sizeof header.run_uuid);
    header.hash = hash_bytes(&header, offsetof(struct dmi_segment_header, hash));
    struct iovec buffer = { &header, sizeof header };
    r = file_write_at(&s->file, &buffer, 1, 0);
    if (!r) {
        s->end = sizeof header;
        struct chunk chunk = { 0 };
        uint8_t *meta = meta_copy(sites, strlen(sites));
        chunk_from_meta(&chunk, DMI_CHUNK_SITES, meta, strlen(sites));
        r = meta ? segment_append(s, &chunk, 1, sequence, false) : -ENOMEM;
        chunk_deinit(&chunk);
    }
    if (r) {
        unlink(path);
        segment_deinit(s);
    }
    return r;
}

/*
 * What a failed write left after the end must be gone before the next one: of a longer chunk a part would lie after a
 * shorter one, and a chunk whose fsync failed may be whole. A disk that refuses this too is asked again by the next call.
 */
static int cut_back(struct segment *s)
{
    int r = s->uncut ? file_cut(&s->file, s->end) : 0;
    s->uncut = r != 0;
    return r;
}

static int sync_file(struct segment *s)
{
    uint64_t start = clock_mono_ns();
    int r = file_sync(&s->file);
    s->sync_ns += clock_mono_ns() - start;
    return r;
}

static int write_end(struct segment *s, struct iovec *buffers, int n_buffers, bool sync)
{
    TRY(cut_back(s));
    int r = file_write_at(&s->file, buffers, n_buffers, s->end);
    if (!r && sync)
        r = sync_file(s);
    if (r) {
        s->uncut = true;
        cut_back(s);
    }
    return r;
}

#define MAX_COMMIT 8

int segment_append(struct segment *s, struct chunk *chunks, size_t n_chunks, uint64_t sequence,
                   bool sync)
{
    struct iovec buffers[3 * MAX_COMMIT];
    if (n_chunks > MAX_COMMIT)
        return -EINVAL;
    struct footer_mark mark = footer_mark(&s->index);
    uint64_t end = s->end;
    int r = 0;
    for (size_t i = 0; !r && i < n_chunks; i++) {
        chunk_seal(&chunks[i], sequence + i, s->run_uuid);
        chunk_buffers(&chunks[i], buffers + 3 * i);
        r = footer_add(&s->index, &chunks[i], end);
        end += chunk_bytes(&chunks[i].header);
    }
    if (!r)
        r = write_end(s, buffers, (int)(3 * n_chunks), sync);
    if (r) {
        footer_go_back(&s->index, &mark);
        return r;
    }
    for (size_t i = 0; i < n_chunks; i++)
        footer_count(&s->index, &chunks[i]);
    s->end = end;
    return 0;
}

uint64_t segment_chunks(const struct segment *s)
{
    return footer_chunks(&s->index) + (s->closed ? 1 : 0);
}

uint64_t segment_records(const struct segment *s)
{
    return s->index.entries.n / sizeof(struct dmi_footer_entry);
}

bool segment_index_is_full(const struct segment *s)
{
    return footer_is_full(&s->index);
}

int segment_close(struct segment *s, uint64_t sequence, bool sync)
{
    if (s->closed)
        return 0;
    struct chunk chunk;
    TRY(footer_chunk(&s->index, s->first_sequence, &chunk));
    chunk_seal(&chunk, sequence, s->run_uuid);
    struct dmi_trailer trailer = { .footer_offset = s->end, .magic = DMI_TRAILER_MAGIC };
    trailer.n_file = s->end + chunk_bytes(&chunk.header) + sizeof trailer;
    trailer.hash =
        hash_two(&trailer, offsetof(struct dmi_trailer, hash), s->run_uuid, sizeof s->run_uuid);
    struct iovec buffers[4];
    chunk_buffers(&chunk, buffers);
    buffers[3] = (struct iovec){ &trailer, sizeof trailer };
    int r = write_end(s, buffers, 4, sync);
    chunk_deinit(&chunk);
    if (r)
        return r;
    s->end = trailer.n_file;
    s->closed = true;
    return 0;
}

void segment_deinit(struct segment *s)
{
    file_deinit(&s->file);
    footer_deinit(&s->index);
}
