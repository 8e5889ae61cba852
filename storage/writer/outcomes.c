/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/outcomes.h"

#include "core/clock.h"
#include "core/err.h"
#include "core/sorted.h"
#include "storage/codec/hash.h"
#include "storage/table.h"

#include <dmi/format.h>
#include <dmi/span.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A span of phase draft. */
struct draft {
    uint64_t hash; /* of the request's id */
    int64_t position;
    uint32_t id_offset, id_bytes; /* in the step's text */
    uint32_t span, n_tokens;
    bool told; /* its outcome is known */
};

struct outcomes_step {
    uint64_t number; /* the engine's own */
    bool several;    /* others have it too: of other threads, or parts of the step */
    uint64_t sequence;
    size_t n_bytes; /* of this allocation */
    uint32_t n;
    struct draft drafts[]; /* by hash and position; the ids follow */
};

static char *text_of(struct outcomes_step *s)
{
    return (char *)(s->drafts + s->n);
}

static struct outcomes_step **at(struct outcomes *o, uint32_t i)
{
    return &o->steps[(o->first + i) % OUTCOMES_MAX_STEPS];
}

static void forget_oldest(struct outcomes *o)
{
    struct outcomes_step **oldest = at(o, 0);
    if (*oldest)
        o->n_bytes -= (*oldest)->n_bytes;
    free(*oldest);
    *oldest = NULL;
    o->first = (o->first + 1) % OUTCOMES_MAX_STEPS;
    o->n_steps--;
}

void outcomes_deinit(struct outcomes *o)
{
    while (o->n_steps)
        forget_oldest(o);
    text_deinit(&o->entries);
    text_deinit(&o->text);
}

/* ------------------------------------------------------------------------- drafts */

static bool is_draft(const struct dmi_span *span)
{
    return span->phase == DMI_PHASE_DRAFT && span->n_tokens && !(span->flags & DMI_SPAN_PADDING);
}

static int draft_order(const void *pa, const void *pb)
{
    const struct draft *a = pa, *b = pb;
    ORDER(a, b, hash);
    return a->position < b->position ? -1 : a->position > b->position;
}

/* The latest step of a number is the one that is meant by it: an earlier one is forgotten. */
static void forget_number(struct outcomes *o, uint64_t number)
{
    for (uint32_t i = o->n_steps; i; i--) {
        struct outcomes_step **s = at(o, i - 1);
        if (!*s || (*s)->number != number || (*s)->several)
            continue;
        o->n_bytes -= (*s)->n_bytes;
        free(*s);
        *s = NULL;
        return;
    }
}

static struct outcomes_step *collect(const struct dmi_step *step, uint32_t n, size_t n_text)
{
    size_t n_bytes = sizeof(struct outcomes_step) + n * sizeof(struct draft) + n_text;
    struct outcomes_step *s = malloc(n_bytes);
    if (!s)
        return NULL;
    *s = (struct outcomes_step){ .number = step->step, .n_bytes = n_bytes, .n = n };
    uint32_t k = 0, offset = 0;
    for (uint32_t i = 0; i < step->n_spans; i++) {
        const struct dmi_span *span = dmi_span_at(step, i);
        if (!is_draft(span))
            continue;
        uint32_t n_id = (uint32_t)strlen(span->request_id);
        memcpy(text_of(s) + offset, span->request_id, n_id);
        s->drafts[k++] = (struct draft){ .hash = hash_bytes(span->request_id, n_id),
                                         .position = span->first_position,
                                         .id_offset = offset,
                                         .id_bytes = n_id,
                                         .span = i,
                                         .n_tokens = span->n_tokens };
        offset += n_id;
    }
    qsort(s->drafts, n, sizeof s->drafts[0], draft_order);
    return s;
}

int outcomes_step(struct outcomes *o, uint64_t sequence, const struct dmi_step *step)
{
    uint32_t n = 0;
    size_t n_text = 0;
    for (uint32_t i = 0; i < step->n_spans; i++)
        if (is_draft(dmi_span_at(step, i))) {
            n++;
            n_text += strlen(dmi_span_at(step, i)->request_id);
        }
    if (sequence >= o->next_sequence)
        o->next_sequence = sequence + 1;
    bool several = step->part || step->flags & DMI_STEP_OF_THREAD;
    if (!several)
        forget_number(o, step->step);
    if (!n)
        return 0;
    struct outcomes_step *s = collect(step, n, n_text);
    if (!s)
        return -ENOMEM;
    s->sequence = sequence;
    s->several = several;
    while (o->n_steps &&
           (o->n_steps == OUTCOMES_MAX_STEPS || o->n_bytes + s->n_bytes > OUTCOMES_MAX_BYTES))
        forget_oldest(o);
    *at(o, o->n_steps++) = s;
    o->n_bytes += s->n_bytes;
    return 0;
}

/* ------------------------------------------------------------------------- entries */

static int refuse(const char **why, int code, const char *sentence)
{
    *why = sentence;
    return code;
}

static int check_id(const char *id, size_t *n_id, const char **why)
{
    if (!id || !*id)
        return refuse(why, -EINVAL, "it names no request");
    *n_id = strnlen(id, DMI_MAX_ID + 1u);
    return *n_id > DMI_MAX_ID ? refuse(why, -EINVAL, "the request's id has more than 255 bytes")
                              : 0;
}

