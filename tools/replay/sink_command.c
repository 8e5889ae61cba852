/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --to command:CMD: a process for each request, which reads the records of that request on stdin. What one of them
 * does to itself costs its own request alone.
 */
#include "tools/replay/sink.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "tools/replay/bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct child {
    char *request;
    size_t n_request;
    pid_t pid;
    int fd;           /* -1: it reads no more */
    bool gone;        /* it closed its stdin before its end */
    uint64_t n_items; /* that it was given */
};

/* What is said at the start of each process: the runs. */
struct command_sink {
    struct sink sink;
    struct sink_options options;
    struct child *children;
    size_t n, room;
    struct item *runs;
    size_t n_runs, runs_room;
    struct coded coded;
};

static int command_open(struct err *err, const struct sink_options *options, struct sink **out)
{
    struct command_sink *s = calloc(1, sizeof *s);
    if (!s)
        return err_set_errno(err, ENOMEM, "cannot replay");
    s->sink.kind = &sink_command;
    s->options = *options;
    *out = &s->sink;
    return 0;
}

/* ------------------------------------------------------------------------- a process */

static void become(const struct command_sink *s, const struct child *c, int fd)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* a variable ends at a zero byte, which an id may hold: the records have all of it */
    if (dup2(fd, STDIN_FILENO) < 0 || setenv("DMI_REQUEST", c->request, 1))
        _exit(127);
    execl("/bin/sh", "sh", "-c", s->options.where, (char *)NULL);
    _exit(127);
}

static int start(struct err *err, struct command_sink *s, struct child *c)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return err_set_errno(err, errno, "cannot start a command");
    c->pid = fork();
    if (!c->pid)
        become(s, c, fds[0]);
    close(fds[0]);
    c->fd = fds[1];
    if (c->pid > 0)
        return 0;
    int r = err_set_errno(err, errno, "cannot start a command");
    closep(&c->fd);
    return r;
}

static void hang_up(struct child *c)
{
    closep(&c->fd);
    c->fd = -1;
}

/* Return: 0; -EINTR; -ENOMEM. A process that reads no more is noted. */
static int give(struct command_sink *s, struct child *c, struct item item)
{
    if (c->fd < 0)
        return 0;
    item.number = c->n_items++;
    int r = format_encode(s->options.format, &item, s->options.values, &s->coded);
    if (!r)
        r = bytes_put(c->fd, true, &s->coded);
    if (r != -EPIPE)
        return r;
    hang_up(c);
    c->gone = true;
    return 0;
}

static int add_child(struct err *err, struct command_sink *s, const struct item_span *span)
{
    if (grow((void **)&s->children, s->n, &s->room, sizeof *s->children, 16))
        return err_set_errno(err, ENOMEM, "cannot start a command");
    struct child *c = &s->children[s->n];
    *c = (struct child){ .fd = -1, .n_request = span->n_request };
    if (!(c->request = calloc(1, span->n_request + 1)))
        return err_set_errno(err, ENOMEM, "cannot start a command");
    memcpy(c->request, span->request, span->n_request);
    int r = start(err, s, c);
    if (r) {
        free(c->request);
        return r;
    }
    s->n++;
    for (size_t i = 0; !r && i < s->n_runs; i++)
        r = give(s, c, s->runs[i]);
    return r;
}

static struct child *find(struct command_sink *s, const struct item_span *span)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->children[i].n_request == span->n_request &&
            !memcmp(s->children[i].request, span->request, span->n_request))
            return &s->children[i];
    return NULL;
}

/* ------------------------------------------------------------------------- what they are given */

static int keep_run(struct err *err, struct command_sink *s, const struct item *item)
{
    if (grow((void **)&s->runs, s->n_runs, &s->runs_room, sizeof *s->runs, 4))
        return err_set_errno(err, ENOMEM, "cannot replay");
    s->runs[s->n_runs] = *item;
    json_incref(s->runs[s->n_runs++].facts);
    return 0;
}

/* Gaps concern all of them. */
static int give_all(struct command_sink *s, const struct item *item)
{
    int r = 0;
    for (size_t i = 0; !r && i < s->n; i++)
        r = give(s, &s->children[i], *item);
    return r;
}

static int command_take(struct err *err, struct sink *sink, const struct item *item)
{
    struct command_sink *s = (struct command_sink *)sink;
    int r = 0;
    if (item->kind == ITEM_RUN)
        return keep_run(err, s, item);
    if (!item->n_spans) {
        r = give_all(s, item);
    } else {
        if (!find(s, item->spans))
            r = add_child(err, s, item->spans);
        if (!r)
            r = give(s, find(s, item->spans), *item);
    }
    return r && r != -EINTR ? err_set_errno(err, -r, "cannot give a command its records") : r;
}

/* ------------------------------------------------------------------------- how they end */

static void judge(struct command_sink *s, const struct child *c, int status)
{
    const char *early = c->gone ? ", before it had read all of its records" : "";
    if (WIFSIGNALED(status))
        sink_fail(&s->sink, "the command of request '%s' was ended by signal %d%s", c->request,
                  WTERMSIG(status), early);
    else if (WEXITSTATUS(status) || c->gone)
        sink_fail(&s->sink, "the command of request '%s' ended with status %d%s", c->request,
                  WEXITSTATUS(status), early);
}

/* Once it has the end of its input, it may take its time. */
static void end_child(struct command_sink *s, struct child *c)
{
    int status = 0;
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
        ;
    judge(s, c, status);
    free(c->request);
}

static int command_end(struct err *err, struct sink *sink)
{
    struct command_sink *s = (struct command_sink *)sink;
    (void)err;
    for (size_t i = 0; i < s->n; i++)
        hang_up(&s->children[i]);
    for (size_t i = 0; i < s->n; i++)
        end_child(s, &s->children[i]);
    s->n = 0;
    return 0;
}

static int command_close(struct err *err, struct sink *sink)
{
    struct command_sink *s = (struct command_sink *)sink;
    command_end(err, sink);
    for (size_t i = 0; i < s->n_runs; i++)
        json_decref(s->runs[i].facts);
    free(s->runs);
    free(s->children);
    text_deinit(&s->coded.text);
    json_decref(s->sink.failed);
    free(s);
    return 0;
}

const struct sink_kind sink_command = {
    .prefix = "command:",
    .where = "CMD",
    .what = "a process for each request, run by sh with DMI_REQUEST set",
    .per_request = true,
    .has_bytes = true,
    .open = command_open,
    .take = command_take,
    .end_requests = command_end,
    .close = command_close,
};
