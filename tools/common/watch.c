/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/watch.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/grow.h"
#include "core/log.h"
#include "tools/common/processes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Short while processes come, longer while all stays as it is; and never more than a fiftieth of a core. */
#define FIRST_PAUSE_NS 20000000u
#define LAST_PAUSE_NS  2000000000u
#define SHARE          50

struct watch {
    pid_t command;
    int fd; /* of the command: readable once it has ended */
    const char *library;
    const char *out;        /* where processes of the command write, absolute */
    bool nothing;           /* it is said if they wrote nothing */
    size_t n_before;        /* entries() of it before the command */
    struct processes known; /* the command and what descends from it */
    char **named;           /* executables */
    size_t n_named;
    uint64_t pause_ns;
};

static bool command_ended(const struct watch *w, uint64_t wait_ns)
{
    struct pollfd p = { .fd = w->fd, .events = POLLIN };
    return poll(&p, 1, (int)(wait_ns / 1000000)) > 0;
}

/* ------------------------------------------------------------------------- what it says */

/* Return: false if @path was named before, or there is no memory to remember it. */
static bool first_time(struct watch *w, const char *path)
{
    for (size_t i = 0; i < w->n_named; i++)
        if (!strcmp(w->named[i], path))
            return false;
    char *own = ONE_MORE(w->named, w->n_named) ? NULL : strdup(path);
    if (own)
        w->named[w->n_named++] = own;
    return own;
}

static void name(struct watch *w, pid_t pid)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/%d/exe", (int)pid);
    ssize_t n = readlink(link, path, sizeof path - 1);
    snprintf(path + (n > 0 ? n : 0), n > 0 ? 1 : sizeof path, "%s", n > 0 ? "" : "?");
    if (first_time(w, path))
        log_line(
            "process %d (%s) has loaded the CUDA driver without %s: nothing of it is captured; %s",
            (int)pid, path, w->library,
            process_has_entry(pid, "LD_PRELOAD=", w->library)
                ? "the loader did not follow LD_PRELOAD: a static or privileged program?"
                : "it was started without LD_PRELOAD: a cleared environment?");
}

/* How many files and folders are in a folder, hidden ones apart. A file counts 1 if it is there, else 0. */
static size_t entries(const char *path)
{
    size_t n = 0;
    DIR *folder = opendir(path);
    if (!folder)
        return !access(path, F_OK);
    for (struct dirent *entry; (entry = readdir(folder));)
        n += *entry->d_name != '.';
    closedir(folder);
    return n;
}

/* A map is not read at one moment; once the driver was seen, the library was there before the second reading. */
static void look(struct watch *w, struct process *p)
{
    enum process_has has = process_has(p->pid, w->library);
    if (has == PROCESS_DRIVER)
        has = process_has(p->pid, w->library);
    if (has == PROCESS_DRIVER)
        name(w, p->pid);
    p->done = has != PROCESS_NEITHER;
}

/* ------------------------------------------------------------------------- who is watched */

/* The process as it was known, NULL: it is new. */
static const struct process *as_known(const struct watch *w, const struct process *p)
{
    const struct process *known = processes_find(&w->known, p->pid);
    return known && known->start == p->start ? known : NULL;
}

/* A process stays watched after the one that started it has ended and another has become its parent. */
static bool is_wanted(const struct watch *w, const struct processes *now, const struct process *p)
{
    const struct process *parent = processes_find(now, p->parent);
    return p->pid == w->command || as_known(w, p) || (parent && parent->wanted);
}

/* Until nothing changes: a child may have a lower id than its parent. */
static void want(const struct watch *w, struct processes *now)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < now->n; i++) {
            struct process *p = &now->list[i];
            if (!p->wanted && is_wanted(w, now, p))
                p->wanted = more = true;
        }
    }
}

/* The known ones become those of @now that are wanted. Return: is any of them, or its program, new? */
static bool take(struct watch *w, struct processes *now)
{
    bool news = false;
    size_t n = 0;
    for (size_t i = 0; i < now->n; i++) {
        struct process *p = &now->list[i];
        const struct process *known = as_known(w, p);
        if (!p->wanted)
            continue;
        if (known && known->stack == p->stack)
            p->done = known->done;
        else
            news = true;
        now->list[n++] = *p;
    }
    now->n = n;
    processes_deinit(&w->known);
    w->known = *now;
    *now = (struct processes){ 0 };
    return news;
}

/* ------------------------------------------------------------------------- the watcher */

