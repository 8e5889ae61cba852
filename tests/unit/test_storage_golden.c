/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of known content: what they hold is read as it was written, whatever the code has become since.
 * `test_storage_golden --write DIR` made tests/golden/v2 once; they are never edited, a new version of the
 * format gets a folder of its own.
 *
 *     valid/         a run of two segments: what kit_forward() writes, and a record that uses what that does not
 *     invalid/X.dmi  its first segment with one thing wrong; X says what, and checksums are right again
 *     unknown/X.dmi  likewise, with something that a later program of the same version may write
 *     newer/         its files with the number of the next version
 *     packed/        a run whose planes have codec 2; written by `--write-packed DIR`
 *     edits/         a run with a place and accounts of edits, of which there are six; by `--write-edits DIR`
 *     cached/        a run whose spans say the ids of cached tokens; by `--write-cached DIR`, as invalid/cached_X.dmi
 */
#include "core/cleanup.h"
#include "storage/checksum.h"
#include "storage/codec/hash.h"
#include "storage/names.h"
#include "storage/writer/manifest.h"
#include "tests/unit/storage_kit.h"

#include <dmi/dtype.h>

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WIDTH 48

static const char *golden(const char *name)
{
    static char path[4096];
    const char *dir = getenv("TEST_GOLDEN");
    snprintf(path, sizeof path, "%s/%s", dir ? dir : "tests/golden", name);
    return path;
}

START_TEST(the_golden_run_reads_as_it_did)
{
    _cleanup_(reader_closep) struct reader *reader = kit_read(golden("v2/valid"), true);
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(reader, &first), "%s: %s", first->file, first->text);
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    ck_assert_uint_eq(reader_n_records(reader), 9);
    ck_assert_uint_eq(reader_run(reader)->n_segments, 2);
    ck_assert_str_eq(reader_run(reader)->job, "kit-job");
    ck_assert(kit_holds(reader, WIDTH));
    kit_expect_special(reader, 8);
}
END_TEST

#define N_PACKED 12288

/* Exponents of a few values, as activations have: an element is (1 + (i mod 97) / 128) * 2^(i mod 5). */
static void fill_packed(uint16_t bf16[N_PACKED], float f32[N_PACKED])
{
    for (size_t i = 0; i < N_PACKED; i++) {
        uint32_t bits;
        f32[i] = (1 + (float)(i % 97) / 128) * (float)(1u << i % 5);
        memcpy(&bits, &f32[i], 4);
        bf16[i] = (uint16_t)(bits >> 16);
    }
}

START_TEST(packed_planes_read_as_they_did)
{
    static uint16_t bf16[N_PACKED], back[N_PACKED];
    static float f32[N_PACKED], back32[N_PACKED];
    fill_packed(bf16, f32);
    _cleanup_(reader_closep) struct reader *reader = kit_read(golden("v2/packed"), true);
    const struct reader_finding *first = NULL;
    struct err err = { 0 };
    ck_assert_msg(!kit_damage(reader, &first), "%s: %s", first->file, first->text);
    ck_assert_uint_eq(reader_n_records(reader), 2);
    for (size_t k = 0; k < 2; k++) {
        const struct reader_record *rec = reader_record(reader, k);
        bool wide = rec->at.dtype == DMI_DTYPE_F32;
        ck_assert_uint_eq(rec->at.n_bytes, wide ? sizeof f32 : sizeof bf16);
        ck_assert_int_eq(reader_decode(&err, reader, rec, wide ? (void *)back32 : back), 0);
    }
    ck_assert(!memcmp(back, bf16, sizeof bf16) && !memcmp(back32, f32, sizeof f32));
}
END_TEST

static const int32_t cached_tokens[5] = { 7, 0, 2147483647, 11, 5 };

/* A step with two prefixes: one whose ids were said, and one whose were not. */
static int cached_step(struct run *run)
{
    static const struct dmi_span spans[] = {
        { .request_id = "abc",
          .tags = "{}",
          .first_position = 5,
          .n_tokens = 2,
          .n_cached = 5,
          .cached_ids = cached_tokens },
        { .request_id = "b", .first_position = 3, .first_row = 2, .n_tokens = 1, .n_cached = 3 },
        { .request_id = "c",
          .first_position = 4,
          .first_row = 3,
          .n_tokens = 1,
          .n_cached = 2,
          .cached_ids = cached_tokens + 3 },
    };
    const struct dmi_step step = { .size = sizeof step,
                                   .version = 1,
                                   .n_rows = 4,
                                   .n_spans = 3,
                                   .span_size = sizeof spans[0],
                                   .spans = spans };
    return run_step(run, 0, &step);
}

static void expect_cached(const struct reader *reader)
{
    const struct reader_step *step = reader_step(reader, 0);
    ck_assert_ptr_nonnull(step);
    ck_assert_uint_eq(step->entry->n_spans, 3);
    ck_assert_mem_eq(reader_cached_ids(step, 0), cached_tokens, sizeof cached_tokens);
    ck_assert_ptr_null(reader_cached_ids(step, 1));
    ck_assert_mem_eq(reader_cached_ids(step, 2), cached_tokens + 3, 2 * sizeof *cached_tokens);
}

