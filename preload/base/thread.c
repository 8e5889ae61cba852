/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/thread.h"

#include "preload/base/cpus.h"

#include <signal.h>

#define STACK_BYTES (512u << 10)

int thread_start(pthread_t *id, void *(*fn)(void *), void *arg)
{
    pthread_attr_t attr;
    cpu_set_t cpus;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    /* the application's threads handle its signals */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(id, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (r)
        return -r;
    if (cpus_beside(&cpus))
        pthread_setaffinity_np(*id, sizeof cpus, &cpus); /* where it fails it stays here */
    return 0;
}
