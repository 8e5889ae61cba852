/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/segment.h"

#include "core/cleanup.h"
#include "core/clock.h"
#include "storage/hash.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

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
    struct iovec piece = { &header, sizeof header };
    r = file_write_at(&s->file, &piece, 1, 0);
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

/* What the footer will say of a chunk; what was added is taken back by the caller on failure. */
static void index_chunk(struct segment *s, const struct chunk *chunk, uint64_t offset)
{
    struct dmi_footer_chunk row = { .offset = offset, .type = chunk->header.type };
    if (row.type == DMI_CHUNK_RECORDS) {
        struct dmi_records_head head;
        memcpy(&head, chunk->meta, sizeof head);
        row.n_records = head.n_records;
        uint32_t number = (uint32_t)(s->chunks.n / sizeof row);
        for (uint32_t i = 0; i < head.n_records; i++) {
            struct dmi_record rec;
            memcpy(&rec, chunk->meta + sizeof head + i * sizeof rec, sizeof rec);
            struct dmi_footer_entry entry = { .site = rec.site,
                                              .layer = rec.layer,
                                              .chunk = number,
                                              .record = i,
                                              .step = rec.step,
                                              .launch = rec.launch };
            text_add(&s->entries, (const char *)&entry, sizeof entry);
        }
    } else if (row.type == DMI_CHUNK_STEPS) {
        for (size_t at = 0; at < chunk->header.n_meta; row.n_records++) {
            struct dmi_step_entry step;
            memcpy(&step, chunk->meta + at, sizeof step);
            for (uint32_t i = 0; i < step.n_spans; i++) {
                struct dmi_span_entry span;
                memcpy(&span, chunk->meta + at + sizeof step + i * sizeof span, sizeof span);
                struct dmi_footer_span row_span = { .id_offset = (uint32_t)s->strings.n,
                                                    .id_bytes = span.id_bytes,
                                                    .sequence = step.sequence,
                                                    .first_position = span.first_position,
                                                    .first_row = span.first_row,
                                                    .n_tokens = span.n_tokens };
                text_add(&s->strings, (const char *)chunk->meta + at + span.id_offset,
                         span.id_bytes);
                text_add(&s->spans, (const char *)&row_span, sizeof row_span);
            }
            at += step.n_bytes;
        }
    }
    text_add(&s->chunks, (const char *)&row, sizeof row);
}

#define MAX_COMMIT 8

int segment_append(struct segment *s, struct chunk *chunks, size_t n_chunks, uint64_t sequence,
                   bool sync)
{
    struct iovec pieces[3 * MAX_COMMIT];
    if (n_chunks > MAX_COMMIT)
        return -EINVAL;
    size_t was[4] = { s->chunks.n, s->entries.n, s->spans.n, s->strings.n };
    uint64_t end = s->end, n_records = 0;
    for (size_t i = 0; i < n_chunks; i++) {
        chunk_seal(&chunks[i], sequence + i, s->run_uuid);
        chunk_pieces(&chunks[i], pieces + 3 * i);
        index_chunk(s, &chunks[i], end);
        if (chunks[i].header.type == DMI_CHUNK_RECORDS)
            n_records += ((const struct dmi_records_head *)chunks[i].meta)->n_records;
        end += chunk_bytes(&chunks[i].header);
    }
    int r = 0;
    /* the footer is metadata of a chunk too, and offsets of strings in it have 32 bits */
    if (s->chunks.failed || s->entries.failed || s->spans.failed || s->strings.failed)
        r = -ENOMEM;
    else if (s->chunks.n + s->entries.n + s->spans.n + s->strings.n > DMI_MAX_META - 4096)
        r = -E2BIG;
    else if (!(r = file_write_at(&s->file, pieces, (int)(3 * n_chunks), s->end)) && sync)
        r = file_sync(&s->file);
    if (r) {
        s->chunks.n = was[0], s->entries.n = was[1], s->spans.n = was[2], s->strings.n = was[3];
        s->chunks.failed = s->entries.failed = s->spans.failed = s->strings.failed = 0;
        file_cut(&s->file, s->end); /* else it is a torn tail, overwritten by the next commit */
        return r;
    }
    s->end = end;
    s->n_records += n_records;
    return 0;
}

uint64_t segment_chunks(const struct segment *s)
{
    return s->chunks.n / sizeof(struct dmi_footer_chunk) + (s->closed ? 1 : 0);
}

static int entry_order(const void *pa, const void *pb)
{
    const struct dmi_footer_entry *a = pa, *b = pb;
    if (a->site != b->site)
        return a->site < b->site ? -1 : 1;
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    if (a->launch != b->launch)
        return a->launch < b->launch ? -1 : 1;
    if (a->chunk != b->chunk)
        return a->chunk < b->chunk ? -1 : 1;
    return a->record < b->record ? -1 : a->record > b->record;
}

int segment_close(struct segment *s, uint64_t sequence, bool sync)
{
    if (s->closed)
        return 0;
    if (s->entries.n)
        qsort(s->entries.data, s->entries.n / sizeof(struct dmi_footer_entry),
              sizeof(struct dmi_footer_entry), entry_order);
    struct dmi_footer footer = {
        .n_chunks = (uint32_t)(s->chunks.n / sizeof(struct dmi_footer_chunk)),
        .n_entries = (uint32_t)(s->entries.n / sizeof(struct dmi_footer_entry)),
        .n_spans = (uint32_t)(s->spans.n / sizeof(struct dmi_footer_span)),
        .n_string_bytes = (uint32_t)s->strings.n,
        .first_sequence = s->first_sequence,
    };
    struct text meta = { 0 };
    text_add(&meta, (const char *)&footer, sizeof footer);
    const struct text *const tables[] = { &s->chunks, &s->entries, &s->spans, &s->strings };
    for (size_t i = 0; i < 4; i++)
        text_add(&meta, tables[i]->n ? tables[i]->data : "", tables[i]->n);
    size_t n_meta = meta.n;
    text_add(&meta, "\0\0\0\0\0\0\0", chunk_pad(n_meta) - n_meta);
    if (meta.failed) {
        text_deinit(&meta);
        return -ENOMEM;
    }
    struct chunk chunk;
    chunk_from_meta(&chunk, DMI_CHUNK_FOOTER, (uint8_t *)meta.data, n_meta);
    chunk_seal(&chunk, sequence, s->run_uuid);
    struct dmi_trailer trailer = { .footer_offset = s->end, .magic = DMI_TRAILER_MAGIC };
    trailer.n_file = s->end + chunk_bytes(&chunk.header) + sizeof trailer;
    trailer.hash =
        hash_two(&trailer, offsetof(struct dmi_trailer, hash), s->run_uuid, sizeof s->run_uuid);
    struct iovec pieces[4];
    chunk_pieces(&chunk, pieces);
    pieces[3] = (struct iovec){ &trailer, sizeof trailer };
    int r = file_write_at(&s->file, pieces, 4, s->end);
    if (!r && sync)
        r = file_sync(&s->file);
    chunk_deinit(&chunk);
    if (r) {
        file_cut(&s->file, s->end);
        return r;
    }
    s->end = trailer.n_file;
    s->closed = true;
    return 0;
}

void segment_deinit(struct segment *s)
{
    file_deinit(&s->file);
    text_deinit(&s->chunks);
    text_deinit(&s->entries);
    text_deinit(&s->spans);
    text_deinit(&s->strings);
}
