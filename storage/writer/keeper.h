/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that does something again and again, for a run that waits for nobody. It has no signals and a low priority.
 * keeper_start() and keeper_stop() are for one thread.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Accepts being zeroed. */
struct keeper {
    pthread_t id;
    bool runs;
    pthread_mutex_t lock; /* @stop */
    pthread_cond_t stopped;
    bool stop;
    uint64_t every_ns;
    void (*begin)(void);
    void (*round)(void *arg);
    void *arg;
};

/* In its thread: @begin, unless that is NULL, then @round each @every_ns, the first time after that. Return: 0 or -errno. */
int keeper_start(struct keeper *keeper, uint64_t every_ns, void (*begin)(void),
                 void (*round)(void *arg), void *arg);

/* Waits for the round that runs, if one does. Nothing where no keeper was started. */
void keeper_stop(struct keeper *keeper);
