/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/admission.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "preload/capture/action.h"
#include "preload/capture/forward.h"

#include <string.h>
#include <time.h>

#define WAIT_POLL_NS 50000

/* ------------------------------------------------------------------------- counted, expected, dropped */

void admission_count(struct context *c, uint32_t site, struct admission *item)
{
    item->site = site;
    item->context = c;
    item->state = ADMISSION_NONE;
    item->reason = DROP_NONE;
    item->range = NULL;
    item->undecided = false;
    if (!forward_occurrence(c, site, &item->occurrence))
        return;
    item->state = ADMISSION_COUNTED;
    item->forward = c->forward.sequence;
    atomic_add_relaxed(&session_counters(site)->launches, 1);
}

void admission_begin(struct admission_launch *l)
{
    l->step = step_hold();
}

void admission_end(struct admission_launch *l)
{
    step_release(l->step);
    l->step = NULL;
}

/* What is chosen by the engine's words is not captured where it says nothing. */
static bool says_step(const struct admission_launch *l, uint32_t site, const char *what)
{
    if (!l->step)
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

bool admission_wanted(const struct admission_launch *l, const struct admission *item)
{
    const struct spec_site *site = session_site(item->site);
    return item->state == ADMISSION_COUNTED && spec_takes_occurrence(site, item->occurrence) &&
           session_site_on(item->site) && in_turn(l, item);
}

static void count(const struct admission *item, struct dmi_tally *tally, int sign)
{
    if (!item->has_record)
        return;
    session_count(tally, sign, 1, item->pick.n, item->n_bytes);
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

/* The rows that the site keeps of a tensor. Return: none: there is nothing to record. */
static struct select_pick pick_rows(const struct admission_launch *l, uint32_t site,
                                    const struct gather_plan *g)
{
    const struct spec *spec = session.spec;
    uint32_t choice = session_site(site)->select;
    struct select_pick all = { .all = true, .n = g->dims[0] };
    if (choice == SPEC_NO_SELECT || !g->row_bytes)
        return all;
    if (l->step)
        return select_pick(&spec->selects[choice], &l->step->rows[choice], g->dims[0]);
    if (select_is_default(&spec->selects[choice]))
        return all;
    says_step(l, site, "rows");
    return (struct select_pick){ 0 };
}

/* Return: false where there is none, which is reported. */
static bool find_layer(struct admission *item)
{
    if (!item->range || item->range->layer == VARIANT_LAYER_OF_SITE)
        return plan_layer(item->plan, item->occurrence, &item->layer);
    if (item->range->layer == VARIANT_NO_LAYER)
        session_problem(item->site, PROBLEM_BAD_EXPR,
                        "occurrence %u: no layer number in the name of its range",
                        item->occurrence);
    else
        item->layer = item->range->layer;
    return item->range->layer != VARIANT_NO_LAYER;
}

void admission_expect(const struct admission_launch *l, struct admission *item,
                      const struct site_plan *plan, int drop)
{
    const struct gather_plan *g = &plan->gather;
    item->pick = pick_rows(l, plan->site, g);
    if (!item->pick.n && g->row_bytes)
        return;
    item->n_bytes = item->pick.all ? g->n_bytes : (uint64_t)item->pick.n * g->row_bytes;
    item->plan = plan;
    item->has_record = action_of(item->site)->needs_slot;
    item->layer = RUN_NO_LAYER;
    if (drop == DROP_NONE && !find_layer(item))
        drop = DMI_DROP_BAD_EXPR;
    item->state = ADMISSION_EXPECTED;
    count(item, &session_counters(item->site)->expected, 1);
    if (drop != DROP_NONE)
        admission_drop(l->context, item, (enum dmi_drop)drop);
}

static void cancel(struct context *c, struct admission *item)
{
    bool ours = !item->has_record || ring_cancel(&c->ring, item->slot);
    item->state = ours ? ADMISSION_EXPECTED : ADMISSION_GIVEN_UP;
}

void admission_drop(struct context *c, struct admission *item, enum dmi_drop reason)
{
    if (item->state == ADMISSION_RESERVED)
        cancel(c, item);
    if (item->state == ADMISSION_GIVEN_UP)
        return; /* the drain has counted it */
    item->state = ADMISSION_DROPPED;
    item->reason = (int)reason;
    count(item, &session_counters(item->site)->dropped[reason], 1);
    report_drop(c, item);
}

/* ------------------------------------------------------------------------- places in the ring */

/* What the drain will make a record of. Under the lock. */
static void fill_note(const struct admission_launch *l, const struct admission *item)
{
    struct record_note *note = ring_user(&l->context->ring, item->slot);
    const struct gather_plan *g = &item->plan->gather;
    *note = (struct record_note){
        .forward = item->forward,
        .step = l->step ? l->step->sequence : SESSION_NO_STEP,
        .time_ns = l->time_ns,
        .layer = item->layer,
        .occurrence = item->occurrence,
        .dtype = g->dtype,
        .n_dims = g->n_dims,
        .kept =
            item->pick.kept ? row_list_at(&l->context->row_lists, item->kept_list) : ROW_LISTS_NONE,
        .fate = item->undecided ? RECORD_UNDECIDED : RECORD_WANTED,
    };
    memcpy(note->dims, g->dims, sizeof note->dims);
    note->dims[0] = item->pick.n;
}

static int drop_of(int ring_error)
{
    return ring_error == 0             ? DROP_NONE
           : ring_error == RING_E_FULL ? DMI_DROP_RING_FULL
                                       : DMI_DROP_TOO_LARGE;
}

/* The list, if there is one, is there for kernels and drain to read. Under the lock. Return: DROP_NONE or why not. */
static int place_list(struct admission_launch *l, const uint32_t *rows, uint32_t n, uint64_t *list)
{
    struct context *c = l->context;
    /* acquires ring_release(): the drain has read the lists of slots before */
    uint64_t tail = atomic_load_acquire(&c->ring.tail_slot);
    return rows ? drop_of(row_lists_place(&c->row_lists, tail, l->step->sequence, rows, n, list))
                : DROP_NONE;
}

/* A ticket says for several copies at once which rows they take. Return: DROP_NONE or why not. */
static int choose(struct admission_launch *l, struct admission *item)
{
    const struct select_pick *p = &item->pick;
    struct dmi_rows rows = { p->rows ? row_list_at(&l->context->row_lists, item->rows_list)
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

int admission_place_lists(struct admission_launch *l, struct admission *item)
{
    int reason = place_list(l, item->pick.rows, item->pick.n_list, &item->rows_list);
    if (reason == DROP_NONE)
        reason = place_list(l, item->pick.kept, item->pick.n_list, &item->kept_list);
    return reason == DROP_NONE && l->pieces ? choose(l, item) : reason;
}

CUdeviceptr admission_rows_address(const struct context *c, const struct admission *item)
{
    const struct row_lists *lists = &c->row_lists;
    return item->pick.rows ? lists->device + row_list_at(lists, item->rows_list) * sizeof(uint32_t)
                           : 0;
}

/* The item has a slot: its lists stay until that is released. Under the lock. */
static void take_slot(struct admission_launch *l, struct admission *item)
{
    struct row_lists *lists = &l->context->row_lists;
    if (item->pick.rows)
        row_lists_use(lists, item->rows_list, item->slot);
    if (item->pick.kept)
        row_lists_use(lists, item->kept_list, item->slot);
    fill_note(l, item);
}

int admission_reserve_slot(struct admission_launch *l, struct admission *item, uint64_t n_bytes)
{
    int reason = drop_of(ring_reserve(&l->context->ring, l->number, item->site, n_bytes,
                                      &item->slot, &item->payload));
    if (reason == DROP_NONE)
        take_slot(l, item);
    return reason;
}

static bool wants_slot(const struct admission *item)
{
    return item->state == ADMISSION_EXPECTED && item->has_record;
}

/* What needs no slot has all that it needs. */
static void reserve_nothing(struct admission_launch *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->items[i].state == ADMISSION_EXPECTED && !l->items[i].has_record)
            l->items[i].state = ADMISSION_RESERVED;
}

/* Each record by itself: what fits is taken. Under the lock. */
static void reserve_each(struct admission_launch *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct admission *item = &l->items[i];
        if (!wants_slot(item))
            continue;
        item->reason = admission_place_lists(l, item);
        if (item->reason == DROP_NONE)
            item->reason = admission_reserve_slot(l, item, item->n_bytes);
        if (item->reason != DROP_NONE)
            continue;
        item->state = ADMISSION_RESERVED;
    }
}

#define UNDECIDED (-2) /* beside drop reasons and DROP_NONE, while sites are chosen */

/* What a graph launch needs of the ring: its records and the closing slot. */
struct need {
    uint64_t bytes;
    uint32_t slots;
};

/* Does it fit, into the ring as it is or into an @empty one? Return: DROP_NONE, or why not. */
static int fit(struct context *c, const struct need *need, bool empty)
{
    if (need->bytes > c->ring.n_bytes || need->slots > c->ring.n_slots)
        return DMI_DROP_TOO_LARGE;
    return empty ? DROP_NONE : drop_of(ring_room(&c->ring, need->slots, need->bytes));
}

/* Adds what the records of @site need. */
static struct need with_site(struct need need, const struct admission_launch *l, uint32_t site)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (wants_slot(&l->items[i]) && l->items[i].site == site) {
            need.bytes += ring_padded(l->items[i].n_bytes);
            need.slots++;
        }
    return need;
}

static void decide(struct admission_launch *l, uint32_t site, int reason)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (wants_slot(&l->items[i]) && l->items[i].site == site)
            l->items[i].reason = reason;
}