/* Return: false where /proc cannot be read. */
static bool scan(struct watch *w)
{
    struct processes now = { 0 };
    int r = processes_read(&now);
    if (r) {
        log_line("processes without %s are not named: /proc: %s", w->library, strerror(-r));
        processes_deinit(&now);
        return false;
    }
    want(w, &now);
    w->pause_ns = take(w, &now) ? FIRST_PAUSE_NS : w->pause_ns + w->pause_ns / 2;
    for (size_t i = 0; i < w->known.n && !command_ended(w, 0); i++)
        if (!w->known.list[i].done)
            look(w, &w->known.list[i]);
    return true;
}

static bool others_live(const struct watch *w)
{
    return ANY(i, w->known.n, w->known.list[i].pid != w->command);
}

/* The command has ended. What it started may end with it, a moment later, or live on and begin a run. */
static void say_if_nothing_came(struct watch *w)
{
    bool seen = scan(w);
    for (int i = 0; i < 5 && seen && others_live(w); i++) {
        usleep(FIRST_PAUSE_NS / 1000);
        seen = scan(w);
    }
    if (w->nothing && seen && !others_live(w) && !w->n_named && entries(w->out) == w->n_before)
        log_line(
            "nothing was written to %s: no process of the command has initialised CUDA, or tapped "
            "a tensor, with %s loaded, unless a line above says otherwise",
            w->out, w->library);
}

static void watch(struct watch *w)
{
    uint64_t pause = FIRST_PAUSE_NS;
    while (!command_ended(w, pause)) {
        uint64_t began = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        if (!scan(w))
            return;
        uint64_t least = SHARE * (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - began);
        if (w->pause_ns > LAST_PAUSE_NS)
            w->pause_ns = LAST_PAUSE_NS;
        pause = w->pause_ns > least ? w->pause_ns : least;
    }
    say_if_nothing_came(w);
}

static bool is_file(const char *log)
{
    return log && *log && strcmp(log, "stderr") != 0;
}

/* Nothing of what the command was given may stay open here, but stderr where it is the log. */
static void keep_only(int fd, bool not_stderr)
{
    int null = open("/dev/null", O_RDWR);
    for (int i = 0; i < (not_stderr ? 3 : 2) && null >= 0; i++)
        dup2(null, i);
    if (fd > 3)
        syscall(SYS_close_range, 3, fd - 1, 0);
    syscall(SYS_close_range, fd + 1, ~0u, 0);
}

static void become_watcher(struct watch *w, const char *log)
{
    setsid(); /* signals of the terminal are the command's */
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_NAME, "dmi-watch");
    keep_only(w->fd, is_file(log));
    /* a folder may have to be unmounted, but a relative path begins there */
    if ((!is_file(log) || *log == '/') && chdir("/")) {
        /* then it stays */
    }
    watch(w);
    _exit(0);
}

/* fork() without a signal for the parent, which may block it and pass it on to the command. */
static pid_t fork_quietly(void)
{
    return (pid_t)syscall(SYS_clone, 0, NULL, NULL, NULL, NULL);
}

/* Would a process without parent become our child? The command would have to wait for it. */
static bool adopts_orphans(void)
{
    int adopts = 0;
    return getpid() == 1 || (!prctl(PR_GET_CHILD_SUBREAPER, &adopts) && adopts);
}

/* Return: false, and errno. */
static bool start(struct watch *w, const char *log)
{
    int status = 1;
    _cleanup_(closep) int fd = (int)syscall(SYS_pidfd_open, w->command, 0);
    /* not where stdin and its like would be, were they open */
    _cleanup_(closep) int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    w->fd = high;
    pid_t child = high < 0 ? -1 : fork_quietly();
    if (child == 0) {
        pid_t watcher = fork_quietly();
        if (watcher == 0)
            become_watcher(w, log);
        _exit(watcher < 0 ? errno : 0);
    }
    if (child < 0 || waitpid(child, &status, __WALL) < 0)
        return false;
    errno = WEXITSTATUS(status);
    return status == 0;
}

void watch_start(const char *library, const char *log, const char *out, bool nothing)
{
    struct watch w = { .command = getpid(),
                       .library = library,
                       .out = out,
                       .nothing = nothing,
                       .n_before = entries(out),
                       .pause_ns = FIRST_PAUSE_NS };
    if (log && !strcmp(log, "none"))
        return;
    log_init(log);
    if (adopts_orphans())
        log_line("processes without %s are not named: the watcher would be a child of the command, "
                 "which takes in orphans",
                 library);
    else if (!start(&w, log))
        log_line("processes without %s are not named: %s", library, strerror(errno));
}
