/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How runs are opened: by their index, for what is asked, read on as they grow; and what others may have put in
 * the folder or into the files, with every checksum right.
 */
#include "core/cleanup.h"
#include "storage/codec/hash.h"
#include "storage/names.h"
#include "storage/writer/manifest.h"
#include "tests/unit/storage_kit.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WIDTH 48

static char *out, *folder;

static void setup(void)
{
    out = kit_folder();
}

static void teardown(void)
{
    kit_remove(out);
    free(out);
    free(folder);
    folder = NULL;
}

static void make_closed(uint64_t n_forwards, uint32_t width, uint64_t segment_bytes)
{
    struct run *run = kit_open(out, segment_bytes);
    for (uint64_t i = 0; i < n_forwards; i++)
        ck_assert_int_eq(kit_forward(run, i, width), 0);
    ck_assert_int_eq(run_close(run), 0);
    folder = kit_run_folder(out);
}

/* Whether a finding of damage holds @text. */
static bool says(const struct reader *reader, const char *text)
{
    for (size_t i = 0; i < reader_n_findings(reader); i++)
        if (reader_finding(reader, i)->damage && strstr(reader_finding(reader, i)->text, text))
            return true;
    return false;
}

static struct reader *open_index(const char *path)
{
    struct err err = { 0 };
    struct reader *reader = NULL;
    ck_assert_msg(!reader_open_index(&err, path, &reader), "%s", err.msg);
    return reader;
}

static void select_records(struct reader *reader, const struct reader_query *query, size_t n)
{
    struct err err = { 0 };
    ck_assert_msg(!reader_select(&err, reader, query), "%s", err.msg);
    ck_assert_uint_eq(reader_n_records(reader), n);
}

static uint64_t read_since(const struct reader *reader, uint64_t *before)
{
    uint64_t n = reader_run(reader)->n_read - *before;
    *before += n;
    return n;
}

/* ------------------------------------------------------------------------- by the index */

/* Goes through all records in windows of @most. Return: how many windows. */
static size_t read_windows(struct reader *reader, const struct reader *whole, size_t most,
                           uint64_t *n_gone)
{
    size_t n_windows = 0, n_all = 0;
    uint64_t next = 0, last = 0;
    *n_gone = 0;
    for (; next != UINT64_MAX; n_windows++) {
        struct err err = { 0 };
        uint64_t first = next, n;
        ck_assert_msg(!reader_window(&err, reader, first, most, &next, &n), "%s", err.msg);
        *n_gone += n;
        for (size_t i = 0; i < reader_n_records(reader); i++, n_all++) {
            const struct reader_record *rec = reader_record(reader, i);
            ck_assert_uint_ge(rec->place, first);
            ck_assert_uint_lt(rec->place, next);
            ck_assert_ptr_nonnull(rec->step);
            ck_assert_uint_eq(rec->step->entry->sequence, rec->at.step);
            last = rec->place;
        }
    }
    ck_assert_uint_ge(last, reader_record(whole, reader_n_records(whole) - 1)->place);
    ck_assert_uint_eq(n_all + *n_gone, reader_n_records(whole));
    return n_windows;
}

/* Goes through all steps, some at a time. Return: how many there are; *@most: at a time. */
static size_t read_steps(struct reader *reader, const struct reader *whole, size_t *most)
{
    struct reader_step_place place = { 0 };
    struct reader_steps steps = { 0 };
    size_t n = 0;
    *most = 0;
    while (!place.done) {
        struct err err = { 0 };
        ck_assert_msg(!reader_next_steps(&err, reader, &place, &steps), "%s", err.msg);
        ck_assert_int_eq(steps.any_before, n != 0);
        if (n)
            ck_assert_uint_eq(steps.before.sequence, reader_step(whole, n - 1)->entry->sequence);
        for (size_t i = 0; i < steps.n; i++, n++)
            ck_assert_uint_eq(steps.all[i].entry->sequence, reader_step(whole, n)->entry->sequence);
        *most = steps.n > *most ? steps.n : *most;
    }
    reader_free_steps(&steps);
    return n;
}