/*
 * Of a launch that does not fit as a whole, the sites that do, in the order in which they come; of each all records or
 * none. The others have a reason then. Under the lock, unless for an @empty ring.
 */
static void choose_sites(struct admission_launch *l, bool empty)
{
    struct need taken = { .slots = 1 };
    for (uint32_t i = 0; i < l->n; i++)
        if (wants_slot(&l->items[i]))
            l->items[i].reason = UNDECIDED;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct admission *item = &l->items[i];
        if (!wants_slot(item) || item->reason != UNDECIDED)
            continue;
        struct need more = with_site(taken, l, item->site);
        int reason = fit(l->context, &more, empty);
        decide(l, item->site, reason);
        if (reason == DROP_NONE)
            taken = more;
    }
}

static bool is_chosen(const struct admission *item)
{
    return wants_slot(item) && item->reason == DROP_NONE;
}

/* Return: false where the lists of rows of a record that is chosen find no room now. Under the lock. */
static bool place_all_lists(struct admission_launch *l)
{
    bool room = true;
    l->n_choices = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!is_chosen(&l->items[i]))
            continue;
        l->items[i].reason = admission_place_lists(l, &l->items[i]);
        room = room && l->items[i].reason != DMI_DROP_RING_FULL;
    }
    return room;
}

