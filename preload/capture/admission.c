/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/admission_private.h"

#include "core/atomic.h"
#include "policy/tap_names.h"
#include "preload/capture/forward.h"
#include "preload/capture/shed.h"
#include "preload/context/launch_records.h"
#include "preload/context/lifetime.h"
#include "preload/edit/requests.h"

/* ------------------------------------------------------------------------- counted, expected, dropped */

void admission_take(struct context *c, uint32_t site, struct admission *item)
{
    item->site = site;
    item->context = c;
    item->state = ADMISSION_NONE;
    item->reason = DROP_NONE;
    item->range = NULL;
    item->edits_due = false;
    item->layer = RUN_NO_LAYER;
    item->has_layer = false;
    if (!forward_occurrence(c, site, &item->occurrence))
        return;
    item->doubt = c->forward->sites[site].doubt;
    item->state = ADMISSION_COUNTED;
    item->forward = c->forward->sequence;
}

void admission_count(struct context *c, uint32_t site, struct admission *item)
{
    admission_take(c, site, item);
    if (item->state == ADMISSION_COUNTED)
        atomic_add_relaxed(&session_counters(site)->launches, 1);
}

void admission_begin(struct admission_launch *l, const struct said *said)
{
    if (said) {
        l->said = *said;
        step_hold(said->rows);
    } else {
        l->said = said_now(true);
    }
    l->step = l->said.rows;
    l->edits = l->step ? NULL : edits_hold();
    l->edits_differ = l->said.overlaps && l->edits && !requests_all_have(l->edits);
    l->overload = session_overload();
    l->unslotted = UNSLOTTED_NONE;
    l->slot = RING_NO_SLOT;
}

void admission_end(struct admission_launch *l)
{
    version_release(l->edits);
    step_release(l->step);
    launch_records_release(l->records);
    l->records = NULL;
    l->step = l->said.rows = NULL;
    l->edits = NULL;
}

/* What is chosen by the engine's words is not captured where it says nothing. */
static bool says_step(const struct admission_launch *l, uint32_t site, const char *what)
{
    if (!l->step && l->said.overlaps)
        session_problem(site, PROBLEM_NO_STEP,
                        "its %s are chosen by what the engine says of its steps, and steps of two "
                        "threads overlap: not captured",
                        what);
    else if (!l->step)
        session_problem(
            site, PROBLEM_NO_STEP,
            "its %s are chosen by what the engine says of its steps, and it has said nothing: not "
            "captured",
            what);
    return l->step != NULL;
}

/* Is this one of the steps, or of the forwards, that the site is captured in? */
static bool in_turn(const struct admission_launch *l, const struct admission *item)
{
    const struct spec_steps *steps = &session_site(item->site)->steps;
    if (steps->every == 1)
        return true;
    if (steps->of == SPEC_STEPS_FORWARD)
        return item->forward % (uint64_t)steps->every == 0;
    return says_step(l, item->site, "steps") && l->step->number % (uint64_t)steps->every == 0;
}

/* Is it one of the layers that a command leaves? A tap's was looked at where it came. */
static bool of_layers(const struct admission *item)
{
    const struct spec_site *site = session_site(item->site);
    return site->about.tap || !item->has_layer || spec_takes_layer(&site->only, item->layer, 0);
}

bool admission_wanted(const struct admission_launch *l, const struct admission *item)
{
    const struct spec_site *site = session_site(item->site);
    return item->state == ADMISSION_COUNTED && spec_takes_occurrence(site, item->occurrence) &&
           of_layers(item) && session_site_on(item->site) && in_turn(l, item);
}

static void count(const struct admission *item, struct dmi_tally *tally, int sign)
{
    if (!item->has_record)
        return;
    session_count(tally, sign, 1, item->pick.n, item->n_bytes);
}

/* Rows that are shed, of a record that has others. */
static void count_shed(const struct admission *item, struct dmi_tally *tally, int sign)
{
    if (item->has_record && item->n_shed)
        session_count(tally, sign, 0, item->n_shed, item->shed_bytes);
}

static void count_expected(const struct admission *item, int sign)
{
    struct dmi_site_counters *counters = session_counters(item->site);
    count(item, &counters->expected, sign);
    count_shed(item, &counters->expected, sign);
    count_shed(item, &counters->dropped[DMI_DROP_SHED], sign);
}

