/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/stop.h"

#include "core/clock.h"

#include <signal.h>
#include <time.h>

static volatile sig_atomic_t asked;

static void note(int signal)
{
    (void)signal;
    asked = 1;
}

void stop_install(void)
{
    /* No SA_RESTART: what waits for a reader returns. */
    struct sigaction on = { .sa_handler = note }, off = { .sa_handler = SIG_IGN };
    sigaction(SIGINT, &on, NULL);
    sigaction(SIGTERM, &on, NULL);
    sigaction(SIGPIPE, &off, NULL);
}

bool stop_asked(void)
{
    return asked;
}

void stop_sleep(uint64_t ns)
{
    const struct timespec ts = clock_timespec(ns);
    if (!asked)
        nanosleep(&ts, NULL);
}