/* The records that are chosen in one piece, or none. Under the lock. */
static void reserve_together(struct admission_launch *l)
{
    struct context *c = l->context;
    struct admission_pieces *p = l->pieces;
    uint64_t first = 0;
    uint32_t n = 0, at = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (is_chosen(&l->items[i])) {
            p->sites[n] = l->items[i].site;
            p->sizes[n++] = l->items[i].n_bytes;
        }
    if (!n)
        return;
    int reason = drop_of(
        ring_reserve_launch(&c->ring, l->number, p->sites, p->sizes, n, &first, p->payloads));
    l->close_slot = first + n;
    for (uint32_t i = 0; i < l->n; i++) {
        struct admission *item = &l->items[i];
        if (!is_chosen(item))
            continue;
        item->reason = reason;
        if (reason != DROP_NONE)
            continue;
        item->payload = p->payloads[at];
        item->slot = first + at++;
        take_slot(l, item);
        item->state = ADMISSION_RESERVED;
    }
}

/* All that is wanted, or (@part, of a graph launch) what fits. Under the lock. */
static void reserve(struct admission_launch *l, bool part)
{
    if (!l->pieces) {
        reserve_each(l);
        return;
    }
    if (part)
        choose_sites(l, false);
    else
        for (uint32_t i = 0; i < l->n; i++)
            if (wants_slot(&l->items[i]))
                l->items[i].reason = DROP_NONE;
    if (place_all_lists(l) || part)
        reserve_together(l);
}

/* Return: false where an item found the ring full. */
static bool try_reserve(struct admission_launch *l, bool part)
{
    bool full = false;
    pthread_mutex_lock(&l->context->lock);
    int refusal = context_refusal(l->context);
    if (refusal == DROP_NONE) {
        /* numbers rise in the order of slots, so one that had to wait draws a new one */
        l->number = atomic_add_relaxed(&session.next_launch, 1);
        l->time_ns = clock_real_ns();
        reserve(l, part);
        row_lists_settle(&l->context->row_lists);
    }
    for (uint32_t i = 0; i < l->n; i++) {
        if (wants_slot(&l->items[i]) && refusal != DROP_NONE)
            l->items[i].reason = refusal;
        full = full || (wants_slot(&l->items[i]) && l->items[i].reason == DMI_DROP_RING_FULL);
    }
    pthread_mutex_unlock(&l->context->lock);
    return !full;
}

