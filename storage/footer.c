/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/footer.h"

#include "core/sorted.h"
#include "storage/parse.h"
#include "storage/record_fields.h"
#include "storage/rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct footer_mark footer_mark(const struct footer *f)
{
    return (struct footer_mark){ f->chunks.n, f->entries.n, f->spans.n, f->strings.n };
}

void footer_go_back(struct footer *f, const struct footer_mark *mark)
{
    f->chunks.n = mark->chunks, f->entries.n = mark->entries;
    f->spans.n = mark->spans, f->strings.n = mark->strings;
    f->chunks.failed = f->entries.failed = f->spans.failed = f->strings.failed = 0;
    f->sites.failed = 0;
}

static uint64_t index_bytes(const struct footer *f)
{
    return f->chunks.n + f->entries.n + f->spans.n + f->strings.n + f->sites.n;
}

bool footer_is_full(const struct footer *f)
{
    return index_bytes(f) > DMI_MAX_META / 2;
}

uint64_t footer_chunks(const struct footer *f)
{
    return f->chunks.n / sizeof(struct dmi_footer_chunk);
}

static void widen(struct dmi_footer_chunk *row, uint64_t value)
{
    row->first = row->n && row->first < value ? row->first : value;
    row->last = row->n && row->last > value ? row->last : value;
    row->n++;
}

static struct dmi_record record_at(const struct chunk *chunk, uint32_t i)
{
    struct dmi_record rec;
    memcpy(&rec, chunk->meta + sizeof(struct dmi_records_head) + i * sizeof rec, sizeof rec);
    return rec;
}

static void reserve_site(struct footer *f, uint32_t site)
{
    while (!f->sites.failed && f->sites.n / sizeof(struct dmi_footer_site) <= site) {
        struct dmi_footer_site none = { .site = (uint32_t)(f->sites.n /
                                                           sizeof(struct dmi_footer_site)) };
        text_add(&f->sites, (const char *)&none, sizeof none);
    }
}

static void index_records(struct footer *f, const struct chunk *chunk, struct dmi_footer_chunk *row)
{
    uint32_t number = (uint32_t)footer_chunks(f);
    for (uint32_t i = 0; i < chunk_n_records(chunk); i++) {
        struct dmi_record rec = record_at(chunk, i), *from = &rec;
        struct dmi_footer_entry entry = { .chunk = number,
                                          .record = i,
                                          RECORD_INDEXED(RECORD_TAKE) };
        rows_count(rec.dims, rec.n_row_dims, &entry.rows);
        widen(row, rec.launch);
        reserve_site(f, rec.site);
        text_add(&f->entries, (const char *)&entry, sizeof entry);
    }
}

static void index_steps(struct footer *f, const struct chunk *chunk, struct dmi_footer_chunk *row)
{
    struct dmi_step_entry step;
    for (size_t at = 0; at < chunk->header.n_meta; at += step.n_bytes) {
        memcpy(&step, chunk->meta + at, sizeof step);
        for (uint32_t i = 0; i < step.n_spans; i++) {
            struct dmi_span_entry span;
            parse_span(chunk->meta + at, i, &span);
            struct dmi_footer_span entry = { .id_offset = (uint32_t)f->strings.n,
                                             .id_bytes = span.id_bytes,
                                             .sequence = step.sequence,
                                             .first_position = span.first_position,
                                             .first_row = span.first_row,
                                             .n_tokens = span.n_tokens };
            text_add(&f->strings, (const char *)chunk->meta + at + span.id_offset, span.id_bytes);
            text_add(&f->spans, (const char *)&entry, sizeof entry);
        }
        widen(row, step.sequence);
    }
}

static void (*const index_of[])(struct footer *f, const struct chunk *chunk,
                                struct dmi_footer_chunk *row) = {
#define CHUNK_TYPE(type, of, name, payload, index, ...) [DMI_CHUNK_##type] = index,
#include "storage/chunk_types.def"
};

