/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/recording/writer.h"

#include "storage/codec/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include <zstd.h>

#define LEVEL 1 /* of zstd: the disk is slower than this */

static int put(struct writer *w, struct iovec *parts, int n)
{
    uint64_t n_bytes = 0;
    for (int i = 0; i < n; i++)
        n_bytes += parts[i].iov_len;
    int r = file_write_at(&w->file, parts, n, w->n_written);
    if (!r)
        w->n_written += n_bytes;
    return r;
}

int writer_open(struct writer *w, const char *path)
{
    struct dmi_recording_header header = {
        .magic = DMI_RECORDING_MAGIC,
        .version = DMI_RECORDING_VERSION,
        .header_bytes = sizeof header,
        .pid = (uint64_t)getpid(),
    };
    *w = (struct writer){ 0 };
    int r = file_create(&w->file, path);
    if (r) {
        w->file.fd = -1;
        return r;
    }
    return put(w, &(struct iovec){ &header, sizeof header }, 1);
}

static uint64_t hash_of(const struct writer_part *parts, int n)
{
    struct hash_stream *stream = hash_start();
    if (!stream)
        return 0;
    for (int i = 0; i < n; i++)
        hash_add(stream, parts[i].data, parts[i].n);
    return hash_end(stream);
}

static int add(struct writer *w, struct dmi_recording_chunk *chunk, const struct writer_part *parts,
               int n)
{
    struct iovec vectors[5] = { { chunk, sizeof *chunk } };
    for (int i = 0; i < n; i++) {
        vectors[i + 1] = (struct iovec){ (void *)parts[i].data, parts[i].n };
        chunk->n_stored += parts[i].n;
    }
    chunk->hash = hash_of(parts, n);
    return put(w, vectors, n + 1);
}

int writer_add(struct writer *w, enum dmi_recording_type type, const struct writer_part *parts,
               int n_parts)
{
    struct dmi_recording_chunk chunk = { .type = type };
    return n_parts > 4 ? -EINVAL : add(w, &chunk, parts, n_parts);
}

int writer_add_compressed(struct writer *w, enum dmi_recording_type type, const void *data,
                          size_t n)
{
    struct dmi_recording_chunk chunk = { .type = type };
    size_t bound = ZSTD_compressBound(n);
    if (w->n_frame < bound) {
        free(w->frame);
        w->frame = malloc(bound);
        w->n_frame = w->frame ? bound : 0;
    }
    size_t n_stored = w->frame ? ZSTD_compress(w->frame, w->n_frame, data, n, LEVEL) : n;
    if (ZSTD_isError(n_stored) || n_stored >= n)
        return add(w, &chunk, &(struct writer_part){ data, n }, 1);
    chunk.n_plain = n;
    return add(w, &chunk, &(struct writer_part){ w->frame, n_stored }, 1);
}

void writer_close(struct writer *w)
{
    if (w->file.path)
        file_deinit(&w->file);
    free(w->frame);
    *w = (struct writer){ .file.fd = -1 };
}