/* Sites of a graph launch that would not even fit into an empty ring beside those before them are dropped. */
static void drop_too_large(struct admission_launch *l)
{
    choose_sites(l, true);
    for (uint32_t i = 0; i < l->n; i++)
        if (wants_slot(&l->items[i]) && l->items[i].reason != DROP_NONE)
            admission_drop(l->context, &l->items[i], (enum dmi_drop)l->items[i].reason);
}

bool admission_fits(const struct admission_launch *l)
{
    struct need all = { .slots = l->pieces != NULL };
    for (uint32_t i = 0; i < l->n; i++)
        if (wants_slot(&l->items[i])) {
            all.bytes += ring_padded(l->items[i].n_bytes);
            all.slots++;
        }
    return fit(l->context, &all, true) == DROP_NONE;
}

bool admission_wait(uint64_t *end_ns)
{
    uint64_t now = clock_mono_ns();
    if (!*end_ns)
        *end_ns = now + session.spec->overload_wait_ns;
    struct timespec pause = { .tv_nsec = WAIT_POLL_NS };
    return now < *end_ns && (nanosleep(&pause, NULL), true);
}

static uint32_t n_wanting(const struct admission_launch *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++)
        n += wants_slot(&l->items[i]);
    return n;
}

/* Nothing of ours can run in this context. */
static void drop_all(struct admission_launch *l, enum dmi_drop reason)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->items[i].state == ADMISSION_EXPECTED)
            admission_drop(l->context, &l->items[i], reason);
}

uint32_t admission_reserve(struct admission_launch *l)
{
    uint32_t n = 0;
    uint64_t end_ns = 0;
    int refusal = context_refusal(l->context);
    if (refusal != DROP_NONE) {
        drop_all(l, (enum dmi_drop)refusal);
        return 0;
    }
    bool fits = admission_fits(l);
    if (l->pieces && !fits) {
        drop_too_large(l);
        fits = true;
    }
    bool any = n_wanting(l) != 0, whole = false;
    bool wait = session.spec->overload == SPEC_OVERLOAD_COMPLETE && fits;
    while (any && !(whole = try_reserve(l, false)) && wait) {
        /*
         * Holding nothing: a slot that is reserved and not launched stalls the drain, so threads that waited with
         * slots in their hands would wait for each other.
         */
        admission_cancel(l);
        wait = admission_wait(&end_ns);
    }
    if (any && !whole && l->pieces)
        try_reserve(l, true);
    reserve_nothing(l);
    for (uint32_t i = 0; i < l->n; i++) {
        if (wants_slot(&l->items[i]))
            admission_drop(l->context, &l->items[i], (enum dmi_drop)l->items[i].reason);
        n += l->items[i].state == ADMISSION_RESERVED;
    }
    return n;
}

void admission_cancel(struct admission_launch *l)
{
    bool any = false;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->items[i].state == ADMISSION_RESERVED) {
            any = any || l->items[i].has_record;
            cancel(l->context, &l->items[i]);
        }
    if (any && l->pieces)
        ring_cancel(&l->context->ring, l->close_slot);
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
        pthread_mutex_lock(&item->context->lock);
        forward_take_back(item->context, item->site);
        pthread_mutex_unlock(&item->context->lock);
        atomic_sub_relaxed(&session_counters(item->site)->launches, 1);
    }
}

void admission_uncount(const struct admission *item)
{
    struct dmi_site_counters *counters = session_counters(item->site);
    if (item->state == ADMISSION_DROPPED)
        count(item, &counters->dropped[item->reason], -1);
    count(item, &counters->expected, -1);
}

void admission_take_back(struct admission_launch *l)
{
    admission_cancel(l);
    take_back_occurrences(l);
    for (uint32_t i = 0; i < l->n; i++) {
        struct admission *item = &l->items[i];
        struct dmi_site_counters *counters = session_counters(item->site);
        switch (item->state) {
        case ADMISSION_DROPPED: admission_uncount(item); break;
        case ADMISSION_EXPECTED:
        case ADMISSION_PIECES: count(item, &counters->expected, -1); break;
        case ADMISSION_NONE:
        case ADMISSION_COUNTED:
        case ADMISSION_RESERVED: /* cancelled above */
        case ADMISSION_LAUNCHED: /* the tensor was there before the launch, and is recorded */
        case ADMISSION_GIVEN_UP: break;
        }
    }
}
