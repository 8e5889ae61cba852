/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/chunk.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "core/sorted.h"
#include "storage/codec/hash.h"
#include "storage/record_fields.h"
#include "storage/rows.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdbool.h>
#include <string.h>

void chunk_deinit(struct chunk *chunk)
{
    free(chunk->meta);
    free(chunk->payload);
    *chunk = (struct chunk){ 0 };
}

uint64_t chunk_bytes(const struct dmi_chunk_header *header)
{
    return sizeof *header + chunk_pad(header->n_meta) + chunk_pad(header->n_payload);
}

uint32_t chunk_n_records(const struct chunk *chunk)
{
    struct dmi_records_head head = { 0 };
    if (chunk->header.type == DMI_CHUNK_RECORDS)
        memcpy(&head, chunk->meta, sizeof head);
    return head.n_records;
}

void chunk_from_meta(struct chunk *chunk, uint16_t type, uint8_t *meta, size_t n_meta)
{
    *chunk = (struct chunk){ .meta = meta };
    chunk->header.type = type;
    chunk->header.n_meta = n_meta;
}

void chunk_seal(struct chunk *chunk, uint64_t sequence, const uint8_t run_uuid[16])
{
    struct dmi_chunk_header *h = &chunk->header;
    h->magic = DMI_CHUNK_MAGIC;
    h->version = DMI_FORMAT_VERSION;
    h->sequence = sequence;
    memcpy(&h->run, run_uuid, sizeof h->run);
    h->meta_hash = hash_bytes(chunk->meta, h->n_meta);
    h->payload_hash = h->n_payload && h->type != DMI_CHUNK_RECORDS /* whose planes have their own */
                          ? hash_bytes(chunk->payload, h->n_payload)
                          : 0;
    h->hash = hash_bytes(h, offsetof(struct dmi_chunk_header, hash));
}

void chunk_buffers(const struct chunk *chunk, struct iovec buffers[3])
{
    buffers[0] = (struct iovec){ (void *)(uintptr_t)&chunk->header, sizeof chunk->header };
    buffers[1] = (struct iovec){ chunk->meta, chunk_pad(chunk->header.n_meta) };
    buffers[2] = (struct iovec){ chunk->payload, chunk_pad(chunk->header.n_payload) };
}

static uint32_t row_dims(const struct run_record *r)
{
    return r->n_row_dims ? r->n_row_dims : 1;
}

static int check_record(const struct run_record *r)
{
    uint64_t n = dmi_dtype_bytes(r->dtype);
    uint32_t rows;
    if (!n || r->n_dims < 1 || r->n_dims > DMI_MAX_DIMS || (r->n_bytes && !r->data))
        return -EINVAL;
    if (row_dims(r) > r->n_dims || !rows_count(r->dims, row_dims(r), &rows) ||
        r->layer < DMI_NO_LAYER)
        return -EINVAL;
    for (uint32_t d = 0; d < r->n_dims; d++)
        if (__builtin_mul_overflow(n, (uint64_t)r->dims[d], &n))
            return -EINVAL;
    if (n != r->n_bytes)
        return -EINVAL;
    return n > DMI_MAX_PAYLOAD ? -E2BIG : 0;
}

/* Rows that the record has an entry for in the table of kept rows. */
static uint32_t kept_rows(const struct run_record *r)
{
    uint32_t rows = 0;
    return r->kept && rows_count(r->dims, row_dims(r), &rows) ? rows : 0;
}

/* Records of one element size and encoding share a group; there are few, so a table by both. */
struct chunk_layout {
    uint32_t group_of[DMI_ENCODING_ROTATED + 1][9]; /* index + 1; 0: none */
    struct dmi_group groups[(DMI_ENCODING_ROTATED + 1) * 4];
    uint32_t n_groups;
    uint32_t n_planes;
    uint64_t n_raw, n_kept;
    enum codec_rung rung;
};

