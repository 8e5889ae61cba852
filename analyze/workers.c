/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/workers.h"

#include "core/grow.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PLACES 4 /* of a queue: so many records are in memory for each thread */

struct queued {
    struct dmi_read_stretch stretch;
    uint8_t *data;
    size_t room;
};

/* One thread and its queue. What stands in places [n_done, n_put) is the thread's, the others are the caller's. */
struct worker {
    struct workers *all;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t n_put, n_done;
    bool ends;
    int result;
    struct queued places[PLACES];
};

struct workers {
    workers_fn *work;
    void *arg;
    size_t n;
    struct worker each[];
};

/* The next place with a stretch; NULL: there will be none. */
static struct queued *next(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    while (w->n_done == w->n_put && !w->ends)
        pthread_cond_wait(&w->moved, &w->lock);
    struct queued *p = w->n_done < w->n_put ? &w->places[w->n_done % PLACES] : NULL;
    pthread_mutex_unlock(&w->lock);
    return p;
}

static void give_back(struct worker *w, int result)
{
    pthread_mutex_lock(&w->lock);
    w->n_done++;
    w->result = w->result ? w->result : result;
    pthread_cond_signal(&w->moved);
    pthread_mutex_unlock(&w->lock);
}

/* After a failure what comes is only taken from the queue, so that the caller never waits for good. */
static void *run(void *arg)
{
    struct worker *w = arg;
    size_t number = (size_t)(w - w->all->each);
    int r = 0;
    for (struct queued *p; (p = next(w));) {
        r = r ? r : w->all->work(w->all->arg, number, &p->stretch);
        give_back(w, r);
    }
    return NULL;
}

struct workers *workers_start(size_t n, workers_fn *work, void *arg)
{
    struct workers *all = calloc(1, sizeof *all + n * sizeof all->each[0]);
    if (!all)
        return NULL;
    all->work = work;
    all->arg = arg;
    for (; all->n < n; all->n++) {
        struct worker *w = &all->each[all->n];
        w->all = all;
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->moved, NULL);
        if (pthread_create(&w->thread, NULL, run, w))
            break;
    }
    if (all->n)
        return all;
    free(all);
    return NULL;
}

size_t workers_count(const struct workers *all)
{
    return all->n;
}

static int copy(struct queued *p, const struct dmi_read_stretch *s)
{
    size_t n = s->n_rows * s->width * dmi_dtype_bytes(s->dtype);
    p->stretch = *s;
    if (!s->data)
        return 0;
    if (RESERVE(p->data, n, p->room))
        return -ENOMEM;
    if (n)
        memcpy(p->data, s->data, n);
    p->stretch.data = n ? (const void *)p->data : "";
    return 0;
}

int workers_put(struct workers *all, size_t worker, const struct dmi_read_stretch *s)
{
    struct worker *w = &all->each[worker];
    pthread_mutex_lock(&w->lock);
    while (w->n_put - w->n_done == PLACES)
        pthread_cond_wait(&w->moved, &w->lock);
    int r = w->result;
    pthread_mutex_unlock(&w->lock);
    if (!r)
        r = copy(&w->places[w->n_put % PLACES], s);
    if (r)
        return r;
    pthread_mutex_lock(&w->lock);
    w->n_put++;
    pthread_cond_signal(&w->moved);
    pthread_mutex_unlock(&w->lock);
    return 0;
}

static int end(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_signal(&w->moved);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->moved);
    pthread_mutex_destroy(&w->lock);
    for (size_t i = 0; i < PLACES; i++)
        free(w->places[i].data);
    return w->result;
}

int workers_end(struct workers *all)
{
    int result = 0;
    for (size_t i = 0; i < all->n; i++) {
        int r = end(&all->each[i]);
        result = result ? result : r;
    }
    free(all);
    return result;
}
