/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/repeat.h"

#include "core/any.h"
#include "core/atomic.h"
#include "core/clock.h"
#include "preload/capture/forward.h"
#include "preload/capture/shed.h"
#include "preload/context/gauge.h"
#include "preload/context/launch_records.h"
#include "preload/edit/edits.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- sites */

void repeat_deinit(struct repeat *r)
{
    for (uint32_t i = 0; i < r->n_sites; i++) {
        free(r->sites[i].before.passes);
        free(r->sites[i].after.passes);
    }
    free(r->sites);
    free(r->of_action);
    free(r->rows);
    launch_records_release(r->records);
    *r = (struct repeat){ .refused = r->refused };
}

static uint32_t index_of(const struct repeat *r, uint32_t site)
{
    return FIRST(i, r->n_sites, r->sites[i].site == site, (uint32_t)i, r->n_sites);
}

/* The sites of the plan's actions. Return: false without memory. */
static bool list_sites(struct repeat *r, const struct graph_plan *plan)
{
    if (r->sites)
        return true;
    r->sites = calloc(plan->n_actions + 1, sizeof *r->sites);
    r->of_action = calloc(plan->n_actions + 1, sizeof *r->of_action);
    r->rows = calloc(1, sizeof *r->rows);
    if (!r->sites || !r->of_action || !r->rows) {
        repeat_deinit(r);
        return false;
    }
    for (uint32_t k = 0; k < plan->n_actions; k++) {
        uint32_t at = index_of(r, plan->actions[k].site);
        if (at == r->n_sites)
            r->sites[r->n_sites++].site = plan->actions[k].site;
        r->of_action[k] = (uint16_t)at;
    }
    return true;
}

/* ------------------------------------------------------------------------- what is counted */

static bool keep_counts(struct repeat_counts *to, const struct context_counts *from)
{
    if (to->room < from->n_layers) {
        uint8_t *more = realloc(to->passes, from->n_layers);
        if (!more)
            return false;
        to->passes = more;
        to->room = from->n_layers;
    }
    to->occurrence = from->occurrence;
    to->n_layers = from->n_layers;
    if (from->n_layers)
        memcpy(to->passes, from->passes, from->n_layers);
    return from->doubt == CONTEXT_NO_DOUBT;
}

/* @fresh: a forward begins, in which there is nothing yet. */
static bool counts_are(const struct repeat_counts *a, const struct context_counts *b, bool fresh)
{
    if (fresh)
        return !a->occurrence && !a->n_layers;
    return a->occurrence == b->occurrence && b->doubt == CONTEXT_NO_DOUBT &&
           a->n_layers == b->n_layers &&
           (!a->n_layers || !memcmp(a->passes, b->passes, a->n_layers));
}

static void put_counts(struct context_counts *to, const struct repeat_counts *from)
{
    to->occurrence = from->occurrence;
    to->n_layers = from->n_layers;
    if (from->n_layers)
        memcpy(to->passes, from->passes, from->n_layers);
}

void repeat_before(struct repeat *r, const struct graph_plan *plan, const struct context *c,
                   int begins)
{
    const struct context_strand *at = c->forward;
    r->begins = begins;
    r->kind = at->kind;
    r->in_step = at->in_step;
    r->sequence = at->sequence;
    r->noted = at->begun && !at->overlaps && list_sites(r, plan);
    for (uint32_t i = 0; i < r->n_sites && r->noted; i++)
        r->noted = keep_counts(&r->sites[i].before, &at->sites[r->sites[i].site]);
}

void repeat_after(struct repeat *r, const struct context *c)
{
    const struct context_strand *at = c->forward;
    r->noted = r->noted && at->sequence == r->sequence; /* else another forward began within it */
    for (uint32_t i = 0; i < r->n_sites && r->noted; i++)
        r->noted = keep_counts(&r->sites[i].after, &at->sites[r->sites[i].site]);
}

/* Would counting find what it found then? Under the context's lock, after forward_follow(). */
static bool counts_repeat(const struct repeat *r, const struct context *c)
{
    const struct context_strand *at = c->forward;
    int kind;
    bool fresh = forward_begins(c, r->begins, &kind);
    return (fresh || at->begun) && kind == r->kind && at->in_step == r->in_step && !at->overlaps &&
           ALL(i, r->n_sites, counts_are(&r->sites[i].before, &at->sites[r->sites[i].site], fresh));
}

/* ------------------------------------------------------------------------- a launch to repeat */

/* One pick more of those that may differ. Return: false where there are too many. */
static bool add_pick(struct repeat *r, const struct admission *item)
{
    const struct tensor_view *g = &item->operand->view;
    uint32_t choice = session_site(item->site)->select;
    if (choice == SPEC_NO_SELECT || !g->row_bytes ||
        ANY(i, r->rows->n_picks,
            session_site(r->rows->picks[i].operand->site)->select == choice &&
                r->rows->picks[i].operand->view.dims[0] == g->dims[0] &&
                r->rows->picks[i].operand->view.of_requests == g->of_requests))
        return true;
    if (r->rows->n_picks == REPEAT_PICKS)
        return false;
    r->rows->picks[r->rows->n_picks++] =
        (struct repeat_pick){ item->operand, item->pick.n, item->pick.all };
    return true;
}

