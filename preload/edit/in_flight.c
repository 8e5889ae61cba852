/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/edit/in_flight.h"

#include <pthread.h>
#include <stdbool.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* no other is taken while it is held */
static struct in_flight *waiting;

static void note_launches(struct context *c, void *arg)
{
    struct in_flight *f = arg;
    pthread_mutex_lock(&c->lock);
    f->until[context_index(c)] = c->unslotted.head;
    pthread_mutex_unlock(&c->lock);
}

/* Which contexts there are, while launches are looked at. */
struct looking {
    struct in_flight *of;
    bool there[CONTEXT_MAX];
};

static void see_launches(struct context *c, void *arg)
{
    struct looking *l = arg;
    uint64_t *until = &l->of->until[context_index(c)];
    l->there[context_index(c)] = true;
    pthread_mutex_lock(&c->lock);
    /* a context that came later at this place has launched less */
    if (c->unslotted.tail >= *until || c->unslotted.head < *until)
        *until = 0;
    pthread_mutex_unlock(&c->lock);
}

static bool is_over(struct in_flight *f)
{
    struct looking l = { .of = f };
    bool over = true;
    context_each(see_launches, &l);
    for (uint32_t i = 0; i < CONTEXT_MAX; i++)
        over = over && !(l.there[i] && f->until[i]);
    return over;
}

/* Puts a list in front of those that wait. */
static void put_back(struct in_flight *list)
{
    pthread_mutex_lock(&lock);
    while (list) {
        struct in_flight *next = list->next;
        list->next = waiting;
        waiting = list;
        list = next;
    }
    pthread_mutex_unlock(&lock);
}

void in_flight_wait(struct in_flight *f, void (*over)(struct in_flight *of))
{
    *f = (struct in_flight){ .over = over };
    context_each(note_launches, f);
    put_back(f);
}

void in_flight_settle(void)
{
    pthread_mutex_lock(&lock);
    struct in_flight *all = waiting, *kept = NULL;
    waiting = NULL;
    pthread_mutex_unlock(&lock);
    while (all) {
        struct in_flight *next = all->next;
        if (is_over(all)) {
            all->over(all);
        } else {
            all->next = kept;
            kept = all;
        }
        all = next;
    }
    put_back(kept);
}

void in_flight_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    waiting = NULL;
}
