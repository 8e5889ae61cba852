/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What readers make of damaged runs: every changed bit is found and named, every complete chunk of a
 * killed run is read.
 */
#include "core/cleanup.h"
#include "storage/codec/hash.h"
#include "tests/unit/storage_kit.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
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

/* A closed run of several segments. */
static void make_closed(uint64_t n_forwards, uint64_t segment_bytes)
{
    struct run *run = kit_open(out, segment_bytes);
    for (uint64_t i = 0; i < n_forwards; i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert_int_eq(run_close(run), 0);
    folder = kit_run_folder(out);
}

/* A run whose process ended without closing it. */
static void make_killed(uint64_t n_forwards, uint64_t segment_bytes)
{
    pid_t pid = fork();
    if (!pid) {
        struct run *run = kit_open(out, segment_bytes);
        for (uint64_t i = 0; i < n_forwards; i++)
            if (kit_forward(run, i, WIDTH))
                _exit(1);
        run_flush(run);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    folder = kit_run_folder(out);
}

/* Whether some finding of damage names @file, and a place not after @offset. */
static bool named(const struct reader *reader, const char *file, uint64_t chunk_offset,
                  uint64_t chunk_end)
{
    for (size_t i = 0; i < reader_n_findings(reader); i++) {
        const struct reader_finding *f = reader_finding(reader, i);
        if (f->damage && !strcmp(f->file, file) &&
            (!chunk_end || (f->offset >= chunk_offset && f->offset < chunk_end)))
            return true;
    }
    return false;
}

/* The chunk (or header, or trailer) of an intact segment that holds the byte at @offset. */
static void part_of(const uint8_t *data, size_t n, uint64_t offset, uint64_t *first, uint64_t *end)
{
    *first = 0;
    *end = sizeof(struct dmi_segment_header);
    while (offset >= *end && *end + sizeof(struct dmi_trailer) < n) {
        struct dmi_chunk_header h;
        memcpy(&h, data + *end, sizeof h);
        *first = *end;
        *end += sizeof h + (h.n_meta + 7) / 8 * 8 + (h.n_payload + 7) / 8 * 8;
    }
    if (offset >= *end) {
        *first = *end;
        *end = n;
    }
}

START_TEST(each_of_1000_flipped_bits_is_found_and_named)
{
    make_closed(30, 9000);
    char *names[64];
    size_t n_names = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir)) && n_names < 64;)
        if (e->d_name[0] != '.')
            names[n_names++] = strdup(e->d_name);
    closedir(dir);
    ck_assert_uint_gt(n_names, 5);
    const char *given = getenv("TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : 20261121, state = seed | 1;
    printf("seed %" PRIu64 " (TEST_SEED)\n", seed);
    for (int flip = 0; flip < 400; flip++) {
        /* files in turn, so that the small ones get as many as the large ones */
        const char *name = names[(size_t)flip % n_names];
        size_t n;
        _cleanup_(freep) uint8_t *data = kit_load(folder, name, &n);
        uint64_t bit = kit_random(&state) % (8 * n), first = 0, end = 0;
        bool segment = !strncmp(name, "seg-", 4);
        if (segment)
            part_of(data, n, bit / 8, &first, &end);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        kit_store(folder, name, data, n);
        struct err err = { 0 };
        struct reader *reader = NULL;
        ck_assert_msg(!reader_open(&err, folder, &reader), "%s", err.msg);
        ck_assert_int_eq(reader_verify(reader), 0);
        ck_assert_msg(kit_damage(reader, NULL) > 0,
                      "flip %d: %s, byte %" PRIu64 " bit %" PRIu64 " was not found", flip, name,
                      bit / 8, bit % 8);
        ck_assert_msg(named(reader, name, first, segment ? end : 0),
                      "flip %d: %s, byte %" PRIu64 " of %zu was found elsewhere (part %" PRIu64
                      " to %" PRIu64 "): %s +%" PRIu64 " %s",
                      flip, name, bit / 8, n, first, end, reader_finding(reader, 0)->file,
                      reader_finding(reader, 0)->offset, reader_finding(reader, 0)->text);
        reader_close(reader);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        kit_store(folder, name, data, n);
    }
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    ck_assert_uint_eq(kit_damage(reader, NULL), 0);
    for (size_t i = 0; i < n_names; i++)
        free(names[i]);
}
END_TEST