/* Where a user can do something about it, it is reported. */
static void report_drop(const struct context *c, const struct admission *item)
{
    if (item->reason == DMI_DROP_UNSUPPORTED && c->state != CONTEXT_READY)
        session_problem(item->site, PROBLEM_UNSUPPORTED, "%s: not captured",
                        c->state == CONTEXT_FAILED ? "this context has no ring"
                                                   : "launched before this context had a ring");
    if (item->reason == DMI_DROP_TOO_LARGE)
        session_problem(item->site, PROBLEM_TOO_LARGE,
                        "%s of %llu bytes: the ring has %llu bytes and %u slots",
                        item->n_bytes > c->ring.n_bytes
                            ? "no room for a record"
                            : "no room for the records of one graph launch, among them one",
                        (unsigned long long)item->n_bytes, (unsigned long long)c->ring.n_bytes,
                        c->ring.n_slots);
}

/* What is captured of a site, or as which layer, hangs on the occurrence, which is unknown. */
static bool is_in_doubt(const struct admission *item)
{
    const struct spec_site *site = session_site(item->site);
    bool of_range = item->range && item->range->layer != VARIANT_LAYER_OF_SITE;
    if (!item->doubt || !spec_needs_occurrence(site, !of_range))
        return false;
    session_problem(
        item->site, PROBLEM_UNSUPPORTED,
        "%s: which occurrence a launch is, nobody knows until the next forward begins: not "
        "captured",
        item->doubt == CONTEXT_OVERLAPS
            ? "steps of two threads overlap (DMI_STEP_OF_THREAD keeps them apart)"
            : "its kernel ran before in the body of a conditional node, nobody knows how often");
    return true;
}

/* The rows that the site keeps of a tensor in @step. Return: none: there is nothing to record. */
static struct select_pick pick_rows(const struct admission_launch *l, const struct step *step,
                                    uint32_t site, const struct tensor_view *g)
{
    const struct spec *spec = session.spec;
    uint32_t choice = session_site(site)->select;
    struct select_pick all = { .all = true, .n = g->dims[0] };
    if (choice == SPEC_NO_SELECT || !g->row_bytes)
        return all;
    if (step && g->of_requests && spec->selects[choice].row == DMI_ROW_TOKEN)
        return select_pick_last(&step->last[choice], g->dims[0]);
    if (step)
        return select_pick(&spec->selects[choice], &step->rows[choice], g->dims[0]);
    if (select_is_default(&spec->selects[choice]))
        return all;
    says_step(l, site, "rows");
    return (struct select_pick){ 0 };
}

struct select_pick admission_pick(const struct admission_launch *l, const struct operand *operand)
{
    return pick_rows(l, l->step ? l->step->all : NULL, operand->site, &operand->view);
}

/* Return: false: the spec, or the range, gives none, which is reported. */
static bool find_layer(struct admission *item, int32_t tapped)
{
    if (!item->range || item->range->layer == VARIANT_LAYER_OF_SITE)
        return operand_layer(item->site, item->occurrence, tapped, &item->layer);
    if (item->range->layer == VARIANT_NO_LAYER)
        session_problem(item->site, PROBLEM_BAD_EXPR,
                        "occurrence %u: no layer number in the name of its range",
                        item->occurrence);
    else
        item->layer = item->range->layer;
    return item->range->layer != VARIANT_NO_LAYER;
}

/* Tensors of requests have one row a layer and position. Of kernels without layers each launch is one more. */
static void report_pass(const struct admission *item)
{
    const struct spec_site *site = session_site(item->site);
    if (item->pass == FORWARD_NO_PASS || !item->pass || !spec_publishes(site) ||
        !item->context->forward->in_step || (item->layer < 0 && !site->about.tap))
        return;
    session_problem(item->site, PROBLEM_PASSES,
                    "layer %d ran more than once in a step: each pass is a record, and tensors of "
                    "requests hold the last one%s",
                    (int)item->layer,
                    tap_is_gradient(site->about.tap)
                        ? " that came; gradients come in reverse, so it is the first pass's"
                        : "");
}

void admission_locate(struct admission *item, int32_t tapped)
{
    if (item->state != ADMISSION_COUNTED ||
        !spec_takes_occurrence(session_site(item->site), item->occurrence))
        return;
    item->has_layer = find_layer(item, tapped);
    item->pass =
        item->has_layer ? forward_pass(item->context, item->site, item->layer) : FORWARD_NO_PASS;
    report_pass(item);
}

