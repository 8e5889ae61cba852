/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/leftover.h"

#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define MOST  8
#define TRIES 100 /* the program may still add to a folder that is removed */

static struct {
    pthread_mutex_t lock; /* recursive; all below */
    sigset_t signals;
    const char *paths[MOST];
} leftover;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *place)
{
    (void)st, (void)type, (void)place;
    remove(path);
    return 0;
}

static void remove_tree(const char *path)
{
    nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void remove_all(void)
{
    static const struct timespec pause = { 0, 1000000 };
    for (int i = 0; i < MOST; i++)
        for (int n = 0; leftover.paths[i] && n < TRIES && !access(leftover.paths[i], F_OK); n++) {
            if (n)
                nanosleep(&pause, NULL);
            remove_tree(leftover.paths[i]);
        }
}

/* The program ends with the lock held, so that nothing gets its name meanwhile. */
static void *wait_for_signal(void *arg)
{
    int which;
    if (sigwait(&leftover.signals, &which))
        return arg;
    pthread_mutex_lock(&leftover.lock);
    remove_all();
    signal(which, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &leftover.signals, NULL);
    kill(getpid(), which);
    return arg;
}

void leftover_install(void)
{
    static const int which[] = { SIGINT, SIGTERM, SIGHUP };
    pthread_mutexattr_t recursive;
    pthread_t id;
    signal(SIGPIPE, SIG_IGN);
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&leftover.lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    sigemptyset(&leftover.signals);
    for (size_t i = 0; i < sizeof which / sizeof *which; i++)
        sigaddset(&leftover.signals, which[i]);
    pthread_sigmask(SIG_BLOCK, &leftover.signals, NULL);
    if (pthread_create(&id, NULL, wait_for_signal, NULL))
        pthread_sigmask(SIG_UNBLOCK, &leftover.signals, NULL);
    else
        pthread_detach(id);
}

static void change(const char *from, const char *to)
{
    leftover_hold();
    for (int i = 0; i < MOST; i++)
        if (leftover.paths[i] == from) {
            leftover.paths[i] = to;
            break;
        }
    leftover_release();
}

void leftover_note(const char *path)
{
    change(NULL, path);
}

void leftover_forget(const char *path)
{
    if (path)
        change(path, NULL);
}

void leftover_hold(void)
{
    pthread_mutex_lock(&leftover.lock);
}

void leftover_release(void)
{
    pthread_mutex_unlock(&leftover.lock);
}

void leftover_remove(const char *path)
{
    if (path)
        remove_tree(path);
    leftover_forget(path);
}
