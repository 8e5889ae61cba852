/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request id that comes again after its end is another request. The stored id stays; readers show ID~2, ID~3. A number
 * that another request has already is passed over, and a client's own ID~2 whose name is taken gets the next free number.
 * Names are given in the order of the steps, so a run that grows keeps them. Source: docs/format.md 8.
 */
#include "core/cleanup.h"
#include "core/grow.h"
#include "storage/map.h"
#include "storage/reader/reader_private.h"

#include <dmi/dmi.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE        SIZE_MAX
#define MOST_DIGITS 9

/* The request that an id means now. Data parallel ranks may serve requests of one id side by side. */
struct user {
    const char *id; /* as stored */
    size_t n_id;
    int32_t rank;     /* data parallel */
    size_t other;     /* the same id on another rank; NONE */
    const char *name; /* as shown */
    size_t n_name;
    uint64_t number; /* the last one that was tried */
    size_t last_step;
    bool ended, ends;  /* before the steps that follow; with its last step */
    int64_t end;       /* after the last position that is surely computed */
    uint32_t n_prompt; /* 0: not said */
};

struct naming {
    struct reader_selection *selection;
    struct map by_id, taken;
    struct user *users;
    size_t n, room, next_end;
};

/* ------------------------------------------------------------------------- names */

/* Bytes of an id before "~N"; all of them where it ends in no number from 2 on. *@number: N, else 1. */
static size_t base_of(const char *id, size_t n, uint64_t *number)
{
    size_t at = n;
    *number = 0;
    while (at && n - at < MOST_DIGITS && id[at - 1] >= '0' && id[at - 1] <= '9')
        at--;
    for (size_t i = at; i < n; i++)
        *number = 10 * *number + (uint64_t)(id[i] - '0');
    if (at > 1 && at < n && id[at - 1] == '~' && id[at] != '0' && *number > 1)
        return at - 1;
    *number = 1;
    return n;
}

static int take(struct naming *m, struct user *u, const char *name, size_t n)
{
    size_t *slot = map_at(&m->taken, name, n);
    if (!slot)
        return -ENOMEM;
    *slot = 0;
    u->name = name;
    u->n_name = n;
    return 0;
}

/* The next number of @u's id that no request has. */
static int take_number(struct naming *m, struct user *u)
{
    struct reader_selection *s = m->selection;
    uint64_t number;
    size_t n_base = base_of(u->id, u->n_id, &number), n;
    if (GROW(s->names, s->n_names, s->names_room))
        return -ENOMEM;
    _cleanup_(freep) char *name = malloc(n_base + 24);
    if (!name)
        return -ENOMEM;
    memcpy(name, u->id, n_base);
    u->number = u->number > number ? u->number : number;
    do
        n = n_base + (size_t)snprintf(name + n_base, 24, "~%" PRIu64, ++u->number);
    while (map_get(&m->taken, name, n) != MAP_NONE);
    if (take(m, u, name, n))
        return -ENOMEM;
    s->names[s->n_names++] = steal_ptr(name);
    return 0;
}

static int begin_request(struct naming *m, struct user *u, bool again)
{
    u->ended = u->ends = false;
    u->end = 0;
    u->n_prompt = 0;
    bool is_free = !again && map_get(&m->taken, u->id, u->n_id) == MAP_NONE;
    return is_free ? take(m, u, u->id, u->n_id) : take_number(m, u);
}

/* ------------------------------------------------------------------------- who an id means */

/* Return: NULL: no memory. */
static struct user *user_of(struct naming *m, const char *id, size_t n_id, int32_t rank)
{
    size_t *first = map_at(&m->by_id, id, n_id);
    if (!first)
        return NULL;
    for (size_t i = *first; i != NONE; i = m->users[i].other)
        if (m->users[i].rank == rank)
            return &m->users[i];
    if (GROW(m->users, m->n, m->room))
        return NULL;
    struct user *u = &m->users[m->n];
    *u = (struct user){ .id = id, .n_id = n_id, .rank = rank, .other = *first, .last_step = NONE };
    *first = m->n++;
    return u;
}

/* Whether the span is of another request than the one before: that has ended, or its prompt had another length. */
static bool is_another(const struct user *u, const struct dmi_span_entry *span, size_t step)
{
    if (u->last_step == step)
        return false;
    bool other_prompt = u->n_prompt && span->n_prompt && span->n_prompt != u->n_prompt;
    return u->ended || u->ends || (other_prompt && span->first_position < u->end);
}

