/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/top/serve.h"

#include "core/cleanup.h"
#include "core/clock.h"
#include "tools/common/listen.h"
#include "tools/common/stop.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_REQUEST 4096        /* bytes up to the empty line */
#define CLIENT_NS   5000000000u /* from the connection to the end of the answer */

struct http_client {
    int fd;
    uint64_t end_ns;
    char request[MAX_REQUEST];
    size_t n_request;
    struct text answer; /* once the request is there */
    size_t n_sent;
    bool sent; /* what it still says is read and dropped: to close would take the answer from it */
};

struct serve {
    int fd;
    char *path;
    struct http_client *clients[SERVE_MAX_CLIENTS];
    size_t n;
};

struct serve *serve_new(struct err *err, const char *path)
{
    struct serve *s = calloc(1, sizeof *s);
    if (!s) {
        err_set(err, -ENOMEM, "no memory");
        return NULL;
    }
    s->fd = listen_unix(err, path, SERVE_MAX_CLIENTS, &s->path);
    if (s->fd < 0) {
        free(s);
        return NULL;
    }
    return s;
}

static void end_client(struct serve *s, size_t i)
{
    struct http_client *c = s->clients[i];
    close(c->fd);
    text_deinit(&c->answer);
    free(c);
    s->clients[i] = s->clients[--s->n];
}

void serve_free(struct serve *s)
{
    if (!s)
        return;
    while (s->n)
        end_client(s, s->n - 1);
    close(s->fd);
    unlink(s->path);
    free(s->path);
    free(s);
}

/* ------------------------------------------------------------------------- a client */

/* The mode of the socket says it already; who owns the folder may have opened it to others. */
static bool is_same_user(int fd)
{
    struct ucred who;
    socklen_t n = sizeof who;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) &&
           (who.uid == geteuid() || who.uid == 0);
}

/* Return: false where nobody waits. */
static bool accept_one(struct serve *s)
{
    _cleanup_(closep) int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct http_client *c = fd >= 0 && is_same_user(fd) ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return fd >= 0;
    c->fd = steal_fd(&fd);
    c->end_ns = clock_mono_ns() + CLIENT_NS;
    s->clients[s->n++] = c;
    return true;
}

static void answer(struct http_client *c, const char *status, const char *type, const char *body,
                   size_t n)
{
    bool head = !strncmp(c->request, "HEAD ", 5);
    text_printf(
        &c->answer,
        "HTTP/1.0 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
        status, type, n);
    if (!head)
        text_add(&c->answer, body, n);
}

static bool asks(const struct http_client *c, const char *method, const char *path)
{
    size_t n = strlen(method), m = strlen(path);
    const char *at = c->request;
    return !strncmp(at, method, n) && !strncmp(at + n, path, m) &&
           strchr(" ?\r\n", at[n + m]) != NULL;
}

static void answer_request(struct http_client *c, const struct text *page)
{
    static const char plain[] = "text/plain; charset=utf-8";
    static const char metrics[] = "text/plain; version=0.0.4; charset=utf-8";
    bool get = !strncmp(c->request, "GET ", 4) || !strncmp(c->request, "HEAD ", 5);
    if (!get)
        answer(c, "405 Method Not Allowed", plain, "GET only\n", 9);
    else if (asks(c, "GET ", "/metrics") || asks(c, "GET ", "/") || asks(c, "HEAD ", "/metrics") ||
             asks(c, "HEAD ", "/"))
        answer(c, "200 OK", metrics, page->data ? page->data : "", page->n);
    else
        answer(c, "404 Not Found", plain, "/metrics\n", 9);
}

/* Return: false where the client is done with. */
static bool read_request(struct http_client *c, const struct text *page)
{
    ssize_t n = recv(c->fd, c->request + c->n_request, MAX_REQUEST - 1 - c->n_request, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0)
        return false;
    c->n_request += (size_t)n;
    c->request[c->n_request] = 0;
    if (strstr(c->request, "\r\n\r\n") || strstr(c->request, "\n\n"))
        answer_request(c, page);
    else if (c->n_request == MAX_REQUEST - 1)
        answer(c, "431 Request Header Fields Too Large", "text/plain", "", 0);
    return !c->answer.failed;
}

static bool send_answer(struct http_client *c)
{
    ssize_t n = send(c->fd, c->answer.data + c->n_sent, c->answer.n - c->n_sent, MSG_NOSIGNAL);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    c->n_sent += (size_t)n;
    c->sent = c->n_sent == c->answer.n;
    if (c->sent)
        shutdown(c->fd, SHUT_WR);
    return true;
}

/* Until it closes, or its time is over. */
static bool drop_rest(struct http_client *c)
{
    ssize_t n = recv(c->fd, c->request, sizeof c->request, 0);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool serve_client(struct http_client *c, const struct text *page)
{
    if (c->sent)
        return drop_rest(c);
    if (!c->answer.n && !read_request(c, page))
        return false;
    return !c->answer.n || send_answer(c);
}

/* ------------------------------------------------------------------------- all of them */

static int wait_ms(const struct serve *s, uint64_t end_ns)
{
    uint64_t now = clock_mono_ns();
    for (size_t i = 0; i < s->n; i++)
        end_ns = s->clients[i]->end_ns < end_ns ? s->clients[i]->end_ns : end_ns;
    return end_ns > now ? (int)((end_ns - now) / 1000000 + 1) : 0;
}

static void serve_round(struct serve *s, const struct text *page, uint64_t end_ns)
{
    struct pollfd fds[SERVE_MAX_CLIENTS + 1];
    size_t n = s->n;
    for (size_t i = 0; i < n; i++)
        fds[i] = (struct pollfd){
            s->clients[i]->fd, s->clients[i]->answer.n && !s->clients[i]->sent ? POLLOUT : POLLIN, 0
        };
    fds[n] = (struct pollfd){ n < SERVE_MAX_CLIENTS ? s->fd : -1, POLLIN, 0 };
    if (poll(fds, n + 1, wait_ms(s, end_ns)) < 0)
        return;
    uint64_t now = clock_mono_ns();
    for (size_t i = n; i-- > 0;) /* backwards: the last one takes the place of one that ends */
        if ((fds[i].revents && !serve_client(s->clients[i], page)) || now >= s->clients[i]->end_ns)
            end_client(s, i);
    while (fds[n].revents && s->n < SERVE_MAX_CLIENTS && accept_one(s))
        ;
}

void serve_until(struct serve *s, const struct text *page, uint64_t end_ns)
{
    while (clock_mono_ns() < end_ns && !stop_asked())
        serve_round(s, page, end_ns);
}
