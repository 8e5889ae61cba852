/* SPDX-License-Identifier: Apache-2.0 */
/* The part of admission.h that is about places in the ring: what fits, who waits, and what is shed where nothing does. */
#include "core/atomic.h"
#include "core/clock.h"
#include "preload/capture/admission_private.h"
#include "preload/capture/shed.h"
#include "preload/context/gauge.h"
#include "preload/context/launch_records.h"

#include <string.h>
#include <time.h>

#define WAIT_POLL_NS 50000

/* ------------------------------------------------------------------------- one record */

/* What the drain will make a record of. Under the lock. */
static struct record_note note_of(const struct admission_launch *l, const struct admission *item)
{
    const struct tensor_view *g = &item->operand->view;
    struct record_note note = {
        .forward = item->forward,
        .step = l->step ? l->step->sequence : SESSION_NO_STEP,
        .time_ns = l->time_ns,
        .layer = item->layer,
        .occurrence = item->occurrence,
        .dtype = g->dtype,
        .n_dims = g->n_dims,
        .kept =
            item->pick.kept ? row_list_at(&l->context->row_lists, item->kept_list) : ROW_LISTS_NONE,
    };
    memcpy(note.dims, g->dims, sizeof note.dims);
    note.dims[0] = item->pick.n;
    return note;
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

int admission_place_lists(struct admission_launch *l, struct admission *item)
{
    int reason = place_list(l, item->pick.rows, item->pick.n_list, &item->rows_list);
    if (reason == DROP_NONE)
        reason = place_list(l, item->pick.kept, item->pick.n_list, &item->kept_list);
    return reason == DROP_NONE && l->together ? admission_choose(l, item) : reason;
}

CUdeviceptr admission_rows_address(const struct context *c, const struct admission *item)
{
    return item->pick.rows
               ? c->lists_device +
                     row_list_at(admission_lists(c, item), item->rows_list) * sizeof(uint32_t)
               : 0;
}

/* The item's lists stay until @slot is released. Under the lock. */
static void keep_lists(struct admission_launch *l, const struct admission *item, uint64_t slot)
{
    struct row_lists *lists = &l->context->row_lists;
    if (item->pick.rows)
        row_lists_use(lists, item->rows_list, slot);
    if (item->pick.kept)
        row_lists_use(lists, item->kept_list, slot);
}

int admission_reserve_slot(struct admission_launch *l, struct admission *item, uint64_t n_bytes)
{
    int reason = drop_of(ring_reserve(&l->context->ring, l->number, item->site, n_bytes,
                                      &item->slot, &item->payload));
    if (reason != DROP_NONE)
        return reason;
    keep_lists(l, item, item->slot);
    *(struct record_note *)ring_user(&l->context->ring, item->slot) = note_of(l, item);
    return DROP_NONE;
}

/* Each record by itself: what fits is taken. Under the lock. */
static void reserve_each(struct admission_launch *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct admission *item = &l->items[i];
        if (!admission_wants_slot(item))
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

/* What a launch needs of the ring. */
struct need {
    uint64_t bytes;
    uint32_t records;
    bool is_graph;
};

static uint32_t slots_of(const struct need *need)
{
    return need->is_graph ? ring_launch_slots(need->records) : need->records;
}

/* Does it fit, into the ring as it is or into an @empty one? Return: DROP_NONE, or why not. */
static int fit(struct context *c, const struct need *need, bool empty)
{
    if (need->bytes > c->ring.n_bytes || slots_of(need) > c->ring.n_slots)
        return DMI_DROP_TOO_LARGE;
    return empty ? DROP_NONE : drop_of(ring_room(&c->ring, slots_of(need), need->bytes));
}

static struct need need_of_all(const struct admission_launch *l)
{
    struct need all = { .is_graph = l->together };
    for (uint32_t i = 0; i < l->n; i++)
        if (admission_wants_slot(&l->items[i])) {
            all.bytes += ring_padded(l->items[i].n_bytes);
            all.records++;
        }
    return all;
}

/* Adds what the records of @site need. */
static struct need with_site(struct need need, const struct admission_launch *l, uint32_t site)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (admission_wants_slot(&l->items[i]) && l->items[i].site == site) {
            need.bytes += ring_padded(l->items[i].n_bytes);
            need.records++;
        }
    return need;
}

static void decide(struct admission_launch *l, uint32_t site, int reason)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (admission_wants_slot(&l->items[i]) && l->items[i].site == site)
            l->items[i].reason = reason;
}

/*
 * Of a launch that does not fit as a whole, the sites that do, in the order in which they come; of each all records or
 * none. The others have a reason then. Under the lock, unless for an @empty ring.
 */
static void choose_sites(struct admission_launch *l, bool empty)
{
    struct need taken = { .is_graph = true };
    for (uint32_t i = 0; i < l->n; i++)
        if (admission_wants_slot(&l->items[i]))
            l->items[i].reason = UNDECIDED;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct admission *item = &l->items[i];
        if (!admission_wants_slot(item) || item->reason != UNDECIDED)
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
    return admission_wants_slot(item) && item->reason == DROP_NONE;
}

