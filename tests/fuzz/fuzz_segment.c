/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a segment file: the reader must refuse what is wrong, and read the rest. The target first
 * corrects the input's checksums wherever its numbers allow it, or every mutation would end at them.
 */
#include "core/cleanup.h"
#include "storage/codec/hash.h"
#include "read/fill.h"
#include "storage/reader/reader.h"
#include "storage/reader/trace_account.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MOST_RAW (16u << 20) /* of a record that is decoded here: a fuzzer's memory is small */

static void mend_planes(uint8_t *meta, uint64_t n_meta, const uint8_t *payload, uint64_t n_payload)
{
    struct dmi_records_head head;
    if (n_meta < sizeof head)
        return;
    memcpy(&head, meta, sizeof head);
    uint64_t at = sizeof head + (uint64_t)head.n_records * sizeof(struct dmi_record) +
                  (uint64_t)head.n_groups * sizeof(struct dmi_group);
    uint64_t used = 0;
    for (; at <= n_meta && n_meta - at >= sizeof(struct dmi_plane);
         at += sizeof(struct dmi_plane)) {
        struct dmi_plane plane;
        memcpy(&plane, meta + at, sizeof plane);
        if (plane.n_stored > n_payload - used)
            return;
        plane.hash = hash_bytes(payload + used, plane.n_stored);
        used += plane.n_stored;
        memcpy(meta + at, &plane, sizeof plane);
    }
}

static void mend(uint8_t *data, size_t n)
{
    struct dmi_segment_header segment;
    if (n < sizeof segment)
        return;
    memcpy(&segment, data, sizeof segment);
    segment.hash = hash_bytes(&segment, offsetof(struct dmi_segment_header, hash));
    memcpy(data, &segment, sizeof segment);
    size_t at = sizeof segment;
    while (n - at >= sizeof(struct dmi_chunk_header)) {
        struct dmi_chunk_header h;
        memcpy(&h, data + at, sizeof h);
        size_t left = n - at - sizeof h;
        if (h.magic != DMI_CHUNK_MAGIC || h.n_meta > left || (h.n_meta + 7) / 8 * 8 > left)
            break;
        uint8_t *meta = data + at + sizeof h;
        left -= (h.n_meta + 7) / 8 * 8;
        if (h.n_payload > left || (h.n_payload + 7) / 8 * 8 > left)
            break;
        if (h.type == DMI_CHUNK_RECORDS)
            mend_planes(meta, h.n_meta, meta + (h.n_meta + 7) / 8 * 8, h.n_payload);
        memcpy(&h.run, segment.run_uuid, sizeof h.run);
        if (h.type != DMI_CHUNK_RECORDS)
            h.payload_hash =
                h.n_payload ? hash_bytes(meta + (h.n_meta + 7) / 8 * 8, h.n_payload) : 0;
        h.meta_hash = hash_bytes(meta, h.n_meta);
        h.hash = hash_bytes(&h, offsetof(struct dmi_chunk_header, hash));
        memcpy(data + at, &h, sizeof h);
        at += sizeof h + (h.n_meta + 7) / 8 * 8 + (h.n_payload + 7) / 8 * 8;
    }
    struct dmi_trailer trailer;
    if (n - at == sizeof trailer) {
        memcpy(&trailer, data + at, sizeof trailer);
        trailer.hash = hash_two(&trailer, offsetof(struct dmi_trailer, hash), segment.run_uuid,
                                sizeof segment.run_uuid);
        memcpy(data + at, &trailer, sizeof trailer);
    }
}

static uint32_t touched; /* so that nothing that is read is left out */

/* Ids of cached tokens, and whose rows stand for them. */
static void fill(struct reader *reader)
{
    struct err err = { 0 };
    const struct selection select = { .fill_cached = true };
    _cleanup_(sites_deinit) struct sites sites = { 0 };
    _cleanup_(requests_deinit) struct requests requests = { 0 };
    _cleanup_(tensors_deinit) struct tensors tensors = { 0 };
    if (sites_build(reader, &sites) || requests_build(reader, &requests) ||
        fill_build(&err, reader, &sites, &requests, &select, &tensors))
        return;
    for (size_t i = 0; i < tensors.n; i++)
        for (size_t k = 0; k < tensors.all[i].n_stretches; k++)
            touched += tensors.all[i].stretches[k].donor;
}

