/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/pending.h"

#include "core/log.h"
#include "storage/writer/steps.h"

#include <dmi/format.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void lock_release(pthread_mutex_t **lock)
{
    pthread_mutex_unlock(*lock);
}

#define HOLD(p)                                                                                    \
    __attribute__((cleanup(lock_release))) pthread_mutex_t *held = &(p)->lock;                     \
    pthread_mutex_lock(held)

void pending_init(struct pending *p, bool with_ids)
{
    *p = (struct pending){ .with_ids = with_ids };
    pthread_mutex_init(&p->lock, NULL);
}

void pending_deinit(struct pending *p)
{
    text_deinit(&p->steps);
    outcomes_deinit(&p->outcomes);
    pthread_mutex_destroy(&p->lock);
}

/* ------------------------------------------------------------------------- what is refused */

/* Return: whether it was the first. */
static bool count(struct pending *p, struct pending_refusals *to, const char *sentence)
{
    HOLD(p);
    if (to->n++)
        return false;
    snprintf(to->first, sizeof to->first, "%s", sentence);
    return true;
}

void pending_refuse(struct pending *p, enum pending_kind kind, const char *fmt, ...)
{
    char sentence[sizeof p->refused[0].first];
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    if (count(p, &p->refused[kind], sentence))
        log_line("%s; further ones are only counted", sentence);
}

static void note_back(struct pending *p, uint64_t from, uint64_t to)
{
    char sentence[sizeof p->back.first];
    snprintf(sentence, sizeof sentence,
             "the engine's step number went back from %" PRIu64 " to %" PRIu64
             ": the steps are taken in the order in which they were said",
             from, to);
    if (count(p, &p->back, sentence))
        log_line("%s", sentence);
}

void pending_refused(struct pending *p, struct pending_refusals refused[PENDING_KINDS],
                     struct pending_refusals *back)
{
    HOLD(p);
    memcpy(refused, p->refused, sizeof p->refused);
    *back = p->back;
}

/* ------------------------------------------------------------------------- what is said */

/* Return: as steps_add(). *@last: the number of the step before. */
static int add_step(struct pending *p, uint64_t sequence, const struct dmi_step *step,
                    uint64_t *last, const char **why)
{
    HOLD(p);
    size_t before = p->steps.n;
    int r = steps_add(&p->steps, sequence, step, p->with_ids, why);
    if (!r && outcomes_step(&p->outcomes, sequence, step)) {
        p->steps.n = before; /* a step whose drafts nobody could judge is none */
        *why = "no memory";
        r = -ENOMEM;
    }
    /* threads, and batches in turn, count each for themselves */
    bool alone = step->flags & (DMI_STEP_OF_THREAD | DMI_STEP_PAUSES);
    *last = alone ? 0 : p->last_number;
    if (!r && !alone)
        p->last_number = step->step;
    return r;
}

int pending_step(struct pending *p, uint64_t sequence, const struct dmi_step *step)
{
    const char *why = "";
    uint64_t last;
    int r = add_step(p, sequence, step, &last, &why);
    if (r)
        pending_refuse(p, PENDING_STEP, "step %" PRIu64 " of the engine is refused: %s", step->step,
                       why);
    else if (step->step < last)
        note_back(p, last, step->step);
    return r;
}

static int add_accept(struct pending *p, const char *id, uint64_t number, uint32_t n_accepted,
                      const char **why)
{
    HOLD(p);
    return outcomes_accept(&p->outcomes, id, number, n_accepted, why);
}

int pending_accept(struct pending *p, const char *id, uint64_t number, uint32_t n_accepted)
{
    const char *why = "";
    int r = add_accept(p, id, number, n_accepted, &why);
    if (r)
        pending_refuse(p, PENDING_OUTCOME,
                       "that %" PRIu32 " rows of a request are accepted in step %" PRIu64
                       " of the engine is refused: %s",
                       n_accepted, number, why);
    return r;
}

static int add_end(struct pending *p, const char *id, uint32_t reason, const char **why)
{
    HOLD(p);
    return outcomes_end(&p->outcomes, id, reason, why);
}

int pending_end(struct pending *p, const char *id, uint32_t reason)
{
    const char *why = "";
    int r = add_end(p, id, reason, &why);
    if (r)
        pending_refuse(p, PENDING_OUTCOME, "the end of a request is refused: %s", why);
    return r;
}

int pending_shed(struct pending *p, const char *id, uint64_t sequence)
{
    const char *why = "";
    HOLD(p);
    return outcomes_shed(&p->outcomes, id, sequence, &why);
}

/* ------------------------------------------------------------------------- what is written */

bool pending_any(struct pending *p)
{
    HOLD(p);
    return p->steps.n || p->outcomes.entries.n;
}

void pending_take(struct pending *p, struct text *steps, struct text *outcomes)
{
    HOLD(p);
    if (!steps->n) {
        struct text empty =
            *steps; /* the two go round: nothing is allocated once they have grown */
        *steps = p->steps;
        p->steps = empty;
    } else if (steps->n + p->steps.n <= DMI_MAX_META) {
        size_t n = steps->n;
        text_add(steps, p->steps.data ? p->steps.data : "", p->steps.n);
        if (steps->failed)
            steps->failed = 0, steps->n = n;
        else
            p->steps.n = 0;
    }
    /* later than their steps, which may still wait here */
    if (!outcomes->n && !p->steps.n)
        outcomes_take(&p->outcomes, outcomes);
}