static int lay_out(struct chunk_layout *l, enum codec_rung rung, const struct run_record *records,
                   size_t n_records)
{
    l->rung = rung;
    for (size_t i = 0; i < n_records; i++) {
        TRY(check_record(&records[i]));
        uint32_t encoding = codec_encoding(records[i].dtype, rung);
        uint32_t element = dmi_dtype_bytes(records[i].dtype);
        uint32_t *slot = &l->group_of[encoding][element];
        if (!*slot) {
            l->groups[l->n_groups] = (struct dmi_group){ .encoding = (uint16_t)encoding,
                                                         .element_bytes = (uint16_t)element };
            *slot = ++l->n_groups;
        }
        l->groups[*slot - 1].n_raw += records[i].n_bytes;
        l->n_raw += records[i].n_bytes;
        l->n_kept += kept_rows(&records[i]);
        if (l->n_raw > DMI_MAX_PAYLOAD)
            return -E2BIG;
    }
    uint64_t n_planes = 0;
    for (uint32_t g = 0; g < l->n_groups; g++) {
        struct dmi_group *group = &l->groups[g];
        group->first_plane = (uint32_t)n_planes;
        n_planes += (group->n_raw + DMI_BLOCK_BYTES - 1) / DMI_BLOCK_BYTES *
                    codec_planes(group->encoding, group->element_bytes);
    }
    if (n_records > DMI_MAX_META / 4 / sizeof(struct dmi_record) ||
        n_planes > DMI_MAX_META / 4 / sizeof(struct dmi_plane) ||
        l->n_kept > DMI_MAX_META / 4 / sizeof(uint32_t))
        return -E2BIG;
    l->n_planes = (uint32_t)n_planes;
    return 0;
}

/* Hands out a group's raw bytes in file order, though they lie in many records. */
struct group_bytes {
    const struct run_record *const *records;
    const struct dmi_record *placed;
    size_t n_records, at;
    uint32_t group;
    size_t offset; /* within records[at] */
};

/* The next bytes that lie together, at most @n. */
static const uint8_t *cursor_next(struct group_bytes *c, size_t *n)
{
    while (c->placed[c->at].group != c->group || c->offset == c->records[c->at]->n_bytes) {
        c->at++;
        c->offset = 0;
    }
    const uint8_t *bytes = (const uint8_t *)c->records[c->at]->data + c->offset;
    size_t left = c->records[c->at]->n_bytes - c->offset;
    if (*n > left)
        *n = left;
    c->offset += *n;
    return bytes;
}

/* The next @n bytes: where they are, or, where they lie in several records, in @block. */
static const uint8_t *cursor_read(struct group_bytes *c, uint8_t *block, size_t n)
{
    size_t part = n;
    const uint8_t *bytes = cursor_next(c, &part);
    if (part == n)
        return bytes;
    memcpy(block, bytes, part);
    for (size_t done = part; done < n; done += part) {
        part = n - done;
        bytes = cursor_next(c, &part);
        memcpy(block + done, bytes, part);
    }
    return block;
}

static void place(struct chunk_layout *l, struct dmi_record *out, uint32_t *kept,
                  const struct run_record *const *records, size_t n_records)
{
    uint32_t n_kept = 0;
    uint64_t used[sizeof l->groups / sizeof l->groups[0]] = { 0 };
    for (size_t i = 0; i < n_records; i++) {
        const struct run_record *from = records[i];
        uint32_t g =
            l->group_of[codec_encoding(from->dtype, l->rung)][dmi_dtype_bytes(from->dtype)] - 1;
        out[i] = (struct dmi_record){ .n_dims = (uint8_t)from->n_dims,
                                      .step = from->step,
                                      .group = g,
                                      .offset = used[g],
                                      .n_bytes = from->n_bytes,
                                      .n_row_dims = (uint8_t)row_dims(from),
                                      .kept = n_kept,
                                      .n_kept = kept_rows(from),
                                      .hash = hash_bytes(from->data, from->n_bytes),
                                      RECORD_FACTS(RECORD_TAKE) };
        memcpy(out[i].dims, from->dims, from->n_dims * sizeof from->dims[0]);
        if (out[i].n_kept)
            memcpy(kept + n_kept, from->kept, out[i].n_kept * sizeof *kept);
        n_kept += out[i].n_kept;
        used[g] += from->n_bytes;
    }
}