START_TEST(ids_of_cached_tokens_read_as_they_did)
{
    _cleanup_(reader_closep) struct reader *reader = kit_read(golden("v2/cached"), true);
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(reader, &first), "%s: %s", first->file, first->text);
    expect_cached(reader);
}
END_TEST

/* Accounts of the golden run: of one edit in two requests, in rows of no known request, and in those that have ended. */
static const struct dmi_edit_account golden_accounts[] = {
    { .uid = 2,
      .state = DMI_EDIT_ACCOUNT_OPEN,
      .n_request = 3,
      .due = 7,
      .written = 4,
      .missed = { [DMI_EDIT_MISS_CACHED] = 3 },
      .edit = "calm",
      .request = "abc" },
    { .uid = 2,
      .state = DMI_EDIT_ACCOUNT_OPEN,
      .n_request = 5,
      .due = 5,
      .written = 5,
      .not_finite = 1,
      .edit = "calm",
      .request = "a\0\xff\n?" },
    { .state = DMI_EDIT_ACCOUNT_FREE, .due = 9, .edit = "left as it was" },
    { .uid = 2,
      .state = DMI_EDIT_ACCOUNT_OPEN,
      .due = 2,
      .missed = { [DMI_EDIT_MISS_NO_STEP] = 2 },
      .edit = "calm" },
    { .uid = 2,
      .state = DMI_EDIT_ACCOUNT_TOTAL,
      .due = 1000000000000,
      .written = 1000000000000,
      .edit = "calm" },
};
#define N_GOLDEN_ACCOUNTS (sizeof golden_accounts / sizeof *golden_accounts)
#define N_GOLDEN_ROOM     6u

START_TEST(accounts_of_edits_read_as_they_did)
{
    _cleanup_(reader_closep) struct reader *reader = kit_read(golden("v2/edits"), true);
    const struct reader_finding *first = NULL;
    const struct reader_edits *edits = &reader_run(reader)->edits;
    ck_assert_msg(!kit_damage(reader, &first), "%s: %s", first->file, first->text);
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    ck_assert(edits->known && edits->ended == 3 && edits->marked == 1 && edits->in_force == 1);
    ck_assert_uint_eq(edits->n, N_GOLDEN_ACCOUNTS - 1);
    for (size_t i = 0, n = 0; i < N_GOLDEN_ACCOUNTS; i++)
        if (golden_accounts[i].state)
            ck_assert_mem_eq(edits->accounts[n++].at, &golden_accounts[i], sizeof *golden_accounts);
}
END_TEST

START_TEST(invalid_segments_are_damage)
{
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", golden("v2/invalid"));
    DIR *list = opendir(dir);
    ck_assert_ptr_nonnull(list);
    size_t n = 0;
    for (struct dirent *e; (e = readdir(list));) {
        if (e->d_name[0] == '.')
            continue;
        char path[8192];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        _cleanup_(reader_closep) struct reader *reader = kit_read(path, true);
        n++;
        ck_assert_msg(kit_damage(reader, NULL) > 0, "%s was taken as valid", e->d_name);
    }
    closedir(list);
    ck_assert_uint_ge(n, 30);
}
END_TEST