START_TEST(a_segment_cut_at_any_byte_gives_all_whole_chunks)
{
    make_killed(4, 0);
    size_t n;
    _cleanup_(freep) uint8_t *data = kit_load(folder, "seg-000000.dmi", &n);
    /* where chunks end, and how many records there are by then */
    uint64_t ends[64], records[64], n_chunks = 0, at = sizeof(struct dmi_segment_header);
    for (uint64_t so_far = 0; at < n; n_chunks++) {
        struct dmi_chunk_header h;
        memcpy(&h, data + at, sizeof h);
        so_far += h.type == DMI_CHUNK_RECORDS ? 2 : 0;
        at += sizeof h + (h.n_meta + 7) / 8 * 8 + (h.n_payload + 7) / 8 * 8;
        ends[n_chunks] = at;
        records[n_chunks] = so_far;
    }
    ck_assert_uint_eq(ends[n_chunks - 1], n);
    for (size_t cut = 0; cut <= n; cut++) {
        kit_store(folder, "seg-000000.dmi", data, cut);
        uint64_t whole = 0, tail = cut;
        for (uint64_t c = 0; c < n_chunks && ends[c] <= cut; c++) {
            whole = records[c];
            tail = cut - ends[c];
        }
        if (tail == cut && cut >= sizeof(struct dmi_segment_header))
            tail = cut - sizeof(struct dmi_segment_header);
        _cleanup_(reader_closep) struct reader *reader = kit_read(folder, false);
        const struct reader_finding *first = NULL;
        ck_assert_msg(!kit_damage(reader, &first), "cut at %zu: %s", cut, first->text);
        ck_assert_uint_eq(reader_n_records(reader), whole);
        ck_assert_uint_eq(reader_run(reader)->n_torn, tail);
        ck_assert_int_eq(reader_run(reader)->state, READER_KILLED);
        ck_assert(kit_holds(reader, WIDTH));
        struct reader_account account;
        ck_assert(reader_account(reader, 0, &account));
        /* the process had counted all as captured: what is gone since then is no lost_at_kill */
        ck_assert(account.holds == (whole == 8));
    }
}
END_TEST

START_TEST(a_kill_is_accounted_as_lost)
{
    make_killed(4, 0);
    size_t n;
    _cleanup_(freep) uint8_t *data = kit_load(folder, "counters", &n);
    struct dmi_counters *c = (struct dmi_counters *)data;
    c->sites[0].expected.records += 5;
    c->sites[0].expected.rows += 20;
    c->sites[0].expected.bytes += 320;
    c->sites[0].captured.records--; /* written, and killed before it was counted */
    kit_store(folder, "counters", data, n);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    struct reader_account account;
    ck_assert_uint_eq(kit_damage(reader, NULL), 0);
    ck_assert(reader_account(reader, 0, &account));
    ck_assert(account.holds);
    ck_assert_uint_eq(account.lost.records, 5);
    ck_assert_uint_eq(account.lost.rows, 20);
    ck_assert_uint_eq(account.found.records, 4);
}
END_TEST

START_TEST(a_truncated_closed_file_is_damage)
{
    make_closed(12, 4000);
    for (int which = 0; which < 2; which++) {
        const char *name = which ? "seg-000001.dmi" : "seg-000000.dmi";
        size_t n;
        _cleanup_(freep) uint8_t *data = kit_load(folder, name, &n);
        for (size_t cut = 0; cut < n; cut += 31) {
            kit_store(folder, name, data, cut);
            _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
            ck_assert_msg(named(reader, name, 0, 0), "%s cut to %zu bytes was not named", name,
                          cut);
        }
        kit_store(folder, name, data, n);
    }
}
END_TEST

START_TEST(bytes_behind_the_end_are_damage)
{
    make_closed(3, 0);
    size_t n;
    _cleanup_(freep) uint8_t *data = kit_load(folder, "seg-000000.dmi", &n);
    data = realloc(data, n + 8);
    memset(data + n, 0, 8);
    kit_store(folder, "seg-000000.dmi", data, n + 8);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    ck_assert(named(reader, "seg-000000.dmi", 0, 0));
    ck_assert_uint_eq(reader_n_records(reader), 6);
}
END_TEST