START_TEST(windows_hold_each_record_once_with_the_steps_that_they_name)
{
    make_closed(3000, 20, 1 << 18);
    const struct reader_query all = { .all_steps = true, .by_window = true },
                              site = { .site = "logits", .by_window = true };
    uint64_t n_gone;
    size_t most;
    _cleanup_(reader_closep) struct reader *whole = open_index(folder);
    _cleanup_(reader_closep) struct reader *reader = open_index(folder);
    select_records(whole, NULL, 6000);
    select_records(reader, &all, 0);
    ck_assert_uint_eq(reader_n_steps(reader), 0);
    size_t n_windows = read_windows(reader, whole, 500, &n_gone);
    ck_assert_ptr_nonnull(reader_first_ranks(reader));
    ck_assert(n_windows > 8 && n_windows < 20);
    ck_assert_uint_lt(reader_n_steps(reader), 600);
    ck_assert_uint_eq(read_steps(reader, whole, &most), 3000);
    ck_assert_uint_lt(most, 1500);
    ck_assert_uint_eq(read_windows(reader, whole, 10000, &n_gone), 1);
    ck_assert_uint_eq(reader_n_steps(reader), 3000);
    ck_assert_uint_eq(n_gone, 0);
    select_records(whole, &(struct reader_query){ .site = "logits" }, 3000);
    select_records(reader, &site, 0);
    read_windows(reader, whole, 50, &n_gone);
    ck_assert_uint_eq(reader_n_findings(reader), 0);
}
END_TEST

/* A segment that was walked and is closed then goes by its footer. */
START_TEST(a_run_that_grows_has_each_record_and_step_in_windows)
{
    const struct reader_query all = { .all_steps = true, .by_window = true };
    struct run *run = kit_open(out, 1 << 16);
    struct err err = { 0 };
    _cleanup_(reader_closep) struct reader *reader = NULL;
    uint64_t n_gone;
    size_t most;
    for (uint64_t i = 0; i < 600; i++) {
        ck_assert_int_eq(kit_forward(run, i, 20), 0);
        if (i % 50 != 49)
            continue;
        folder = folder ? folder : kit_run_folder(out);
        if (!reader) {
            reader = open_index(folder);
            select_records(reader, &all, 0);
        }
        _cleanup_(reader_closep) struct reader *whole = NULL;
        ck_assert_msg(!reader_open(&err, folder, &whole), "%s", err.msg);
        ck_assert_msg(!reader_refresh(&err, reader), "%s", err.msg);
        ck_assert_uint_eq(reader_n_records(whole), 2 * (i + 1));
        read_windows(reader, whole, 100, &n_gone);
        ck_assert_uint_eq(read_steps(reader, whole, &most), i + 1);
    }
    ck_assert_int_eq(run_close(run), 0);
    ck_assert_msg(!reader_refresh(&err, reader), "%s", err.msg);
    ck_assert_uint_gt(reader_run(reader)->n_segments, 5);
    _cleanup_(reader_closep) struct reader *whole = NULL;
    ck_assert_msg(!reader_open(&err, folder, &whole), "%s", err.msg);
    read_windows(reader, whole, 100, &n_gone);
    ck_assert_uint_eq(n_gone, 0);
    ck_assert_uint_eq(read_steps(reader, whole, &most), 600);
    ck_assert_uint_eq(reader_n_findings(reader), 0);
}
END_TEST

