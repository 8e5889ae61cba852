/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes past the page cache: which way they go, and that the file holds the same whichever it was. pwritev() is this
 * program's own, so that a test sees each call, and can refuse, shorten or fail it.
 */
#include "core/cleanup.h"
#include "storage/direct.h"
#include "storage/file.h"
#include "tests/unit/storage_kit.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static struct {
    unsigned n_direct, n_other;
    unsigned refuse; /* direct calls from this number on are EINVAL; 0: none */
    size_t most;     /* bytes of a direct call; 0: all */
    int error;       /* of the direct call number error_at */
    unsigned error_at;
} calls;

static bool is_aligned(const struct iovec *piece, off_t offset, size_t n)
{
    return (uintptr_t)piece->iov_base % DIRECT_ALIGN == 0 && offset % DIRECT_ALIGN == 0 &&
           n % DIRECT_ALIGN == 0;
}

ssize_t pwritev(int fd, const struct iovec *pieces, int n, off_t offset)
{
    size_t length = pieces[0].iov_len;
    if (!(fcntl(fd, F_GETFL) & O_DIRECT)) {
        calls.n_other++;
        ssize_t done = 0;
        for (int i = 0; i < n; i++)
            done += pwrite(fd, pieces[i].iov_base, pieces[i].iov_len, offset + done);
        return done;
    }
    ck_assert(n == 1 && is_aligned(pieces, offset, length));
    calls.n_direct++;
    if (calls.error && calls.n_direct == calls.error_at) {
        errno = calls.error;
        return -1;
    }
    if (calls.refuse && calls.n_direct >= calls.refuse) {
        errno = EINVAL;
        return -1;
    }
    if (!calls.most || length <= calls.most)
        return pwrite(fd, pieces[0].iov_base, length, offset);
    /* as much as the system would take of it: the rest of a block, too */
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
    ssize_t done = pwrite(fd, pieces[0].iov_base, calls.most, offset);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT);
    return done;
}

static char *folder;
static struct file file;
static struct direct direct;
static uint8_t *data, *found;

#define N (10u << 20)

static void setup(void)
{
    char path[4096];
    memset(&calls, 0, sizeof calls);
    direct = (struct direct){ .cost = { 2, 1 } }; /* direct writes cost less */
    folder = kit_folder();
    snprintf(path, sizeof path, "%s/file", folder);
    ck_assert_int_eq(file_create(&file, path), 0);
    file.direct = &direct;
    data = malloc(N);
    found = malloc(N);
    uint64_t state = 7;
    for (size_t i = 0; i < N; i += 8) {
        uint64_t x = kit_random(&state);
        memcpy(data + i, &x, 8);
    }
}

static void teardown(void)
{
    file_deinit(&file);
    direct_deinit(&direct);
    kit_remove(folder);
    free(folder);
    free(data);
    free(found);
}

/* @n bytes of data from @at on, in pieces of odd sizes, to the same place of the file. */
static int put(size_t at, size_t n)
{
    struct iovec pieces[5];
    const size_t sizes[] = { 64, 0, 1001, n / 3, 0 };
    size_t done = 0;
    for (int i = 0; i < 5; i++) {
        size_t size = i == 4 ? n - done : sizes[i] < n - done ? sizes[i] : n - done;
        pieces[i] = (struct iovec){ size ? data + at + done : NULL, size };
        done += size;
    }
    return file_write_at(&file, pieces, 5, at);
}

static void expect(size_t n)
{
    int fd = open(file.path, O_RDONLY);
    ck_assert_int_eq(pread(fd, found, N, 0), n);
    close(fd);
    ck_assert(!memcmp(found, data, n));
    ck_assert(!(fcntl(file.fd, F_GETFL) & O_DIRECT)); /* of the next one nobody knows */
}

/* Of a file system that has no such writes nothing is to be seen here. */
static bool has_direct(void)
{
    int flags = fcntl(file.fd, F_GETFL);
    bool has = !fcntl(file.fd, F_SETFL, flags | O_DIRECT);
    fcntl(file.fd, F_SETFL, flags);
    return has;
}

START_TEST(all_of_it_at_any_offset)
{
    static const size_t sizes[] = { 100, DIRECT_LEAST,          DIRECT_LEAST + 1, 4096 * 300,
                                    77,  DIRECT_BUFFER + 12345, DIRECT_LEAST - 1 };
    size_t end = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ck_assert_int_eq(put(end, sizes[i]), 0);
        end += sizes[i];
        direct.cost[true] = 1; /* whatever it was */
        direct.cost[false] = 2;
    }
    expect(end);
    ck_assert(calls.n_direct >= 5 || !has_direct());
}
END_TEST

START_TEST(a_file_system_that_refuses_gets_it_the_other_way)
{
    calls.refuse = 2; /* in the middle of a write */
    ck_assert_int_eq(put(0, 9u << 20), 0);
    expect(9u << 20);
    ck_assert(direct.off);
    unsigned before = calls.n_direct;
    ck_assert_int_eq(put(9u << 20, 1u << 20), 0);
    ck_assert_uint_eq(calls.n_direct, before);
    expect(10u << 20);
}
END_TEST

START_TEST(a_short_write_is_finished)
{
    calls.most = 1000001; /* no whole number of blocks */
    ck_assert_int_eq(put(0, 5u << 20), 0);
    expect(5u << 20);
}
END_TEST

START_TEST(an_error_is_an_error)
{
    if (!has_direct())
        return;
    ck_assert_int_eq(put(0, 100), 0);
    calls.error = ENOSPC;
    calls.error_at = 2;
    ck_assert_int_eq(put(100, 9u << 20), -ENOSPC);
    ck_assert_int_eq(file_cut(&file, 100), 0);
    calls.error_at = 0;
    ck_assert_int_eq(put(100, 9u << 20), 0);
    expect(100 + (9u << 20));
}
END_TEST

START_TEST(what_costs_less_is_taken)
{
    const struct direct_time long_ago = { 0, 0 };
    struct direct d = { 0 };
    ck_assert(!direct_is_next(&d)); /* first the one way, */
    d.cost[false] = 1;
    ck_assert(direct_is_next(&d)); /* then the other, */
    d.cost[true] = 0.5;
    for (d.n_written = 0; d.n_written < DIRECT_TRY; d.n_written++) /* and now and then the worse */
        ck_assert(direct_is_next(&d) == (d.n_written != DIRECT_TRY - 1));
    d.cost[true] = 2;
    ck_assert(!direct_is_next(&d));
    for (int i = 0; i < 10; i++) /* it has become slow */
        direct_note(&d, false, 1, &long_ago);
    ck_assert(d.cost[false] > d.cost[true]);
    d.n_written = 0;
    ck_assert(direct_is_next(&d));
    d.off = true;
    ck_assert(!direct_is_next(&d));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("direct");
    TCase *tc = tcase_create("direct");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, all_of_it_at_any_offset);
    tcase_add_test(tc, a_file_system_that_refuses_gets_it_the_other_way);
    tcase_add_test(tc, a_short_write_is_finished);
    tcase_add_test(tc, an_error_is_an_error);
    tcase_add_test(tc, what_costs_less_is_taken);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
