/* SPDX-License-Identifier: Apache-2.0 */
/*
 * facts: what a CUDA driver and device really do where DMI's design depends on it. One table of answers and
 * figures. It needs libcuda.so.1 and no other file.
 *
 * Every question has a process of its own, which is ended when it takes too long: a crash, a hang or a context
 * that is broken costs one answer. This process never loads the driver.
 */
#include "facts.h"
#include "report.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_SKIPPED 77
#define INIT_SECONDS 40 /* of a driver that no process has used yet */

static const struct question {
    const char *name, *text;
    void (*ask)(void);
    bool bare, may_crash;
} questions[] = {
#define QUESTION(name, text) { #name, text, ask_##name, false, false },
#define BARE(name, text)     { #name, text, ask_##name, true, false },
#define CROSSED(name, text)  { #name, text, ask_##name, false, true },
#include "questions.def"
#undef QUESTION
#undef BARE
#undef CROSSED
};

static const char usage[] =
    "Usage: facts [--list] [--tsv] [--loading MODE] [--limit SECONDS] [--total SECONDS] "
    "[QUESTION...]\n"
    "Ask a CUDA driver and its first device what DMI's design relies on.\n"
    "\n"
    "  --list             print the questions\n"
    "  --tsv              question, kind, what, answer, value and unit, separated by tabs\n"
    "  --loading MODE     CUDA_MODULE_LOADING: lazy, as a program has it (default), or eager\n"
    "  --limit SECONDS    for one question (20)\n"
    "  --total SECONDS    for all of them (100); those that are left are not asked\n"
    "\n"
    "Exit status: 0, or 1 if an answer is not what the design relies on, or a question failed; 77 "
    "if there is\n"
    "no CUDA device.\n";

static bool tsv, eager;
static unsigned limit_s = 20, total_s = 100;
static struct counts {
    unsigned asked, holds, breaks, errors, absent;
} counts;

/* ------------------------------------------------------------------ the table */

/* Answers that break a premise and errors, printed again at the end. */
static char *complaints[256];
static unsigned n_complaints;

static void complain(const char *how, const struct question *q, char *const *fields)
{
    if (n_complaints < LENGTH(complaints) &&
        asprintf(&complaints[n_complaints], "%s  %s: %s%s%s", how, q->name, fields[1],
                 *fields[2] ? ": " : "", fields[2]) > 0)
        n_complaints++;
}

static void show(const struct question *q, char *line)
{
    char *fields[5] = { line, "", "", "", "" };
    for (int i = 1; i < 5 && (line = strchr(line, '\t')); i++) {
        *line++ = 0;
        fields[i] = line;
    }
    counts.holds += !strcmp(fields[0], "holds");
    counts.breaks += !strcmp(fields[0], "breaks");
    counts.errors += !strcmp(fields[0], "error");
    counts.absent += !strcmp(fields[0], "absent");
    if (!strcmp(fields[0], "breaks"))
        complain("NO", q, fields);
    if (!strcmp(fields[0], "error"))
        complain("FAILED", q, fields);
    if (tsv)
        printf("%s\t%s\t%s\t%s\t%s\t%s\n", q->name, fields[0], fields[1], fields[2], fields[3],
               fields[4]);
    else
        printf("  %-92s %10s %-6s %s\n", fields[1], fields[3], fields[4], fields[2]);
    fflush(stdout);
}

/* Shows all complete lines of @text, which keeps the rest. */
static void show_lines(const struct question *q, char *text, size_t *n)
{
    char *end;
    while ((end = memchr(text, '\n', *n))) {
        size_t used = (size_t)(end - text) + 1;
        *end = 0;
        show(q, text);
        memmove(text, text + used, *n - used);
        *n -= used;
    }
}