/* Return: false where the lists of rows of a record that is chosen find no room now. Under the lock. */
static bool place_all_lists(struct admission_launch *l)
{
    bool room = true;
    l->n_choices = l->n_unslotted_choices;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!is_chosen(&l->items[i]))
            continue;
        l->items[i].reason = admission_place_lists(l, &l->items[i]);
        room = room && l->items[i].reason != DMI_DROP_RING_FULL;
    }
    return room;
}

static void decide_all(struct admission_launch *l, int reason)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (admission_wants_slot(&l->items[i]))
            l->items[i].reason = reason;
}

/* The chosen items in the order of their records, which lie one after the other. Under the lock. */
static void list_records(struct admission_launch *l)
{
    struct launch_records *all = l->records;
    all->n = 0;
    all->n_bytes = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        struct admission *item = &l->items[i];
        if (!is_chosen(item))
            continue;
        item->place = all->n;
        item->payload = all->n_bytes;
        struct launch_record *r = &all->all[all->n++];
        *r = (struct launch_record){ .site = item->site,
                                     .n_bytes = item->n_bytes,
                                     .at = item->payload,
                                     .note = note_of(l, item) };
        all->n_bytes += ring_padded(item->n_bytes);
    }
}

int admission_reserve_records(struct admission_launch *l)
{
    return drop_of(ring_reserve_launch(&l->context->ring, l->number, l->records->n,
                                       l->records->n_bytes, &l->slot, &l->payload));
}

void admission_fill_slots(const struct admission_launch *l, uint64_t forward)
{
    uint32_t n = ring_launch_slots(l->records->n);
    launch_records_hold(l->records, n);
    for (uint32_t i = 0; i < n; i++)
        *(struct launch_note *)ring_user(&l->context->ring, l->slot + i) =
            (struct launch_note){ .records = l->records,
                                  .first = i * DMI_CLOSE_RECORDS,
                                  .step = l->step ? l->step->sequence : SESSION_NO_STEP,
                                  .time_ns = l->time_ns,
                                  .forward = forward };
}

/* The records that are chosen together, or none. Under the lock. */
static void reserve_together(struct admission_launch *l)
{
    struct launch_records *all = l->records;
    if (!all) {
        decide_all(l, DMI_DROP_NO_MEMORY);
        return;
    }
    list_records(l);
    if (!all->n)
        return;
    uint64_t forward = all->all[0].note.forward;
    for (uint32_t i = 0; i < all->n; i++)
        all->all[i].note.forward -= forward;
    int reason = admission_reserve_records(l);
    if (reason == DROP_NONE)
        admission_fill_slots(l, forward);
    for (uint32_t i = 0; i < l->n; i++) {
        struct admission *item = &l->items[i];
        if (!is_chosen(item))
            continue;
        item->reason = reason;
        if (reason != DROP_NONE)
            continue;
        keep_lists(l, item, l->slot + ring_launch_slots(all->n) - 1);
        item->state = ADMISSION_RESERVED;
    }
}

/* May the launch be asked again with fewer requests? Then nothing may be reserved before, as it draws another number. */
static bool may_shed(const struct admission_launch *l)
{
    return l->step && l->step->said && overload_cuts(l->overload);
}

/* Return: whether all records of an eager launch find room, where that decides. Under the lock. */
static bool all_fit(struct admission_launch *l)
{
    struct need all = need_of_all(l);
    decide_all(l, DROP_NONE);
    if (!may_shed(l))
        return true;
    int reason = fit(l->context, &all, false);
    if (reason == DROP_NONE && !place_all_lists(l))
        reason = DMI_DROP_RING_FULL;
    if (reason == DMI_DROP_RING_FULL)
        decide_all(l, reason);
    return reason != DMI_DROP_RING_FULL;
}

/* All that is wanted, or (@part) what fits. Under the lock. */
static void reserve(struct admission_launch *l, bool part)
{
    if (!l->together) {
        if (part || all_fit(l))
            reserve_each(l);
        return;
    }
    if (part)
        choose_sites(l, false);
    else
        decide_all(l, DROP_NONE);
    if (place_all_lists(l) || part)
        reserve_together(l);
}

static uint32_t n_wanting(const struct admission_launch *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++)
        n += admission_wants_slot(&l->items[i]);
    return n;
}

