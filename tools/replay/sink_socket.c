/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --to unix:PATH and --to tcp:HOST:PORT: a socket that readers connect to. Each is given the runs, then everything from
 * the item on that came after it joined. An item goes to all of them before the next one does, so nothing is kept but
 * what the system's buffers hold, and the slowest reader sets the pace.
 */
#include "tools/replay/sink.h"

#include "core/any.h"
#include "core/clock.h"
#include "tools/common/listen.h"
#include "tools/common/stop.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST_READERS 64

struct joined {
    int fd;
    unsigned number;   /* counts readers, from 1 */
    size_t n_greeting; /* what it has of the runs */
    size_t n_given;    /* what it has of this item */
    bool is_given;     /* this item is for it */
    uint64_t since_ns; /* when it last took something */
};

struct socket_sink {
    struct sink sink;
    struct sink_options options;
    int listener;
    char *path; /* that is removed at the end; NULL: none */
    struct joined readers[MOST_READERS];
    unsigned n, n_ever;
    bool begun; /* enough readers were there */
    struct text greeting;
    struct coded coded;
};

/* ------------------------------------------------------------------------- readers */

static void drop(struct socket_sink *s, unsigned i)
{
    close(s->readers[i].fd);
    s->readers[i] = s->readers[--s->n];
}

static void take_reader(struct socket_sink *s, bool is_given)
{
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (s->n == MOST_READERS) {
        close(fd);
        return;
    }
    s->readers[s->n++] = (struct joined){
        .fd = fd, .number = ++s->n_ever, .is_given = is_given, .since_ns = clock_mono_ns()
    };
}

static size_t n_item(const struct socket_sink *s)
{
    return s->coded.text.n + s->coded.n_payload;
}

static bool has_all(const struct socket_sink *s, const struct joined *c)
{
    return c->n_greeting == s->greeting.n && (!c->is_given || c->n_given == n_item(s));
}

/* The next bytes for a reader: of the runs, of the item's text, of its payload. */
static const char *next_bytes(const struct socket_sink *s, const struct joined *c, size_t *n)
{
    size_t n_text = s->coded.text.n;
    if (c->n_greeting < s->greeting.n) {
        *n = s->greeting.n - c->n_greeting;
        return s->greeting.data + c->n_greeting;
    }
    if (c->n_given < n_text) {
        *n = n_text - c->n_given;
        return s->coded.text.data + c->n_given;
    }
    *n = n_item(s) - c->n_given;
    return (const char *)s->coded.payload + (c->n_given - n_text);
}

/* As much as it takes now. Return: false: it is gone. */
static bool give(const struct socket_sink *s, struct joined *c)
{
    while (!has_all(s, c)) {
        size_t n;
        const char *from = next_bytes(s, c, &n);
        bool greets = c->n_greeting < s->greeting.n;
        ssize_t done = send(c->fd, from, n, MSG_NOSIGNAL);
        if (done < 0)
            return errno == EAGAIN || errno == EINTR;
        c->since_ns = clock_mono_ns();
        *(greets ? &c->n_greeting : &c->n_given) += (size_t)done;
    }
    return true;
}