/* Of its process: an error, or just an answer. */
static void show_end(const struct question *q, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define show_error(q, ...) show_end(q, "error", __VA_ARGS__)

static void show_end(const struct question *q, const char *kind, const char *fmt, ...)
{
    char answer[64], line[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(answer, sizeof answer, fmt, ap);
    va_end(ap);
    snprintf(line, sizeof line, "%s\tthe process that answers\t%s", kind, answer);
    show(q, line);
}

/* ------------------------------------------------------------------ processes */

/* Becomes the process that answers: it keeps only its pipe, and has a time limit. */
static void become_child(int fd, unsigned seconds)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(seconds + 2); /* the parent ends it earlier */
    if (fd != REPORT_FD) {
        dup2(fd, REPORT_FD);
        close(fd);
    }
}

static void answer(const struct question *q, int fd, unsigned seconds)
{
    become_child(fd, seconds);
    setenv("CUDA_MODULE_LOADING", eager ? "EAGER" : "LAZY", 1);
    CUresult r = driver_open() ? CUDA_ERROR_NO_DEVICE : q->bare ? CUDA_SUCCESS : driver_setup();
    if (r == CUDA_SUCCESS)
        q->ask();
    else
        failed(r);
    _exit(0); /* a kernel that still waits must not be waited for */
}

/* Return: the status as waitpid() has it, -1: it would not end. */
static int reap(pid_t pid)
{
    int status;
    for (int i = 0; i < 200; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        usleep(10000);
    }
    return -1;
}

static void ask(const struct question *q, unsigned seconds)
{
    int fds[2];
    if (!tsv)
        printf("\n%s: %s\n", q->name, q->text);
    fflush(stdout);
    if (pipe(fds)) {
        show_error(q, "could not have a pipe: errno %d", errno);
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        answer(q, fds[1], seconds);
    }
    close(fds[1]);
    char text[4096];
    size_t n = 0;
    uint64_t end = now_ns() + seconds * 1000000000ull;
    bool late = false;
    for (;;) {
        uint64_t now = now_ns();
        struct pollfd p = { .fd = fds[0], .events = POLLIN };
        late = now >= end;
        if (late || poll(&p, 1, (int)((end - now) / 1000000) + 1) < 0)
            break;
        ssize_t got = p.revents ? read(fds[0], text + n, sizeof text - n) : 0;
        if (p.revents && got <= 0)
            break;
        n += (size_t)got;
        show_lines(q, text, &n);
    }
    close(fds[0]);
    if (late)
        kill(pid, SIGKILL);
    int status = pid > 0 ? reap(pid) : 0;
    counts.asked++;
    if (late)
        show_error(q, "took more than %u s", seconds);
    else if (pid < 0)
        show_error(q, "its process could not be started: errno %d", errno);
    else if (status < 0)
        show_error(q, "does not end");
    else if (WIFSIGNALED(status))
        show_end(q, q->may_crash ? "says" : "error", "died of signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status))
        show_error(q, "ended with status %d", WEXITSTATUS(status));
}

/*
 * A process that holds the device open until this one ends: a driver without persistence takes seconds to
 * begin. Return: false if there is no device.
 */
static bool keep_device(void)
{
    int ready[2], ours[2];
    char c = 0;
    if (pipe(ready) || pipe(ours))
        return false;
    pid_t pid = fork();
    if (pid == 0) {
        close(ready[0]);
        close(ours[1]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(INIT_SECONDS);
        bool there = !driver_open();
        if (write(ready[1], there ? "y" : "n", 1) == 1 && there) {
            int mode = CU_COMPUTEMODE_DEFAULT;
            alarm(total_s + 60);
            /* no context where only one process may have any */
            CU(cuDeviceGetAttribute, &mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, driver.device);
            if ((mode != CU_COMPUTEMODE_DEFAULT || driver_setup() == CUDA_SUCCESS) &&
                read(ours[0], &c, 1) < 0)
                _exit(1);
        }
        _exit(0);
    }
    close(ready[1]);
    close(ours[0]); /* the other end closes when this process ends */
    if (pid < 0 || read(ready[0], &c, 1) != 1)
        c = 0;
    close(ready[0]);
    return c == 'y';
}

/* ------------------------------------------------------------------ */

static bool wanted(const struct question *q, char **names)
{
    if (!*names)
        return true;
    for (; *names; names++)
        if (!strcmp(*names, q->name))
            return true;
    return false;
}

static bool known(const char *name)
{
    for (size_t i = 0; i < LENGTH(questions); i++)
        if (!strcmp(questions[i].name, name))
            return true;
    fprintf(stderr, "facts: there is no question %s; --list prints them\n", name);
    return false;
}

static int list(void)
{
    for (size_t i = 0; i < LENGTH(questions); i++)
        printf("%s\t%s\n", questions[i].name, questions[i].text);
    return 0;
}

/* A second process that a question starts; its answers go where the question's go. */
static int go_on(const char *with)
{
    CUresult r = driver_open() ? CUDA_ERROR_NO_DEVICE : driver_setup();
    if (r != CUDA_SUCCESS)
        failed(r);
    else if (!strcmp(with, "ipc"))
        continue_ipc();
    return 0;
}

/* Return: -1 to go on, else the status to exit with. */
static int read_options(int argc, char **argv)
{
    static const struct option longs[] = {
        { "list", no_argument, NULL, 'l' },
        { "tsv", no_argument, NULL, 't' },
        { "limit", required_argument, NULL, 'm' },
        { "total", required_argument, NULL, 'a' },
        { "help", no_argument, NULL, 'h' },
        { "loading", required_argument, NULL, 'o' },
        { NULL, 0, NULL, 0 },
    };
    int c;
    while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        switch (c) {
        case 'l': return list();
        case 't': tsv = true; break;
        case 'm': limit_s = (unsigned)atoi(optarg); break;
        case 'a': total_s = (unsigned)atoi(optarg); break;
        case 'h': fputs(usage, stdout); return 0;
        case 'o':
            eager = !strcmp(optarg, "eager");
            if (eager || !strcmp(optarg, "lazy"))
                break;
            __attribute__((fallthrough));
        default: fputs(usage, stderr); return 2;
        }
    }
    for (char **name = argv + optind; *name; name++)
        if (!known(*name))
            return 2;
    if (limit_s && total_s)
        return -1;
    fputs(usage, stderr);
    return 2;
}

static void ask_all(char **names)
{
    uint64_t start = now_ns();
    for (size_t i = 0; i < LENGTH(questions); i++) {
        unsigned gone = (unsigned)((now_ns() - start) / 1000000000u);
        unsigned left = gone < total_s ? total_s - gone : 0;
        if (!wanted(&questions[i], names))
            continue;
        if (left)
            ask(&questions[i], left < limit_s ? left : limit_s);
        else
            show_error(&questions[i], "not asked: the %u s are over", total_s);
    }
    if (tsv)
        return;
    printf("\n%u questions asked in %.0f s; relied on: %u as designed, %u not; %u failed, %u "
           "not there\n",
           counts.asked, (double)(now_ns() - start) / 1e9, counts.holds, counts.breaks,
           counts.errors, counts.absent);
    for (unsigned i = 0; i < n_complaints; i++)
        puts(complaints[i]);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--continue"))
        return go_on(argv[2]);
    int status = read_options(argc, argv);
    if (status >= 0)
        return status;
    /* of eight, one is asked, and only one is initialised */
    setenv("CUDA_VISIBLE_DEVICES", "0", 0);
    if (!keep_device()) {
        puts("skipped: no CUDA device");
        return EXIT_SKIPPED;
    }
    ask_all(argv + optind);
    return counts.breaks || counts.errors ? 1 : 0;
}
