/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/parallel.h"

#include "core/atomic.h"

#include <pthread.h>
#include <stdint.h>

struct work {
    void (*task)(void *arg, size_t number);
    void *arg;
    size_t n_tasks;
    uint64_t next; /* task that no thread has yet */
};

static void *do_tasks(void *work)
{
    struct work *w = work;
    for (;;) {
        uint64_t number = atomic_add_relaxed(&w->next, 1);
        if (number >= w->n_tasks)
            return NULL;
        w->task(w->arg, number);
    }
}

void parallel(size_t n_threads, size_t n_tasks, void (*task)(void *arg, size_t number), void *arg)
{
    struct work work = { task, arg, n_tasks, 0 };
    pthread_t threads[PARALLEL_MOST_THREADS];
    size_t n = 0, most = n_threads < n_tasks ? n_threads : n_tasks;
    most = most < PARALLEL_MOST_THREADS ? most : PARALLEL_MOST_THREADS;
    /* pthread_join() is what makes their results seen here */
    while (n + 1 < most && !pthread_create(&threads[n], NULL, do_tasks, &work))
        n++;
    do_tasks(&work);
    while (n)
        pthread_join(threads[--n], NULL);
}
