/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/keeper.h"

#include "core/clock.h"
#include "core/priority.h"

#include <signal.h>
#include <time.h>

#define STACK_BYTES (256u << 10)

/* Return: whether it is to end. */
static bool wait_for_stop(struct keeper *k)
{
    const struct timespec end = clock_timespec(clock_mono_ns() + k->every_ns);
    pthread_mutex_lock(&k->lock);
    while (!k->stop && !pthread_cond_timedwait(&k->stopped, &k->lock, &end))
        ;
    bool stop = k->stop;
    pthread_mutex_unlock(&k->lock);
    return stop;
}

static void *keeper_main(void *arg)
{
    struct keeper *k = arg;
    /* by itself: another thread's name goes to a file in /proc, which delays the end of that thread */
    pthread_setname_np(pthread_self(), "dmi-keep");
    priority_lower();
    if (k->begin)
        k->begin();
    while (!wait_for_stop(k))
        k->round(k->arg);
    return NULL;
}

/* The application's threads handle its signals. */
static int start_thread(struct keeper *k)
{
    pthread_attr_t attr;
    sigset_t all, before;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&k->id, &attr, keeper_main, k);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return -r;
}

int keeper_start(struct keeper *k, uint64_t every_ns, void (*begin)(void), void (*round)(void *arg),
                 void *arg)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    *k = (struct keeper){ .every_ns = every_ns, .begin = begin, .round = round, .arg = arg };
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->stopped, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int r = start_thread(k);
    k->runs = !r;
    return r;
}

void keeper_stop(struct keeper *k)
{
    if (!k->runs)
        return;
    pthread_mutex_lock(&k->lock);
    k->stop = true;
    pthread_cond_signal(&k->stopped);
    pthread_mutex_unlock(&k->lock);
    pthread_join(k->id, NULL);
    pthread_cond_destroy(&k->stopped);
    pthread_mutex_destroy(&k->lock);
    k->runs = false;
}