START_TEST(opening_reads_the_index_and_a_selection_its_chunks)
{
    make_closed(200, 2000, 1 << 20); /* 32 kB a forward, six segments */
    uint64_t so_far = 0;
    _cleanup_(reader_closep) struct reader *reader = open_index(folder);
    uint64_t opened = read_since(reader, &so_far), all = reader_run(reader)->n_file_bytes;
    ck_assert_uint_gt(reader_run(reader)->n_segments, 4);
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    ck_assert_uint_eq(reader_n_records(reader), 0);
    ck_assert_uint_lt(opened, all / 30);
    struct reader_account account;
    ck_assert(reader_account(reader, 0, &account)); /* sums need no record */
    ck_assert(account.holds);
    ck_assert_uint_eq(account.found.records, 200);
    /* one step of one request: one chunk of records, one of steps */
    struct reader_query one = {
        .site = "f32", .request = "b", .n_request = 1, .first_position = 77, .end_position = 78
    };
    select_records(reader, &one, 1);
    ck_assert_uint_eq(reader_record(reader, 0)->at.forward, 77);
    ck_assert_ptr_nonnull(reader_record(reader, 0)->step);
    ck_assert_uint_eq(reader_n_steps(reader), 1);
    ck_assert_uint_lt(read_since(reader, &so_far), 2000);
    struct reader_query site = { .site = "logits" };
    select_records(reader, &site, 200);
    for (size_t i = 1; i < 200; i++)
        ck_assert_uint_gt(reader_record(reader, i)->at.launch,
                          reader_record(reader, i - 1)->at.launch);
    struct reader_query layer = { .site = "f32", .by_layer = true, .layer = 2 };
    select_records(reader, &layer, 66);
    struct reader_query none = { .site = "q" };
    select_records(reader, &none, 0);
    ck_assert_uint_lt(read_since(reader, &so_far), all / 8);
    select_records(reader, NULL, 400);
    ck_assert(kit_holds(reader, 2000));
    ck_assert_uint_eq(reader_n_findings(reader), 0);
    /* the records of chunks from one on, and the steps of all */
    struct reader_query late = { .first_chunk = reader_record(reader, 300)->place,
                                 .all_steps = true };
    size_t n = 0;
    for (size_t i = 0; i < 400; i++)
        n += reader_record(reader, i)->place >= late.first_chunk;
    ck_assert(n >= 100 && n < 110);
    select_records(reader, &late, n);
    ck_assert_uint_eq(reader_n_steps(reader), 200);
}
END_TEST

/* The first chunk of @type at or after @at. */
static uint8_t *find_chunk(uint8_t *at, enum dmi_chunk_type type)
{
    for (;;) {
        struct dmi_chunk_header h;
        memcpy(&h, at, sizeof h);
        if (h.type == type)
            return at;
        at += sizeof h + (h.n_meta + 7) / 8 * 8 + (h.n_payload + 7) / 8 * 8;
    }
}

static void seal(uint8_t *chunk)
{
    struct dmi_chunk_header h;
    memcpy(&h, chunk, sizeof h);
    h.meta_hash = hash_bytes(chunk + sizeof h, h.n_meta);
    h.hash = hash_bytes(&h, offsetof(struct dmi_chunk_header, hash));
    memcpy(chunk, &h, sizeof h);
}

static struct dmi_footer *footer_of(uint8_t *data)
{
    return (void *)(find_chunk(data + sizeof(struct dmi_segment_header), DMI_CHUNK_FOOTER) +
                    sizeof(struct dmi_chunk_header));
}

static struct dmi_footer_entry *entries_of(uint8_t *data)
{
    struct dmi_footer *f = footer_of(data);
    struct dmi_footer_site *sites = (void *)((struct dmi_footer_chunk *)(f + 1) + f->n_chunks);
    return (void *)(sites + f->n_sites);
}

static void lie_step(uint8_t *data)
{
    entries_of(data)->step++;
}

static void lie_layer(uint8_t *data)
{
    entries_of(data)[footer_of(data)->n_entries - 1].layer = 0;
}

static void lie_twice(uint8_t *data)
{
    entries_of(data)[1] = entries_of(data)[0];
}

static void lie_spans(uint8_t *data)
{
    footer_of(data)->n_spans = 0;
}

