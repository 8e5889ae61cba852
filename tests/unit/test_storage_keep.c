/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run keeps, and for how long: segments closed by time, the oldest released, steps that later segments repeat, and
 * what is brought to the disk when. fdatasync(), fsync() and rename() are this program's own, so that a test can count
 * them and make them fail.
 */
#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "tests/unit/storage_kit.h"

#include <dmi/dtype.h>

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WIDTH 64
#define MS    1000000u

static struct {
    uint64_t syncs;  /* of files */
    uint64_t synced; /* size of the last segment that was synced, then */
    int sync_error, rename_error;
} disk;

int fdatasync(int fd)
{
    struct stat st;
    int error = atomic_load_acquire(&disk.sync_error); /* of the test */
    if (error) {
        errno = error;
        return -1;
    }
    if (!fstat(fd, &st))
        atomic_store_release(&disk.synced, (uint64_t)st.st_size); /* to the test */
    atomic_add_relaxed(&disk.syncs, 1);
    return 0;
}

int fsync(int fd)
{
    (void)fd;
    return 0;
}

int rename(const char *from, const char *to)
{
    if (disk.rename_error) {
        errno = disk.rename_error;
        return -1;
    }
    return (int)syscall(SYS_rename, from, to);
}

static char *out;

static void setup(void)
{
    memset(&disk, 0, sizeof disk);
    out = kit_folder();
}

static void teardown(void)
{
    kit_remove(out);
    free(out);
}

static void wait_ns(uint64_t ns)
{
    nanosleep(&(struct timespec){ .tv_sec = (time_t)(ns / 1000000000u),
                                  .tv_nsec = (long)(ns % 1000000000u) },
              NULL);
}

static bool is_there(const char *folder, unsigned number)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/" DMI_SEGMENT_NAME, folder, number);
    return !access(path, F_OK);
}

static uint64_t bytes_there(const char *folder, unsigned n)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < n; i++) {
        char path[4096];
        struct stat st;
        snprintf(path, sizeof path, "%s/" DMI_SEGMENT_NAME, folder, i);
        sum += stat(path, &st) ? 0 : (uint64_t)st.st_size;
    }
    return sum;
}

/* Not damaged, its sums balance, and every record there is of a step that is known. */
static void expect_whole(struct reader *reader)
{
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(reader, &first), "%s: %s", first->file, first->text);
    for (uint32_t i = 0; i < reader_n_sites(reader); i++) {
        struct reader_account account;
        ck_assert(reader_account(reader, i, &account) && account.holds);
    }
    for (size_t i = 0; i < reader_n_records(reader); i++) {
        const struct reader_record *rec = reader_record(reader, i);
        ck_assert_msg(rec->step && rec->step->entry->sequence == rec->at.step,
                      "the record of launch %llu has no step", (unsigned long long)rec->at.launch);
    }
    ck_assert(kit_holds(reader, WIDTH));
}

/* ------------------------------------------------------------------------- rotation by time */

START_TEST(a_segment_is_closed_when_it_is_old)
{
    const struct run_options more = { .segment_ns = 60 * MS };
    struct run *run = kit_open_with(out, &more);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    wait_ns(150 * MS);
    ck_assert(!is_there(folder, 1)); /* nothing was written to it */
    ck_assert_int_eq(kit_forward(run, 0, WIDTH), 0);
    for (int i = 0; i < 500 && !is_there(folder, 1); i++)
        wait_ns(10 * MS); /* the keeper closes it, no record comes */
    ck_assert(is_there(folder, 1));
    ck_assert_int_eq(kit_forward(run, 1, WIDTH), 0);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    expect_whole(reader);
    ck_assert_uint_eq(reader_n_records(reader), 4);
}
END_TEST

/* ------------------------------------------------------------------------- releasing */

#define KEEP 20000u
#define PART 4000u