START_TEST(a_missing_file_is_named)
{
    static const char *const names[] = { "seg-000000.dmi", "seg-000001.dmi", "manifest.json",
                                         "counters",       "spec.yaml",      NULL };
    make_closed(12, 4000);
    size_t n_segments;
    {
        _cleanup_(reader_closep) struct reader *reader = kit_read(folder, false);
        n_segments = reader_run(reader)->n_segments;
        ck_assert_uint_ge(n_segments, 3);
    }
    char last[32];
    snprintf(last, sizeof last, DMI_SEGMENT_NAME, (unsigned)(n_segments - 1));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *name = names[i] ? names[i] : last;
        char path[4096];
        size_t n;
        _cleanup_(freep) uint8_t *data = kit_load(folder, name, &n);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        unlink(path);
        _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
        ck_assert_msg(named(reader, name, 0, 0), "%s was not named", name);
        if (!strcmp(name, "manifest.json"))
            ck_assert(kit_holds(reader, WIDTH));
        kit_store(folder, name, data, n);
    }
}
END_TEST

/* Cuts chunk @number (counted from 0 in the file) out of a segment. */
static void cut_out(uint8_t *data, size_t *n, unsigned number)
{
    uint64_t at = sizeof(struct dmi_segment_header), size = 0;
    for (unsigned i = 0;; i++) {
        struct dmi_chunk_header h;
        memcpy(&h, data + at, sizeof h);
        size = sizeof h + (h.n_meta + 7) / 8 * 8 + (h.n_payload + 7) / 8 * 8;
        if (i == number)
            break;
        at += size;
    }
    memmove(data + at, data + at + size, *n - at - size);
    *n -= size;
}

START_TEST(a_chunk_that_was_cut_out_is_missed)
{
    if (_i)
        make_killed(6, 0);
    else
        make_closed(6, 0);
    size_t n_whole;
    _cleanup_(freep) uint8_t *whole = kit_load(folder, "seg-000000.dmi", &n_whole);
    for (unsigned number = 0; number < 12; number++) {
        size_t n = n_whole;
        _cleanup_(freep) uint8_t *data = malloc(n);
        memcpy(data, whole, n);
        cut_out(data, &n, number);
        kit_store(folder, "seg-000000.dmi", data, n);
        _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
        ck_assert_msg(named(reader, "seg-000000.dmi", 0, 0), "chunk %u was not missed", number);
        bool said = false;
        char number_text[32];
        snprintf(number_text, sizeof number_text, "number %u to %u", number, number);
        for (size_t i = 0; i < reader_n_findings(reader); i++)
            said |= strstr(reader_finding(reader, i)->text, "missing") &&
                    strstr(reader_finding(reader, i)->text, number_text);
        ck_assert_msg(said, "chunk %u was not named", number);
        ck_assert(kit_holds(reader, WIDTH) || number % 2 == 1); /* a step was cut out */
    }
}
END_TEST

START_TEST(a_damaged_footer_is_told_and_everything_read_by_scanning)
{
    make_closed(5, 0);
    size_t n;
    _cleanup_(freep) uint8_t *data = kit_load(folder, "seg-000000.dmi", &n);
    struct dmi_trailer trailer;
    memcpy(&trailer, data + n - sizeof trailer, sizeof trailer);
    const size_t places[] = { trailer.footer_offset + 4, trailer.footer_offset + 70, n - 30,
                              n - 3 };
    for (size_t i = 0; i < 4; i++) {
        data[places[i]] ^= 0x10;
        kit_store(folder, "seg-000000.dmi", data, n);
        _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
        ck_assert(named(reader, "seg-000000.dmi", trailer.footer_offset, n));
        ck_assert_uint_eq(reader_n_records(reader), 10);
        ck_assert(kit_holds(reader, WIDTH));
        data[places[i]] ^= 0x10;
    }
}
END_TEST

