/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, log lines, scope-bound owners, sockets, sorted arrays and files without a name of core/. */
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/log.h"
#include "core/quiet.h"
#include "core/socket.h"
#include "core/sorted.h"
#include "core/unnamed.h"
#include "core/whole.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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

/* Descriptor 2 becomes @fd, which is closed, and is what the process began with. */
static void begin_with(int fd)
{
    ck_assert_int_eq(dup2(fd, STDERR_FILENO), STDERR_FILENO);
    close(fd);
    log_init(NULL);
    log_note_start();
}

START_TEST(a_log_without_a_reader_raises_no_signal)
{
    int ends[2];
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    signal(SIGPIPE, SIG_DFL);
    if (_i) /* as an application that has one pending: it stays */
        ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, &set, NULL) || raise(SIGPIPE), 0);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    begin_with(ends[1]);
    close(ends[0]);
    errno = EXDEV;
    log_line("nobody reads this");
    ck_assert_int_eq(errno, EXDEV);
    struct quiet quiet; /* as a reader that goes between the line's open() and its write() */
    quiet_begin(&quiet);
    ck_assert_int_eq(write(STDERR_FILENO, "x", 1), -1);
    quiet_end(&quiet);
    ck_assert_int_eq(errno, EPIPE);
    sigpending(&pending);
    ck_assert_int_eq(sigismember(&pending, SIGPIPE), _i);
}
END_TEST

START_TEST(a_log_beyond_the_size_of_files_raises_no_signal)
{
    char path[64];
    temporary(path);
    signal(SIGXFSZ, SIG_DFL);
    log_init(path);
    struct rlimit before, none;
    getrlimit(RLIMIT_FSIZE, &before);
    none = (struct rlimit){ 0, before.rlim_max };
    setrlimit(RLIMIT_FSIZE, &none);
    log_line("no room");
    setrlimit(RLIMIT_FSIZE, &before); /* Check writes files, too */
    unlink(path);
}
END_TEST

START_TEST(a_line_never_lands_in_a_file_that_got_the_number_of_stderr)
{
    int ends[2];
    char path[64];
    struct stat st;
    temporary(path);
    unlink(path);
    if (_i) { /* as a process that began without one */
        close(STDERR_FILENO);
        log_init(NULL);
        log_note_start();
    } else {
        ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
        begin_with(ends[1]);
        close(STDERR_FILENO);
    }
    ck_assert_int_eq(open(path, O_RDWR | O_CREAT, 0600), STDERR_FILENO);
    log_line("not here");
    ck_assert_int_eq(fstat(STDERR_FILENO, &st), 0);
    ck_assert_int_eq(st.st_size, 0);
    unlink(path);
}
END_TEST

enum { PIPE, SOCKET, TERMINAL, N_KINDS };

static void make_channel(int kind, int ends[2])
{
    if (kind == PIPE)
        ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    if (kind == SOCKET)
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    if (kind != TERMINAL)
        return;
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
    ck_assert_int_eq(grantpt(ends[0]) || unlockpt(ends[0]), 0);
    ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
    ck_assert_int_ge(ends[1], 0);
}

START_TEST(a_reader_that_does_not_read_holds_nobody_up)
{
    int ends[2];
    make_channel(_i, ends);
    int shared = fcntl(ends[1], F_GETFL);
    fcntl(ends[1], F_SETFL, shared | O_NONBLOCK);
    for (int i = 0; i < 10; i++, usleep(2000)) /* the kernel moves on what a terminal has taken */
        while (write(ends[1], "the application's own\n", 22) > 0)
            continue;
    fcntl(ends[1], F_SETFL, shared);
    begin_with(ends[1]);
    uint64_t begin = clock_mono_ns();
    for (int i = 0; i < 50; i++)
        log_line("line %d", i);
    ck_assert_uint_lt(clock_mono_ns() - begin, 3000000000u);
    ck_assert_int_eq(fcntl(STDERR_FILENO, F_GETFL), shared);
    static char text[1 << 20]; /* once it reads again, it learns what it missed */
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    while (read(ends[0], text, sizeof text) > 0)
        continue;
    log_line("again");
    for (size_t n = 0, i = 0; i < 200 && !strstr(text, "again"); i++) {
        ssize_t got = read(ends[0], text + n, sizeof text - 1 - n);
        text[n += got > 0 ? (size_t)got : 0] = 0;
        usleep(got > 0
                   ? 0
                   : 5000); /* what the kernel has taken from a terminal arrives a little later */
    }
    ck_assert_msg(strstr(text, "lines are lost here)") && strstr(text, "dmi: again"), "%s", text);
}
END_TEST

START_TEST(a_log_that_is_a_pipe_of_the_file_system_needs_no_reader)
{
    char path[64];
    temporary(path);
    unlink(path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    log_init(path);
    log_line("nobody reads this");
    unlink(path);
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
    ck_assert_int_eq(whole_read(fd, got, 8, 9), -ENODATA);
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
    tcase_add_loop_test(tests, a_log_without_a_reader_raises_no_signal, 0, 2);
    tcase_add_test(tests, a_log_beyond_the_size_of_files_raises_no_signal);
    tcase_add_loop_test(tests, a_line_never_lands_in_a_file_that_got_the_number_of_stderr, 0, 2);
    tcase_add_loop_test(tests, a_reader_that_does_not_read_holds_nobody_up, 0, N_KINDS);
    tcase_add_test(tests, a_log_that_is_a_pipe_of_the_file_system_needs_no_reader);
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