/* Return: false where an item found the ring full. */
static bool try_reserve(struct admission_launch *l, bool part)
{
    bool full = false;
    if (l->together && !l->records)
        l->records = launch_records_new(n_wanting(l));
    pthread_mutex_lock(&l->context->lock);
    int refusal = context_refusal(l->context);
    if (refusal == DROP_NONE) {
        /* numbers rise in the order of slots, so one that had to wait draws a new one */
        l->number = atomic_add_relaxed(&session.next_launch, 1);
        l->time_ns = clock_real_ns();
        reserve(l, part);
        row_lists_settle(&l->context->row_lists);
        gauge_reserved(l->context);
    }
    for (uint32_t i = 0; i < l->n; i++) {
        if (admission_wants_slot(&l->items[i]) && refusal != DROP_NONE)
            l->items[i].reason = refusal;
        full = full ||
               (admission_wants_slot(&l->items[i]) && l->items[i].reason == DMI_DROP_RING_FULL);
    }
    pthread_mutex_unlock(&l->context->lock);
    return !full;
}

/* Sites of a graph launch that would not even fit into an empty ring beside those before them are dropped. */
static void drop_too_large(struct admission_launch *l)
{
    choose_sites(l, true);
    for (uint32_t i = 0; i < l->n; i++)
        if (admission_wants_slot(&l->items[i]) && l->items[i].reason != DROP_NONE)
            admission_drop(l, &l->items[i], (enum dmi_drop)l->items[i].reason);
}

bool admission_fits(const struct admission_launch *l)
{
    struct need all = need_of_all(l);
    return fit(l->context, &all, true) == DROP_NONE;
}

bool admission_wait(uint64_t *end_ns)
{
    uint64_t now = clock_mono_ns();
    if (!*end_ns) {
        *end_ns = now + session_overload()->wait_ns;
        atomic_add_relaxed(&session.counters->waits, 1);
    }
    struct timespec pause = { .tv_nsec = WAIT_POLL_NS };
    if (now >= *end_ns) {
        atomic_add_relaxed(&session.counters->waits_over, 1);
        return false;
    }
    nanosleep(&pause, NULL);
    atomic_add_relaxed(&session.counters->wait_ns, clock_mono_ns() - now);
    return true;
}

/* ------------------------------------------------------------------------- with fewer requests */

/* What the launch's records need more than there is, by the choices of rows that they have. */
static void measure(const struct admission_launch *l, struct shed_launch *out)
{
    struct ring *ring = &l->context->ring;
    uint64_t need = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct admission *item = &l->items[i];
        uint32_t choice = session_site(item->site)->select;
        if (!admission_wants_slot(item))
            continue;
        need += ring_padded(item->n_bytes);
        if (choice != SPEC_NO_SELECT)
            out->row_bytes[choice] += item->operand->view.row_bytes;
    }
    pthread_mutex_lock(&l->context->lock);
    uint64_t room = ring->n_bytes - (ring->head_byte - atomic_load_acquire(&ring->tail_byte));
    pthread_mutex_unlock(&l->context->lock);
    out->excess = need > room ? need - room : 1; /* enough bytes, and not one after the other */
}

/* Return: whether there is less to reserve now. */
static bool shed_some(struct admission_launch *l)
{
    struct shed_launch launch = { 0 };
    measure(l, &launch);
    if (!shed_cut(&l->step, &launch))
        return false;
    for (uint32_t i = 0; i < l->n; i++)
        if (admission_wants_slot(&l->items[i]))
            admission_pick_again(l, &l->items[i]);
    return true;
}

/* Nothing of ours can run in this context. */
static void drop_all(struct admission_launch *l, enum dmi_drop reason)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->items[i].state == ADMISSION_EXPECTED)
            admission_drop(l, &l->items[i], reason);
}

/* A record that found no room, or another reason why not. */
static void drop_for_room(struct admission_launch *l, struct admission *item)
{
    if (item->reason == DMI_DROP_RING_FULL)
        shed_lost(l->step, item->site);
    admission_drop(l, item, (enum dmi_drop)item->reason);
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
    admission_reserve_unslotted(l);
    bool fits = admission_fits(l);
    while (!fits && shed_some(l))
        fits = admission_fits(l);
    if (l->together && !fits) {
        drop_too_large(l);
        fits = true;
    }
    bool any = n_wanting(l) != 0, whole = false;
    bool wait = l->overload->mode == OVERLOAD_COMPLETE && fits;
    while (any && !(whole = try_reserve(l, false)) && wait) {
        /*
         * Holding nothing: a slot that is reserved and not launched stalls the drain, so threads that waited with
         * slots in their hands would wait for each other.
         */
        admission_cancel_records(l);
        wait = admission_wait(&end_ns);
    }
    while (any && !whole && shed_some(l))
        whole = !n_wanting(l) || try_reserve(l, false);
    if (any && !whole && (l->together || may_shed(l)))
        try_reserve(l, true);
    for (uint32_t i = 0; i < l->n; i++) {
        if (admission_wants_slot(&l->items[i]))
            drop_for_room(l, &l->items[i]);
        if (l->items[i].state != ADMISSION_RESERVED)
            continue;
        if (may_shed(l))
            shed_found_room(l->items[i].site);
        n++;
    }
    return n;
}