START_TEST(what_is_not_known_is_named_by_its_number_and_loses_no_more_than_itself)
{
    static const struct {
        const char *name, *text;
        size_t n_records; /* of 6 */
        size_t n_decoded;
    } rows[] = {
        { "chunk_type", "type 99", 6, 6 }, { "chunk_version", "version 3", 4, 4 },
        { "codec", "codec 9", 6, 4 },      { "encoding", "encoding 77", 6, 4 },
        { "dtype", "type 99", 5, 5 },      { "flags", NULL, 6, 6 },
        { "longer_spans", NULL, 6, 6 },    { "phase", NULL, 6, 6 },
        { "row", "row \"expert\"", 6, 6 }, { "longer_metadata", NULL, 6, 6 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char path[8192];
        snprintf(path, sizeof path, "%s/%s.dmi", golden("v2/unknown"), rows[i].name);
        _cleanup_(reader_closep) struct reader *reader = kit_read(path, true);
        const struct reader_finding *damage = NULL;
        ck_assert_msg(!kit_damage(reader, &damage), "%s: %s", rows[i].name, damage->text);
        ck_assert_msg(reader_n_records(reader) == rows[i].n_records, "%s: %zu records",
                      rows[i].name, reader_n_records(reader));
        bool said = !rows[i].text;
        for (size_t f = 0; f < reader_n_findings(reader); f++)
            said |= rows[i].text && reader_finding(reader, f)->unknown &&
                    strstr(reader_finding(reader, f)->text, rows[i].text);
        ck_assert_msg(said, "%s: its number was not named", rows[i].name);
        size_t n_decoded = 0;
        for (size_t k = 0; k < reader_n_records(reader); k++) {
            const struct reader_record *rec = reader_record(reader, k);
            _cleanup_(freep) void *data = malloc(rec->at.n_bytes + 1);
            struct err err = { 0 };
            int r = reader_decode(&err, reader, rec, data);
            ck_assert_msg(!r || (r == -ENOTSUP && strstr(err.msg, rows[i].text)), "%s: %s",
                          rows[i].name, err.msg);
            n_decoded += !r;
        }
        ck_assert_msg(n_decoded == rows[i].n_decoded, "%s: %zu decoded", rows[i].name, n_decoded);
    }
}
END_TEST

START_TEST(other_versions_are_named_as_such)
{
    static const struct {
        const char *name, *text;
    } rows[] = {
        { "v1/valid", "has format version 1; this program reads version 2" },
        { "v1/valid/seg-000000.dmi", "has format version 1; this program reads version 2" },
        { "v2/newer", "has format version 3, which is newer; this program reads version 2" },
        { "v2/newer/seg-000000.dmi", "version 3, which is newer; this program reads version 2" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err err = { 0 };
        struct reader *reader = NULL;
        ck_assert_int_eq(reader_open(&err, golden(rows[i].name), &reader), -ENOTSUP);
        ck_assert_msg(strstr(err.msg, rows[i].text) != NULL, "%s", err.msg);
        ck_assert_ptr_null(strstr(err.msg, "damage"));
    }
}
END_TEST

/* ------------------------------------------------------------------------- making them */

/* The places of a chunk of two records and one group. */
static struct dmi_records_head *head_of(uint8_t *chunk)
{
    return (struct dmi_records_head *)(chunk + sizeof(struct dmi_chunk_header));
}

static struct dmi_record *record_of(uint8_t *chunk, int i)
{
    return (struct dmi_record *)(head_of(chunk) + 1) + i;
}

static struct dmi_group *group_of(uint8_t *chunk)
{
    return (struct dmi_group *)record_of(chunk, (int)head_of(chunk)->n_records);
}

static struct dmi_plane *plane_of(uint8_t *chunk)
{
    return (struct dmi_plane *)(group_of(chunk) + head_of(chunk)->n_groups);
}

static void bad_dtype(uint8_t *c)
{
    record_of(c, 0)->dtype = DMI_DTYPE_F64;
}
static void bad_dims(uint8_t *c)
{
    record_of(c, 0)->dims[0] = 0xffffffff;
}
static void bad_n_dims(uint8_t *c)
{
    record_of(c, 0)->n_dims = 9;
}
static void bad_site(uint8_t *c)
{
    record_of(c, 1)->site = 4000;
}
static void bad_group(uint8_t *c)
{
    record_of(c, 1)->group = 7;
}
static void bad_offset(uint8_t *c)
{
    record_of(c, 1)->offset = 1ull << 60;
}
static void bad_n_bytes(uint8_t *c)
{
    record_of(c, 1)->n_bytes = 1ull << 60;
}
static void bad_record_hash(uint8_t *c)
{
    record_of(c, 0)->hash ^= 1;
}
static void bad_encoding(uint8_t *c)
{
    group_of(c)->encoding = 77;
}
static void bad_element(uint8_t *c)
{
    group_of(c)->element_bytes = 3;
}
static void bad_n_raw(uint8_t *c)
{
    group_of(c)->n_raw += 65536;
}
static void bad_first_plane(uint8_t *c)
{
    group_of(c)->first_plane = 0xfffffff0;
}
static void bad_n_stored(uint8_t *c)
{
    group_of(c)->n_stored = 1ull << 50;
}
static void bad_plane_size(uint8_t *c)
{
    plane_of(c)->n_stored = 0xffffffff;
}
static void bad_codec(uint8_t *c)
{
    plane_of(c)->codec = 9;
}
static void bad_frame(uint8_t *c)
{
    plane_of(c)->codec ^= 1;
}
static void bad_records(uint8_t *c)
{
    head_of(c)->n_records = 0xffffffff;
}
static void bad_planes(uint8_t *c)
{
    head_of(c)->n_planes = 0xffffffff;
}

static void bad_row_dims(uint8_t *c)
{
    record_of(c, 0)->n_row_dims = 3;
}
static void bad_layer(uint8_t *c)
{
    record_of(c, 0)->layer = -2;
}
static void bad_kept(uint8_t *c)
{
    record_of(c, 1)->kept = 1;
}
static void bad_n_kept(uint8_t *c)
{
    record_of(c, 1)->n_kept = 2;
}
static void bad_record_reserved(uint8_t *c)
{
    record_of(c, 0)->reserved = 1;
}
static void bad_plane_reserved(uint8_t *c)
{
    plane_of(c)->reserved[1] = 1;
}

static struct dmi_step_entry *step_of(uint8_t *chunk)
{
    return (struct dmi_step_entry *)(chunk + sizeof(struct dmi_chunk_header));
}

static struct dmi_span_entry *span_of(uint8_t *chunk, int i)
{
    return (struct dmi_span_entry *)(step_of(chunk) + 1) + i;
}

static void bad_step_size(uint8_t *c)
{
    step_of(c)->n_bytes += 8;
}
static void bad_spans(uint8_t *c)
{
    step_of(c)->n_spans = 0xffffffff;
}
static void bad_span_bytes(uint8_t *c)
{
    step_of(c)->span_bytes = 40;
}
static void bad_overlap(uint8_t *c)
{
    span_of(c, 1)->first_row = 2;
}
static void bad_span_rows(uint8_t *c)
{
    span_of(c, 1)->n_tokens = 0x80000000;
}
static void bad_position(uint8_t *c)
{
    span_of(c, 0)->first_position = -1;
}
static void bad_position_end(uint8_t *c)
{
    span_of(c, 0)->first_position = INT64_MAX;
}
static void bad_ids_count(uint8_t *c)
{
    span_of(c, 0)->n_ids--;
}
static void bad_ids_too_many(uint8_t *c)
{
    span_of(c, 0)->n_ids = span_of(c, 0)->n_cached = 0x40000001; /* times 4 it is 4 */
    span_of(c, 0)->first_position = 0x40000001;
}
static void bad_ids_place(uint8_t *c)
{
    span_of(c, 0)->ids_offset = step_of(c)->n_bytes - 16;
}
static void bad_ids_before(uint8_t *c)
{
    span_of(c, 2)->ids_offset = sizeof(struct dmi_step_entry);
}
static void bad_ids_aligned(uint8_t *c)
{
    span_of(c, 0)->ids_offset -= 2;
}
static void bad_ids_positions(uint8_t *c)
{
    span_of(c, 0)->first_position = 4;
}
static void bad_ids_none(uint8_t *c)
{
    span_of(c, 2)->n_ids = 0;
}
static void bad_id(uint8_t *c)
{
    span_of(c, 0)->id_offset = 8;
}
static void bad_tags(uint8_t *c)
{
    step_of(c)->tags_bytes = 0x7fffffff;
}

static struct dmi_footer *footer_of(uint8_t *chunk)
{
    return (struct dmi_footer *)(chunk + sizeof(struct dmi_chunk_header));
}

static struct dmi_footer_chunk *row_of(uint8_t *chunk, int i)
{
    return (struct dmi_footer_chunk *)(footer_of(chunk) + 1) + i;
}

static struct dmi_footer_site *site_of(uint8_t *chunk)
{
    return (struct dmi_footer_site *)row_of(chunk, (int)footer_of(chunk)->n_chunks);
}

static struct dmi_footer_entry *entry_of(uint8_t *chunk, int i)
{
    return (struct dmi_footer_entry *)(site_of(chunk) + footer_of(chunk)->n_sites) + i;
}

static void bad_index_twice(uint8_t *c)
{
    *entry_of(c, 1) = *entry_of(c, 0);
}
static void bad_index_order(uint8_t *c)
{
    struct dmi_footer_entry first = *entry_of(c, 0);
    *entry_of(c, 0) = *entry_of(c, 1);
    *entry_of(c, 1) = first;
}
static void bad_index_step(uint8_t *c)
{
    entry_of(c, 0)->step++;
}
static void bad_index_rows(uint8_t *c)
{
    entry_of(c, 0)->rows++;
    site_of(c)->rows++;
}
static void bad_index_site(uint8_t *c)
{
    site_of(c)->bytes++;
}
static void bad_index_spans(uint8_t *c)
{
    footer_of(c)->n_spans--;
}
static void bad_index_launches(uint8_t *c)
{
    row_of(c, 2)->first = 0;
}
static void bad_index_steps(uint8_t *c)
{
    row_of(c, 1)->last = 77;
}
static void bad_index_offset(uint8_t *c)
{
    row_of(c, 1)->offset += 8;
}

/* What a later program of this version may write. */
static void other_type(uint8_t *c)
{
    ((struct dmi_chunk_header *)c)->type = 99;
}
static void other_version(uint8_t *c)
{
    ((struct dmi_chunk_header *)c)->version = 3;
}
static void other_flags(uint8_t *c)
{
    record_of(c, 0)->flags = 0xffffffff;
}
static void other_phase(uint8_t *c)
{
    step_of(c)->flags = 0xffffffff;
    span_of(c, 0)->phase = 99;
    span_of(c, 0)->flags |= 0xffff0000;
}
static void other_dtype(uint8_t *c)
{
    record_of(c, 0)->dtype = 99;
}
static void other_row(uint8_t *c)
{
    struct dmi_chunk_header *h = (struct dmi_chunk_header *)c;
    char *at = memmem(c + sizeof *h, h->n_meta, "\"token\", ", 9);
    memcpy(at, "\"expert\",", 9);
}

static const struct wrong {
    const char *name;
    enum dmi_chunk_type type; /* of the chunk that it is done to */
    void (*make)(uint8_t *chunk);
} wrongs[] = {
    { "invalid/dtype", DMI_CHUNK_RECORDS, bad_dtype },
    { "invalid/dims", DMI_CHUNK_RECORDS, bad_dims },
    { "invalid/n_dims", DMI_CHUNK_RECORDS, bad_n_dims },
    { "invalid/row_dims", DMI_CHUNK_RECORDS, bad_row_dims },
    { "invalid/layer", DMI_CHUNK_RECORDS, bad_layer },
    { "invalid/kept", DMI_CHUNK_RECORDS, bad_kept },
    { "invalid/n_kept", DMI_CHUNK_RECORDS, bad_n_kept },
    { "invalid/record_reserved", DMI_CHUNK_RECORDS, bad_record_reserved },
    { "invalid/plane_reserved", DMI_CHUNK_RECORDS, bad_plane_reserved },
    { "invalid/site", DMI_CHUNK_RECORDS, bad_site },
    { "invalid/group", DMI_CHUNK_RECORDS, bad_group },
    { "invalid/offset", DMI_CHUNK_RECORDS, bad_offset },
    { "invalid/n_bytes", DMI_CHUNK_RECORDS, bad_n_bytes },
    { "invalid/record_hash", DMI_CHUNK_RECORDS, bad_record_hash },
    { "invalid/element", DMI_CHUNK_RECORDS, bad_element },
    { "invalid/n_raw", DMI_CHUNK_RECORDS, bad_n_raw },
    { "invalid/first_plane", DMI_CHUNK_RECORDS, bad_first_plane },
    { "invalid/n_stored", DMI_CHUNK_RECORDS, bad_n_stored },
    { "invalid/plane_size", DMI_CHUNK_RECORDS, bad_plane_size },
    { "invalid/frame", DMI_CHUNK_RECORDS, bad_frame },
    { "invalid/n_records", DMI_CHUNK_RECORDS, bad_records },
    { "invalid/n_planes", DMI_CHUNK_RECORDS, bad_planes },
    { "invalid/step_size", DMI_CHUNK_STEPS, bad_step_size },
    { "invalid/spans", DMI_CHUNK_STEPS, bad_spans },
    { "invalid/span_bytes", DMI_CHUNK_STEPS, bad_span_bytes },
    { "invalid/overlap", DMI_CHUNK_STEPS, bad_overlap },
    { "invalid/span_rows", DMI_CHUNK_STEPS, bad_span_rows },
    { "invalid/position", DMI_CHUNK_STEPS, bad_position },
    { "invalid/position_end", DMI_CHUNK_STEPS, bad_position_end },
    { "invalid/id", DMI_CHUNK_STEPS, bad_id },
    { "invalid/tags", DMI_CHUNK_STEPS, bad_tags },
    { "invalid/index_twice", DMI_CHUNK_FOOTER, bad_index_twice },
    { "invalid/index_order", DMI_CHUNK_FOOTER, bad_index_order },
    { "invalid/index_step", DMI_CHUNK_FOOTER, bad_index_step },
    { "invalid/index_rows", DMI_CHUNK_FOOTER, bad_index_rows },
    { "invalid/index_site", DMI_CHUNK_FOOTER, bad_index_site },
    { "invalid/index_spans", DMI_CHUNK_FOOTER, bad_index_spans },
    { "invalid/index_launches", DMI_CHUNK_FOOTER, bad_index_launches },
    { "invalid/index_steps", DMI_CHUNK_FOOTER, bad_index_steps },
    { "invalid/index_offset", DMI_CHUNK_FOOTER, bad_index_offset },
    { "unknown/codec", DMI_CHUNK_RECORDS, bad_codec },
    { "unknown/encoding", DMI_CHUNK_RECORDS, bad_encoding },
    { "unknown/dtype", DMI_CHUNK_RECORDS, other_dtype },
    { "unknown/flags", DMI_CHUNK_RECORDS, other_flags },
    { "unknown/chunk_version", DMI_CHUNK_RECORDS, other_version },
    { "unknown/phase", DMI_CHUNK_STEPS, other_phase },
    { "unknown/row", DMI_CHUNK_SITES, other_row },
};

static const struct wrong cached_wrongs[] = {
    { "invalid/cached_count", DMI_CHUNK_STEPS, bad_ids_count },
    { "invalid/cached_too_many", DMI_CHUNK_STEPS, bad_ids_too_many },
    { "invalid/cached_place", DMI_CHUNK_STEPS, bad_ids_place },
    { "invalid/cached_before", DMI_CHUNK_STEPS, bad_ids_before },
    { "invalid/cached_aligned", DMI_CHUNK_STEPS, bad_ids_aligned },
    { "invalid/cached_positions", DMI_CHUNK_STEPS, bad_ids_positions },
    { "invalid/cached_none", DMI_CHUNK_STEPS, bad_ids_none },
};

static uint64_t chunk_size(const uint8_t *chunk)
{
    struct dmi_chunk_header h;
    memcpy(&h, chunk, sizeof h);
    return sizeof h + (h.n_meta + 7) / 8 * 8 + (h.n_payload + 7) / 8 * 8;
}

/* The first chunk of @type of a segment. */
static uint8_t *find_chunk(uint8_t *data, enum dmi_chunk_type type)
{
    uint8_t *at = data + sizeof(struct dmi_segment_header);
    while (((struct dmi_chunk_header *)at)->type != type)
        at += chunk_size(at);
    return at;
}

static void seal(uint8_t *chunk)
{
    struct dmi_chunk_header h;
    memcpy(&h, chunk, sizeof h);
    h.meta_hash = hash_bytes(chunk + sizeof h, h.n_meta);
    h.hash = hash_bytes(&h, offsetof(struct dmi_chunk_header, hash));
    memcpy(chunk, &h, sizeof h);
}

/* The segment without its footer: it would not tell the truth about what is changed. */
static uint8_t *open_ended(const uint8_t *segment, size_t n_segment, size_t *n)
{
    uint8_t *data = memcpy(malloc(n_segment), segment, n_segment);
    *n = (size_t)(find_chunk(data, DMI_CHUNK_FOOTER) - data);
    return data;
}

/* Puts @n zeros before the byte at @at. */
static void widen(uint8_t **data, size_t *n_data, size_t at, size_t n)
{
    *data = realloc(*data, *n_data + n);
    memmove(*data + at + n, *data + at, *n_data - at);
    memset(*data + at, 0, n);
    *n_data += n;
}

/* An entry of one step whose spans are 16 bytes longer than those that are known. */
static void write_longer_spans(const char *dir, const uint8_t *segment, size_t n_segment)
{
    size_t n;
    _cleanup_(freep) uint8_t *data = open_ended(segment, n_segment, &n);
    uint8_t *chunk = find_chunk(data, DMI_CHUNK_STEPS);
    size_t place = (size_t)(chunk - data),
           first = place + sizeof(struct dmi_chunk_header) + sizeof(struct dmi_step_entry);
    widen(&data, &n, first + 2 * sizeof(struct dmi_span_entry), 16);
    widen(&data, &n, first + sizeof(struct dmi_span_entry), 16);
    chunk = data + place;
    ((struct dmi_chunk_header *)chunk)->n_meta += 32;
    struct dmi_step_entry *step = step_of(chunk);
    step->n_bytes += 32;
    step->tags_offset += 32;
    step->span_bytes += 16;
    for (int i = 0; i < 2; i++) {
        struct dmi_span_entry *span =
            (struct dmi_span_entry *)((uint8_t *)(step + 1) + i * (int)step->span_bytes);
        span->id_offset += 32;
        span->tags_offset += span->tags_bytes ? 32 : 0;
    }
    seal(chunk);
    kit_store(dir, "longer_spans.dmi", data, n);
}

/* 16 bytes more of metadata than the tables of a RECORDS chunk take. */
static void write_longer_metadata(const char *dir, const uint8_t *segment, size_t n_segment)
{
    size_t n;
    _cleanup_(freep) uint8_t *data = open_ended(segment, n_segment, &n);
    size_t place = (size_t)(find_chunk(data, DMI_CHUNK_RECORDS) - data);
    struct dmi_chunk_header h;
    memcpy(&h, data + place, sizeof h);
    widen(&data, &n, place + sizeof h + h.n_meta, 16);
    ((struct dmi_chunk_header *)(data + place))->n_meta += 16;
    seal(data + place);
    kit_store(dir, "longer_metadata.dmi", data, n);
}

/* A chunk of an unknown type, with payload, in place of the footer. */
static void write_chunk_type(const char *dir, const uint8_t *segment, size_t n_segment)
{
    size_t n;
    _cleanup_(freep) uint8_t *data = open_ended(segment, n_segment, &n);
    size_t place = n;
    struct dmi_chunk_header h;
    memcpy(&h, segment + place, sizeof h);
    widen(&data, &n, place, sizeof h + 16);
    h.n_meta = 8;
    h.n_payload = 3;
    h.payload_hash = hash_bytes("\0\0\0", 3);
    memcpy(data + place, &h, sizeof h);
    other_type(data + place);
    seal(data + place);
    kit_store(dir, "chunk_type.dmi", data, n);
}

static void write_newer(const char *dir, const char *valid)
{
    size_t n;
    _cleanup_(freep) uint8_t *segment = kit_load(valid, "seg-000000.dmi", &n);
    struct dmi_segment_header h;
    memcpy(&h, segment, sizeof h);
    h.version = 3;
    h.hash = hash_bytes(&h, offsetof(struct dmi_segment_header, hash));
    memcpy(segment, &h, sizeof h);
    kit_store(dir, "seg-000000.dmi", segment, n);
    _cleanup_(freep) uint8_t *manifest = kit_load(valid, "manifest.json", &n);
    uint8_t *at = memmem(manifest, n, "\"version\": 2", 12);
    at[11] = '3';
    at = memmem(manifest, n, MANIFEST_CHECKSUM_KEY, strlen(MANIFEST_CHECKSUM_KEY));
    at += strlen(MANIFEST_CHECKSUM_KEY);
    memcpy(at, MANIFEST_CHECKSUM_ZERO, 16);
    char sum[17];
    snprintf(sum, sizeof sum, "%016" PRIx64, hash_bytes(manifest, n));
    memcpy(at, sum, 16);
    kit_store(dir, "manifest.json", manifest, n);
}

static void write_valid(const char *dir, char *valid, size_t n_valid)
{
    struct run *run = kit_open(dir, 7000);
    for (uint64_t i = 0; i < 4; i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert_int_eq(kit_special(run, 4), 0);
    _cleanup_(freep) char *made = strdup(run_path(run));
    ck_assert_int_eq(run_close(run), 0);
    snprintf(valid, n_valid, "%s/valid", dir);
    ck_assert_int_eq(rename(made, valid), 0);
}

static const char *golden_target;

static void append_packed(struct run *run, uint32_t dtype, const void *data, size_t n_bytes)
{
    struct chunk *chunk;
    const struct run_record record = { .site = dtype - 1,
                                       .layer = 0,
                                       .dtype = dtype,
                                       .launch = dtype,
                                       .step = UINT64_MAX,
                                       .n_dims = 2,
                                       .n_row_dims = 1,
                                       .dims = { 3, N_PACKED / 3 },
                                       .data = data,
                                       .n_bytes = n_bytes };
    struct dmi_site_counters *c = &run_counters(run)->sites[record.site];
    c->expected = c->captured = (struct dmi_tally){ 1, 3, n_bytes };
    ck_assert_int_eq(run_encode(run, &record, 1, CODEC_PACKED, &chunk), 0);
    ck_assert_int_eq(run_append_chunk(run, chunk), 0);
}

START_TEST(write_packed_files)
{
    static uint16_t bf16[N_PACKED];
    static float f32[N_PACKED];
    char packed[4096];
    fill_packed(bf16, f32);
    struct run *run = kit_open(golden_target, 0);
    append_packed(run, DMI_DTYPE_BF16, bf16, sizeof bf16);
    append_packed(run, DMI_DTYPE_F32, f32, sizeof f32);
    _cleanup_(freep) char *made = strdup(run_path(run));
    ck_assert_int_eq(run_close(run), 0);
    snprintf(packed, sizeof packed, "%s/packed", golden_target);
    ck_assert_int_eq(rename(made, packed), 0);
}
END_TEST

/* Files with one thing wrong each, of a segment. */
static void write_wrongs(const struct wrong *list, size_t n_list, const uint8_t *intact, size_t n)
{
    for (size_t i = 0; i < n_list; i++) {
        _cleanup_(freep) uint8_t *data = memcpy(malloc(n), intact, n);
        uint8_t *chunk = find_chunk(data, list[i].type);
        list[i].make(chunk);
        seal(chunk);
        /* without the footer, which would contradict what is wrong, and what is not known, alike */
        bool alone = list[i].type == DMI_CHUNK_RECORDS || list[i].type == DMI_CHUNK_STEPS;
        char name[64];
        snprintf(name, sizeof name, "%s.dmi", list[i].name);
        kit_store(golden_target, name, data,
                  alone ? (size_t)(find_chunk(data, DMI_CHUNK_FOOTER) - data) : n);
    }
}

START_TEST(write_cached_files)
{
    char cached[4096], path[4096];
    static const struct dmi_site ids = {
        .name = DMI_SITE_IDS, .kernel = "k", .dtype = DMI_DTYPE_I32, .scale = 1, .expect = -1
    };
    const struct run_options options = {
        .out_dir = golden_target, .job = "kit-job", .sites = &ids, .n_sites = 1, .spec_text = ""
    };
    struct err err = { 0 };
    struct run *run;
    ck_assert_int_eq(run_open(&err, &options, &run), 0);
    ck_assert_int_eq(cached_step(run), 0);
    _cleanup_(freep) char *made = strdup(run_path(run));
    ck_assert_int_eq(run_close(run), 0);
    snprintf(cached, sizeof cached, "%s/cached", golden_target);
    ck_assert_int_eq(rename(made, cached), 0);
    snprintf(path, sizeof path, "%s/invalid", golden_target);
    mkdir(path, 0755);
    size_t n;
    _cleanup_(freep) uint8_t *intact = kit_load(cached, "seg-000000.dmi", &n);
    write_wrongs(cached_wrongs, sizeof cached_wrongs / sizeof *cached_wrongs, intact, n);
}
END_TEST

/* What follows @key in a manifest; it has as many characters as @text. */
static void put_after(char *manifest, const char *key, const char *text)
{
    char *at = strstr(manifest, key);
    ck_assert_ptr_nonnull(at);
    memcpy(at + strlen(key), text, strlen(text));
}

/* The process has room for 4,096 accounts; a file of six is enough to look at. */
static void shorten_accounts(const char *run)
{
    size_t n, n_manifest;
    char text[32];
    _cleanup_(freep) uint8_t *data = kit_load(run, "edits", &n);
    _cleanup_(freep) uint8_t *read = kit_load(run, "manifest.json", &n_manifest);
    _cleanup_(freep) char *manifest = strndup((char *)read, n_manifest);
    struct dmi_edit_accounts *head = (struct dmi_edit_accounts *)data;
    head->n = N_GOLDEN_ROOM;
    size_t n_short = sizeof *head + N_GOLDEN_ROOM * sizeof head->accounts[0];
    snprintf(text, sizeof text, "%07zu", n_short);
    text[0] = ' '; /* no number begins with a zero: these are spaces */
    text[1] = ' ';
    text[2] = ' ';
    put_after(manifest, "\"edits\", \"bytes\": ", text);
    snprintf(text, sizeof text, "%016" PRIx64, hash_bytes(data, n_short));
    put_after(strstr(manifest, "\"edits\", \"bytes\""), "\"xxh3\": \"", text);
    ck_assert(checksum_write(manifest, n_manifest));
    kit_store(run, "edits", data, n_short);
    kit_store(run, "manifest.json", manifest, n_manifest);
}

START_TEST(write_edits_files)
{
    static const struct dmi_site place = {
        .name = "x", .kernel = "k", .dtype = DMI_DTYPE_F32, .scale = 1, .expect = -1, .writes = 1
    };
    static const struct run_change change = {
        .time_ns = 1,
        .what = "edits add calm, from the first step on",
        .more = ", \"version\": 1, \"edits\": [{\"name\": \"calm\", \"site\": \"x\", \"uid\": 2, "
                "\"hash\": "
                "\"0123456789abcdef\", \"number\": 0}]"
    };
    const struct run_options options = {
        .out_dir = golden_target, .job = "kit-job", .sites = &place, .n_sites = 1, .spec_text = ""
    };
    char path[4096];
    struct err err = { 0 };
    struct run *run;
    ck_assert_int_eq(run_open(&err, &options, &run), 0);
    struct dmi_edit_accounts *edits = run_edits(run);
    memcpy(edits->accounts, golden_accounts, sizeof golden_accounts);
    edits->ended = 3;
    edits->marked = edits->in_force = 1;
    ck_assert_int_eq(run_change(run, &change), 0);
    _cleanup_(freep) char *made = strdup(run_path(run));
    ck_assert_int_eq(run_close(run), 0);
    snprintf(path, sizeof path, "%s/edits", golden_target);
    ck_assert_int_eq(rename(made, path), 0);
    shorten_accounts(path);
}
END_TEST

/* Check's assertions, which the kit makes, need a test around them. */
START_TEST(write_golden_files)
{
    char valid[4096], path[4096];
    mkdir(golden_target, 0755);
    write_valid(golden_target, valid, sizeof valid);
    static const char *const folders[] = { "invalid", "unknown", "newer" };
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", golden_target, folders[i]);
        mkdir(path, 0755);
    }
    write_newer(path, valid);
    size_t n;
    _cleanup_(freep) uint8_t *intact = kit_load(valid, "seg-000000.dmi", &n);
    write_wrongs(wrongs, sizeof wrongs / sizeof *wrongs, intact, n);
    snprintf(path, sizeof path, "%s/unknown", golden_target);
    write_longer_spans(path, intact, n);
    write_longer_metadata(path, intact, n);
    write_chunk_type(path, intact, n);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("storage_golden");
    TCase *tc = tcase_create("golden");
    if (argc == 3 && !strcmp(argv[1], "--write")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_golden_files);
    } else if (argc == 3 && !strcmp(argv[1], "--write-packed")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_packed_files);
    } else if (argc == 3 && !strcmp(argv[1], "--write-cached")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_cached_files);
    } else if (argc == 3 && !strcmp(argv[1], "--write-edits")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_edits_files);
    } else {
        tcase_add_test(tc, accounts_of_edits_read_as_they_did);
        tcase_add_test(tc, ids_of_cached_tokens_read_as_they_did);
        tcase_add_test(tc, packed_planes_read_as_they_did);
        tcase_add_test(tc, the_golden_run_reads_as_it_did);
        tcase_add_test(tc, invalid_segments_are_damage);
        tcase_add_test(tc, what_is_not_known_is_named_by_its_number_and_loses_no_more_than_itself);
        tcase_add_test(tc, other_versions_are_named_as_such);
    }
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
