/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/ticker.h"

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/locked.h"
#include "tools/common/say.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define FIRST_NS 1000000000u
#define EVERY_NS 250000000u
#define WORTH_IT (1u << 20) /* bytes written, from which on they are said */

static struct {
    pthread_t id;
    pthread_mutex_t lock; /* all below, and the line */
    pthread_cond_t stopped;
    bool runs, stop, shown;
    uint64_t n_all, start_ns;
    const char *what; /* NULL: bytes are said */
} ticker = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool read_io(uint64_t *n_read, uint64_t *n_written)
{
    _cleanup_(fclosep) FILE *f = fopen("/proc/self/io", "re");
    return f && fscanf(f, "rchar: %" SCNu64 " wchar: %" SCNu64, n_read, n_written) == 2;
}

static void show_what(void)
{
    uint64_t s = (clock_mono_ns() - ticker.start_ns) / 1000000000;
    fprintf(stderr, "\r%s, %" PRIu64 ":%02" PRIu64 "\033[K", ticker.what, s / 60, s % 60);
    ticker.shown = true;
}

static void show_bytes(void)
{
    uint64_t n_read, n_written;
    char done[24], all[32] = "", rate[24], left[32] = "", wrote[40] = "", size[24];
    double seconds = (double)(clock_mono_ns() - ticker.start_ns) / 1e9;
    if (!read_io(&n_read, &n_written))
        return;
    if (n_read && n_read < ticker.n_all) {
        uint64_t s = (uint64_t)(seconds * (double)(ticker.n_all - n_read) / (double)n_read);
        snprintf(all, sizeof all, " of %s", bytes_text((double)ticker.n_all, size));
        snprintf(left, sizeof left, ", %" PRIu64 ":%02" PRIu64 " left", s / 60, s % 60);
    }
    if (n_written > WORTH_IT)
        snprintf(wrote, sizeof wrote, ", %s written", bytes_text((double)n_written, size));
    fprintf(stderr, "\r%s%s read, %s/s%s%s\033[K", bytes_text((double)n_read, done), all,
            bytes_text((double)n_read / seconds, rate), wrote, left);
    ticker.shown = true;
}

/* With the lock. */
static void clear(void)
{
    if (ticker.shown)
        fputs("\r\033[K", stderr);
    ticker.shown = false;
}

/* Before each line that the program prints. */
static void hide(void)
{
    UNDER(&ticker.lock, clear());
}

static struct timespec after(uint64_t ns)
{
    return clock_timespec(clock_mono_ns() + ns);
}

static void *tick(void *arg)
{
    struct timespec next = after(FIRST_NS);
    pthread_mutex_lock(&ticker.lock);
    while (!ticker.stop) {
        if (!pthread_cond_timedwait(&ticker.stopped, &ticker.lock, &next))
            continue;
        ticker.what ? show_what() : show_bytes();
        next = after(EVERY_NS);
    }
    clear();
    pthread_mutex_unlock(&ticker.lock);
    return arg;
}

void ticker_start(uint64_t n_all)
{
    pthread_condattr_t monotonic;
    if (!isatty(STDERR_FILENO))
        return;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ticker.stopped, &monotonic);
    pthread_condattr_destroy(&monotonic);
    ticker.n_all = n_all;
    ticker.what = NULL;
    ticker.stop = false;
    ticker.start_ns = clock_mono_ns();
    ticker.runs = !pthread_create(&ticker.id, NULL, tick, NULL);
    say_before(ticker.runs ? hide : NULL);
}

void ticker_say(const char *what)
{
    UNDER(&ticker.lock, ticker.what = what);
}

void ticker_stop(void)
{
    if (!ticker.runs)
        return;
    pthread_mutex_lock(&ticker.lock);
    ticker.stop = true;
    pthread_cond_signal(&ticker.stopped);
    pthread_mutex_unlock(&ticker.lock);
    pthread_join(ticker.id, NULL);
    ticker.runs = false;
    say_before(NULL);
}
