/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/vectors_foreign.h"

#include "core/cleanup.h"
#include "tools/common/command.h"
#include "tools/common/python_of.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOT_STARTED 127
#define INTO        3 /* the descriptor that Python writes to */
/* The package's folder takes the place of the current one, from which Python would import what lies there. */
#define PROGRAM                                                                                    \
    "import sys; sys.path[0] = sys.argv.pop(1); sys.version_info < (3, 10) and sys.exit('dmi: it " \
    "takes Python 3.10 or newer, and %s is older' % sys.executable); from dmi.vectors import "     \
    "hand_over; hand_over(3, *sys.argv[1:])"

/* The process that reads, and what it has said so far: the last bytes of it. */
struct foreign_reader {
    pid_t pid;
    int said;    /* the pipe's end; -1: the other one is closed */
    int signals; /* that this program gets meanwhile */
    char text[4096];
    size_t n;
};

/* In the child, which ends with its parent. */
_Noreturn static void become_python(const struct python_words *python, const char *const *more,
                                    int said, int into, const sigset_t *mask, pid_t parent)
{
    const char *words[PYTHON_MAX_WORDS + 16] = { NULL };
    size_t n = 0;
    for (size_t i = 0; i < python->n; i++)
        words[n++] = python->words[i];
    while (*more)
        words[n++] = *more++;
    int none = open("/dev/null", O_RDWR | O_CLOEXEC);
    unsetenv("LD_PRELOAD");
    unsetenv("DMI_ATTACH");
    unsetenv("DMI_ATTACH_WRITE");
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    /* the descriptors of a pipe and of memory: above INTO, or dup2() may close one before it is taken */
    int from = fcntl(said, F_DUPFD_CLOEXEC, INTO + 1), to = fcntl(into, F_DUPFD_CLOEXEC, INTO + 1);
    if (getppid() == parent && none >= 0 && from >= 0 && to >= 0 && dup2(none, 0) == 0 &&
        dup2(none, 1) == 1 && dup2(from, 2) == 2 && dup2(to, INTO) == INTO)
        execvp(*words, (char *const *)(uintptr_t)words);
    _exit(NOT_STARTED);
}

/* What it says now; the last half stays where there is no room. */
static void read_text(struct foreign_reader *c)
{
    if (c->n == sizeof c->text - 1) {
        size_t half = c->n / 2;
        memmove(c->text, c->text + half, c->n - half);
        c->n -= half;
    }
    ssize_t got = read(c->said, c->text + c->n, sizeof c->text - 1 - c->n);
    if (got > 0)
        c->n += (size_t)got;
    else if (!got || errno != EINTR)
        c->said = -1;
    c->text[c->n] = 0;
}

/* Its last line that begins with "dmi: ", without "PATH: "; else its last line. */
static const char *reason(char *said, const char *path)
{
    const char *found = said;
    size_t k = strlen(path);
    bool own = false;
    char *rest = NULL;
    for (char *line = strtok_r(said, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        bool is = !strncmp(line, "dmi: ", 5);
        found = is ? line + 5 : own ? found : line;
        own = own || is;
    }
    return strncmp(found, path, k) || strncmp(found + k, ": ", 2) ? found : found + k + 2;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Until it has ended, a signal has come, or the time is over: it has ended afterwards. Return: the signal, -1: the time, 0: it ended by itself. */
static int wait_for(struct foreign_reader *c, int *status)
{
    int64_t end = now_ms() + FOREIGN_WALL_S * 1000;
    int why = 0;
    for (;;) {
        struct pollfd of[] = { { c->signals, POLLIN, 0 }, { c->said, POLLIN, 0 } };
        int64_t left = end - now_ms();
        int n = left > 0 ? poll(of, 2, (int)left) : 0;
        struct signalfd_siginfo info = { 0 };
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 && (why = -1))
            break;
        if (of[1].revents)
            read_text(c);
        if (of[0].revents && read(c->signals, &info, sizeof info) == sizeof info &&
            info.ssi_signo != SIGCHLD && (why = (int)info.ssi_signo))
            break;
        if (info.ssi_signo == SIGCHLD && waitpid(c->pid, status, WNOHANG) == c->pid)
            break;
    }
    if (why) {
        kill(-c->pid, SIGKILL);
        kill(c->pid, SIGKILL);
        while (waitpid(c->pid, status, 0) < 0 && errno == EINTR)
            continue;
    }
    while (c->said >= 0 && poll(&(struct pollfd){ c->said, POLLIN, 0 }, 1, 0) > 0)
        read_text(c);
    return why;
}

/* Signals that end this program, but those that it was started to ignore; and that of a child's end. */
static void ending(sigset_t *set)
{
    static const int all[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT };
    sigemptyset(set);
    sigaddset(set, SIGCHLD);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct sigaction a;
        if (!sigaction(all[i], NULL, &a) && a.sa_handler != SIG_IGN)
            sigaddset(set, all[i]);
    }
}

