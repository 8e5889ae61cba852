/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of ours in the application's process. */
#ifndef PRELOAD_BASE_THREAD_H
#define PRELOAD_BASE_THREAD_H

#include <pthread.h>

/**
 * thread_start() - a thread that takes none of the application's signals, on CPUs where it is in nobody's way (cpus.h)
 * @name: of at most 15 bytes
 * Thread: any, after the constructor. Return: 0 or -errno.
 */
int thread_start(pthread_t *id, void *(*fn)(void *), void *arg, const char *name);

#endif