/* A footer that lies, its hashes right: what it says is not used, and verify names it. */
START_TEST(a_footer_that_lies_is_not_believed)
{
    static void (*const lies[])(uint8_t *) = { lie_step, lie_layer, lie_twice, lie_spans };
    make_closed(4, WIDTH, 0);
    size_t n;
    _cleanup_(freep) uint8_t *data = kit_load(folder, "seg-000000.dmi", &n);
    lies[_i](data);
    seal(find_chunk(data + sizeof(struct dmi_segment_header), DMI_CHUNK_FOOTER));
    kit_store(folder, "seg-000000.dmi", data, n);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, false);
    if (lies[_i] != lie_spans) /* of what nobody asked */
        ck_assert_uint_gt(kit_damage(reader, NULL), 0);
    ck_assert_uint_eq(reader_n_records(reader), 8);
    ck_assert(kit_holds(reader, WIDTH));
    ck_assert_int_eq(reader_verify(reader), 0);
    ck_assert(says(reader, "footer"));
}
END_TEST

/* ------------------------------------------------------------------------- growing */

START_TEST(a_growing_run_is_read_on)
{
    struct run *run = kit_open(out, 40000);
    ck_assert_int_eq(kit_forward(run, 0, WIDTH), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, false);
    uint64_t so_far = 0, most = 0;
    struct err err = { 0 };
    read_since(reader, &so_far);
    for (uint64_t i = 1; i < 60; i++) {
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
        ck_assert_msg(!reader_refresh(&err, reader), "%s", err.msg);
        ck_assert_uint_eq(reader_n_records(reader), 2 * i + 2);
        ck_assert_uint_eq(reader_n_steps(reader), i + 1);
        uint64_t n = read_since(reader, &so_far);
        most = n > most ? n : most;
    }
    ck_assert(kit_holds(reader, WIDTH));
    ck_assert_uint_gt(reader_run(reader)->n_segments, 2);
    ck_assert_uint_lt(most, 80000); /* counters, manifest, and what has come: not all of it again */
    ck_assert_int_eq(run_close(run), 0);
    ck_assert_int_eq(reader_refresh(&err, reader), 0);
    ck_assert_int_eq(reader_run(reader)->state, READER_CLOSED);
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(reader, &first), "%s: %s", first ? first->file : "",
                  first ? first->text : "");
    ck_assert_uint_eq(reader_n_records(reader), 120);
    ck_assert(kit_holds(reader, WIDTH));
    struct reader_account account;
    ck_assert(reader_account(reader, 0, &account) && account.holds);
}
END_TEST

/* A commit of steps and records of which the records did not fit: the steps are cut off again. */
START_TEST(a_write_that_is_cut_back_is_read_as_it_is_then)
{
    make_closed(6, WIDTH, 0);
    size_t n;
    _cleanup_(freep) uint8_t *data = kit_load(folder, "seg-000000.dmi", &n);
    uint8_t *first = find_chunk(data + sizeof(struct dmi_segment_header), DMI_CHUNK_RECORDS);
    uint8_t *steps = find_chunk(first, DMI_CHUNK_STEPS),
            *records = find_chunk(steps, DMI_CHUNK_RECORDS);
    char alone[4096];
    snprintf(alone, sizeof alone, "%s/growing", out);
    mkdir(alone, 0700);
    kit_store(alone, "seg-000000.dmi", data, (size_t)(records - data));
    _cleanup_(reader_closep) struct reader *reader = kit_read(alone, false);
    ck_assert_uint_eq(reader_n_steps(reader), 2);
    struct err err = { 0 };
    kit_store(alone, "seg-000000.dmi", data, (size_t)(steps - data));
    ck_assert_int_eq(reader_refresh(&err, reader), 0);
    ck_assert_uint_eq(reader_n_steps(reader), 1);
    kit_store(alone, "seg-000000.dmi", data, n);
    ck_assert_int_eq(reader_refresh(&err, reader), 0);
    ck_assert_uint_eq(reader_n_records(reader), 12);
    ck_assert(kit_holds(reader, WIDTH));
}
END_TEST

/* ------------------------------------------------------------------------- what lies in the folder */

START_TEST(a_run_may_have_more_segments_than_descriptors_are_allowed)
{
    make_closed(150, WIDTH, 1);
    struct rlimit limit = { 64, 64 };
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(reader, &first), "%s: %s", first->file, first->text);
    ck_assert_uint_gt(reader_run(reader)->n_segments, 100);
    ck_assert_uint_eq(reader_n_records(reader), 300);
    ck_assert(kit_holds(reader, WIDTH));
}
END_TEST