static void set_pick(struct admission *item, struct select_pick pick)
{
    const struct tensor_view *g = &item->operand->view;
    item->pick = pick;
    item->n_bytes = pick.all ? g->n_bytes : (uint64_t)pick.n * g->row_bytes;
}

/*
 * What the site keeps of the step, and what of that is shed, if its action publishes. A record of which nothing is left is a drop as
 * a whole. Return: @drop, or that it is.
 */
static int pick_kept(const struct admission_launch *l, struct admission *item, int drop)
{
    const struct tensor_view *g = &item->operand->view;
    struct step *step = l->step;
    set_pick(item, pick_rows(l, step ? step->all : NULL, item->site, g));
    item->n_shed = 0;
    item->shed_bytes = 0;
    if (!item->has_record || !step || step->all == step || !item->pick.n)
        return drop;
    struct select_pick kept = pick_rows(l, step, item->site, g);
    if (!kept.n)
        return drop == DROP_NONE ? DMI_DROP_SHED : drop;
    uint64_t all_bytes = item->n_bytes;
    item->n_shed = item->pick.n - kept.n;
    set_pick(item, kept);
    item->shed_bytes = all_bytes - item->n_bytes;
    return drop;
}

/* Return: DROP_NONE, or why the layer, or the occurrence, is not known. */
static int doubt_or_layer(const struct admission *item)
{
    if (is_in_doubt(item))
        return DMI_DROP_UNSUPPORTED;
    return item->has_layer ? DROP_NONE : DMI_DROP_BAD_EXPR;
}

void admission_expect(const struct admission_launch *l, struct admission *item,
                      const struct operand *operand, int drop)
{
    const struct tensor_view *g = &operand->view;
    item->operand = operand;
    item->edits_due = false;
    if (spec_is_place(session_site(item->site))) {
        int doubt = doubt_or_layer(item);
        if (doubt != DROP_NONE)
            item->layer = RUN_NO_LAYER;
        drop = drop == DROP_NONE ? doubt : drop;
        admission_expect_edit(l, item, drop);
        return;
    }
    item->has_record = spec_publishes(session_site(item->site));
    drop = pick_kept(l, item, drop);
    if (!item->pick.n && g->row_bytes)
        return;
    if (item->has_record)
        shed_note_cost(item->site, (uint32_t)g->row_bytes);
    if (drop == DROP_NONE)
        drop = doubt_or_layer(item);
    item->state = ADMISSION_EXPECTED;
    count_expected(item, 1);
    if (drop != DROP_NONE)
        admission_drop(l, item, (enum dmi_drop)drop);
}

void admission_refuse(uint32_t site, enum dmi_drop reason)
{
    atomic_add_relaxed(&session_counters(site)->launches, 1);
    if (!session_site_on(site) || !spec_publishes(session_site(site)))
        return;
    session_count(&session_counters(site)->expected, 1, 1, 0, 0);
    session_drop(site, reason, 0, 0);
}

/* The copy of a RESERVED item is never launched: it is EXPECTED again, or GIVEN_UP. */
static void admission_cancel_item(struct context *c, struct admission *item)
{
    bool ours = !item->has_record || ring_cancel(&c->ring, item->slot);
    item->state = ours ? ADMISSION_EXPECTED : ADMISSION_GIVEN_UP;
}

void admission_drop(const struct admission_launch *l, struct admission *item, enum dmi_drop reason)
{
    if (item->state == ADMISSION_RESERVED)
        admission_cancel_item(l->context, item);
    if (item->state == ADMISSION_GIVEN_UP)
        return; /* the drain has counted it */
    item->state = ADMISSION_DROPPED;
    item->reason = (int)reason;
    count(item, &session_counters(item->site)->dropped[reason], 1);
    admission_miss_edit(l, item, (int)reason);
    report_drop(l->context, item);
}
void admission_pick_again(const struct admission_launch *l, struct admission *item)
{
    count_expected(item, -1);
    int drop = pick_kept(l, item, DROP_NONE);
    count_expected(item, 1);
    if (drop != DROP_NONE)
        admission_drop(l, item, (enum dmi_drop)drop);
}

/* Slot number @i of the launch. Under the lock. Return: false: the drain has counted its records. */
static bool cancel_slot(struct admission_launch *l, uint32_t i)
{
    bool ours = ring_cancel(&l->context->ring, l->slot + i);
    if (ours)
        launch_records_release(l->records);
    return ours;
}