static struct run *fill(uint64_t n)
{
    const struct run_options more = { .segment_bytes = PART, .keep_bytes = KEEP };
    struct run *run = kit_open_with(out, &more);
    for (uint64_t i = 0; i < n; i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    return run;
}

START_TEST(the_oldest_segments_go_and_the_sums_hold)
{
    struct run *run = fill(200);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    ck_assert_uint_le(bytes_there(folder, 1000), KEEP + PART);
    ck_assert(!is_there(folder, 0));
    {
        _cleanup_(reader_closep) struct reader *growing = kit_read(folder, true);
        expect_whole(growing);
        for (uint64_t i = 200; i < 300; i++) /* what it has read is released */
            ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
        struct err err = { 0 };
        ck_assert_msg(!reader_refresh(&err, growing), "%s", err.msg);
        expect_whole(growing);
    }
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    expect_whole(reader);
    struct reader_account account;
    ck_assert(reader_account(reader, 0, &account));
    ck_assert_uint_eq(account.expected.records, 300);
    ck_assert_uint_eq(account.released.records + account.found.records, 300);
    ck_assert_uint_gt(account.released.records, 200);
}
END_TEST

/* Between two looks of a reader all that it knew goes: it looks again, and calls nothing damage. */
START_TEST(a_reader_finds_segments_released_meanwhile)
{
    /* more segments than it holds open, and blocks than it keeps */
    const struct run_options more = { .segment_bytes = PART, .keep_bytes = 150 * PART };
    struct run *run = kit_open_with(out, &more);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    struct err err = { 0 };
    _cleanup_(reader_closep) struct reader *stale = NULL;
    for (uint64_t i = 0; i < 200; i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert(!reader_open_index(&err, folder, &stale));
    for (uint64_t i = 200; i < 400; i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert_msg(!reader_select(&err, stale, NULL), "%s", err.msg);
    expect_whole(stale);
    ck_assert_uint_gt(reader_n_records(stale), 0);
    ck_assert_uint_gt(reader_record(stale, 0)->at.forward, 200);
    /* what it knows of is gone when it is read: that is said, and is no damage either */
    for (uint64_t i = 400; i < 600; i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    char raw[16 * WIDTH];
    int n_gone = 0;
    for (size_t i = 0; i < reader_n_records(stale); i++)
        n_gone += reader_decode(&err, stale, reader_record(stale, i), raw) == -ENOENT;
    ck_assert_int_gt(n_gone, 0);
    ck_assert_msg(!reader_refresh(&err, stale), "%s", err.msg);
    expect_whole(stale);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    expect_whole(reader);
}
END_TEST

START_TEST(what_is_old_goes_without_a_record)
{
    const struct run_options more = { .segment_ns = 40 * MS, .keep_ns = 100 * MS };
    struct run *run = kit_open_with(out, &more);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    ck_assert_int_eq(kit_forward(run, 0, WIDTH), 0);
    for (int i = 0; i < 500 && is_there(folder, 0); i++)
        wait_ns(10 * MS);
    ck_assert(!is_there(folder, 0));
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    expect_whole(reader);
    ck_assert_uint_eq(reader_n_records(reader), 0);
}
END_TEST

START_TEST(nothing_goes_that_the_manifest_cannot_say)
{
    struct run *run = fill(20);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    unsigned first = 0;
    while (!is_there(folder, first))
        first++;
    disk.rename_error = ENOSPC;
    for (uint64_t i = 20; i < 60; i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert(is_there(folder, first));
    disk.rename_error = 0;
    for (uint64_t i = 60; i < 70; i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert(!is_there(folder, first)); /* caught up with */
    ck_assert_uint_le(bytes_there(folder, 1000), KEEP + PART);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    expect_whole(reader);
}
END_TEST

/* A kill between the manifest's rename and the deletion leaves the file; before the counters, their old sums. */
START_TEST(a_released_segment_whose_file_is_still_there_counts_once)
{
    struct run *run = fill(1);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    char path[4096], kept[4096];
    snprintf(path, sizeof path, "%s/seg-000000.dmi", folder);
    snprintf(kept, sizeof kept, "%s/kept", out);
    ck_assert(!link(path, kept));
    for (uint64_t i = 1; i < 100; i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert(!is_there(folder, 0));
    _cleanup_(reader_closep) struct reader *without = kit_read(folder, true);
    ck_assert(!link(kept, path));
    struct dmi_tally *released = &run_counters(run)->sites[0].released;
    released->records--; /* as if that had not been counted yet */
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    expect_whole(reader);
    ck_assert_uint_eq(reader_n_records(reader), reader_n_records(without));
    released->records++;
    ck_assert_int_eq(run_close(run), 0);
}
END_TEST

/* ------------------------------------------------------------------------- repeated steps */

/* Steps 0 to 9, what came of the last one, and a segment's end; then the records of these steps. */
static char *split_run(void)
{
    const struct run_options more = { .segment_bytes = PART, .keep_bytes = 10 * PART };
    struct run *run = kit_open_with(out, &more);
    for (uint64_t i = 0; i < 10; i++)
        ck_assert_int_eq(kit_step(run, i), 0);
    ck_assert_int_eq(run_request_end(run, "b", DMI_END_STOP), 0);
    ck_assert_int_eq(run_flush(run), 0);
    for (uint64_t i = 0; i < 10; i++)
        ck_assert_int_eq(kit_records(run, i, WIDTH), 0);
    char *folder = kit_run_folder(out);
    for (uint64_t i = 10; is_there(folder, 0); i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert_int_eq(run_close(run), 0);
    return folder;
}

START_TEST(a_later_segment_repeats_the_steps_of_its_records)
{
    _cleanup_(freep) char *folder = split_run();
    ck_assert(!is_there(folder, 0));
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    expect_whole(reader);
    ck_assert_uint_gt(reader_n_records(reader), 0);
    const struct reader_record *first = reader_record(reader, 0);
    ck_assert_uint_lt(first->at.step, 10); /* it was said in the segment that is gone */
    /* and found by its request */
    const struct reader_query query = { .request = "b", .n_request = 1, .site = "f32" };
    struct err err = { 0 };
    size_t n = reader_n_records(reader);
    ck_assert(!reader_select(&err, reader, &query));
    ck_assert_uint_eq(reader_n_records(reader), n / 2);
    expect_whole(reader);
}
END_TEST

START_TEST(a_lone_segment_has_the_steps_of_its_records)
{
    _cleanup_(freep) char *folder = split_run();
    for (unsigned number = 0; number < 100; number++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/" DMI_SEGMENT_NAME, folder, number);
        if (access(path, F_OK))
            continue;
        _cleanup_(reader_closep) struct reader *reader = kit_read(path, false);
        for (size_t i = 0; i < reader_n_records(reader); i++)
            ck_assert(reader_record(reader, i)->step);
    }
}
END_TEST

static void append_row(struct run *run, uint64_t step, uint64_t launch)
{
    const float row[2] = { 1, 2 };
    const struct run_record record = { .site = 0,
                                       .dtype = DMI_DTYPE_F32,
                                       .launch = launch,
                                       .step = step,
                                       .n_dims = 2,
                                       .n_row_dims = 1,
                                       .dims = { 2, 1 },
                                       .data = row,
                                       .n_bytes = sizeof row };
    ck_assert_int_eq(run_append(run, &record, 1), 0);
}

/* Segment 0: a step with two drafts, of which the first holds, and the request's end. Segment 1: its record. */
static char *drafted_run(void)
{
    const struct run_options more = { .segment_bytes = 2000 };
    const struct dmi_span span = { .request_id = "a", .n_tokens = 2, .phase = DMI_PHASE_DRAFT };
    const struct dmi_step step = { .size = sizeof step,
                                   .version = 1,
                                   .step = 1,
                                   .n_rows = 2,
                                   .n_spans = 1,
                                   .span_size = sizeof span,
                                   .spans = &span };
    struct run *run = kit_open_with(out, &more);
    ck_assert_int_eq(run_step(run, 1, &step), 0);
    ck_assert_int_eq(run_accept(run, "a", 1, 1), 0);
    ck_assert_int_eq(run_request_end(run, "a", DMI_END_LENGTH), 0);
    ck_assert_int_eq(run_flush(run), 0);
    for (uint64_t i = 0; i < 10; i++)
        append_row(run, 1, i);
    ck_assert_int_eq(run_close(run), 0);
    return kit_run_folder(out);
}

START_TEST(what_came_of_a_repeated_step_is_repeated_too)
{
    _cleanup_(freep) char *folder = drafted_run();
    struct err err = { 0 };
    for (int gone = 0; gone < 2; gone++) { /* from all segments, and without the first */
        char path[4096];
        snprintf(path, sizeof path, "%s/seg-000000.dmi", folder);
        if (gone)
            ck_assert(!unlink(path));
        _cleanup_(reader_closep) struct reader *reader = kit_read(folder, false);
        const struct reader_query query = { .request = "a", .n_request = 1 };
        ck_assert(!reader_select(&err, reader, &query));
        ck_assert_uint_gt(reader_n_records(reader), 0);
        ck_assert_uint_eq(reader_n_steps(reader), 1);
        const struct reader_step *step = reader_step(reader, 0);
        const struct reader_outcome *outcome = reader_outcome_of(step, 0);
        ck_assert(outcome && outcome->at.n_accepted == 1);
        ck_assert_uint_eq(reader_n_ends(reader), 1);
        ck_assert_uint_eq(reader_end(reader, 0)->reason, DMI_END_LENGTH);
    }
}
END_TEST

/* ------------------------------------------------------------------------- changes */

static void change(struct run *run, uint64_t launch, const char *what)
{
    ck_assert_int_eq(run_change(run, &(struct run_change){ .launch = launch, .what = what }), 0);
}

/* The third comes when the segment with the first two is gone. */
START_TEST(changes_outlive_the_segment_that_has_them)
{
    const struct run_options more = { .segment_bytes = PART, .keep_bytes = 10 * PART };
    struct run *run = kit_open_with(out, &more);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    change(run, 0, "first");
    change(run, 3, "second");
    uint64_t i = 0;
    for (; is_there(folder, 0); i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    change(run, 2 * i, "third");
    for (unsigned segment = 1; is_there(folder, segment); i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    ck_assert_uint_eq(kit_damage(reader, NULL), 0);
    const struct reader_run *is = reader_run(reader);
    ck_assert_uint_eq(is->n_changes, 3);
    ck_assert_str_eq(is->changes[0].what, "first");
    ck_assert_str_eq(is->changes[1].what, "second");
    ck_assert_uint_eq(is->changes[1].launch, 3);
    ck_assert_str_eq(is->changes[2].what, "third");
}
END_TEST

START_TEST(a_segment_repeats_64_kib_of_changes_the_latest)
{
    const struct run_options more = { .segment_bytes = 150000 };
    struct run *run = kit_open_with(out, &more);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    enum { CHANGES = 2000 };
    char what[16], path[4096];
    for (unsigned k = 0; k < CHANGES; k++) {
        snprintf(what, sizeof what, "%u", k);
        change(run, k, what);
    }
    uint64_t i = 0;
    while (!is_there(folder, 1))
        ck_assert_int_eq(kit_forward(run, i++, WIDTH), 0);
    ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    const struct reader_finding *first = NULL;
    ck_assert_msg(!kit_damage(reader, &first), "%s: %s", first->file, first->text);
    ck_assert_uint_eq(reader_run(reader)->n_changes, CHANGES);
    snprintf(path, sizeof path, "%s/" DMI_SEGMENT_NAME, folder, 1);
    _cleanup_(reader_closep) struct reader *lone = kit_read(path, false);
    const struct reader_run *is = reader_run(lone);
    ck_assert_uint_eq(is->n_changes, (64 << 10) / 56);
    ck_assert_uint_eq(is->changes[is->n_changes - 1].launch, CHANGES - 1);
}
END_TEST

/* ------------------------------------------------------------------------- the disk */

static uint64_t size_of_first(const char *folder)
{
    return bytes_there(folder, 1);
}

START_TEST(each_append_is_on_the_disk_when_it_returns)
{
    const struct run_options more = { .durability = RUN_DURABILITY_EACH };
    struct run *run = kit_open_with(out, &more);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    for (uint64_t i = 0; i < 5; i++) {
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
        ck_assert_uint_eq(disk.synced, size_of_first(folder));
    }
    disk.sync_error = EIO; /* then it is not there at all */
    ck_assert_int_eq(kit_forward(run, 5, WIDTH), -EIO);
    disk.sync_error = 0;
    ck_assert_int_eq(kit_forward(run, 6, WIDTH), 0);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    expect_whole(reader);
    ck_assert_uint_eq(reader_n_records(reader), 12);
}
END_TEST

START_TEST(what_is_committed_reaches_the_disk_in_time)
{
    const struct run_options more = { .durability = RUN_DURABILITY_INTERVAL, .sync_ns = 50 * MS };
    struct run *run = kit_open_with(out, &more);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    for (uint64_t i = 0; i < 3; i++) {
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
        uint64_t size = size_of_first(folder), end = clock_mono_ns() + 5000 * (uint64_t)MS;
        while (atomic_load_acquire(&disk.synced) < size &&
               clock_mono_ns() < end) /* of fdatasync() */
            wait_ns(5 * MS);
        ck_assert_uint_eq(disk.synced, size);
    }
    uint64_t syncs = atomic_load_relaxed(&disk.syncs);
    wait_ns(200 * MS); /* nothing new, nothing to do */
    ck_assert_uint_eq(atomic_load_relaxed(&disk.syncs), syncs);
    ck_assert_int_eq(run_close(run), 0);
}
END_TEST

START_TEST(a_sync_that_fails_is_a_problem_and_tried_again)
{
    const struct run_options more = { .durability = RUN_DURABILITY_INTERVAL, .sync_ns = 20 * MS };
    struct run *run = kit_open_with(out, &more);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    atomic_store_release(&disk.sync_error, EIO); /* to fdatasync() */
    ck_assert_int_eq(kit_forward(run, 0, WIDTH), 0);
    wait_ns(200 * MS);
    atomic_store_release(&disk.sync_error, 0); /* to fdatasync() */
    uint64_t end = clock_mono_ns() + 5000 * (uint64_t)MS;
    while (!atomic_load_acquire(&disk.synced) && clock_mono_ns() < end) /* of fdatasync() */
        wait_ns(5 * MS);
    ck_assert_uint_eq(disk.synced, size_of_first(folder));
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    expect_whole(reader);
    ck_assert_uint_eq(reader_run(reader)->n_problems, 1);
    ck_assert_str_eq(reader_run(reader)->problems[0].reason, "sync_failed");
}
END_TEST

START_TEST(without_durability_nothing_is_synced)
{
    const struct run_options more = { .durability = RUN_DURABILITY_NONE, .segment_bytes = PART };
    struct run *run = kit_open_with(out, &more);
    for (uint64_t i = 0; i < 20; i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert_int_eq(run_close(run), 0);
    ck_assert_uint_eq(disk.syncs, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("keep");
    TCase *tc = tcase_create("keep");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_segment_is_closed_when_it_is_old);
    tcase_add_test(tc, the_oldest_segments_go_and_the_sums_hold);
    tcase_add_test(tc, a_reader_finds_segments_released_meanwhile);
    tcase_add_test(tc, what_is_old_goes_without_a_record);
    tcase_add_test(tc, nothing_goes_that_the_manifest_cannot_say);
    tcase_add_test(tc, a_released_segment_whose_file_is_still_there_counts_once);
    tcase_add_test(tc, a_later_segment_repeats_the_steps_of_its_records);
    tcase_add_test(tc, a_lone_segment_has_the_steps_of_its_records);
    tcase_add_test(tc, what_came_of_a_repeated_step_is_repeated_too);
    tcase_add_test(tc, changes_outlive_the_segment_that_has_them);
    tcase_add_test(tc, a_segment_repeats_64_kib_of_changes_the_latest);
    tcase_add_test(tc, each_append_is_on_the_disk_when_it_returns);
    tcase_add_test(tc, what_is_committed_reaches_the_disk_in_time);
    tcase_add_test(tc, a_sync_that_fails_is_a_problem_and_tried_again);
    tcase_add_test(tc, without_durability_nothing_is_synced);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