START_TEST(only_regular_files_are_opened)
{
    static const char *const names[] = { "seg-000001.dmi", "manifest.json", "counters",
                                         "spec.yaml" };
    make_closed(12, WIDTH, 6000);
    for (int form = 0; form < 2; form++) {
        char path[4096], aside[4096];
        snprintf(path, sizeof path, "%s/%s", folder, names[_i]);
        snprintf(aside, sizeof aside, "%s/aside", out);
        ck_assert_int_eq(rename(path, aside), 0);
        ck_assert_int_eq(form ? symlink(aside, path) : mkfifo(path, 0600), 0);
        _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
        bool named = false;
        for (size_t i = 0; i < reader_n_findings(reader); i++)
            named |= reader_finding(reader, i)->damage &&
                     !strcmp(reader_finding(reader, i)->file, names[_i]);
        ck_assert_msg(named, "%s as a %s was not named", names[_i], form ? "link" : "FIFO");
        unlink(path);
        ck_assert_int_eq(rename(aside, path), 0);
    }
}
END_TEST

START_TEST(a_terabyte_of_holes_is_passed_over)
{
    make_closed(3, WIDTH, 0);
    size_t n;
    _cleanup_(freep) uint8_t *data = kit_load(folder, "seg-000000.dmi", &n);
    char alone[4096], path[8192];
    snprintf(alone, sizeof alone, "%s/sparse", out);
    mkdir(alone, 0700);
    uint8_t *footer = find_chunk(data + sizeof(struct dmi_segment_header), DMI_CHUNK_FOOTER);
    kit_store(alone, "seg-000000.dmi", data, (size_t)(footer - data));
    snprintf(path, sizeof path, "%s/seg-000000.dmi", alone);
    if (truncate(path, 1ll << 40)) {
        fprintf(stderr, "no files of a terabyte here, left out\n");
        return;
    }
    _cleanup_(reader_closep) struct reader *reader = kit_read(alone, true);
    ck_assert_uint_eq(reader_n_records(reader), 6);
    ck_assert_uint_lt(reader_run(reader)->n_read, 8 << 20);
}
END_TEST

