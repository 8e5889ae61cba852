/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request id that comes again after its end is another request. The stored id stays; readers show ID~2, ID~3. A number
 * that another request has already is passed over, and a client's own ID~2 whose name is taken gets the next free number.
 * Names are given in the order of the steps, so a run that grows keeps them. Source: docs/format.md 8.
 */
#include "core/cleanup.h"
#include "core/grow.h"
#include "storage/map.h"
#include "storage/reader/reader_steps.h"

#include <dmi/dmi.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE        SIZE_MAX
#define MOST_DIGITS 9

/* From which step on an id of a rank is shown otherwise. */
struct reader_use {
    const char *id; /* as stored */
    size_t n_id;
    int32_t rank;   /* data parallel */
    uint64_t first; /* sequence, or place */
    const char *name;
    size_t n_name;
};

/* An end whose id is shown otherwise. */
struct reader_named_end {
    uint64_t place;
    uint32_t number;
    const char *name;
    size_t n_name;
};

/* The request that an id means now. Data parallel ranks may serve requests of one id side by side. */
struct user {
    const char *id; /* as stored; owned */
    size_t n_id;
    int32_t rank;     /* data parallel */
    bool shown;       /* otherwise, once at least: the names have the id from then on */
    size_t other;     /* the same id on another rank; NONE */
    const char *name; /* as shown */
    size_t n_name;
    uint64_t number; /* the last one that was tried */
    size_t last_step;
    bool ended, ends;  /* before the steps that follow; with its last step */
    int64_t end;       /* after the last position that is surely computed */
    uint32_t n_prompt; /* 0: not said */
};