START_TEST(a_chunk_of_another_run_is_no_chunk_of_this)
{
    make_closed(3, 0);
    char *first = folder, *other_out = kit_folder();
    struct run *run = kit_open(other_out, 0);
    for (uint64_t i = 0; i < 3; i++)
        kit_forward(run, i + 50, WIDTH);
    run_close(run);
    folder = kit_run_folder(other_out);
    size_t n;
    _cleanup_(freep) uint8_t *data = kit_load(folder, "seg-000000.dmi", &n);
    kit_store(first, "seg-000000.dmi", data, n);
    {
        _cleanup_(reader_closep) struct reader *reader = kit_read(first, true);
        ck_assert(named(reader, "seg-000000.dmi", 0, 0));
    }
    kit_remove(other_out);
    free(other_out);
    free(first);
}
END_TEST

START_TEST(a_lone_segment_and_an_out_folder_can_be_opened)
{
    make_closed(3, 0);
    char path[4096];
    snprintf(path, sizeof path, "%s/seg-000000.dmi", folder);
    _cleanup_(reader_closep) struct reader *lone = kit_read(path, true);
    ck_assert_uint_eq(kit_damage(lone, NULL), 0);
    ck_assert(kit_holds(lone, WIDTH));
    _cleanup_(reader_closep) struct reader *whole = kit_read(out, true);
    ck_assert_uint_eq(reader_n_records(whole), 6);
    struct run *run = kit_open(out, 0);
    ck_assert_int_eq(kit_forward(run, 0, WIDTH), 0); /* of no other rank: not joined */
    run_close(run);
    struct err err = { 0 };
    struct reader *none = NULL;
    ck_assert_int_eq(reader_open(&err, out, &none), -ENOTUNIQ);
    ck_assert_ptr_nonnull(strstr(err.msg, "2 runs of one command"));
    err = (struct err){ 0 };
    snprintf(path, sizeof path, "%s/latest", out);
    _cleanup_(reader_closep) struct reader *latest = kit_read(path, true);
    ck_assert_uint_eq(reader_run(latest)->n_beside, 0);
    ck_assert_str_ne(reader_run(latest)->path, folder);
    char folder_beside[4096];
    snprintf(folder_beside, sizeof folder_beside, "%s/empty", folder);
    ck_assert_int_eq(mkdir(folder_beside, 0700), 0);
    ck_assert_int_eq(reader_open(&err, folder_beside, &none), -ENOENT);
    err = (struct err){ 0 };
    ck_assert_int_eq(reader_open(&err, "/nonexistent", &none), -ENOENT);
}
END_TEST

START_TEST(records_are_found_by_site_layer_request_and_position)
{
    make_closed(9, 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, false);
    static const struct {
        struct reader_query query;
        size_t n;
    } rows[] = {
        { { .site = NULL }, 18 },
        { { .site = "logits" }, 9 },
        { { .site = "f32", .by_layer = true, .layer = 1 }, 3 },
        { { .site = "f32", .request = "b", .n_request = 1 }, 9 },
        { { .site = "f32", .request = "b", .n_request = 1, .first_position = 2, .end_position = 4 },
          2 },
        { { .site = "f32",
            .request = "../../x\n",
            .n_request = 8,
            .first_position = 5,
            .end_position = 7 },
          2 },
        { { .request = "nobody", .n_request = 6 }, 0 },
        { { .site = "q" }, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err err = { 0 };
        ck_assert_int_eq(reader_select(&err, reader, &rows[i].query), 0);
        size_t n = reader_n_records(reader);
        ck_assert_msg(n == rows[i].n, "row %zu: %zu", i, n);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("storage_damage");
    TCase *tc = tcase_create("damage");
    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, each_of_1000_flipped_bits_is_found_and_named);
    tcase_add_test(tc, a_segment_cut_at_any_byte_gives_all_whole_chunks);
    tcase_add_test(tc, a_kill_is_accounted_as_lost);
    tcase_add_test(tc, a_truncated_closed_file_is_damage);
    tcase_add_test(tc, bytes_behind_the_end_are_damage);
    tcase_add_test(tc, a_missing_file_is_named);
    tcase_add_loop_test(tc, a_chunk_that_was_cut_out_is_missed, 0, 2);
    tcase_add_test(tc, a_damaged_footer_is_told_and_everything_read_by_scanning);
    tcase_add_test(tc, a_chunk_of_another_run_is_no_chunk_of_this);
    tcase_add_test(tc, a_lone_segment_and_an_out_folder_can_be_opened);
    tcase_add_test(tc, records_are_found_by_site_layer_request_and_position);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