/* Records of a launch have their numbers in the order of the items. */
static void cancel_launch(struct admission_launch *l)
{
    uint32_t n = 0; /* slots so far */
    bool ours = false;
    pthread_mutex_lock(&l->context->lock);
    for (uint32_t i = 0; i < l->n; i++) {
        struct admission *item = &l->items[i];
        if (item->state != ADMISSION_RESERVED || !item->has_record)
            continue;
        if (item->place / DMI_CLOSE_RECORDS == n)
            ours = cancel_slot(l, n++);
        item->state = ours ? ADMISSION_EXPECTED : ADMISSION_GIVEN_UP;
    }
    l->slot = RING_NO_SLOT;
    pthread_mutex_unlock(&l->context->lock);
}

void admission_cancel_records(struct admission_launch *l)
{
    if (l->together && l->slot != RING_NO_SLOT)
        cancel_launch(l);
    for (uint32_t i = 0; !l->together && i < l->n; i++)
        if (l->items[i].state == ADMISSION_RESERVED && l->items[i].has_record)
            admission_cancel_item(l->context, &l->items[i]);
}

void admission_cancel(struct admission_launch *l)
{
    admission_cancel_records(l);
    for (uint32_t i = 0; i < l->n; i++)
        if (l->items[i].state == ADMISSION_RESERVED)
            l->items[i].state = ADMISSION_EXPECTED;
}

void admission_launched(struct admission_launch *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->items[i].state == ADMISSION_RESERVED)
            l->items[i].state = ADMISSION_LAUNCHED;
}

/* ------------------------------------------------------------------------- refused launches */

static void take_back_occurrences(struct admission_launch *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct admission *item = &l->items[i];
        if (item->state == ADMISSION_NONE)
            continue;
        if (context_use(item->context)) { /* it may be another one than the launch's */
            pthread_mutex_lock(&item->context->lock);
            forward_take_back(item->context, &l->said, item->site);
            if (item->has_layer)
                forward_take_back_pass(item->context, item->site, item->layer);
            pthread_mutex_unlock(&item->context->lock);
            context_unuse(item->context);
        }
        atomic_sub_relaxed(&session_counters(item->site)->launches, 1);
    }
}

void admission_take_back(struct admission_launch *l)
{
    admission_cancel(l);
    take_back_occurrences(l);
    for (uint32_t i = 0; i < l->n; i++) {
        struct admission *item = &l->items[i];
        admission_take_back_edit(l, item);
        switch (item->state) {
        case ADMISSION_DROPPED:
            count(item, &session_counters(item->site)->dropped[item->reason], -1);
            count_expected(item, -1);
            break;
        case ADMISSION_EXPECTED:
        case ADMISSION_PIECES: count_expected(item, -1); break;
        case ADMISSION_NONE:
        case ADMISSION_COUNTED:
        case ADMISSION_RESERVED: /* cancelled above */
        case ADMISSION_LAUNCHED: /* the tensor was there before the launch, and is recorded */
        case ADMISSION_GIVEN_UP: break;
        }
    }
}

const struct row_lists *admission_lists(const struct context *c, const struct admission *item)
{
    return item->has_record ? &c->row_lists : &c->unslotted.lists;
}

/* A ticket says for several actions at once which rows they take. */
int admission_choose(struct admission_launch *l, struct admission *item)
{
    const struct select_pick *p = &item->pick;
    struct dmi_rows rows = { p->rows
                                 ? row_list_at(admission_lists(l->context, item), item->rows_list)
                                 : DMI_ROWS_FIRST,
                             p->n };
    item->choice = DMI_ROWS_ALL;
    if (p->all)
        return DROP_NONE;
    for (item->choice = 0; item->choice < l->n_choices; item->choice++)
        if (l->choices[item->choice].at == rows.at && l->choices[item->choice].n_rows == p->n)
            return DROP_NONE;
    if (l->n_choices == DMI_TICKET_ROWS) {
        session_problem(
            item->site, PROBLEM_UNSUPPORTED,
            "more than %d different choices of rows in one launch of a graph: not captured",
            DMI_TICKET_ROWS);
        return DMI_DROP_UNSUPPORTED;
    }
    l->choices[l->n_choices++] = rows;
    return DROP_NONE;
}
