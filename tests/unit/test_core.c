/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, log lines, scope-bound owners, sockets, sorted arrays and files without a name of core/. */
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/log.h"
#include "core/socket.h"
#include "core/sorted.h"
#include "core/unnamed.h"
#include "core/whole.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

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

/* ------------------------------------------------------------------------- sockets */

#define SOCKET_NAME "a socket"

static int socket_folder = -1; /* the folder that listen() looks into */

/* Stands before the C library's: what a client could see at this moment. */
int listen(int fd, int backlog)
{
    if (socket_folder >= 0)
        ck_assert_int_ne(faccessat(socket_folder, SOCKET_NAME, F_OK, 0), 0);
    return (int)syscall(SYS_listen, fd, backlog);
}

static int files_in(const char *folder)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, NULL);
    for (int i = 0; i < n; i++)
        free(entries[i]);
    free(entries);
    return n - 2;
}

/* Return: whether somebody listens at @path. */
static bool answers(const char *path)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    _cleanup_(closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return !connect(fd, (struct sockaddr *)&at, sizeof at);
}

START_TEST(a_socket_is_not_seen_before_it_listens)
{
    char folder[] = "/tmp/test-socket-XXXXXX", path[64];
    struct stat st;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/" SOCKET_NAME, folder);
    socket_folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = socket_listen_at(socket_folder, SOCKET_NAME, 4);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert(answers(path));
    ck_assert_int_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    int folder_of_first = socket_folder;
    socket_folder = -1;
    ck_assert_int_eq(socket_listen_at(folder_of_first, SOCKET_NAME, 4), -EEXIST);
    ck_assert(answers(path));
    ck_assert_int_eq(files_in(folder), 1);
    close(fd);
    unlink(path);
    close(folder_of_first);
    rmdir(folder);
}
END_TEST

START_TEST(a_search_finds_the_first_that_is_not_before)
{
    static const int sorted[] = { 1, 3, 3, 3, 8 };
    static const size_t first[] = {
        0, 0, 1, 1, 4, 4, 4, 4, 4, 5
    }; /* by the number that is looked for */
    for (int sought = 0; sought < 10; sought++)
        for (size_t n = 0; n <= 5; n++) {
            size_t i = 99;
            SEARCH(i, n, sorted[i] < sought);
            ck_assert_uint_eq(i, first[sought] < n ? first[sought] : n);
        }
}
END_TEST

struct pair {
    unsigned first, second;
};

static int pair_order(const struct pair *a, const struct pair *b)
{
    ORDER(a, b, first);
    ORDER(a, b, second);
    return 0;
}

START_TEST(the_first_field_that_differs_decides_an_order)
{
    const struct pair low = { 1, UINT_MAX }, high = { UINT_MAX, 0 }, higher = { UINT_MAX, 1 };
    ck_assert_int_eq(pair_order(&low, &high), -1);
    ck_assert_int_eq(pair_order(&high, &low), 1);
    ck_assert_int_eq(pair_order(&high, &higher), -1);
    ck_assert_int_eq(pair_order(&higher, &high), 1);
    ck_assert_int_eq(pair_order(&low, &low), 0);
}
END_TEST

/* What is beyond its end, and a folder that is not there, are errors. */
START_TEST(a_file_without_a_name_lies_in_the_folder_that_is_said)
{
    char got[8] = { 0 }, was[PATH_MAX] = "/tmp";
    const char *folder = getenv("TMPDIR");
    if (folder)
        snprintf(was, sizeof was, "%s", folder);
    int fd = unnamed_open();
    struct stat about;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fstat(fd, &about), 0);
    ck_assert_uint_eq(about.st_nlink, 0);
    ck_assert_int_eq(whole_write(fd, "somewhere", 9, 5), 0);
    ck_assert_int_eq(whole_read(fd, got, 4, 9), 0);
    ck_assert_str_eq(got, "wher");
    ck_assert_int_eq(whole_read(fd, got, 8, 9), -EIO);
    close(fd);
    setenv("TMPDIR", "/nowhere/at/all", 1);
    ck_assert_int_eq(unnamed_open(), -ENOENT);
    setenv("TMPDIR", was, 1);
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
    tcase_add_test(tests, a_socket_is_not_seen_before_it_listens);
    tcase_add_test(tests, a_search_finds_the_first_that_is_not_before);
    tcase_add_test(tests, the_first_field_that_differs_decides_an_order);
    tcase_add_test(tests, a_file_without_a_name_lies_in_the_folder_that_is_said);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
