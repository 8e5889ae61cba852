/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, log lines and scope-bound owners of core/. */
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/log.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

START_TEST(the_first_error_stands)
{
    struct err err = { 0 };
    ck_assert_int_eq(err_set(&err, -EINVAL, "bad %s", "apple"), -EINVAL);
    ck_assert_int_eq(err_set(&err, -ENOMEM, "another"), -ENOMEM);
    ck_assert_int_eq(err.code, -EINVAL);
    ck_assert_str_eq(err.msg, "bad apple");
    ck_assert_int_eq(err_prefix(&err, "basket %d", 3), -EINVAL);
    ck_assert_str_eq(err.msg, "basket 3: bad apple");
}
END_TEST

START_TEST(an_errno_is_named)
{
    struct err err = { 0 };
    ck_assert_int_eq(err_set_errno(&err, ENOENT, "cannot open %s", "x"), -ENOENT);
    ck_assert_str_eq(err.msg, "cannot open x: No such file or directory");
}
END_TEST

START_TEST(nobody_needs_to_listen)
{
    ck_assert_int_eq(err_set(NULL, -EIO, "unheard"), -EIO);
    ck_assert_int_eq(err_set_errno(NULL, EIO, "unheard"), -EIO);
    ck_assert_int_eq(err_prefix(NULL, "unheard"), 0);
}
END_TEST

START_TEST(a_long_message_is_cut_and_never_overruns)
{
    struct {
        struct err err;
        char canary[64];
    } box;
    memset(&box, 0, sizeof box);
    memset(box.canary, 'c', sizeof box.canary);
    char text[4096];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    err_set(&box.err, -EINVAL, "%s", text);
    ck_assert_uint_lt(strlen(box.err.msg), sizeof box.err.msg);
    err_prefix(&box.err, "%s", text);
    ck_assert_uint_lt(strlen(box.err.msg), sizeof box.err.msg);
    for (size_t i = 0; i < sizeof box.canary; i++)
        ck_assert_int_eq(box.canary[i], 'c');
}
END_TEST

static void temporary(char *path)
{
    strcpy(path, "/tmp/dmi-test-core-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    unlink(path);
}

START_TEST(log_lines_are_appended_whole_and_errno_is_kept)
{
    char path[64], text[4096] = "", long_line[3000];
    temporary(path);
    memset(long_line, 'y', sizeof long_line - 1);
    long_line[sizeof long_line - 1] = 0;
    log_init(path);
    errno = EXDEV;
    log_line("one %d", 1);
    log_line("%s", long_line);
    log_line("two");
    ck_assert_int_eq(errno, EXDEV);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    _cleanup_(closep) int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    ck_assert_int_gt(n, 0);
    ck_assert_int_eq(strncmp(text, "dmi: one 1\ndmi: yyy", 19), 0);
    ck_assert_str_eq(text + n - 9, "dmi: two\n");
    ck_assert_int_le(n, 11 + 1002 + 9);
    unlink(path);
}
END_TEST

START_TEST(a_log_that_goes_nowhere_writes_nothing_and_keeps_errno)
{
    log_init("none");
    errno = EXDEV;
    log_line("unseen");
    ck_assert_int_eq(errno, EXDEV);
    log_init("/nonexistent/folder/log");
    log_line("unseen");
    ck_assert_int_eq(errno, EXDEV);
}
END_TEST

START_TEST(an_owner_that_was_handed_over_is_left_alone)
{
    char path[64];
    temporary(path);
    int kept = -1;
    {
        _cleanup_(closep) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        ck_assert_int_ge(fd, 0);
        kept = steal_fd(&fd);
        ck_assert_int_eq(fd, -1);
    }
    ck_assert_int_ge(fcntl(kept, F_GETFD), 0);
    errno = EXDEV;
    {
        _cleanup_(closep) int fd = kept;
        (void)fd;
    }
    ck_assert_int_eq(errno, EXDEV);
    ck_assert_int_eq(fcntl(kept, F_GETFD), -1);
    char *text = strdup("kept"), *taken;
    {
        _cleanup_(freep) char *owner = text;
        taken = steal_ptr(owner);
        ck_assert_ptr_null(owner);
    }
    ck_assert_str_eq(taken, "kept");
    free(taken);
    unlink(path);
}
END_TEST

START_TEST(monotonic_time_does_not_go_back)
{
    uint64_t last = clock_mono_ns();
    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_mono_ns();
        ck_assert_uint_ge(now, last);
        last = now;
    }
    ck_assert_uint_gt(clock_real_ns(), 1600000000ull * 1000000000u);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core");
    TCase *tests = tcase_create("core");
    tcase_add_test(tests, the_first_error_stands);
    tcase_add_test(tests, an_errno_is_named);
    tcase_add_test(tests, nobody_needs_to_listen);
    tcase_add_test(tests, a_long_message_is_cut_and_never_overruns);
    tcase_add_test(tests, log_lines_are_appended_whole_and_errno_is_kept);
    tcase_add_test(tests, a_log_that_goes_nowhere_writes_nothing_and_keeps_errno);
    tcase_add_test(tests, an_owner_that_was_handed_over_is_left_alone);
    tcase_add_test(tests, monotonic_time_does_not_go_back);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
