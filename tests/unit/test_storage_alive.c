/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run counts as running exactly while its process lives. Each test runs three times: with locks, where locks do not
 * outlast their descriptor (overlayfs: a mapping refers to another open file), and where there are none.
 */
#include "core/cleanup.h"
#include "storage/alive.h"
#include "storage/reader/release.h"
#include "storage/writer/counters.h"
#include "tests/unit/storage_kit.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum locks { LOCKS, SHORT_LOCKS, NO_LOCKS, N_LOCKS };

static int kind_of_locks;
static struct run *closes,
    *ends; /* when it is asked for its lock; the latter writes on before, as it is killed */
static bool has_ended;

/* This program's own (its symbol is fcntl64), for all of storage. */
int fcntl(int fd, int command, ...)
{
    va_list ap;
    va_start(ap, command);
    void *arg = va_arg(ap, void *);
    va_end(ap);
    if (command == F_GETLK && closes) {
        struct run *run = closes;
        closes = NULL;
        ck_assert_int_eq(run_close(run), 0);
    }
    if (command == F_GETLK && ends) {
        struct run *run = ends;
        ends = NULL;
        for (uint64_t n = 20; n < 60; n++)
            ck_assert_int_eq(kit_forward(run, n, 64), 0);
        has_ended = true;
    }
    if (command == F_GETLK && has_ended) {
        ((struct flock *)arg)->l_type = F_UNLCK;
        return 0;
    }
    if (kind_of_locks == NO_LOCKS && (command == F_OFD_SETLK || command == F_GETLK)) {
        errno = ENOSYS;
        return -1;
    }
    if (kind_of_locks == SHORT_LOCKS && command == F_OFD_SETLK)
        return 0;
    return (int)syscall(SYS_fcntl, fd, command, arg);
}

static char *out;

static void setup(void)
{
    out = kit_folder();
}

static void teardown(void)
{
    kit_remove(out);
    free(out);
}

static uint32_t state_in(const char *folder)
{
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, false);
    return reader_run(reader)->state;
}

/* ------------------------------------------------------------------------- the process that writes */

/* Of another process, which says when its run is there and goes on as told; it ends with the test. */
struct writer {
    pid_t pid;
    int said, told;
};

static void tell(const struct writer *w)
{
    ck_assert_int_eq(write(w->told, "", 1), 1);
}

static void hear(const struct writer *w)
{
    char c;
    ck_assert_int_eq(read(w->said, &c, 1), 1);
}

/* Whatever it does with files: it opens, reads and closes all of the run, and closes all descriptors but the two. */
static void use_files(int in, int done)
{
    _cleanup_(freep) char *folder = kit_run_folder(out);
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir));) {
        char first[64];
        int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC);
        if (e->d_name[0] != '.' && read(fd, first, sizeof first) < 0)
            _exit(1);
        close(dup(fd));
        close(fd);
    }
    closedir(dir);
    for (int fd = 3; fd < 256; fd++)
        if (fd != in && fd != done)
            close(fd);
}

