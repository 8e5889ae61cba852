/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/step.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "preload/base/session.h"

#include <dmi/span.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct step *in_force;

/* ------------------------------------------------------------------------- tags that were looked into */

/* A request's tags are the same in each of its steps, and reading them costs microseconds. */
#define N_SEEN 1024u
struct seen {
    uint64_t hash; /* of the tags' text and the choice */
    bool known, takes;
};
static struct seen seen[N_SEEN]; /* under the lock */

static bool takes_tags(uint32_t choice, const char *id, const char *tags)
{
    uint64_t hash = XXH3_64bits_withSeed(tags, strlen(tags), choice);
    struct seen *s = &seen[hash % N_SEEN];
    pthread_mutex_lock(&lock);
    struct seen was = *s;
    pthread_mutex_unlock(&lock);
    if (was.known && was.hash == hash)
        return was.takes;
    bool takes = select_request(&session.spec->selects[choice], id, tags);
    pthread_mutex_lock(&lock);
    *s = (struct seen){ .hash = hash, .known = true, .takes = takes };
    pthread_mutex_unlock(&lock);
    return takes;
}

static bool takes_request(uint32_t choice, const struct dmi_span *span)
{
    const struct select *s = &session.spec->selects[choice];
    if (s->tag && span->tags)
        return takes_tags(choice, span->request_id, span->tags);
    return select_request(s, span->request_id, span->tags);
}

/* ------------------------------------------------------------------------- a step */

static bool has_padding(const struct dmi_step *said)
{
    for (uint32_t i = 0; i < said->n_spans; i++)
        if (dmi_span_at(said, i)->flags & DMI_SPAN_PADDING)
            return true;
    return false;
}

/* Return: 0 or -ENOMEM. */
static int choose(uint32_t choice, const struct dmi_step *said, bool padding,
                  struct select_rows *out)
{
    const struct select *s = &session.spec->selects[choice];
    if (select_is_default(s) && s->row == DMI_ROW_TOKEN && !padding) {
        *out = (struct select_rows){ .all = true }; /* the usual case, whatever the batch's size */
        return 0;
    }
    if (!s->requests)
        return select_rows(s, said, NULL, out);
    _cleanup_(freep) bool *takes = calloc(said->n_spans + 1u, sizeof *takes);
    for (uint32_t i = 0; takes && i < said->n_spans; i++)
        takes[i] = takes_request(choice, dmi_span_at(said, i));
    return takes ? select_rows(s, said, takes, out) : -ENOMEM;
}

static void step_free(struct step *step)
{
    for (uint32_t i = 0; i < session.spec->n_selects; i++)
        select_rows_deinit(&step->rows[i]);
    free(step);
}

struct step *step_new(uint64_t sequence, const struct dmi_step *said)
{
    uint32_t n = session.spec->n_selects;
    struct step *step = calloc(1, sizeof *step + n * sizeof step->rows[0]);
    if (!step)
        return NULL;
    *step = (struct step){ .refs = 1, .sequence = sequence, .number = said->step };
    bool padding = has_padding(said);
    for (uint32_t i = 0; i < n; i++)
        if (choose(i, said, padding, &step->rows[i])) {
            step_free(step);
            return NULL;
        }
    return step;
}

void step_release(struct step *step)
{
    /* whoever is last sees what the others did with it */
    if (step && atomic_sub_acq_rel(&step->refs, 1) == 1)
        step_free(step);
}

void step_set(struct step *step)
{
    pthread_mutex_lock(&lock);
    struct step *before = in_force;
    in_force = step;
    pthread_mutex_unlock(&lock);
    step_release(before);
}

struct step *step_hold(void)
{
    pthread_mutex_lock(&lock);
    struct step *step = in_force;
    if (step)
        atomic_add_relaxed(&step->refs, 1);
    pthread_mutex_unlock(&lock);
    return step;
}

void step_reset(void)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    lock = unlocked;
    in_force = NULL; /* the parent's: its launches are not ours */
}