/* What the launch's item is of its site. Return: false where a later launch has to look at it again. */
static bool add_item(struct repeat *r, struct repeat_site *to, const struct admission_launch *l,
                     const struct admission *item)
{
    const struct spec_site *site = session_site(item->site);
    if (item->state == ADMISSION_NONE)
        return true;
    to->launches++;
    if (item->context != l->context || site->steps.every != 1)
        return false;
    if (spec_is_place(site)) /* edits that come into force are a switch */
        return item->state == ADMISSION_COUNTED && !edits_reach_site(item->site);
    if (item->state == ADMISSION_COUNTED)
        return !admission_wanted(l, item);
    if (item->state != ADMISSION_LAUNCHED || !item->has_record || item->n_shed || item->pick.rows ||
        item->pick.kept)
        return false;
    to->records++;
    to->rows += item->pick.n;
    to->bytes += item->n_bytes;
    to->row_bytes += (uint32_t)item->operand->view.row_bytes;
    return add_pick(r, item);
}

static bool learn(struct repeat *r, const struct graph_plan *plan, const struct admission_launch *l)
{
    if (!r->noted || r->refused || !l->records || l->slot == RING_NO_SLOT || plan->has_bodies ||
        (l->step && l->step->all != l->step))
        return false;
    r->rows->n_picks = 0;
    for (uint32_t i = 0; i < r->n_sites; i++) {
        struct repeat_site *s = &r->sites[i];
        s->launches = s->records = s->rows = s->bytes = s->row_bytes = 0;
    }
    for (uint32_t k = 0; k < l->n; k++)
        if (!add_item(r, &r->sites[r->of_action[k]], l, &l->items[k]))
            return false;
    return ALL(i, l->records->n, !l->records->all[i].note.forward);
}

void repeat_learn(struct repeat *r, const struct graph_plan *plan, const struct admission_launch *l)
{
    launch_records_release(r->records);
    r->records = NULL;
    r->ready = learn(r, plan, l); /* the launch brings its ticket to the state */
    r->noted = false;
    if (!r->ready)
        return;
    r->records = l->records;
    launch_records_hold(r->records, 1);
    memcpy(r->rows->choices, l->choices, sizeof r->rows->choices);
    r->rows->n_choices = l->n_choices;
}

/* ------------------------------------------------------------------------- and one that repeats it */

static bool picks_repeat(const struct repeat *r, const struct admission_launch *l)
{
    for (uint32_t i = 0; i < r->rows->n_picks; i++) {
        const struct repeat_pick *was = &r->rows->picks[i];
        struct select_pick now = admission_pick(l, was->operand);
        if (now.all != was->all || now.n != was->n || now.rows || now.kept)
            return false;
    }
    return true;
}

/* Counts and reserves, or leaves all as it is. Under the context's lock. */
static bool take_place(const struct repeat *r, struct admission_launch *l)
{
    struct context *c = l->context;
    forward_follow(c, &l->said);
    if (context_refusal(c) != DROP_NONE || !counts_repeat(r, c))
        return false;
    l->number = atomic_add_relaxed(&session.next_launch, 1);
    l->time_ns = clock_real_ns();
    l->records = r->records;
    launch_records_hold(l->records, 1);
    if (admission_reserve_records(l) != DROP_NONE) {
        launch_records_release(l->records);
        l->records = NULL;
        return false;
    }
    forward_advance(c, r->begins);
    for (uint32_t i = 0; i < r->n_sites; i++)
        put_counts(&c->forward->sites[r->sites[i].site], &r->sites[i].after);
    admission_fill_slots(l, c->forward->sequence);
    gauge_reserved(c);
    return true;
}

static void count(const struct repeat *r)
{
    bool sheds = session_sheds();
    for (uint32_t i = 0; i < r->n_sites; i++) {
        const struct repeat_site *s = &r->sites[i];
        struct dmi_site_counters *counters = session_counters(s->site);
        atomic_add_relaxed(&counters->launches, s->launches);
        session_count(&counters->expected, 1, s->records, s->rows, s->bytes);
        if (sheds && s->records) {
            shed_note_cost(s->site, s->row_bytes);
            shed_found_room(s->site);
        }
    }
}

bool repeat_launch(struct repeat *r, struct admission_launch *l)
{
    if (!r->ready || l->said.overlaps || (l->step && l->step->all != l->step) ||
        !picks_repeat(r, l))
        return false;
    pthread_mutex_lock(&l->context->lock);
    bool repeats = take_place(r, l);
    pthread_mutex_unlock(&l->context->lock);
    if (!repeats)
        return false;
    count(r);
    memcpy(l->choices, r->rows->choices, sizeof l->choices);
    l->n_choices = r->rows->n_choices;
    return true;
}

void repeat_undo(struct repeat *r, struct admission_launch *l)
{
    for (uint32_t k = 0; k < l->n; k++)
        if (l->items[k].state == ADMISSION_LAUNCHED)
            l->items[k].state = ADMISSION_RESERVED;
    repeat_pass(r);
}