int footer_add(struct footer *f, const struct chunk *chunk, uint64_t offset)
{
    struct dmi_footer_chunk row = { .offset = offset, .type = chunk->header.type };
    if (row.type < sizeof index_of / sizeof index_of[0] && index_of[row.type])
        index_of[row.type](f, chunk, &row);
    text_add(&f->chunks, (const char *)&row, sizeof row);
    if (f->chunks.failed || f->entries.failed || f->spans.failed || f->strings.failed ||
        f->sites.failed)
        return -ENOMEM;
    /* the footer is metadata of a chunk too, and offsets of strings in it have 32 bits */
    return index_bytes(f) > DMI_MAX_META - 4096 ? -E2BIG : 0;
}

void footer_count(struct footer *f, const struct chunk *chunk)
{
    struct dmi_footer_site *sites = (struct dmi_footer_site *)(void *)f->sites.data;
    for (uint32_t i = 0; i < chunk_n_records(chunk); i++) {
        struct dmi_record rec = record_at(chunk, i);
        uint32_t rows = 0;
        rows_count(rec.dims, rec.n_row_dims, &rows);
        sites[rec.site].records++;
        sites[rec.site].rows += rows;
        sites[rec.site].bytes += rec.n_bytes;
    }
}

static int entry_order(const void *pa, const void *pb)
{
    const struct dmi_footer_entry *a = pa, *b = pb;
    ORDER(a, b, site);
    ORDER(a, b, layer);
    ORDER(a, b, launch);
    ORDER(a, b, chunk);
    return a->record < b->record ? -1 : a->record > b->record;
}

/* The table of sites that have records. */
static void add_sites(const struct footer *f, struct text *out, uint32_t *n)
{
    const struct dmi_footer_site *sites = (const struct dmi_footer_site *)(void *)f->sites.data;
    for (size_t i = 0; i < f->sites.n / sizeof *sites; i++)
        if (sites[i].records) {
            text_add(out, (const char *)&sites[i], sizeof sites[i]);
            ++*n;
        }
}

int footer_chunk(struct footer *f, uint64_t first_sequence, struct chunk *out)
{
    if (f->entries.n)
        qsort(f->entries.data, f->entries.n / sizeof(struct dmi_footer_entry),
              sizeof(struct dmi_footer_entry), entry_order);
    struct dmi_footer head = {
        .n_chunks = (uint32_t)footer_chunks(f),
        .n_entries = (uint32_t)(f->entries.n / sizeof(struct dmi_footer_entry)),
        .n_spans = (uint32_t)(f->spans.n / sizeof(struct dmi_footer_span)),
        .n_string_bytes = (uint32_t)f->strings.n,
        .first_sequence = first_sequence,
    };
    struct text meta = { 0 };
    text_add(&meta, (const char *)&head, sizeof head);
    text_add(&meta, f->chunks.n ? f->chunks.data : "", f->chunks.n);
    add_sites(f, &meta, &head.n_sites);
    const struct text *const tables[] = { &f->entries, &f->spans, &f->strings };
    for (size_t i = 0; i < 3; i++)
        text_add(&meta, tables[i]->n ? tables[i]->data : "", tables[i]->n);
    size_t n_meta = meta.n;
    text_add(&meta, "\0\0\0\0\0\0\0", chunk_pad(n_meta) - n_meta);
    if (meta.failed) {
        text_deinit(&meta);
        return -ENOMEM;
    }
    memcpy(meta.data, &head, sizeof head);
    chunk_from_meta(out, DMI_CHUNK_FOOTER, (uint8_t *)meta.data, n_meta);
    return 0;
}

void footer_deinit(struct footer *f)
{
    text_deinit(&f->chunks);
    text_deinit(&f->entries);
    text_deinit(&f->spans);
    text_deinit(&f->strings);
    text_deinit(&f->sites);
}
