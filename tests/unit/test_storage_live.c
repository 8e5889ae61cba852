/* SPDX-License-Identifier: Apache-2.0 */
/* The file `live` of a run: it follows what is committed, no entry is torn, and nothing depends on it. */
#include "core/atomic.h"
#include "core/cleanup.h"
#include "tests/unit/storage_kit.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define WIDTH     8u /* then a row of either site of the kit has as many bytes */
#define ROW_BYTES 32u

static const struct run_options with_live = { .live = true };

/* This program's own: writes of so many bytes fail; of a run's files only `live` has them. 0: none does. */
static size_t fails;

ssize_t pwritev(int fd, const struct iovec *pieces, int n, off_t offset)
{
    ssize_t done = 0;
    for (int i = 0; i < n; i++) {
        if (fails && pieces[i].iov_len == fails) {
            errno = ENOSPC;
            return -1;
        }
        ssize_t w = pwrite(fd, pieces[i].iov_base, pieces[i].iov_len, offset + done);
        if (w < 0)
            return done ? done : w;
        done += w;
    }
    return done;
}

static char *out;

static void setup(void)
{
    fails = 0;
    out = kit_folder();
}

static void teardown(void)
{
    kit_remove(out);
    free(out);
}

static bool has_file(void)
{
    _cleanup_(freep) char *folder = kit_run_folder(out);
    _cleanup_(freep) char *path = NULL;
    struct stat st;
    ck_assert_int_gt(asprintf(&path, "%s/live", folder), 0);
    return !stat(path, &st) && st.st_size == sizeof(struct dmi_live) && (st.st_mode & 0777) == 0600;
}

static const struct dmi_live_request *request(const struct dmi_live *live, const char *id)
{
    for (uint32_t i = 0; i < DMI_LIVE_REQUESTS; i++)
        if (live->requests[i].n_id == strlen(id) && !memcmp(live->requests[i].id, id, strlen(id)))
            return &live->requests[i];
    return NULL;
}

static void expect(const struct dmi_live *live, const char *id, uint32_t state, uint64_t tokens,
                   uint64_t rows)
{
    const struct dmi_live_request *q = request(live, id);
    ck_assert_ptr_nonnull(q);
    ck_assert_uint_eq(q->state, state);
    ck_assert_uint_eq(q->n_tokens, tokens);
    ck_assert_uint_eq(q->rows, rows);
    ck_assert_uint_eq(q->sequence % 2, 0);
}

START_TEST(it_follows_what_is_committed)
{
    struct run *run = kit_open_with(out, &with_live);
    const struct dmi_live *live = run_live(run);
    ck_assert(live && has_file());
    ck_assert_int_eq(kit_step(run, 0), 0);
    ck_assert_ptr_null(request(live, "b")); /* said, and not committed */
    ck_assert_int_eq(kit_records(run, 0, WIDTH), 0);
    expect(live, "../../x\n", DMI_LIVE_REQUEST_RUNS, 3, 4);
    expect(live, "b", DMI_LIVE_REQUEST_RUNS, 1, 2);
    ck_assert_uint_eq(live->raw_bytes, 6 * ROW_BYTES);
    ck_assert_uint_ge(live->written_bytes, live->stored_bytes);
    ck_assert_uint_eq(live->writes, 1);
    ck_assert_int_eq(run_request_end(run, "b", DMI_END_STOP), 0);
    ck_assert_int_eq(run_request_shed(run, "../../x\n", 0), 0);
    ck_assert_int_eq(run_commit(run), 0);
    expect(live, "b", DMI_LIVE_REQUEST_ENDED, 1, 2);
    expect(live, "../../x\n", DMI_LIVE_REQUEST_SHED, 3, 4);
    ck_assert_uint_eq(live->requests_shed, 1);
    ck_assert_int_eq(kit_forward(run, 1, WIDTH), 0);
    expect(live, "b", DMI_LIVE_REQUEST_RUNS, 1, 2); /* another one of its name */
    expect(live, "../../x\n", DMI_LIVE_REQUEST_SHED, 6, 8);
    ck_assert_uint_eq(live->requests_seen, 3);
    ck_assert_int_eq(kit_special(run, 2), 0);
    expect(live, "c", DMI_LIVE_REQUEST_RUNS, 12, 6);
    ck_assert_uint_eq(request(live, "c")->bytes, 48);
    ck_assert_int_eq(run_close(run), 0);
    ck_assert(!has_file());
}
END_TEST

