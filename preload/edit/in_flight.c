/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/edit/in_flight.h"

static void note_launches(struct context *c, void *arg)
{
    struct in_flight *f = arg;
    pthread_mutex_lock(&c->lock);
    f->until[context_index(c)] = c->unslotted.head;
    pthread_mutex_unlock(&c->lock);
}

void in_flight_note(struct in_flight *f)
{
    *f = (struct in_flight){ { 0 } };
    context_each(note_launches, f);
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

bool in_flight_is_over(struct in_flight *f)
{
    struct looking l = { .of = f };
    bool over = true;
    context_each(see_launches, &l);
    for (uint32_t i = 0; i < CONTEXT_MAX; i++)
        over = over && !(l.there[i] && f->until[i]);
    return over;
}
