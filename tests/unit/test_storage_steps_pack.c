/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of runs without sites, packed. `test_storage_steps_pack --write DIR` made tests/golden/v2/steps-packed (a run) and
 * steps-packed-invalid/X.dmi (its segment with one thing wrong; X says what) once; they are never edited.
 */
#include "core/cleanup.h"
#include "storage/chunk.h"
#include "storage/codec/hash.h"
#include "storage/steps_pack.h"
#include "tests/unit/storage_kit.h"

#include <dmi/dmi.h>
#include <dmi/format.h>

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#define N_STEPS 120u

static char *out;

static void set_up(void)
{
    out = kit_folder();
}

static void tear_down(void)
{
    kit_remove(out);
    free(out);
}

/* Requests of step @i: as many as before, mostly, each one token further; every tenth step one is another one, every 50th a batch has tags. */
static int say(struct run *run, uint64_t i, uint32_t n_requests)
{
    char ids[64][64];
    struct dmi_span spans[64];
    for (uint32_t k = 0; k < n_requests; k++) {
        uint64_t age = i / 10 - (k == i / 10 % n_requests);
        snprintf(ids[k], sizeof ids[k], "cmpl-%08x-1234-5678-%012llx-0", k,
                 (unsigned long long)age / n_requests);
        spans[k] = (struct dmi_span){ .request_id = ids[k],
                                      .first_position = (int64_t)(i % 1000 + k),
                                      .first_row = k,
                                      .n_tokens = 1,
                                      .phase = DMI_PHASE_DECODE,
                                      .n_prompt = 4 };
    }
    const struct dmi_step step = { .size = sizeof step,
                                   .version = 1,
                                   .step = 7000 + i,
                                   .n_rows = n_requests,
                                   .n_spans = n_requests,
                                   .spans = spans,
                                   .span_size = sizeof spans[0],
                                   .tags = i % 50 == 49 ? "{\"a\": 1}" : NULL };
    return run_step(run, i, &step);
}

static struct run *write_steps(const char *dir, uint32_t n_requests)
{
    const struct run_options options = { .out_dir = dir, .model = "steps", .spec_text = "" };
    struct err err = { 0 };
    struct run *run;
    ck_assert_int_eq(run_open(&err, &options, &run), 0);
    for (uint64_t i = 0; i < N_STEPS; i++) {
        ck_assert_int_eq(say(run, i, n_requests), 0);
        if (i % 50 == 49)
            ck_assert_int_eq(run_commit(run), 0);
    }
    ck_assert_int_eq(run_commit(run), 0);
    return run;
}

static void expect_steps(struct reader *reader, uint32_t n_requests)
{
    ck_assert_uint_eq(kit_damage(reader, NULL), 0);
    ck_assert_uint_eq(reader_n_steps(reader), N_STEPS);
    for (size_t i = 0; i < N_STEPS; i++) {
        const struct reader_step *step = reader_step(reader, i);
        ck_assert_uint_eq(step->entry->sequence, i);
        ck_assert_uint_eq(step->entry->step, 7000 + i);
        ck_assert_uint_eq(step->entry->n_spans, n_requests);
        ck_assert_uint_eq(step->entry->tags_bytes, i % 50 == 49 ? 8 : 0);
        for (uint32_t k = 0; k < n_requests; k++) {
            ck_assert_int_eq(step->spans[k].first_position, (int64_t)(i % 1000 + k));
            ck_assert_uint_eq(step->spans[k].first_row, k);
            ck_assert_int_eq(
                memcmp((const char *)step->entry + step->spans[k].id_offset, "cmpl-", 5), 0);
        }
    }
}

START_TEST(packed_steps_read_as_they_were_said)
{
    const uint32_t n = _i ? 64 : 1;
    struct run *run = write_steps(out, n);
    _cleanup_(freep) char *path = strdup(run_path(run));
    _cleanup_(reader_closep) struct reader *growing = kit_read(path, false);
    expect_steps(growing, n);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *closed = kit_read(path, true);
    expect_steps(closed, n);
    /* a step of 64 requests takes 6,480 bytes in STEPS, and 4,864 in the footer */
    ck_assert_uint_lt(reader_run(closed)->n_file_bytes / N_STEPS, n == 64 ? 150 : 60);
}
END_TEST

START_TEST(the_golden_packed_steps_read_as_they_did)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/v2/steps-packed", getenv("TEST_GOLDEN"));
    _cleanup_(reader_closep) struct reader *reader = kit_read(path, true);
    expect_steps(reader, 3);
}
END_TEST

/* ------------------------------------------------------------------------- what is wrong */

#define ENTRY sizeof(struct dmi_step_entry)

/* What @n bytes at @steps become as they stand, and the head says @said. */
static const char *refused(const void *steps, size_t n, uint64_t said, uint64_t reserved,
                           size_t cut)
{
    uint8_t meta[4096];
    const struct dmi_steps_packed head = { said, reserved };
    const char *wrong = NULL;
    uint8_t *data = NULL;
    size_t got = 0;
    memcpy(meta, &head, sizeof head);
    size_t used = ZSTD_compress(meta + sizeof head, sizeof meta - sizeof head, steps, n, 1);
    ck_assert(!ZSTD_isError(used));
    /* of its length, so that a read beyond it is seen */
    size_t n_meta = cut ? cut : sizeof head + used;
    _cleanup_(freep) uint8_t *own = malloc(n_meta + (cut > sizeof head + used));
    memcpy(own, meta, n_meta);
    ck_assert_int_eq(steps_unpack(own, n_meta, &data, &got, &wrong), 0);
    free(data);
    return wrong;
}