START_TEST(a_stray_segment_of_a_high_number_is_one_line)
{
    make_closed(2, WIDTH, 0);
    kit_store(folder, "seg-999999.dmi", "", 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    ck_assert_uint_le(reader_n_findings(reader), 5);
    ck_assert(says(reader, "segments from here to seg-999998.dmi"));
    ck_assert(says(reader, "does not list this segment"));
}
END_TEST

/* ------------------------------------------------------------------------- files that contradict one another */

/* Replaces @from in the manifest by @to, of the same length, and makes its checksum right. */
static void edit_manifest(const char *from, const char *to)
{
    size_t n_old;
    _cleanup_(freep) uint8_t *old = kit_load(folder, "manifest.json", &n_old);
    uint8_t *at = memmem(old, n_old, from, strlen(from));
    ck_assert_ptr_nonnull(at);
    size_t n = n_old - strlen(from) + strlen(to), before = (size_t)(at - old);
    _cleanup_(freep) uint8_t *data = malloc(n);
    memcpy(data, old, before);
    memcpy(data + before, to, strlen(to));
    memcpy(data + before + strlen(to), at + strlen(from), n_old - before - strlen(from));
    at = memmem(data, n, MANIFEST_CHECKSUM_KEY, strlen(MANIFEST_CHECKSUM_KEY));
    at += strlen(MANIFEST_CHECKSUM_KEY);
    memcpy(at, MANIFEST_CHECKSUM_ZERO, 16);
    char sum[17];
    snprintf(sum, sizeof sum, "%016" PRIx64, hash_bytes(data, n));
    memcpy(at, sum, 16);
    kit_store(folder, "manifest.json", data, n);
}

START_TEST(a_manifest_that_contradicts_the_segments_is_damage)
{
    make_closed(2, WIDTH, 0);
    edit_manifest("\"name\": \"logits\"", "\"name\": \"logitz\"");
    _cleanup_(reader_closep) struct reader *dictionary = kit_read(folder, false);
    ck_assert(says(dictionary, "not that of the segments"));
    ck_assert_str_eq(reader_site(dictionary, reader_n_sites(dictionary) - 1)->name, "logits");
    edit_manifest("\"name\": \"logitz\"", "\"name\": \"logits\"");
    edit_manifest("\"segments\"", "\"zegments\"");
    _cleanup_(reader_closep) struct reader *list = kit_read(folder, false);
    ck_assert(says(list, "does not list this segment"));
}
END_TEST

/* A closed run of one segment, whose entry in the manifest is none. */
START_TEST(a_closed_manifest_names_segments)
{
    static const char *const entries[][2] = {
        { "\"file\": \"seg-000000.dmi\"", "\"file\": \"seg-000001.dmi\"" },
        { "\"file\": \"seg-000000.dmi\"", "\"file\": 1234567890123456 " },
        { "\"file\": \"seg-000000.dmi\"", "\"fill\": \"seg-000000.dmi\"" },
        { "\"closed\": true", "\"closed\":false" },
        { "\"closed\": true", "\"closed\":    1" },
        { "\"closed\": true", "\"cloned\": true" },
        { "\"segments\": [", "\"segments\": [7," },
        { "\"segments\": [", "\"segments\": [{}," },
        { "\"segments\": [", "\"segments\": 7, \"other\": [" },
    };
    make_closed(2, WIDTH, 0);
    edit_manifest(entries[_i][0], entries[_i][1]);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, false);
    const struct reader_finding *first = NULL;
    ck_assert_msg(kit_damage(reader, &first), "entry %d", _i);
    ck_assert_msg(says(reader, "list of segments"), "entry %d: %s: %s", _i, first->file,
                  first->text);
}
END_TEST

START_TEST(a_released_segment_is_no_damage)
{
    make_closed(12, WIDTH, 6000);
    struct dmi_tally gone = { 0 };
    {
        /* what the first segment holds of the first site */
        char path[4096];
        snprintf(path, sizeof path, "%s/seg-000000.dmi", folder);
        _cleanup_(reader_closep) struct reader *lone = kit_read(path, false);
        struct reader_account account;
        reader_account(lone, 0, &account);
        gone = account.found;
        ck_assert_uint_gt(gone.records, 0);
        unlink(path);
    }
    edit_manifest("\"file\": \"seg-000000.dmi\", \"closed\": true",
                  "\"released\": true,         \"closed\": true");
    _cleanup_(reader_closep) struct reader *before = kit_read(folder, false);
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(before, &first), "%s: %s", first->file, first->text);
    struct reader_account account;
    ck_assert(reader_account(before, 0, &account) && !account.holds);
    size_t n;
    _cleanup_(freep) uint8_t *data = kit_load(folder, "counters", &n);
    ((struct dmi_counters *)data)->sites[0].released = gone;
    kit_store(folder, "counters", data, n);
    _cleanup_(reader_closep) struct reader *after = kit_read(folder, false);
    ck_assert(reader_account(after, 0, &account) && account.holds);
}
END_TEST

START_TEST(sums_that_wrap_do_not_balance)
{
    make_closed(2, WIDTH, 0);
    size_t n;
    _cleanup_(freep) uint8_t *data = kit_load(folder, "counters", &n);
    struct dmi_site_counters *s = &((struct dmi_counters *)data)->sites[0];
    s->expected.records = 1;
    s->dropped[0].records = UINT64_MAX; /* 2 + 2^64 - 1 = 1 */
    kit_store(folder, "counters", data, n);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, false);
    struct reader_account account;
    ck_assert(reader_account(reader, 0, &account));
    ck_assert(!account.holds);
    ck_assert_uint_eq(account.lost.records, 0);
}
END_TEST

static struct dmi_step_entry *step_of(uint8_t *chunk)
{
    return (void *)(chunk + sizeof(struct dmi_chunk_header));
}