/* Drafts may be rejected: only the token before them is sure. */
static void go_on(struct user *u, const struct dmi_span_entry *span, size_t step)
{
    int64_t n = span->phase == DMI_PHASE_DRAFT && span->n_tokens ? 1 : span->n_tokens;
    int64_t end = span->first_position + n;
    u->end = end > u->end ? end : u->end;
    u->n_prompt = u->n_prompt ? u->n_prompt : span->n_prompt;
    u->ends |= (span->flags & DMI_SPAN_LAST) != 0;
    u->last_step = step;
}

static int keep_name(struct naming *m, size_t step, uint32_t span, const struct user *u)
{
    struct reader_selection *s = m->selection;
    if (GROW(s->shown, s->n_shown, s->shown_room))
        return -ENOMEM;
    s->shown[s->n_shown++] = (struct reader_shown_id){ step, span, u->name, u->n_name };
    return 0;
}

static int name_span(struct naming *m, size_t s, uint32_t i)
{
    struct reader_step *step = &m->selection->steps[s];
    size_t n_id;
    const char *id = reader_span_id(step, i, &n_id);
    struct user *u = user_of(m, id, n_id, step->entry->ranks[2 * DMI_AXIS_DP]);
    if (!u)
        return -ENOMEM;
    bool is_first = u->last_step == NONE;
    int r = 0;
    if (is_first || is_another(u, &step->spans[i], s))
        r = begin_request(m, u, !is_first);
    if (!r && u->name != u->id)
        r = keep_name(m, s, i, u);
    go_on(u, &step->spans[i], s);
    return r;
}

/* The end of the request that @end's id meant last. */
static void name_end(struct naming *m, struct reader_end *end)
{
    struct user *last = NULL;
    for (size_t i = map_get(&m->by_id, end->id, end->n_id); i != NONE; i = m->users[i].other)
        if (!last || m->users[i].last_step > last->last_step)
            last = &m->users[i];
    if (!last)
        return; /* no step had a span of it */
    end->id = last->name;
    end->n_id = last->n_name;
    last->ended |= !end->shed;
}

/* ------------------------------------------------------------------------- all of them */

static void name_ends(struct naming *m, size_t step)
{
    struct reader_selection *s = m->selection;
    for (; m->next_end < s->n_ends && s->ends[m->next_end].after <= step; m->next_end++)
        name_end(m, &s->ends[m->next_end]);
}

static int name_all(struct naming *m)
{
    const struct reader_selection *s = m->selection;
    for (size_t i = 0; i < s->n_steps; i++) {
        name_ends(m, i);
        for (uint32_t k = 0; k < s->steps[i].entry->n_spans; k++) {
            bool padding = s->steps[i].spans[k].flags & DMI_SPAN_PADDING;
            int r = padding ? 0 : name_span(m, i, k);
            if (r)
                return r;
        }
    }
    name_ends(m, NONE);
    return 0;
}

int reader_show_ids(struct reader *r)
{
    struct reader_selection *s = &r->selection;
    struct naming m = { .selection = s };
    reader_forget_ids(s);
    int res = name_all(&m);
    map_deinit(&m.by_id);
    map_deinit(&m.taken);
    free(m.users);
    for (size_t i = 0; i < s->n_shown; i++) {
        struct reader_step *step = &s->steps[s->shown[i].step];
        step->shown = step->n_shown ? step->shown : &s->shown[i];
        step->n_shown++;
    }
    return res;
}

void reader_forget_ids(struct reader_selection *s)
{
    for (size_t i = 0; i < s->n_names; i++)
        free(s->names[i]);
    s->n_names = s->n_shown = 0;
}

static int shown_order(const void *pa, const void *pb)
{
    const struct reader_shown_id *a = pa, *b = pb;
    return a->span < b->span ? -1 : a->span > b->span;
}

const char *reader_span_id(const struct reader_step *step, uint32_t span, size_t *n_bytes)
{
    const struct reader_shown_id key = { .span = span };
    const struct reader_shown_id *shown =
        step->n_shown ? bsearch(&key, step->shown, step->n_shown, sizeof key, shown_order) : NULL;
    *n_bytes = shown ? shown->n_id : step->spans[span].id_bytes;
    return shown ? shown->id : (const char *)step->entry + step->spans[span].id_offset;
}
