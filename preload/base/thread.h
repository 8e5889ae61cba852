/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of ours in the application's process. */
#pragma once

#include <pthread.h>

/**
 * thread_start() - a thread that takes none of the application's signals, on CPUs where it is in nobody's way (cpus.h)
 *
 * @fn gives itself a name. Linux names another thread by a file of /proc, which makes that thread's end take milliseconds.
 * Thread: any, after the constructor. Return: 0 or -errno.
 */
int thread_start(pthread_t *id, void *(*fn)(void *), void *arg);