/* Steps with every hash right: one twice, one that no chunk has, one after its records. */
START_TEST(steps_that_cannot_be_are_damage)
{
    static const char *const texts[] = { "stands there twice", "which is nowhere",
                                         "stands before its step" };
    make_closed(3, WIDTH, 0);
    size_t n;
    _cleanup_(freep) uint8_t *data = kit_load(folder, "seg-000000.dmi", &n);
    uint8_t *first = find_chunk(data + sizeof(struct dmi_segment_header), DMI_CHUNK_STEPS);
    uint8_t *second = find_chunk(find_chunk(first, DMI_CHUNK_RECORDS), DMI_CHUNK_STEPS);
    if (_i == 0)
        step_of(second)->sequence = 0;
    else if (_i == 1)
        step_of(second)->sequence = 9;
    else
        step_of(first)->sequence = 1, step_of(second)->sequence = 0;
    seal(first);
    seal(second);
    kit_store(folder, "seg-000000.dmi", data, n);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    ck_assert_msg(says(reader, texts[_i]), "%s", texts[_i]);
}
END_TEST

/* ------------------------------------------------------------------------- what the writer refuses */

START_TEST(steps_that_cannot_be_are_refused_and_counted)
{
    static const struct dmi_span bad[] = {
        { .request_id = "a", .first_row = 2, .n_tokens = 3 },
        { .request_id = "a", .first_position = -1, .n_tokens = 1 },
        { .request_id = "a", .first_position = INT64_MAX, .n_tokens = 1 },
        { .request_id = "a", .first_row = 5, .n_tokens = 0 },
    };
    struct run *run = kit_open(out, 0);
    struct dmi_span two[2] = { { .request_id = "a", .n_tokens = 2 },
                               { .request_id = "b", .first_row = 1, .n_tokens = 1 } };
    struct dmi_step step = { .size = sizeof step, .version = 1, .n_rows = 4, .n_spans = 1 };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        step.spans = &bad[i];
        ck_assert_msg(run_step(run, i, &step) == -EINVAL, "span %zu", i);
    }
    step.spans = two;
    step.n_spans = 2;
    ck_assert_int_eq(run_step(run, 7, &step), -EINVAL);
    two[1].first_row = 2;
    ck_assert_int_eq(run_step(run, 7, &step), 0);
    ck_assert_uint_eq(run_counters(run)->steps_refused, 5);
    ck_assert_int_eq(kit_special(run, 8), 0);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, true);
    ck_assert_uint_eq(kit_damage(reader, NULL), 0);
    ck_assert_uint_eq(reader_n_steps(reader), 2);
    kit_expect_special(reader, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("storage_reader");
    TCase *tc = tcase_create("reader");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, opening_reads_the_index_and_a_selection_its_chunks);
    tcase_add_test(tc, windows_hold_each_record_once_with_the_steps_that_they_name);
    tcase_add_test(tc, a_run_that_grows_has_each_record_and_step_in_windows);
    tcase_add_loop_test(tc, a_footer_that_lies_is_not_believed, 0, 4);
    tcase_add_test(tc, a_growing_run_is_read_on);
    tcase_add_test(tc, a_write_that_is_cut_back_is_read_as_it_is_then);
    tcase_add_test(tc, a_run_may_have_more_segments_than_descriptors_are_allowed);
    tcase_add_loop_test(tc, only_regular_files_are_opened, 0, 4);
    tcase_add_test(tc, a_terabyte_of_holes_is_passed_over);
    tcase_add_test(tc, a_stray_segment_of_a_high_number_is_one_line);
    tcase_add_test(tc, a_manifest_that_contradicts_the_segments_is_damage);
    tcase_add_loop_test(tc, a_closed_manifest_names_segments, 0, 9);
    tcase_add_test(tc, a_released_segment_is_no_damage);
    tcase_add_test(tc, sums_that_wrap_do_not_balance);
    tcase_add_loop_test(tc, steps_that_cannot_be_are_damage, 0, 3);
    tcase_add_test(tc, steps_that_cannot_be_are_refused_and_counted);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