START_TEST(rows_of_steps_that_were_forgotten_are_nobodys)
{
    struct run *run = kit_open_with(out, &with_live);
    for (uint64_t i = 0; i < 1025; i++)
        ck_assert_int_eq(kit_step(run, i), 0);
    ck_assert_int_eq(kit_records(run, 0, WIDTH), 0);
    ck_assert_int_eq(kit_records(run, 1024, WIDTH), 0);
    ck_assert_uint_eq(run_live(run)->stray_rows, 6);
    expect(run_live(run), "b", DMI_LIVE_REQUEST_RUNS, 1025, 2);
    ck_assert_int_eq(run_close(run), 0);
}
END_TEST

START_TEST(where_it_cannot_be_written_the_run_is_what_it_was)
{
    fails = sizeof(struct dmi_live);
    struct run *run = kit_open_with(out, &with_live);
    ck_assert_ptr_null(run_live(run));
    _cleanup_(freep) char *folder = kit_run_folder(out);
    _cleanup_(freep) char *path = NULL;
    ck_assert_int_gt(asprintf(&path, "%s/live", folder), 0);
    ck_assert_int_ne(access(path, F_OK), 0);
    for (uint64_t i = 0; i < 5; i++)
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
    ck_assert_int_eq(run_close(run), 0);
    _cleanup_(reader_closep) struct reader *reader = kit_read(out, true);
    ck_assert(kit_holds(reader, WIDTH) && !kit_damage(reader, NULL));
}
END_TEST

/* ------------------------------------------------------------------------- a reader beside it */

struct watch {
    char *path;
    int stop;
    uint64_t n_whole, n_wrong, last_rows;
};

/* As dmi-top: three readings of the file. */
static void *watch(void *arg)
{
    static struct dmi_live at[3];
    struct watch *w = arg;
    _cleanup_(closep) int fd = open(w->path, O_RDONLY | O_CLOEXEC);
    while (!atomic_load_acquire(&w->stop)) { /* of the test */
        for (int i = 0; i < 3; i++)
            if (pread(fd, &at[i], sizeof at[i], 0) != sizeof at[i])
                w->n_wrong++;
        for (uint32_t i = 0; i < DMI_LIVE_REQUESTS; i++) {
            const struct dmi_live_request *q = &at[1].requests[i];
            if (at[0].requests[i].sequence % 2 || !at[0].requests[i].sequence ||
                at[0].requests[i].sequence != at[2].requests[i].sequence)
                continue;
            atomic_add_relaxed(&w->n_whole, 1);
            if (q->bytes != q->rows * ROW_BYTES || q->last_step < q->first_step)
                w->n_wrong++;
        }
    }
    return NULL;
}

START_TEST(no_entry_is_torn)
{
    struct run *run = kit_open_with(out, &with_live);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    struct watch w = { 0 };
    pthread_t thread;
    ck_assert_int_gt(asprintf(&w.path, "%s/live", folder), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, watch, &w), 0);
    const struct timespec pause = { .tv_nsec = 300000 };
    for (uint64_t i = 0; i < 2000; i++) {
        ck_assert_int_eq(kit_forward(run, i, WIDTH), 0);
        if (i % 8 == 0)
            nanosleep(&pause, NULL); /* a reader that is slower than this never sees one twice */
    }
    while (!atomic_load_relaxed(&w.n_whole))
        nanosleep(&pause, NULL);
    atomic_store_release(&w.stop, 1); /* to watch() */
    pthread_join(thread, NULL);
    free(w.path);
    ck_assert_uint_eq(w.n_wrong, 0);
    expect(run_live(run), "b", DMI_LIVE_REQUEST_RUNS, 2000, 4000);
    ck_assert_int_eq(run_close(run), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("storage_live");
    TCase *tc = tcase_create("live");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, it_follows_what_is_committed);
    tcase_add_test(tc, rows_of_steps_that_were_forgotten_are_nobodys);
    tcase_add_test(tc, where_it_cannot_be_written_the_run_is_what_it_was);
    tcase_add_test(tc, no_entry_is_torn);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