/* What readers say is ignored. Return: false: it has hung up. */
static bool listen_to(const struct joined *c)
{
    char said[256];
    ssize_t n = recv(c->fd, said, sizeof said, 0);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool is_too_slow(const struct socket_sink *s, const struct joined *c)
{
    return s->options.lose_s &&
           clock_mono_ns() - c->since_ns > (uint64_t)s->options.lose_s * 1000000000u;
}

/* ------------------------------------------------------------------------- all of them */

/* Waits for readers that take or come, at most @ms. Return: 0 or -errno, -EINTR. */
static int turn(struct socket_sink *s, int ms, bool is_given)
{
    struct pollfd p[MOST_READERS + 1] = { { .fd = s->listener, .events = POLLIN } };
    unsigned n = s->n;
    for (unsigned i = 0; i < n; i++)
        p[i + 1] = (struct pollfd){
            .fd = s->readers[i].fd,
            .events = has_all(s, &s->readers[i]) ? POLLIN : POLLIN | POLLOUT,
        };
    if (poll(p, n + 1, ms) < 0)
        return -errno;
    for (unsigned i = n; i-- > 0;) {
        struct joined *c = &s->readers[i];
        bool there = !(p[i + 1].revents & (POLLERR | POLLNVAL));
        if (there && p[i + 1].revents & (POLLIN | POLLHUP))
            there = listen_to(c);
        if (there && p[i + 1].revents & POLLOUT)
            there = give(s, c);
        if (there && !has_all(s, c) && is_too_slow(s, c)) {
            sink_fail(&s->sink, "reader %u took nothing for %u s: it is given no more", c->number,
                      s->options.lose_s);
            there = false;
        }
        if (!there)
            drop(s, i);
    }
    if (p[0].revents & POLLIN)
        take_reader(s, is_given);
    return 0;
}

static bool all_have_it(const struct socket_sink *s)
{
    return FIRST(i, s->n, !has_all(s, &s->readers[i]), false, s->n > 0);
}

/* Waits for the readers that there must be. A replay that nobody reads would be lost. */
static int wait_for_readers(struct socket_sink *s)
{
    unsigned wanted = s->begun || !s->options.wait_for ? 1 : s->options.wait_for;
    while (s->n < wanted) {
        int r = stop_asked() ? -EINTR : turn(s, 500, false);
        if (r && (r != -EINTR || stop_asked()))
            return r;
    }
    s->begun = true;
    return 0;
}

/* No bytes of the next item are anybody's before all are given it. */
static void forget_item(struct socket_sink *s)
{
    for (unsigned i = 0; i < s->n; i++)
        s->readers[i].is_given = false;
}

/* A reader that joins meanwhile gets the item, too: so somebody does, where all others are gone. */
static int give_all(struct socket_sink *s)
{
    uint64_t until = 0;
    for (unsigned i = 0; i < s->n; i++) {
        s->readers[i].is_given = true;
        s->readers[i].n_given = 0;
        s->readers[i].since_ns = clock_mono_ns();
        if (!give(s, &s->readers[i]))
            drop(s, i--);
    }
    while (!all_have_it(s)) {
        if (stop_asked() && !until)
            until = clock_mono_ns() + STOP_GRACE_MS * 1000000ull;
        if (until && (!s->n || clock_mono_ns() > until))
            return -EINTR;
        int r = turn(s, 200, true);
        if (r && r != -EINTR)
            return r;
    }
    return 0;
}

static int socket_take(struct err *err, struct sink *sink, const struct item *item)
{
    struct socket_sink *s = (struct socket_sink *)sink;
    int r = format_encode(s->options.format, item, s->options.values, &s->coded);
    if (!r && item->kind == ITEM_RUN) {
        text_add(&s->greeting, s->coded.text.data, s->coded.text.n);
        r = s->greeting.failed ? -ENOMEM : 0;
        s->coded.text.n = 0; /* nobody is given it twice */
        return r ? err_set_errno(err, -r, "cannot replay") : 0;
    }
    if (!r)
        r = wait_for_readers(s);
    if (!r)
        r = give_all(s);
    forget_item(s);
    return r && r != -EINTR ? err_set_errno(err, -r, "cannot write to the readers") : r;
}

static int socket_wait(struct err *err, struct sink *sink, uint64_t ns)
{
    struct socket_sink *s = (struct socket_sink *)sink;
    uint64_t until = clock_mono_ns() + ns, now;
    while (!stop_asked() && (now = clock_mono_ns()) < until) {
        int r = turn(s, (int)((until - now) / 1000000u) + 1, false);
        if (r && r != -EINTR)
            return err_set_errno(err, -r, "cannot write to the readers");
    }
    return 0;
}

/* ------------------------------------------------------------------------- opening and closing */

static int socket_open(struct err *err, const struct sink_kind *kind,
                       const struct sink_options *options, struct sink **out)
{
    struct socket_sink *s = calloc(1, sizeof *s);
    if (!s)
        return err_set_errno(err, ENOMEM, "cannot replay");
    s->sink.kind = kind;
    s->options = *options;
    s->listener = kind == &sink_unix ? listen_unix(err, options->where, LISTEN_BACKLOG, &s->path)
                                     : listen_tcp(err, options->where);
    if (s->listener >= 0) {
        *out = &s->sink;
        return 0;
    }
    int r = s->listener;
    free(s);
    return r;
}

static int unix_open(struct err *err, const struct sink_options *options, struct sink **out)
{
    return socket_open(err, &sink_unix, options, out);
}

static int tcp_open(struct err *err, const struct sink_options *options, struct sink **out)
{
    return socket_open(err, &sink_tcp, options, out);
}

static int socket_close(struct err *err, struct sink *sink)
{
    struct socket_sink *s = (struct socket_sink *)sink;
    (void)err;
    while (s->n)
        drop(s, s->n - 1);
    close(s->listener);
    if (s->path)
        unlink(s->path);
    free(s->path);
    text_deinit(&s->greeting);
    text_deinit(&s->coded.text);
    json_decref(s->sink.failed);
    free(s);
    return 0;
}

const struct sink_kind sink_unix = {
    .prefix = "unix:",
    .where = "PATH",
    .what = "readers that connect to a Unix socket",
    .has_bytes = true,
    .open = unix_open,
    .take = socket_take,
    .wait = socket_wait,
    .close = socket_close,
};

const struct sink_kind sink_tcp = {
    .prefix = "tcp:",
    .where = "HOST:PORT",
    .what = "readers that connect to a TCP socket",
    .has_bytes = true,
    .open = tcp_open,
    .take = socket_take,
    .wait = socket_wait,
    .close = socket_close,
};
