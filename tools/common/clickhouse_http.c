/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/clickhouse_http.h"

#include "core/cleanup.h"
#include "core/clock.h"
#include "tools/common/clickhouse_curl.h"
#include "tools/common/say.h"
#include "tools/common/stop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_S   10l
#define ANSWER_S    300l /* a host that is lost says nothing: so long, then the batch is sent again */
#define FIRST_PAUSE 100000000ull
#define LAST_PAUSE  5000000000ull
#define MOST_ANSWER (1u << 20)
#define MOST_ERROR  (64u << 10)
/* Over a cluster a batch is taken once its rows are where they belong; other tables have no use for the setting. */
#define INSERT_ADDRESS "?insert_distributed_sync=1&query="
#define MOST_SAID      300 /* of what a server says of an error */

struct clickhouse_http {
    const struct clickhouse_url *url;
    CURL *curl;
    struct curl_slist *headers;
    struct text answer;
    uint64_t most;       /* bytes of an answer */
    bool reached;        /* it has answered once */
    bool endless;        /* this answer is longer than it may be */
    uint64_t stopped_ns; /* when the user's wish to stop was seen; 0: not */
};

enum { AGAIN = 1 };

/* Bytes that the answer may have: one that tells of an error is short. */
static uint64_t most_now(const struct clickhouse_http *h)
{
    long status = 0;
    clickhouse_curl.getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    uint64_t most = status == 200 ? h->most : MOST_ERROR;
    return most > h->answer.n ? most : h->answer.n;
}

static size_t take_answer(char *data, size_t size, size_t n, void *arg)
{
    struct clickhouse_http *h = arg;
    h->endless |= size * n > most_now(h) - h->answer.n;
    if (!h->endless)
        text_add(&h->answer, data, size * n);
    return h->endless || h->answer.failed ? 0 : size * n; /* 0: libcurl ends the transfer */
}

/* Once the user wants to stop, the server has a little time for what it is being given. */
static int may_go_on(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct clickhouse_http *h = arg;
    (void)a, (void)b, (void)c, (void)d;
    if (!stop_asked())
        return 0;
    if (!h->stopped_ns)
        h->stopped_ns = clock_mono_ns();
    return clock_mono_ns() - h->stopped_ns > STOP_GRACE_MS * 1000000ull;
}

int clickhouse_http_new(struct err *err, const struct clickhouse_url *url,
                        struct clickhouse_http **out)
{
    struct clickhouse_http *h = calloc(1, sizeof *h);
    if (h)
        h->curl = clickhouse_curl.init();
    if (!h || !h->curl) {
        free(h);
        return err_set_errno(err, ENOMEM, "cannot replay");
    }
    h->url = url;
    h->most = MOST_ANSWER;
    h->headers = clickhouse_curl.append(NULL, "Expect:"); /* else a pause before each batch */
    clickhouse_curl.setopt(h->curl, CURLOPT_HTTPHEADER, h->headers);
    clickhouse_curl.setopt(h->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    clickhouse_curl.setopt(h->curl, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
    clickhouse_curl.setopt(h->curl, CURLOPT_USERNAME, url->user);
    clickhouse_curl.setopt(h->curl, CURLOPT_PASSWORD, url->password);
    clickhouse_curl.setopt(h->curl, CURLOPT_NOSIGNAL, 1l);
    clickhouse_curl.setopt(h->curl, CURLOPT_CONNECTTIMEOUT, CONNECT_S);
    clickhouse_curl.setopt(h->curl, CURLOPT_TIMEOUT, ANSWER_S);
    clickhouse_curl.setopt(h->curl, CURLOPT_NOPROGRESS, 0l);
    clickhouse_curl.setopt(h->curl, CURLOPT_XFERINFOFUNCTION, may_go_on);
    clickhouse_curl.setopt(h->curl, CURLOPT_XFERINFODATA, h);
    clickhouse_curl.setopt(h->curl, CURLOPT_WRITEFUNCTION, take_answer);
    clickhouse_curl.setopt(h->curl, CURLOPT_WRITEDATA, h);
    if (url->ca)
        clickhouse_curl.setopt(h->curl, CURLOPT_CAINFO, url->ca);
    *out = h;
    return 0;
}

void clickhouse_http_most(struct clickhouse_http *h, uint64_t n_bytes)
{
    h->most = n_bytes;
}

void clickhouse_http_free(struct clickhouse_http *h)
{
    if (!h)
        return;
    clickhouse_curl.cleanup(h->curl);
    clickhouse_curl.free_all(h->headers);
    text_deinit(&h->answer);
    free(h);
}

/* ------------------------------------------------------------------------- what an answer means */

/* Whether the same may go well later: the server starts, stops, or lacks room, memory or time for now. */
static bool may_pass(long status, long code)
{
    static const long passing[] = {
        3,   /* UNEXPECTED_END_OF_FILE */
        32,  /* ATTEMPT_TO_READ_AFTER_EOF: another server of a cluster ended meanwhile */
        33,  /* CANNOT_READ_ALL_DATA: the same */
        74,  /* CANNOT_READ_FROM_FILE_DESCRIPTOR */
        75,  /* CANNOT_WRITE_TO_FILE_DESCRIPTOR: the disk is full */
        76,  /* CANNOT_OPEN_FILE */
        159, /* TIMEOUT_EXCEEDED */
        160, /* TOO_SLOW */
        173, /* CANNOT_ALLOCATE_MEMORY */
        202, /* TOO_MANY_SIMULTANEOUS_QUERIES */
        209, /* SOCKET_TIMEOUT */
        210, /* NETWORK_ERROR */
        236, /* ABORTED */
        241, /* MEMORY_LIMIT_EXCEEDED */
        243, /* NOT_ENOUGH_SPACE */
        252, /* TOO_MANY_PARTS */
        279, /* ALL_CONNECTION_TRIES_FAILED: to another server of a cluster */
        1000, 1001, 1002, /* of the libraries that it uses: files, most of all */
    };
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
        if (code == passing[i])
            return true;
    return !code && (status == 429 || status >= 500); /* of something before the server */
}

/* The server's own words in one line. */
static const char *said(struct clickhouse_http *h, char out[MOST_SAID + 1])
{
    const char *end = h->answer.n ? strstr(h->answer.data, ", e.what()") : NULL;
    size_t n = end ? (size_t)(end - h->answer.data) : h->answer.n;
    n = n < MOST_SAID ? n : MOST_SAID;
    memcpy(out, n ? h->answer.data : "", n);
    out[n] = 0;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)out[i] < ' ')
            out[i] = ' ';
    return n ? out : "it says nothing";
}