static int encode_groups(struct chunk *chunk, struct codec *codec, struct chunk_layout *l,
                         struct dmi_plane *planes, const struct dmi_record *placed,
                         const struct run_record *const *records, size_t n_records)
{
    uint8_t *payload = malloc(chunk_pad(l->n_raw) + 1);
    _cleanup_(freep) uint8_t *block = malloc(DMI_BLOCK_BYTES);
    if (!payload || !block) {
        free(payload);
        return -ENOMEM;
    }
    uint64_t used = 0;
    for (uint32_t g = 0; g < l->n_groups; g++) {
        struct dmi_group *group = &l->groups[g];
        struct group_bytes cursor = {
            .records = records, .placed = placed, .n_records = n_records, .group = g
        };
        uint32_t step = codec_planes(group->encoding, group->element_bytes);
        struct dmi_plane *plane = planes + group->first_plane;
        group->offset = used;
        for (uint64_t left = group->n_raw; left; plane += step) {
            size_t n = left < DMI_BLOCK_BYTES ? (size_t)left : DMI_BLOCK_BYTES;
            const uint8_t *raw = cursor_read(&cursor, block, n);
            used += codec_encode(codec, group->encoding, group->element_bytes, raw, n,
                                 payload + used, plane);
            left -= n;
        }
        group->n_stored = used - group->offset;
    }
    memset(payload + used, 0, chunk_pad(used) - used);
    chunk->payload = payload;
    chunk->header.n_payload = used;
    return 0;
}

/* By site and layer: neighbours in a block then have exponents alike, which is what shrinks. */
static int storage_order(const void *pa, const void *pb)
{
    const struct run_record *a = *(const struct run_record *const *)pa;
    const struct run_record *b = *(const struct run_record *const *)pb;
    ORDER(a, b, site);
    ORDER(a, b, layer);
    ORDER(a, b, launch);
    return a < b ? -1 : a > b;
}

int chunk_records(struct chunk *chunk, struct codec *codec, const struct run_record *records,
                  size_t n_records)
{
    struct chunk_layout l = { 0 };
    TRY(lay_out(&l, codec_rung(codec), records, n_records));
    struct dmi_records_head head = { .n_records = (uint32_t)n_records,
                                     .n_groups = l.n_groups,
                                     .n_planes = l.n_planes,
                                     .n_kept = (uint32_t)l.n_kept };
    size_t n_table = n_records * sizeof(struct dmi_record);
    size_t n_groups = l.n_groups * sizeof(struct dmi_group);
    size_t n_planes = l.n_planes * sizeof(struct dmi_plane);
    size_t n_meta = sizeof head + n_table + n_groups + n_planes + l.n_kept * sizeof(uint32_t);
    _cleanup_(freep) uint8_t *meta = calloc(1, chunk_pad(n_meta));
    _cleanup_(freep) const struct run_record **sorted = malloc(n_records * sizeof *sorted);
    if (!meta || !sorted)
        return -ENOMEM;
    for (size_t i = 0; i < n_records; i++)
        sorted[i] = &records[i];
    qsort(sorted, n_records, sizeof *sorted, storage_order);
    struct dmi_record *placed = (struct dmi_record *)(meta + sizeof head);
    struct dmi_plane *planes = (struct dmi_plane *)(meta + sizeof head + n_table + n_groups);
    chunk_from_meta(chunk, DMI_CHUNK_RECORDS, NULL, n_meta);
    memcpy(meta, &head, sizeof head);
    place(&l, placed, (uint32_t *)(void *)((uint8_t *)planes + n_planes), sorted, n_records);
    TRY(encode_groups(chunk, codec, &l, planes, placed, sorted, n_records));
    memcpy(meta + sizeof head + n_table, l.groups, n_groups);
    chunk->meta = steal_ptr(meta);
    return 0;
}
