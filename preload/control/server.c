/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/control/server.h"

#include "core/any.h"
#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/log.h"
#include "core/priority.h"
#include "core/socket.h"
#include "preload/base/thread.h"
#include "preload/control/command.h"
#include "preload/session/session.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SOCKET_NAME "control"
#define MAX_CLIENTS 64
#define MAX_RUNNING 4 /* commands at one time: one that waits lets others run on its stack */
#define MAX_GIVEN   4 /* descriptors a message; the kernel closes further ones */
#define BACKLOG     16
#define LINE_NS     5000000000u /* for a client to send a line, and to take an answer */
#define IDLE_NS     100000000u  /* after which one that sends no line makes room for the next */
#define WAKE_MS     1000        /* at most, where nothing else wakes the thread */
#define MOMENT_MS   10          /* likewise, while a command waits */
#define IDLE_MS     ((int)(IDLE_NS / 1000000))

/* A descriptor, and what it was when we opened it: an application may close what is not its own, and reuse the number. */
struct descriptor {
    int fd; /* -1: none */
    ino_t inode;
};

struct client {
    struct descriptor at;
    uint64_t deadline_ns; /* of the line or the answer under way */
    size_t n_in;
    char in[COMMAND_MAX_BYTES + 1];
    struct text out;
    size_t n_sent;
    bool ends; /* once @out is sent */
    bool runs; /* a command of its waits: it is left alone */
    struct line_peer peer;
    struct descriptor given; /* by the client, for its next line */
};

static struct server {
    pthread_t thread;
    bool runs;
    int stops; /* 1: the thread is to end; atomic */
    struct descriptor listener;
    struct client *clients; /* MAX_CLIENTS */
    int n_running;          /* commands that wait */
} server = { .listener.fd = -1 };

static struct descriptor descriptor_of(int fd)
{
    struct stat st;
    return (struct descriptor){ .fd = fd, .inode = fstat(fd, &st) ? 0 : st.st_ino };
}

static bool is_ours(const struct descriptor *d)
{
    struct stat st;
    return d->fd >= 0 && !fstat(d->fd, &st) && S_ISSOCK(st.st_mode) && st.st_ino == d->inode;
}

static void descriptor_close(struct descriptor *d)
{
    if (is_ours(d))
        close(d->fd);
    d->fd = -1;
}

/* ------------------------------------------------------------------------- clients */

/* A file of the client's, unless the application has closed it and used its number. */
static void close_given(struct client *c)
{
    struct stat st;
    if (c->given.fd >= 0 && !fstat(c->given.fd, &st) && st.st_ino == c->given.inode)
        close(c->given.fd);
    c->given.fd = -1;
}

static void client_close(struct client *c)
{
    descriptor_close(&c->at);
    close_given(c);
    text_deinit(&c->out);
    *c = (struct client){ .at.fd = -1, .given.fd = -1 };
}

static void client_refuse(struct client *c, const char *why)
{
    line_refuse(&c->out, why);
    c->ends = true;
    c->n_in = 0;
}

static bool serve_others(void);

/* The line may use the descriptor that came with it, or before it. */
static void run_line(struct client *c)
{
    c->peer.fd = c->given.fd;
    c->peer.meanwhile = serve_others;
    c->runs = true;
    server.n_running++;
    command_run(c->in, &c->peer, &c->out);
    server.n_running--;
    c->runs = false;
    close_given(c);
}

/* Where its first line ends. Return: NULL: it has none. */
static char *line_end(struct client *c)
{
    return memchr(c->in, '\n', c->n_in);
}

/* Has it sent a line, which its turn answers, whatever its socket says? */
static bool waits_for_turn(struct client *c)
{
    return c->at.fd >= 0 && !c->runs && !c->ends && c->out.n == c->n_sent && line_end(c);
}

static void answer_line(struct client *c)
{
    char *end = line_end(c);
    size_t n = (size_t)(end - c->in);
    *end = 0;
    if (strlen(c->in) < n)
        line_refuse(&c->out, "a line with a NUL in it");
    else
        run_line(c);
    c->n_in -= n + 1;
    memmove(c->in, end + 1, c->n_in);
    c->deadline_ns = clock_mono_ns() + LINE_NS;
    if (c->out.failed)
        c->ends = true;
}

