/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run/parent.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXIT_SIGNAL 128 /* and its number, where this process cannot end by it */

void parent_begin(struct parent *p)
{
    const struct sigaction usual = { .sa_handler = SIG_DFL };
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &p->mask);
    /* whoever ignores its children's ends learns no status */
    sigaction(SIGCHLD, &usual, &p->child);
}

void parent_give_up(const struct parent *p)
{
    sigaction(SIGCHLD, &p->child, NULL);
    sigprocmask(SIG_SETMASK, &p->mask, NULL);
}

/* ------------------------------------------------------------------------- the command's process */

/* *@failed, which both processes see: it could not become the command. */
static void become(const struct parent *p, pid_t dmi_run, bool *failed, int (*fn)(void *),
                   void *arg)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != dmi_run)
        raise(SIGKILL); /* it was killed before */
    parent_give_up(p);
    int status = fn(arg);
    *failed = true;
    _exit(status);
}

/* What was given to the command is the command's alone: a pipe ends when the command closes it. stderr is for what is said in the end. */
static void keep_only(const struct holder *holder)
{
    unsigned low = (unsigned)holder->ask, high = (unsigned)holder->answer;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, 0);
    dup2(null, 1);
    if (low > high) {
        low = (unsigned)holder->answer;
        high = (unsigned)holder->ask;
    }
    if (low > 3)
        syscall(SYS_close_range, 3, low - 1, 0);
    if (high > low + 1)
        syscall(SYS_close_range, low + 1, high - 1, 0);
    syscall(SYS_close_range, high + 1, ~0u, 0);
}

/* ------------------------------------------------------------------------- signals */

/* Ends, or stops, this process, unless the signal is ignored by the system. */
static void do_as_usual(int signal_number)
{
    const struct sigaction usual = { .sa_handler = SIG_DFL };
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal_number);
    sigaction(signal_number, &usual, NULL);
    raise(signal_number);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    sigprocmask(SIG_BLOCK, &one, NULL);
}

/* The command has stopped: whoever started dmi-run sees the same, until it is continued. That may be already: the group stopped as one. */
static void stop_as(const struct holder *holder, int signal_number)
{
    sigset_t waiting;
    if (!sigpending(&waiting) && sigismember(&waiting, SIGCONT))
        return;
    do_as_usual(signal_number);
    holder_got(holder, signal_number); /* one of the terminal's, which this process has not taken */
}

/* One that went to the whole group, as those of a terminal do, the command has already. */
static void pass_on(const struct holder *holder, pid_t command, const siginfo_t *s)
{
    bool own = s->si_code == SI_USER && s->si_pid == getpid(); /* SIGPIPE of a line on stderr */
    if (own || holder_got(holder, s->si_signo))
        return;
    if (s->si_code == SI_QUEUE)
        sigqueue(command, s->si_signo, s->si_value);
    else
        kill(command, s->si_signo);
}

/* Takes what is known of children; process 1 has others'. Return: true once the command has ended, with *@status. */
static bool has_ended(const struct holder *holder, pid_t command, int *status)
{
    for (pid_t pid; (pid = waitpid(-1, status, WNOHANG | WUNTRACED)) > 0;) {
        if (pid != command)
            continue;
        if (!WIFSTOPPED(*status))
            return true;
        stop_as(holder, WSTOPSIG(*status));
    }
    return false;
}

static int wait_for(const struct holder *holder, pid_t command)
{
    sigset_t all;
    siginfo_t s;
    int status;
    sigfillset(&all);
    while (!has_ended(holder, command, &status))
        if (sigwaitinfo(&all, &s) > 0 && s.si_signo != SIGCHLD)
            pass_on(holder, command, &s);
    return status;
}

int parent_run(const struct parent *p, const struct holder *holder, int (*fn)(void *), void *arg,
               bool *ran)
{
    bool *failed =
        mmap(NULL, sizeof *failed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (failed == MAP_FAILED)
        return -1;
    pid_t dmi_run = getpid(), command = fork();
    if (!command)
        become(p, dmi_run, failed, fn, arg);
    if (command < 0)
        return -1;
    keep_only(holder);
    int status = wait_for(holder, command);
    *ran = !*failed;
    return status;
}

void parent_may_end(const struct parent *p)
{
    static const int ends[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM };
    const struct timespec none = { 0 };
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (!sigismember(&p->mask, ends[i]))
            sigaddset(&set, ends[i]);
    while (sigtimedwait(&set, NULL, &none) > 0) {} /* they were the command's */
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

int parent_status(int status)
{
    const struct rlimit none = { 0 };
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    setrlimit(RLIMIT_CORE, &none); /* the command has left one, where one is wanted */
    do_as_usual(WTERMSIG(status));
    return EXIT_SIGNAL + WTERMSIG(status);
}
