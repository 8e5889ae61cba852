/* SPDX-License-Identifier: Apache-2.0 */
#include "core/quiet.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>

static const int raised[] = { SIGPIPE, SIGXFSZ };
#define N_RAISED (sizeof raised / sizeof *raised)

void quiet_begin(struct quiet *q)
{
    sigset_t block;
    sigemptyset(&block);
    for (size_t i = 0; i < N_RAISED; i++)
        sigaddset(&block, raised[i]);
    sigpending(&q->before_pending);
    pthread_sigmask(SIG_BLOCK, &block, &q->before);
}

void quiet_end(const struct quiet *q)
{
    const struct timespec none = { 0 };
    sigset_t pending, mine;
    int saved = errno, n = 0;
    sigpending(&pending);
    sigemptyset(&mine);
    for (size_t i = 0; i < N_RAISED; i++)
        if (sigismember(&pending, raised[i]) && !sigismember(&q->before_pending, raised[i])) {
            sigaddset(&mine, raised[i]);
            n++;
        }
    while (n-- > 0)
        sigtimedwait(&mine, NULL, &none);
    pthread_sigmask(SIG_SETMASK, &q->before, NULL);
    errno = saved;
}