/* The descriptor in a message; of several one stays. */
static void take_descriptor(struct client *c, struct msghdr *message)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h; h = CMSG_NXTHDR(message, h)) {
        int fds[MAX_GIVEN];
        size_t n = h->cmsg_len - CMSG_LEN(0);
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS || n > sizeof fds)
            continue;
        memcpy(fds, CMSG_DATA(h), n);
        for (size_t i = 0; i < n / sizeof fds[0]; i++) {
            close_given(c);
            c->given = descriptor_of(fds[i]);
        }
    }
}

static void client_read(struct client *c)
{
    union {
        char bytes[CMSG_SPACE(MAX_GIVEN * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec at = { c->in + c->n_in, COMMAND_MAX_BYTES - c->n_in };
    struct msghdr message = { .msg_iov = &at,
                              .msg_iovlen = 1,
                              .msg_control = control.bytes,
                              .msg_controllen = sizeof control.bytes };
    ssize_t got = recvmsg(c->at.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0)
        take_descriptor(c, &message);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (got <= 0) {
        c->ends = true;
        return;
    }
    c->n_in += (size_t)got;
    if (!line_end(c) && c->n_in == COMMAND_MAX_BYTES)
        client_refuse(c, "a line of more than 16 KiB");
}

/* Return: whether all is sent. */
static bool client_write(struct client *c)
{
    while (c->n_sent < c->out.n) {
        ssize_t sent = send(c->at.fd, c->out.data + c->n_sent, c->out.n - c->n_sent,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            c->ends = c->ends || errno != EAGAIN;
            return errno != EAGAIN;
        }
        c->n_sent += (size_t)sent;
        if (c->n_sent == c->out.n)
            c->deadline_ns = clock_mono_ns() + LINE_NS;
    }
    c->out.n = c->n_sent = 0;
    return true;
}

/* A line a turn: clients wait for one another's lines, and for nobody's reading. */
static void client_serve(struct client *c, short events)
{
    if (!is_ours(&c->at)) {
        client_close(c);
        return;
    }
    if (events && !c->ends && c->out.n == c->n_sent && !line_end(c))
        client_read(c);
    if (client_write(c) && waits_for_turn(c) && server.n_running < MAX_RUNNING) {
        answer_line(c);
        client_write(c);
    }
    bool sent = c->out.n == c->n_sent;
    if ((c->ends && sent) || (clock_mono_ns() >= c->deadline_ns && !waits_for_turn(c)))
        client_close(c);
}

/* ------------------------------------------------------------------------- the socket */

/* Whoever is not the user of this process is refused, whatever the mode of the socket says. */
static bool is_owner(int fd, struct line_peer *peer)
{
    struct ucred who = { 0 };
    socklen_t n = sizeof who;
    bool known = !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n);
    *peer = (struct line_peer){ .uid = who.uid, .pid = who.pid, .fd = -1 };
    return known && who.uid == geteuid();
}

static struct client *free_place(void)
{
    return FIRST(i, MAX_CLIENTS, server.clients[i].at.fd < 0, &server.clients[i], NULL);
}

/* Of those that have sent no line the one that has been silent longest. Return: NULL: none for long enough. */
static struct client *idle_client(void)
{
    struct client *idle = NULL;
    for (int i = 0; i < MAX_CLIENTS; i++) {
        struct client *c = &server.clients[i];
        if (!c->runs && c->out.n == c->n_sent && !line_end(c) &&
            (!idle || c->deadline_ns < idle->deadline_ns))
            idle = c;
    }
    return idle && clock_mono_ns() >= idle->deadline_ns - LINE_NS + IDLE_NS ? idle : NULL;
}

/* Where all places are taken and somebody waits, one that is not used goes. Return: is there a place? */
static bool make_room(void)
{
    struct pollfd at = { .fd = server.listener.fd, .events = POLLIN };
    if (free_place())
        return true;
    struct client *idle = poll(&at, 1, 0) > 0 ? idle_client() : NULL;
    if (idle)
        client_close(idle);
    return idle;
}

/* Return: whether there was one. */
static bool accept_client(void)
{
    int fd = accept4(server.listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct client *c = free_place();
    struct line_peer peer;
    if (fd < 0 || !is_owner(fd, &peer)) {
        if (fd >= 0)
            close(fd);
        return fd >= 0;
    }
    c->peer = peer;
    c->at = descriptor_of(fd);
    c->deadline_ns = clock_mono_ns() + LINE_NS;
    return true;
}

/* Return: 0 or -errno. */
static int listen_in(const char *path)
{
    _cleanup_(closep) int folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return -errno;
    int fd = socket_listen_at(folder, SOCKET_NAME, BACKLOG);
    if (fd < 0)
        return fd;
    server.listener = descriptor_of(fd);
    return 0;
}

static void remove_socket(void)
{
    _cleanup_(closep) int folder = open(run_path(session.run), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0)
        unlinkat(folder, SOCKET_NAME, 0);
}

/* ------------------------------------------------------------------------- the thread */

/* Milliseconds until there is something to do for a client whatever its socket says, or @most_ms. */
static int patience(int most_ms)
{
    uint64_t now = clock_mono_ns(), first = UINT64_MAX;
    for (int i = 0; i < MAX_CLIENTS; i++) {
        struct client *c = &server.clients[i];
        if (waits_for_turn(c) && server.n_running < MAX_RUNNING)
            return 0;
        if (c->at.fd >= 0 && !c->runs && !waits_for_turn(c) && c->deadline_ns < first)
            first = c->deadline_ns;
    }
    uint64_t ms = first <= now ? 0 : (first - now) / 1000000 + 1;
    return ms < (uint64_t)most_ms ? (int)ms : most_ms;
}

/* What of its socket concerns a client. */
static struct pollfd watched(struct client *c)
{
    short events = c->out.n > c->n_sent ? POLLOUT : line_end(c) ? 0 : POLLIN;
    return (struct pollfd){ .fd = c->runs ? -1 : c->at.fd, .events = events };
}

/* Serves all clients but those whose commands run. Return: false when it is time to end. */
static bool serve_once(int most_ms)
{
    struct pollfd at[MAX_CLIENTS + 1];
    bool full = !free_place();
    for (int i = 0; i < MAX_CLIENTS; i++)
        at[i] = watched(&server.clients[i]);
    /* without a free place it is still seen to be shut down */
    at[MAX_CLIENTS] = (struct pollfd){ .fd = server.listener.fd, .events = full ? 0 : POLLIN };
    int ms = patience(full && most_ms > IDLE_MS ? IDLE_MS : most_ms);
    if (poll(at, MAX_CLIENTS + 1, ms) < 0 && errno != EINTR && errno != EAGAIN)
        return false;
    if (atomic_load_acquire(&server.stops) || !is_ours(&server.listener))
        return false;
    for (int i = 0; i < MAX_CLIENTS; i++)
        if (at[i].fd >= 0 && !server.clients[i].runs)
            client_serve(&server.clients[i], at[i].revents);
    bool asked = full || at[MAX_CLIENTS].revents;
    for (int i = 0; i < MAX_CLIENTS && asked; i++)
        asked = make_room() && accept_client();
    return true;
}

static bool serve_others(void)
{
    return serve_once(MOMENT_MS);
}

static void *server_main(void *arg)
{
    (void)arg;
    pthread_setname_np(pthread_self(), "dmi-control");
    priority_lower();
    session_attach();
    while (serve_once(WAKE_MS))
        ;
    return NULL;
}

/* ------------------------------------------------------------------------- start and end */

static void give_up(void)
{
    descriptor_close(&server.listener);
    for (int i = 0; server.clients && i < MAX_CLIENTS; i++)
        if (server.clients[i].at.fd >= 0)
            client_close(&server.clients[i]);
    free(server.clients);
    server.clients = NULL;
}

/* Return: 0 or -errno. */
static int start(void)
{
    server.clients = calloc(MAX_CLIENTS, sizeof *server.clients);
    if (!server.clients)
        return -ENOMEM;
    for (int i = 0; i < MAX_CLIENTS; i++)
        server.clients[i].at.fd = server.clients[i].given.fd = -1;
    TRY(listen_in(run_path(session.run)));
    int r = thread_start(&server.thread, server_main, NULL);
    server.runs = !r;
    if (r)
        remove_socket();
    return r;
}

void server_start(void)
{
    const char *asked = getenv("DMI_CONTROL");
    if (!asked || strcmp(asked, "1") || server.runs)
        return;
    int r = start();
    if (!r)
        return;
    log_line("no control socket in %s: %s", run_path(session.run), strerror(-r));
    give_up();
}

bool server_stop(uint64_t end_ns)
{
    struct timespec at = clock_timespec(end_ns);
    if (!server.runs)
        return true;
    atomic_store_release(&server.stops, 1);
    if (is_ours(&server.listener))
        shutdown(server.listener.fd, SHUT_RDWR); /* wakes it */
    if (pthread_clockjoin_np(server.thread, NULL, CLOCK_MONOTONIC, &at))
        return false;
    server.runs = false;
    remove_socket();
    give_up();
    return true;
}

void server_reset(void)
{
    give_up();
    server = (struct server){ .listener.fd = -1 };
}