static int judge(struct err *err, struct foreign_reader *c, int why, int status, const char *path,
                 const char *python)
{
    if (why < 0)
        return err_set(err, -EINVAL, "%s has not read it within %d s", python, FOREIGN_WALL_S);
    if (WIFEXITED(status) && !WEXITSTATUS(status))
        return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_STARTED && !c->n)
        return err_set(err, -EINVAL, "%s reads such files, and %s", python,
                       strcmp(python, "python3") ? "cannot be started" : "none is in PATH");
    if (!c->n && WIFSIGNALED(status))
        return err_set(err, -EINVAL, "%s, which reads such files, was ended by signal %d", python,
                       WTERMSIG(status));
    return err_set(err, -EINVAL, "%s", c->n ? reason(c->text, path) : "python3 did not end well");
}

/* Return: 0, -EINVAL; where a signal came, this program ends by it. */
static int run_python(struct err *err, const struct python_words *python, const char *const *more,
                      const char *path, int into)
{
    int ends[2], status = 0, why = 0;
    sigset_t set, mask;
    struct sigaction children = { .sa_handler = SIG_DFL }, before;
    if (pipe2(ends, O_CLOEXEC))
        return err_set(err, -EINVAL, "no pipe: %s", strerror(errno));
    _cleanup_(closep) int from = ends[0];
    ending(&set);
    sigprocmask(SIG_BLOCK, &set, &mask);
    sigaction(SIGCHLD, &children, &before); /* who ignores it gets no status */
    _cleanup_(closep) int signals = signalfd(-1, &set, SFD_CLOEXEC);
    struct foreign_reader c = { .said = from, .signals = signals };
    pid_t self = getpid();
    c.pid = signals < 0 ? -1 : fork();
    if (!c.pid)
        become_python(python, more, ends[1], into, &mask, self);
    close(ends[1]);
    if (c.pid > 0)
        why = wait_for(&c, &status);
    int r = c.pid < 0 ? err_set(err, -EINVAL, "no process: %s", strerror(errno))
                      : judge(err, &c, why, status, path, python->words[python->n - 1]);
    sigaction(SIGCHLD, &before, NULL);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    if (why > 0) {
        raise(why);
        _exit(128 + why); /* the first process of a container ends by no signal of its own */
    }
    return r;
}

int foreign_convert(struct err *err, char *const *command, const char *path, const char *layer_is)
{
    _cleanup_(freep) char *package = command_python();
    if (!package)
        return err_set(err, -EINVAL, "it is Python that reads such files");
    _cleanup_(closep) int into = memfd_create("dmi-vectors", MFD_CLOEXEC);
    if (into < 0)
        return err_set(err, -EINVAL, "no memory for what Python writes of it: %s", strerror(errno));
    const char *const more[] = { "-c", PROGRAM, package, path, layer_is, NULL };
    _cleanup_(python_words_deinit) struct python_words python;
    python_of(command, &python);
    int r = run_python(err, &python, more, path, into);
    return r ? r : steal_fd(&into);
}