static void touch_times(void *ctx, const struct dmi_step_times *at)
{
    (void)ctx;
    touched += (uint32_t)at->device_ns;
}

/* Their texts have no zero at the end. */
static void touch_text(const char *text, uint32_t n)
{
    touched += n ? (uint8_t)text[0] + (uint8_t)text[n - 1] : 0u;
}

static void touch_range(void *ctx, const struct reader_range *range)
{
    (void)ctx;
    touch_text(range->name, range->at.name_bytes);
    touch_text(range->facts, range->at.facts_bytes);
}

static void touch_mark(void *ctx, const struct reader_mark *mark)
{
    (void)ctx;
    touch_text(mark->text, mark->at.text_bytes);
}

static void touch_ran(void *ctx, const struct ran *ran)
{
    (void)ctx;
    touch_text(ran->name, ran->shape.name_bytes);
}

static void touch_sum(void *ctx, const struct ran_sum *sum)
{
    (void)ctx;
    touch_text(sum->name, sum->shape.name_bytes);
}

static void touch_account(void *ctx, const struct trace_account *account)
{
    (void)ctx;
    for (size_t i = 0; i < TRACE_RULES; i++)
        touch_text(account->wrong[i].first, account->wrong[i].n ? 1 : 0);
    touched += (uint32_t)(account->n_missing + trace_summed_alone(account));
}

/* When steps ran, and what ran in them. */
static void read_trace(struct reader *reader)
{
    struct err err = { 0 };
    uint64_t n_times = 0, n_marks = 0;
    bool any;
    reader_each_step_times(&err, reader, touch_times, NULL);
    reader_each_range(&err, reader, touch_range, NULL);
    reader_each_mark(&err, reader, touch_mark, NULL);
    reader_each_ran(&err, reader, touch_ran, NULL);
    reader_each_sum(&err, reader, touch_sum, NULL);
    reader_count_trace(reader, &n_times, &n_marks, &any);
    touched += (uint32_t)(n_times + n_marks);
    trace_judge(&err, reader, touch_account, NULL);
}

static void read_all(const char *path)
{
    struct err err = { 0 };
    _cleanup_(reader_closep) struct reader *reader = NULL;
    if (reader_open(&err, path, &reader))
        return;
    struct reader_query query = {
        .request = "b", .n_request = 1, .first_position = INT64_MIN, .end_position = INT64_MAX
    };
    reader_select(&err, reader, &query);
    reader_select(&err, reader, NULL);
    uint32_t n, seen = 0;
    for (size_t i = 0; i < reader_n_steps(reader); i++)
        for (uint32_t k = 0; k < reader_step(reader, i)->entry->n_spans; k++)
            for (uint32_t t = 0; t < 4; t++)
                seen += reader_outcome_has(reader_outcome_of(reader_step(reader, i), k), t, &n);
    for (size_t i = 0; i < reader_n_ends(reader); i++)
        seen += reader_end(reader, i)->n_id && *reader_end(reader, i)->id;
    touched += seen;
    uint64_t most = 0;
    for (size_t i = 0; i < reader_n_records(reader); i++)
        if (reader_record(reader, i)->at.n_bytes > most)
            most = reader_record(reader, i)->at.n_bytes;
    if (most > MOST_RAW)
        return;
    read_trace(reader);
    fill(reader);
    reader_verify(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    _cleanup_(closep) int fd = memfd_create("segment", MFD_CLOEXEC);
    _cleanup_(freep) uint8_t *copy = malloc(n + 1);
    char path[64];
    if (fd < 0 || !copy || pwrite(fd, data, n, 0) != (ssize_t)n)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    read_all(path);
    memcpy(copy, data, n);
    mend(copy, n);
    if (pwrite(fd, copy, n, 0) == (ssize_t)n)
        read_all(path);
    return 0;
}