static int judge_answer(struct err *err, struct clickhouse_http *h)
{
    char words[MOST_SAID + 1];
    long status = 0, code = 0;
    clickhouse_curl.getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200)
        return 0;
    if (h->answer.n > 6 && !memcmp(h->answer.data, "Code: ", 6))
        code = strtol(h->answer.data + 6, NULL, 10);
    err_set(err, -EREMOTEIO, "%s (HTTP %ld): %s", h->url->server, status, said(h, words));
    return may_pass(status, code) ? AGAIN : -EREMOTEIO;
}

static int judge(struct err *err, struct clickhouse_http *h, CURLcode r)
{
    if (h->answer.failed)
        return err_set_errno(err, ENOMEM, "cannot take an answer of %s", h->url->server);
    if (h->endless)
        return err_set(err, -EBADMSG, "%s: an answer does not end after %zu bytes", h->url->server,
                       h->answer.n);
    switch (r) {
    case CURLE_OK: return judge_answer(err, h);
    case CURLE_ABORTED_BY_CALLBACK: return -EINTR;
    case CURLE_OUT_OF_MEMORY: return err_set_errno(err, ENOMEM, "cannot replay");
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
        return err_set(err, -EPROTO, "%s: %s", h->url->server, clickhouse_curl.strerror(r));
    default:
        err_set(err, -EHOSTUNREACH, "%s: %s", h->url->server, clickhouse_curl.strerror(r));
        return AGAIN;
    }
}

/* ------------------------------------------------------------------------- asking */

/* With data the statement is in the address, else it is the body. Return: 0 or -ENOMEM. */
static int address(struct clickhouse_http *h, const char *sql, const struct text *data)
{
    char *escaped = data ? clickhouse_curl.escape(h->curl, sql, 0) : NULL;
    _cleanup_(freep) char *url = NULL;
    int n = asprintf(&url, "%s%s%s", h->url->server, data ? INSERT_ADDRESS : "",
                     escaped ? escaped : "");
    bool failed = n < 0 || (data && !escaped);
    clickhouse_curl.free(escaped);
    if (n < 0)
        url = NULL;
    if (failed || clickhouse_curl.setopt(h->curl, CURLOPT_URL, url))
        return -ENOMEM;
    clickhouse_curl.setopt(h->curl, CURLOPT_POSTFIELDS, data ? data->data : sql);
    clickhouse_curl.setopt(h->curl, CURLOPT_POSTFIELDSIZE_LARGE,
                           (curl_off_t)(data ? data->n : strlen(sql)));
    return 0;
}

static int ask_once(struct err *err, struct clickhouse_http *h)
{
    h->answer.n = 0;
    h->endless = false;
    int r = judge(err, h, clickhouse_curl.perform(h->curl));
    if (r == AGAIN && !h->reached)
        return err->code;
    h->reached |= !r;
    return r;
}

/* Waits before it is asked again. Return: 0; -EINTR; else it is given up. */
static int wait_for_server(struct err *err, struct clickhouse_http *h, const struct err *why,
                           uint64_t since_ns, uint64_t *pause_ns)
{
    uint64_t away_ns = clock_mono_ns() - since_ns;
    if (h->url->give_up_s && away_ns > h->url->give_up_s * 1000000000ull)
        return err_set(err, why->code, "given up after %u s: %s", h->url->give_up_s, why->msg);
    if (*pause_ns == FIRST_PAUSE)
        complain("%s; it is asked again", why->msg);
    stop_sleep(*pause_ns);
    *pause_ns = 2 * *pause_ns < LAST_PAUSE ? 2 * *pause_ns : LAST_PAUSE;
    return stop_asked() ? -EINTR : 0;
}

int clickhouse_http_ask(struct err *err, struct clickhouse_http *h, const char *sql,
                        const struct text *data, struct text *answer)
{
    uint64_t since_ns = clock_mono_ns(), pause_ns = FIRST_PAUSE;
    struct err why;
    int r = address(h, sql, data);
    if (r)
        return err_set_errno(err, -r, "cannot replay");
    do {
        why = (struct err){ 0 };
        r = ask_once(&why, h);
        if (r != AGAIN)
            break;
        r = wait_for_server(err, h, &why, since_ns, &pause_ns);
        if (r)
            return r;
    } while (true);
    if (r)
        return r == -EINTR ? r : err_set(err, r, "%s", why.msg);
    if (pause_ns > FIRST_PAUSE)
        complain("%s answers again", h->url->server);
    if (answer) {
        struct text old = *answer;
        *answer = h->answer;
        h->answer = (struct text){ .data = old.data, .room = old.room };
    }
    return 0;
}
