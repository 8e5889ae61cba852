/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks that do not depend on one another, on some threads. The calling thread is one of them, and waits for the others. */
#pragma once

#include <stddef.h>

#define PARALLEL_MOST_THREADS 256

/*
 * Calls @task with each number below @n_tasks, on at most @n_threads threads. Where the system gives fewer threads, those that there
 * are do all of it.
 */
void parallel(size_t n_threads, size_t n_tasks, void (*task)(void *arg, size_t number), void *arg);