struct reader_naming {
    struct reader_names *names;
    struct map by_id, taken;
    struct user *users;
    size_t n, room, n_steps;
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

static int keep_text(struct reader_names *names, char *text)
{
    return PUSH(names->texts, names->n_texts, names->texts_room, 64, text);
}

static int take(struct reader_naming *m, struct user *u, const char *name, size_t n)
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
static int take_number(struct reader_naming *m, struct user *u, uint64_t first)
{
    struct reader_names *names = m->names;
    uint64_t number;
    size_t n_base = base_of(u->id, u->n_id, &number), n;
    _cleanup_(freep) char *name = malloc(n_base + 24);
    if (!name || GROW(names->uses, names->n_uses, names->uses_room))
        return -ENOMEM;
    memcpy(name, u->id, n_base);
    u->number = u->number > number ? u->number : number;
    do
        n = n_base + (size_t)snprintf(name + n_base, 24, "~%" PRIu64, ++u->number);
    while (map_get(&m->taken, name, n) != MAP_NONE);
    if (keep_text(names, name))
        return -ENOMEM;
    const char *kept = steal_ptr(name);
    u->shown = true;
    names->uses[names->n_uses++] = (struct reader_use){ u->id, u->n_id, u->rank, first, kept, n };
    return take(m, u, kept, n);
}

static int begin_request(struct reader_naming *m, struct user *u, bool again, uint64_t from)
{
    u->ended = u->ends = false;
    u->end = 0;
    u->n_prompt = 0;
    bool is_free = !again && map_get(&m->taken, u->id, u->n_id) == MAP_NONE;
    return is_free ? take(m, u, u->id, u->n_id) : take_number(m, u, from);
}

/* ------------------------------------------------------------------------- who an id means */

/* Return: NULL: no memory. */
static struct user *user_of(struct reader_naming *m, const char *id, size_t n_id, int32_t rank)
{
    size_t first = map_get(&m->by_id, id, n_id);
    for (size_t i = first; i != NONE; i = m->users[i].other)
        if (m->users[i].rank == rank)
            return &m->users[i];
    _cleanup_(freep) char *own = malloc(n_id + 1); /* steps go, and their bytes */
    if (!own || GROW(m->users, m->n, m->room))
        return NULL;
    memcpy(own, id, n_id);
    size_t *slot = map_at(&m->by_id, own, n_id);
    if (!slot)
        return NULL;
    struct user *u = &m->users[m->n];
    *u = (struct user){
        .id = steal_ptr(own), .n_id = n_id, .rank = rank, .other = first, .last_step = NONE
    };
    *slot = m->n++;
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

/* Stored ids: none of @step's is shown otherwise yet. @number: of the step in the run */
static int name_span(struct reader_naming *m, const struct reader_step *step, size_t number,
                     uint32_t i)
{
    const struct dmi_span_entry *span = &step->spans[i];
    struct user *u = user_of(m, (const char *)step->entry + span->id_offset, span->id_bytes,
                             step->entry->ranks[2 * DMI_AXIS_DP]);
    if (!u)
        return -ENOMEM;
    bool is_first = u->last_step == NONE;
    int r = 0;
    if (is_first || is_another(u, span, number))
        r = begin_request(m, u, !is_first, m->names->by_sequence ? step->entry->sequence : number);
    go_on(u, span, number);
    return r;
}

/* The end of the request that @end's id meant last. */
static int name_end(struct reader_naming *m, const struct reader_end *end)
{
    struct reader_names *names = m->names;
    struct user *last = NULL;
    for (size_t i = map_get(&m->by_id, end->id, end->n_id); i != NONE; i = m->users[i].other)
        if (!last || m->users[i].last_step > last->last_step)
            last = &m->users[i];
    if (!last)
        return 0; /* no step had a span of it */
    last->ended |= !end->shed;
    if (last->name == last->id)
        return 0;
    return PUSH(names->ends, names->n_ends, names->ends_room, 64,
                (struct reader_named_end){ end->place, end->number, last->name, last->n_name });
}

/* ------------------------------------------------------------------------- all of them */

struct reader_naming *reader_name_begin(struct reader_names *names, bool by_sequence)
{
    struct reader_naming *m = calloc(1, sizeof *m);
    reader_free_names(names);
    names->by_sequence = by_sequence;
    if (m)
        m->names = names;
    return m;
}

/* Ends before step @step of them, from the @next one on. */
static int name_ends(struct reader_naming *m, const struct reader_steps *steps, size_t step,
                     size_t *next)
{
    int r = 0;
    for (; !r && *next < steps->n_ends && steps->ends[*next].after <= step; ++*next)
        r = name_end(m, &steps->ends[*next]);
    return r;
}

int reader_name_take(struct reader_naming *m, const struct reader_steps *steps)
{
    size_t next = 0;
    int r = 0;
    if (!m->n_steps && steps->n) {
        m->names->any_step = true;
        memcpy(m->names->ranks, steps->all[0].entry->ranks, sizeof m->names->ranks);
    }
    for (size_t i = 0; !r && i < steps->n; i++) {
        const struct reader_step *step = &steps->all[i];
        r = name_ends(m, steps, i, &next);
        for (uint32_t k = 0; !r && k < step->entry->n_spans; k++)
            if (!(step->spans[k].flags & DMI_SPAN_PADDING))
                r = name_span(m, step, m->n_steps + i, k);
    }
    m->n_steps += steps->n;
    return r ? r : name_ends(m, steps, NONE, &next);
}

static int use_order(const void *pa, const void *pb)
{
    const struct reader_use *a = pa, *b = pb;
    ORDER(a, b, n_id);
    int c = a->n_id ? memcmp(a->id, b->id, a->n_id) : 0;
    if (c)
        return c;
    ORDER(a, b, rank);
    ORDER(a, b, first);
    return a->n_name < b->n_name ? -1 : a->n_name > b->n_name;
}

static int end_order(const void *pa, const void *pb)
{
    const struct reader_named_end *a = pa, *b = pb;
    ORDER(a, b, place);
    ORDER(a, b, number);
    return 0;
}

void reader_name_end(struct reader_naming *m, bool whole)
{
    struct reader_names *names = m->names;
    for (size_t i = 0; i < m->n; i++)
        if (!m->users[i].shown || keep_text(names, (char *)(uintptr_t)m->users[i].id)) {
            free((char *)(uintptr_t)m->users[i].id);
            whole &= !m->users[i].shown;
        }
    SORT(names->uses, names->n_uses, use_order);
    SORT(names->ends, names->n_ends, end_order);
    if (!whole)
        reader_free_names(names);
    map_deinit(&m->by_id);
    map_deinit(&m->taken);
    free(m->users);
    free(m);
}

/* ------------------------------------------------------------------------- as they are shown */

/* How a span's id is shown; NULL: as it is stored. */
static const struct reader_use *use_of(const struct reader_names *names,
                                       const struct reader_steps *steps, size_t number, uint32_t i)
{
    const struct reader_step *step = &steps->all[number];
    const struct dmi_span_entry *span = &step->spans[i];
    const struct reader_use key = { .id = (const char *)step->entry + span->id_offset,
                                    .n_id = span->id_bytes,
                                    .rank = step->entry->ranks[2 * DMI_AXIS_DP],
                                    .first = names->by_sequence ? step->entry->sequence : number,
                                    .n_name = SIZE_MAX };
    size_t at;
    SEARCH(at, names->n_uses, use_order(&names->uses[at], &key) < 0);
    const struct reader_use *use = at ? &names->uses[at - 1] : NULL;
    bool same = use && use->n_id == key.n_id && use->rank == key.rank &&
                (!key.n_id || !memcmp(use->id, key.id, key.n_id));
    return same ? use : NULL;
}

static int show_spans(const struct reader_names *names, struct reader_steps *steps, size_t step)
{
    for (uint32_t k = 0; k < steps->all[step].entry->n_spans; k++) {
        bool padding = steps->all[step].spans[k].flags & DMI_SPAN_PADDING;
        const struct reader_use *use = padding ? NULL : use_of(names, steps, step, k);
        if (!use)
            continue;
        if (PUSH(steps->shown, steps->n_shown, steps->shown_room, 64,
                 (struct reader_shown_id){ step, k, use->name, use->n_name }))
            return -ENOMEM;
    }
    return 0;
}

static void show_end(const struct reader_names *names, struct reader_end *end)
{
    const struct reader_named_end key = { .place = end->place, .number = end->number };
    const struct reader_named_end *named =
        bsearch(&key, names->ends, names->n_ends, sizeof key, end_order);
    if (!named)
        return;
    end->id = named->name;
    end->n_id = named->n_name;
}

int reader_show_ids(const struct reader_names *names, struct reader_steps *steps)
{
    steps->n_shown = 0;
    for (size_t i = 0; names->n_uses && i < steps->n; i++)
        if (show_spans(names, steps, i))
            return -ENOMEM;
    for (size_t i = 0; i < steps->n_shown; i++) {
        struct reader_step *step = &steps->all[steps->shown[i].step];
        step->shown = step->n_shown ? step->shown : &steps->shown[i];
        step->n_shown++;
    }
    for (size_t i = 0; names->n_ends && i < steps->n_ends; i++)
        show_end(names, &steps->ends[i]);
    return 0;
}

void reader_free_names(struct reader_names *names)
{
    for (size_t i = 0; i < names->n_texts; i++)
        free(names->texts[i]);
    free(names->texts);
    free(names->uses);
    free(names->ends);
    *names = (struct reader_names){ 0 };
}

void reader_unname(struct reader_names *names)
{
    reader_free_names(names);
    names->wanted = true;
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