START_TEST(hostile_heads_and_entries_are_refused)
{
    uint32_t two[2 * ENTRY / 4] = { ENTRY }; /* and one like it */
    uint32_t none[ENTRY / 4] = { 0 };
    uint32_t small[2 * ENTRY / 4] = { 8 }, odd[2 * ENTRY / 4] = { ENTRY + 4 };
    uint32_t far[2 * ENTRY / 4] = { UINT32_MAX - 7 }, last[3 * ENTRY / 4] = { 2 * ENTRY };
    ck_assert_ptr_null(refused(two, sizeof two, sizeof two, 0, 0));
    ck_assert_ptr_null(refused(two, 0, 0, 0, 0));
    ck_assert_str_eq(refused(none, sizeof none, sizeof none, 0, 0),
                     "a packed step's size cannot be"); /* like one before it, which is not there */
    ck_assert_ptr_nonnull(refused(small, sizeof small, sizeof small, 0, 0));
    ck_assert_ptr_nonnull(refused(odd, sizeof odd, sizeof odd, 0, 0));
    ck_assert_ptr_nonnull(refused(far, sizeof far, sizeof far, 0, 0));
    ck_assert_ptr_nonnull(
        refused(last, sizeof last, sizeof last, 0, 0)); /* the second one is cut */
    ck_assert_ptr_nonnull(refused(two, sizeof two, sizeof two + 8, 0, 0));
    ck_assert_ptr_nonnull(refused(two, sizeof two, sizeof two - 8, 0, 0));
    ck_assert_ptr_nonnull(refused(two, sizeof two, UINT64_MAX - 7, 0, 0));
    ck_assert_ptr_nonnull(refused(two, sizeof two, sizeof two, 1, 0));
    for (size_t cut = 1; cut < 24; cut++)
        ck_assert_ptr_nonnull(refused(two, sizeof two, sizeof two, 0, cut));
}
END_TEST

START_TEST(invalid_packed_steps_are_damage)
{
    static const char *const names[] = { "size", "frame", "length", "reserved" };
    char path[4096];
    snprintf(path, sizeof path, "%s/v2/steps-packed-invalid/%s.dmi", getenv("TEST_GOLDEN"),
             names[_i]);
    _cleanup_(reader_closep) struct reader *reader = kit_read(path, true);
    const struct reader_finding *first;
    ck_assert_uint_eq(kit_damage(reader, &first), 1);
    ck_assert_ptr_nonnull(strstr(first->text, "packed step"));
}
END_TEST

/* ------------------------------------------------------------------------- golden files */

static const char *golden_target;

/* The segment up to its first chunk of packed steps, whose metadata is another. */
static void store(const char *name, const uint8_t *data, size_t at, const void *meta, size_t n)
{
    struct dmi_chunk_header h;
    char path[96];
    memcpy(&h, data + at, sizeof h);
    _cleanup_(freep) uint8_t *all = calloc(1, at + sizeof h + chunk_pad(n));
    memcpy(all, data, at);
    memcpy(all + at + sizeof h, meta, n);
    h.n_meta = n;
    h.meta_hash = hash_bytes(meta, n);
    h.hash = hash_bytes(&h, offsetof(struct dmi_chunk_header, hash));
    memcpy(all + at, &h, sizeof h);
    snprintf(path, sizeof path, "steps-packed-invalid/%s.dmi", name);
    kit_store(golden_target, path, all, at + sizeof h + chunk_pad(n));
}

START_TEST(write_golden_files)
{
    char path[4096];
    size_t n, at = sizeof(struct dmi_segment_header);
    struct run *run = write_steps(golden_target, 3);
    _cleanup_(freep) char *made = strdup(run_path(run));
    ck_assert_int_eq(run_close(run), 0);
    snprintf(path, sizeof path, "%s/steps-packed", golden_target);
    ck_assert_int_eq(rename(made, path), 0);
    _cleanup_(freep) uint8_t *data = kit_load(path, "seg-000000.dmi", &n);
    snprintf(path, sizeof path, "%s/steps-packed-invalid", golden_target);
    mkdir(path, 0755);
    struct dmi_chunk_header h;
    for (memcpy(&h, data + at, sizeof h); h.type != DMI_CHUNK_STEPS_PACKED;
         memcpy(&h, data + at, sizeof h))
        at += chunk_bytes(&h);
    uint8_t *meta = data + at + sizeof h;
    struct dmi_steps_packed head = { .n_bytes = 2 * ENTRY };
    uint8_t other[1024];
    uint32_t entries[2 * ENTRY / 4] = { ENTRY - 8 };
    memcpy(other, &head, sizeof head);
    size_t used =
        ZSTD_compress(other + sizeof head, sizeof other - sizeof head, entries, sizeof entries, 1);
    store("size", data, at, other, sizeof head + used);
    store("frame", data, at, meta, h.n_meta - 1);
    meta[0] += 8;
    store("length", data, at, meta, h.n_meta);
    meta[0] -= 8;
    meta[8] = 1;
    store("reserved", data, at, meta, h.n_meta);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("storage_steps_pack");
    TCase *tc = tcase_create("steps_pack");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    if (argc == 3 && !strcmp(argv[1], "--write")) {
        golden_target = argv[2];
        tcase_add_test(tc, write_golden_files);
    } else {
        tcase_add_loop_test(tc, packed_steps_read_as_they_were_said, 0, 2);
        tcase_add_test(tc, the_golden_packed_steps_read_as_they_did);
        tcase_add_test(tc, hostile_heads_and_entries_are_refused);
        tcase_add_loop_test(tc, invalid_packed_steps_are_damage, 0, 4);
    }
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
