/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/step.h"

#include "core/any.h"
#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/locked.h"
#include "preload/session/session.h"

#include <dmi/span.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what was looked into */

/* ------------------------------------------------------------------------- tags that were looked into */

/* A request's tags are the same in each of its steps, and reading them costs microseconds. */
#define N_SEEN 1024u
struct seen_request {
    uint64_t hash; /* of the tags' text and the choice */
    bool known, takes;
};
static struct seen_request seen[N_SEEN]; /* under the lock */

static bool takes_tags(uint32_t choice, const char *id, const char *tags)
{
    uint64_t hash = XXH3_64bits_withSeed(tags, strlen(tags), choice);
    struct seen_request *s = &seen[hash % N_SEEN];
    struct seen_request was = LOCKED(&lock, *s);
    if (was.known && was.hash == hash)
        return was.takes;
    bool takes = select_request(&session.spec->selects[choice], id, tags);
    pthread_mutex_lock(&lock);
    *s = (struct seen_request){ .hash = hash, .known = true, .takes = takes };
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
    return ANY(i, said->n_spans, dmi_span_at(said, i)->flags & DMI_SPAN_PADDING);
}

/* @keeps: per span, NULL: all of them; @last: gets the rows by request of a site whose rows are tokens, NULL: nobody asks. Return: 0 or -ENOMEM. */
static int choose(uint32_t choice, const struct dmi_step *said, const bool *keeps, bool padding,
                  struct select_rows *out, struct select_rows *last)
{
    const struct select *s = &session.spec->selects[choice];
    _cleanup_(freep) bool *takes = s->requests ? calloc(said->n_spans + 1u, sizeof *takes) : NULL;
    if (s->requests && !takes)
        return -ENOMEM;
    for (uint32_t i = 0; takes && i < said->n_spans; i++)
        takes[i] = (!keeps || keeps[i]) && takes_request(choice, dmi_span_at(said, i));
    const bool *taken = takes ? takes : keeps;
    if (last && s->row == DMI_ROW_TOKEN && select_last_rows(s, said, taken, last))
        return -ENOMEM;
    if (select_is_default(s) && s->row == DMI_ROW_TOKEN && !padding && !keeps) {
        *out = (struct select_rows){ .all = true }; /* the usual case, whatever the batch's size */
        return 0;
    }
    return select_rows(s, said, taken, out);
}

static void free_said(struct dmi_step *said)
{
    for (uint32_t i = 0; said && i < said->n_spans; i++) {
        free((char *)said->spans[i].request_id);
        free((char *)said->spans[i].tags);
    }
    free(said);
}

/* A text of the engine's, NULL stays NULL. Return: false without memory. */
static bool copy_text(const char **text)
{
    const char *copy = *text ? strdup(*text) : NULL;
    bool good = copy || !*text;
    *text = copy;
    return good;
}

/* The spans in one allocation with the step, each of today's size. Return: NULL without memory. */
static struct dmi_step *copy_said(const struct dmi_step *said)
{
    struct dmi_span *spans;
    struct dmi_step *copy = calloc(1, sizeof *copy + said->n_spans * sizeof *spans);
    if (!copy)
        return NULL;
    *copy = *said;
    copy->spans = spans = (struct dmi_span *)(copy + 1);
    copy->size = sizeof *copy;
    copy->span_size = sizeof *spans;
    copy->tags = NULL;
    bool good = true;
    for (uint32_t i = 0; i < said->n_spans; i++) {
        spans[i] = dmi_span_read(said, i);
        spans[i].cached_ids = NULL; /* the run has them: nothing here asks */
        good = copy_text(&spans[i].request_id) && good;
        good = copy_text(&spans[i].tags) && good;
    }
    if (good)
        return copy;
    free_said(copy);
    return NULL;
}

static void step_free(struct step *step)
{
    for (uint32_t i = 0; i < session.spec->n_selects; i++)
        select_rows_deinit(&step->rows[i]);
    for (uint32_t i = 0; step->last && i < session.spec->n_selects; i++)
        select_rows_deinit(&step->last[i]);
    if (!step->before) {
        free_said(step->said);
        edits_step_deinit(&step->edits);
    }
    step_release(step->before);
    free(step->keeps);
    free(step);
}

/* The rows of @said that are kept. Return: 0 or -ENOMEM. */
static int choose_all(struct step *step, const struct dmi_step *said, const bool *keeps)
{
    bool padding = has_padding(said);
    int r = 0;
    for (uint32_t i = 0; !r && i < session.spec->n_selects; i++)
        r = choose(i, said, keeps, padding, &step->rows[i], step->last ? &step->last[i] : NULL);
    return r;
}

static struct step *step_alloc(void)
{
    uint32_t n = session.spec->n_selects;
    bool taps = session.spec->has_taps;
    struct step *step = calloc(1, sizeof *step + (taps ? 2 * n : n) * sizeof step->rows[0]);
    if (!step)
        return NULL;
    step->refs = 1;
    step->last = taps ? step->rows + n : NULL;
    return step;
}

struct step *step_new(uint64_t sequence, const struct dmi_step *said, edits_is_over *is_over)
{
    bool sheds = session_sheds();
    struct step *step = step_alloc();
    if (!step)
        return NULL;
    step->sequence = sequence;
    step->number = said->step;
    step->all = step;
    step->said = sheds ? copy_said(said) : NULL;
    if (choose_all(step, said, NULL) || (sheds && !step->said) ||
        edits_step(said, sequence, is_over, &step->edits)) {
        step_free(step);
        return NULL;
    }
    return step;
}

struct step *step_without(struct step *before, const bool *keeps)
{
    struct step *step = step_alloc();
    if (!step)
        return NULL;
    step->keeps = malloc(before->said->n_spans + 1u);
    if (!step->keeps || choose_all(step, before->said, keeps)) {
        step_free(step);
        return NULL;
    }
    memcpy(step->keeps, keeps, before->said->n_spans);
    step->sequence = before->sequence;
    step->number = before->number;
    step->said = before->said;
    step->before = before;
    step->edits = before->edits;
    step->all = before->all;
    return step;
}

struct step *step_hold(struct step *step)
{
    if (step)
        atomic_add_relaxed(&step->refs, 1);
    return step;
}

void step_release(struct step *step)
{
    /* whoever is last sees what the others did with it */
    if (step && atomic_sub_acq_rel(&step->refs, 1) == 1)
        step_free(step);
}

void step_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
