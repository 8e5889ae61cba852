/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/state.h"

#include "core/atomic.h"
#include "preload/base/driver.h"

#include <dmi/ring.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct spare {
    struct spare *next;
    const struct context *context;
    struct exec_state state;
};
static struct spare *spares;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add(struct spare *s)
{
    pthread_mutex_lock(&lock);
    s->next = spares;
    spares = s;
    pthread_mutex_unlock(&lock);
}

/* One of @c's of the size of @like whose slots are settled, NULL: there is none. It is the caller's. */
static struct spare *take(const struct context *c, const struct exec_state *like, uint64_t settled)
{
    struct spare *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct spare **at = &spares; *at && !found; at = &(*at)->next)
        if ((*at)->context == c && (*at)->state.n_tickets == like->n_tickets &&
            (*at)->state.n_marks == like->n_marks && (*at)->state.last_slot <= settled) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

/* The ring tells when a launch with slots is over: they are settled after close. An event tells it for other launches. The
   event goes over with the memory: it is recorded anew when it is needed. */
static void reuse(const struct context *c, struct exec_state *state)
{
    uint64_t settled = atomic_load_acquire(&c->settled); /* of encoder.c append() */
    struct spare *waiting = NULL, *s;
    while ((s = take(c, state, settled))) {
        if (!s->state.event || driver_table.cuEventQuery(s->state.event) == CUDA_SUCCESS)
            break;
        s->next = waiting;
        waiting = s;
    }
    while (waiting) {
        struct spare *next = waiting->next;
        add(waiting);
        waiting = next;
    }
    if (s)
        *state = (struct exec_state){ .memory = s->state.memory,
                                      .n_tickets = state->n_tickets,
                                      .n_marks = state->n_marks,
                                      .event = s->state.event };
    free(s);
}

int exec_state_init(struct err *err, const struct context *c, uint32_t n_tickets, uint32_t n_marks,
                    struct exec_state *state)
{
    CUresult r = CUDA_SUCCESS;
    size_t n_bytes = n_tickets * sizeof(struct dmi_ticket) + n_marks * sizeof(struct dmi_copy_mark);
    *state = (struct exec_state){ .n_tickets = n_tickets, .n_marks = n_marks };
    reuse(c, state);
    if (!state->memory)
        r = driver_table.cuMemAlloc_v2(&state->memory, n_bytes);
    /* on our own stream: the NULL stream would wait for the application's */
    if (r == CUDA_SUCCESS)
        r = driver_table.cuMemsetD8Async(state->memory, 0, n_bytes, c->stream);
    if (r == CUDA_SUCCESS)
        r = driver_table.cuStreamSynchronize(c->stream);
    return r == CUDA_SUCCESS ? 0 : err_set(err, -EIO, "no memory for its state (error %d)", (int)r);
}

void exec_state_give_back(const struct context *c, const struct exec_state *state)
{
    struct spare *s = state->memory && !state->unknown ? malloc(sizeof *s) : NULL;
    if (!s)
        return; /* lost until the context ends */
    *s = (struct spare){ .context = c, .state = *state };
    add(s);
}

void exec_state_by_event(struct exec_state *state, struct stream stream)
{
    if (!stream_record(stream, &state->event))
        state->unknown = true;
}

void exec_state_forget_context(const struct context *c)
{
    pthread_mutex_lock(&lock);
    for (struct spare **at = &spares; *at;) {
        struct spare *s = *at;
        if (s->context == c) {
            *at = s->next;
            free(s);
        } else {
            at = &s->next;
        }
    }
    pthread_mutex_unlock(&lock);
}

void exec_state_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
