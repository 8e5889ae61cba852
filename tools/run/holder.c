/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run/holder.h"

#include "core/cleanup.h"
#include "tools/common/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define GROUP_NS  20000000 /* a supervisor signals the processes of a group one after the other */
#define ANSWER_MS 1000     /* a holder that is stopped does not answer */
#define LOOK_MS   2000

enum { MEMORY = 3, ASKED, ANSWERS, N_FDS }; /* descriptors of the holder */

/* ------------------------------------------------------------------------- whom it is for */

/* Some process that was started with a holder's path in its environment. Return: its id, 0: there is none. */
static pid_t find_user(const char *path)
{
    struct processes all = { 0 };
    pid_t found = 0;
    if (!processes_read(&all))
        for (size_t i = 0; i < all.n && !found; i++)
            if (process_has_entry(all.list[i].pid, HOLDER_VARIABLE "=", path))
                found = all.list[i].pid;
    processes_deinit(&all);
    return found;
}

bool holder_is_used(const struct holder *h)
{
    return find_user(h->path) != 0;
}

/* ------------------------------------------------------------------------- the process */

/* Until no process of the command is left. */
static void wait_for_users(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), MEMORY);
    for (pid_t user; (user = find_user(path));) {
        _cleanup_(closep) int fd = (int)syscall(SYS_pidfd_open, user, 0);
        struct pollfd p = { .fd = fd, .events = POLLIN };
        poll(&p, 1, fd < 0 ? LOOK_MS : -1);
    }
}

/* A signal that waits here, or comes in a moment, is taken. Return: @number; the same below 0 where there is none. */
static signed char take_signal(signed char number)
{
    sigset_t set;
    struct timespec most = { .tv_nsec = GROUP_NS };
    sigemptyset(&set);
    sigaddset(&set, number);
    return sigtimedwait(&set, NULL, &most) == number ? number : (signed char)-number;
}

/* dmi-run is not to be found by its words here: a signal to what is called so must not seem to go to the group. */
static void rename_it(char **argv)
{
    char *end = argv[0];
    for (char **word = argv; *word; word++)
        end = *word == end || word == argv ? *word + strlen(*word) + 1 : end;
    memset(argv[0], 0, (size_t)(end - argv[0]));
    snprintf(argv[0], (size_t)(end - argv[0]), "dmi-edits");
    prctl(PR_SET_NAME, "dmi-edits");
}

/* Nothing of what dmi-run was given stays open. @fds: in the order of the enumeration */
static void keep_only(const int fds[N_FDS])
{
    int high[N_FDS], null = open("/dev/null", O_RDWR);
    for (int i = MEMORY; i < N_FDS; i++)
        high[i] = fcntl(fds[i], F_DUPFD, 64);
    for (int i = 0; i < MEMORY; i++)
        dup2(null, i);
    for (int i = MEMORY; i < N_FDS; i++)
        dup2(high[i], i);
    syscall(SYS_close_range, N_FDS, ~0u, 0);
}

static void hold(const int fds[N_FDS], char **argv)
{
    signed char number = 0;
    keep_only(fds);
    rename_it(argv);
    if (chdir("/")) {
        /* then a folder stays in use */
    }
    /* the first answer: who opens the path gets the edits now */
    for (signed char answer = 0; write(ANSWERS, &answer, 1) == 1; answer = take_signal(number))
        if (read(ASKED, &number, 1) != 1)
            break;
    close(ASKED);
    close(ANSWERS);
    wait_for_users();
    _exit(0);
}

int holder_start(struct holder *h, struct err *err, int memory, char **argv)
{
    _cleanup_(closep) int owned = memory;
    int ask[2], answer[2];
    *h = (struct holder){ 0 };
    if (pipe2(ask, O_CLOEXEC))
        return err_set_errno(err, errno, "no pipe");
    if (pipe2(answer, O_CLOEXEC)) {
        close(ask[0]);
        close(ask[1]);
        return err_set_errno(err, errno, "no pipe");
    }
    const int fds[N_FDS] = { [MEMORY] = owned, [ASKED] = ask[0], [ANSWERS] = answer[1] };
    pid_t pid = fork();
    int why = errno;
    if (!pid)
        hold(fds, argv);
    close(ask[0]);
    close(answer[1]);
    if (pid < 0) {
        close(ask[1]);
        close(answer[0]);
        return err_set_errno(err, why, "no process");
    }
    *h = (struct holder){ .pid = pid,
                          .ask = fcntl(ask[1], F_DUPFD_CLOEXEC, 3),
                          .answer = fcntl(answer[0], F_DUPFD_CLOEXEC,
                                          3) }; /* 0 to 2 may have been closed */
    close(ask[1]);
    close(answer[0]);
    snprintf(h->path, sizeof h->path, "/proc/%d/fd/%d", (int)pid, MEMORY);
    signed char ready;
    if (read(h->answer, &ready, 1) == 1)
        return 0;
    holder_leave(h);
    return err_set(err, -ECHILD, "its process has ended");
}

bool holder_got(const struct holder *h, int number)
{
    signed char ask = (signed char)number, answer = 0;
    struct pollfd p = { .fd = h->answer, .events = POLLIN };
    if (write(h->ask, &ask, 1) != 1)
        return false;
    /* what it answers late is of another question */
    while (answer != ask && answer != -ask)
        if (poll(&p, 1, ANSWER_MS) <= 0 || read(h->answer, &answer, 1) != 1)
            return false;
    return answer == ask;
}

void holder_leave(struct holder *h)
{
    if (!h->pid)
        return;
    close(h->ask);
    close(h->answer);
    h->pid = 0;
}