static int check_room(const struct outcomes *o, uint32_t n, const char **why)
{
    size_t more = n * (sizeof(struct dmi_outcome) + DMI_MAX_ID);
    return o->entries.n + o->text.n + more > OUTCOMES_MAX_WAITING
               ? refuse(why, -ENOBUFS, "too many wait to be written")
               : 0;
}

static int add(struct outcomes *o, const struct dmi_outcome *entry, size_t n_entries)
{
    size_t before = o->entries.n - n_entries * sizeof *entry;
    text_add(&o->entries, (const char *)entry, sizeof *entry);
    if (!o->entries.failed)
        return 0;
    o->entries.n = before; /* all of one outcome, or nothing */
    o->entries.failed = 0;
    return -ENOMEM;
}

/* The first of the request's drafts in a step, and their number. */
static struct draft *find_drafts(struct outcomes_step *s, const char *id, size_t n_id, uint32_t *n)
{
    uint64_t hash = hash_bytes(id, n_id);
    size_t low;
    SEARCH(low, s->n, s->drafts[low].hash < hash);
    *n = 0;
    while (low + *n < s->n && s->drafts[low + *n].hash == hash &&
           s->drafts[low + *n].id_bytes == n_id &&
           !memcmp(text_of(s) + s->drafts[low + *n].id_offset, id, n_id))
        ++*n;
    return &s->drafts[low];
}

/* The latest step of that number with drafts of the request; without them, the latest. */
static struct outcomes_step *find_step(struct outcomes *o, uint64_t number, const char *id,
                                       size_t n_id)
{
    struct outcomes_step *found = NULL;
    uint32_t n;
    for (uint32_t i = o->n_steps; i; i--) {
        struct outcomes_step *s = *at(o, i - 1);
        if (!s || s->number != number)
            continue;
        find_drafts(s, id, n_id, &n);
        if (n)
            return s;
        found = found ? found : s;
    }
    return found;
}

int outcomes_accept(struct outcomes *o, const char *id, uint64_t number, uint32_t n_accepted,
                    const char **why)
{
    size_t n_id;
    uint32_t n;
    TRY(check_id(id, &n_id, why));
    struct outcomes_step *s = find_step(o, number, id, n_id);
    if (!s)
        return refuse(why, -ENOENT, "no step of that number has draft rows, or it is long past");
    struct draft *drafts = find_drafts(s, id, n_id, &n);
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < n; i++)
        n_rows += drafts[i].n_tokens;
    if (!n)
        return refuse(why, -ENOENT, "the request has no draft rows in that step");
    if (n_accepted > n_rows)
        return refuse(why, -EINVAL, "more rows are accepted than the request has drafts");
    if (drafts[0].told)
        return refuse(why, -EALREADY, "it was said already");
    int r = check_room(o, n, why);
    for (uint32_t i = 0; !r && i < n; i++) {
        uint32_t mine = n_accepted < drafts[i].n_tokens ? n_accepted : drafts[i].n_tokens;
        const struct dmi_outcome entry = { .step = s->sequence,
                                           .span = drafts[i].span,
                                           .flags = DMI_OUTCOME_ACCEPTED,
                                           .time_ns = clock_real_ns(),
                                           .n_accepted = mine,
                                           .accepted = DMI_OUTCOME_FIRST };
        n_accepted -= mine;
        r = add(o, &entry, i) ? refuse(why, -ENOMEM, "no memory") : 0;
    }
    for (uint32_t i = 0; !r && i < n; i++)
        drafts[i].told = true;
    return r;
}

/* An entry of no span, with its request's id. */
static int add_request(struct outcomes *o, const char *id, struct dmi_outcome entry,
                       const char **why)
{
    size_t n_id, before = o->text.n;
    int r = check_id(id, &n_id, why);
    if (!r)
        r = check_room(o, 1, why);
    if (r)
        return r;
    entry.span = DMI_OUTCOME_NO_SPAN;
    entry.time_ns = clock_real_ns();
    entry.accepted = DMI_OUTCOME_FIRST;
    entry.id_offset = (uint32_t)before;
    entry.id_bytes = (uint32_t)n_id;
    text_add(&o->text, id, n_id);
    if (!o->text.failed && !add(o, &entry, 0))
        return 0;
    o->text.n = before;
    o->text.failed = 0;
    return refuse(why, -ENOMEM, "no memory");
}

int outcomes_end(struct outcomes *o, const char *id, uint32_t reason, const char **why)
{
    const struct dmi_outcome entry = { .step =
                                           o->next_sequence ? o->next_sequence - 1 : DMI_NO_STEP,
                                       .flags = DMI_OUTCOME_END,
                                       .reason = reason };
    size_t n_id;
    int r = check_id(id, &n_id, why);
    if (!r && reason > DMI_END_ABORTED)
        r = refuse(why, -EINVAL, "its reason is none of enum dmi_end");
    return r ? r : add_request(o, id, entry, why);
}

int outcomes_shed(struct outcomes *o, const char *id, uint64_t sequence, const char **why)
{
    return add_request(o, id, (struct dmi_outcome){ .step = sequence, .flags = DMI_OUTCOME_SHED },
                       why);
}

bool outcomes_take(struct outcomes *o, struct text *meta)
{
    if (!o->entries.n || !table_meta(&o->entries, sizeof(struct dmi_outcome), &o->text, meta))
        return false;
    o->entries.n = o->text.n = 0;
    return true;
}