/* @outlived: by a child that does not execute anything, and holds what it inherits. */
static void write_run(int in, int done, bool outlived)
{
    char c;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct run *run = kit_open(out, 1 << 20);
    if (kit_forward(run, 0, 8) || write(done, "", 1) != 1 || read(in, &c, 1) != 1)
        _exit(1);
    use_files(in, done);
    if (outlived && !fork()) {
        close(done);
        for (;;)
            if (read(in, &c, 1) <= 0)
                _exit(0);
    }
    if (kit_forward(run, 1, 8) || write(done, "", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static struct writer start_writer(bool outlived)
{
    int in[2], done[2];
    ck_assert(!pipe2(in, O_CLOEXEC) && !pipe2(done, O_CLOEXEC));
    pid_t pid = fork();
    if (!pid) {
        close(in[1]);
        close(done[0]);
        write_run(in[0], done[1], outlived);
    }
    close(in[0]);
    close(done[1]);
    struct writer w = { pid, done[0], in[1] };
    hear(&w);
    return w;
}

/* Its end, before anybody has waited for it: until then it is a process without memory. */
static void kill_writer(const struct writer *w)
{
    siginfo_t info;
    ck_assert_int_eq(kill(w->pid, SIGKILL), 0);
    ck_assert_int_eq(waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOWAIT), 0);
}

static void end_writer(const struct writer *w)
{
    ck_assert_int_eq(waitpid(w->pid, NULL, 0), w->pid);
    close(w->told); /* a child of it ends, too */
    close(w->said);
}

/* ------------------------------------------------------------------------- tests */

START_TEST(what_the_process_does_with_its_files_ends_nothing)
{
    kind_of_locks = _i;
    struct writer w = start_writer(false);
    ck_assert_uint_eq(state_in(out), READER_RUNNING);
    tell(&w);
    hear(&w);
    ck_assert_uint_eq(state_in(out), READER_RUNNING);
    ck_assert_int_eq(kill(w.pid, SIGSTOP), 0);
    ck_assert_uint_eq(state_in(out), READER_RUNNING);
    kill_writer(&w);
    ck_assert_uint_eq(state_in(out), READER_KILLED);
    end_writer(&w);
    ck_assert_uint_eq(state_in(out), READER_KILLED);
}
END_TEST

START_TEST(a_child_that_outlives_it_keeps_nothing_alive)
{
    kind_of_locks = _i;
    struct writer w = start_writer(true);
    tell(&w);
    hear(&w);
    ck_assert_uint_eq(state_in(out), READER_RUNNING);
    kill_writer(&w);
    ck_assert_uint_eq(state_in(out), READER_KILLED);
    end_writer(&w);
}
END_TEST

START_TEST(a_reader_in_the_process_itself)
{
    kind_of_locks = _i;
    struct run *run = kit_open(out, 1 << 20);
    ck_assert_int_eq(kit_forward(run, 0, 8), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(state_in(out), READER_RUNNING);
    ck_assert_int_eq(run_close(run), 0);
    ck_assert_uint_eq(state_in(out), READER_CLOSED);
}
END_TEST

START_TEST(a_run_that_is_closed_while_it_is_opened)
{
    kind_of_locks = LOCKS;
    struct run *run = kit_open(out, 1 << 20);
    ck_assert_int_eq(kit_forward(run, 0, 8), 0);
    closes = run;
    ck_assert_uint_eq(state_in(out), READER_CLOSED);
}
END_TEST

/* What was read of the manifest before that is not written over the last one that the process wrote. */
START_TEST(a_run_whose_process_ends_while_it_is_opened)
{
    const struct run_options options = { .segment_bytes = 4000, .keep_bytes = 20000 };
    kind_of_locks = LOCKS;
    struct run *run = kit_open_with(out, &options);
    for (uint64_t n = 0; n < 20; n++)
        ck_assert_int_eq(kit_forward(run, n, 64), 0);
    ends = run;
    _cleanup_(freep) char *folder = kit_run_folder(out);
    struct err err = { 0 };
    struct reader *reader = kit_read(folder, false);
    ck_assert_uint_eq(reader_run(reader)->state, READER_KILLED);
    ck_assert_int_eq(release_read(&err, reader), 0);
    reader_close(reader);
    const struct reader_finding *damage = NULL;
    reader = kit_read(folder, true);
    ck_assert_msg(!kit_damage(reader, &damage), "%s: %s", damage ? damage->file : "",
                  damage ? damage->text : "");
    reader_close(reader);
    has_ended = false;
    run_close(run);
}
END_TEST

START_TEST(a_copy_of_the_folder_is_written_by_nobody)
{
    kind_of_locks = _i;
    static const char *const names[] = { "manifest.json", "counters", "spec.yaml",
                                         "seg-000000.dmi" };
    struct run *run = kit_open(out, 1 << 20);
    ck_assert_int_eq(kit_forward(run, 0, 8), 0);
    _cleanup_(freep) char *folder = kit_run_folder(out);
    char *copy = kit_folder();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n;
        uint8_t *data = kit_load(folder, names[i], &n);
        kit_store(copy, names[i], data, n);
        free(data);
    }
    ck_assert_uint_eq(state_in(copy), READER_KILLED);
    ck_assert_uint_eq(state_in(out), READER_RUNNING);
    ck_assert_int_eq(run_close(run), 0);
    kit_remove(copy);
    free(copy);
}
END_TEST

/* A run of this process, abandoned as a kill would. */
START_TEST(a_process_that_only_looks_like_it)
{
    kind_of_locks = _i;
    struct counters c = { 0 };
    static const uint8_t uuid[16];
    _cleanup_(freep) char *path = NULL;
    ck_assert_int_gt(asprintf(&path, "%s/counters", out), 0);
    ck_assert_int_eq(counters_create(&c, path, 0, uuid, (uint64_t)getpid(), 1), 0);
    _cleanup_(closep) int dir = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct alive_process p = c.alive.process, other;
    const struct alive_process *said = p.start_ticks ? &p : NULL;
    ck_assert(said || kind_of_locks == LOCKS);
    ck_assert(alive_is(dir, said));
    if (said) {
        other = p, other.start_ticks++; /* its pid came back */
        ck_assert(!alive_is(dir, &other));
        other = p, other.pid = 1u << 30; /* there is none */
        ck_assert(!alive_is(dir, &other));
        other = p, other.inode++;
        ck_assert(!alive_is(dir, &other));
        other = p, other.boot_id[0] ^= 1; /* another machine: only a lock could tell */
        ck_assert_int_eq(alive_is(dir, &other), kind_of_locks != SHORT_LOCKS);
        other = p, other.namespaces[0] ^= 1;
        ck_assert_int_eq(alive_is(dir, &other), kind_of_locks != SHORT_LOCKS);
    }
    counters_deinit(&c);
    ck_assert_int_eq(alive_is(dir, NULL), 0);
}
END_TEST

/* As runs before have it: the lock is a POSIX lock, and nothing is said of the process. */
START_TEST(a_run_of_an_older_writer)
{
    _cleanup_(freep) char *path = NULL;
    int ready[2], go[2];
    char c;
    kind_of_locks = LOCKS;
    ck_assert_int_gt(asprintf(&path, "%s/counters", out), 0);
    ck_assert(!pipe2(ready, O_CLOEXEC) && !pipe2(go, O_CLOEXEC));
    pid_t pid = fork();
    if (!pid) {
        struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        close(go[1]);
        _exit(fcntl(fd, F_SETLK, &lock) || write(ready[1], "", 1) != 1 || read(go[0], &c, 1));
    }
    ck_assert_int_eq(read(ready[0], &c, 1), 1);
    _cleanup_(closep) int dir = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert(alive_is(dir, NULL));
    close(go[1]);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(!alive_is(dir, NULL));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("storage_alive");
    TCase *tc = tcase_create("alive");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, what_the_process_does_with_its_files_ends_nothing, 0, N_LOCKS);
    tcase_add_loop_test(tc, a_child_that_outlives_it_keeps_nothing_alive, 0, N_LOCKS);
    tcase_add_loop_test(tc, a_reader_in_the_process_itself, 0, N_LOCKS);
    tcase_add_test(tc, a_run_that_is_closed_while_it_is_opened);
    tcase_add_test(tc, a_run_whose_process_ends_while_it_is_opened);
    tcase_add_loop_test(tc, a_copy_of_the_folder_is_written_by_nobody, 0, N_LOCKS);
    tcase_add_loop_test(tc, a_process_that_only_looks_like_it, 0, N_LOCKS);
    tcase_add_test(tc, a_run_of_an_older_writer);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
