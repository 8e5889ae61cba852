/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/launch.h"

#include "core/atomic.h"
#include "preload/base/driver.h"
#include "preload/capture/forward.h"
#include "preload/graph/instrument.h"
#include "preload/graph/strip.h"

/* ------------------------------------------------------------------------- nodes on and off */

/* Switches a node of ours for launches to come. @off: what it is now. Return: false if the driver would not. */
static bool switch_node(const struct exec *x, CUgraphNode node, bool *off, bool to_off)
{
    if (*off == to_off)
        return true;
    if (!driver_table.cuGraphNodeSetEnabled ||
        driver_table.cuGraphNodeSetEnabled(x->handle, node, !to_off) != CUDA_SUCCESS)
        return false;
    *off = to_off;
    return true;
}

/* Return: false if the driver would not take it: the launch then runs without one. */
static bool set_ticket(struct exec *x)
{
    bool empty = !x->scratch.ticket.ticket.n_copies;
    bool set = empty || (switch_node(x, x->plan.close, &x->close_off, false) &&
                         switch_node(x, x->plan.open, &x->open_off, false));
    set = set && instrument_set_ticket(x->handle, &x->plan, &x->scratch.ticket) == CUDA_SUCCESS;
    if (set)
        x->empty = empty;
    else
        /* open holds the ticket before: used, which dmi_open sees, or of a launch that was refused */
        switch_node(x, x->plan.open, &x->open_off, true);
    return set;
}

static void set_empty_ticket(struct exec *x)
{
    if (x->empty)
        return;
    x->scratch.ticket.ticket.seq = 0;
    x->scratch.ticket.ticket.n_copies = 0;
    set_ticket(x);
}

/*
 * Copies of sites that are off cost less as disabled nodes than as kernels that do nothing. Only that: the ticket
 * decides what is copied, so a node that the driver does not disable harms nobody. Of one that it does not
 * enable again the records come out as not_run.
 */
static void follow_switches(struct exec *x)
{
    uint64_t switches = atomic_load_acquire(&session.switches); /* of dmi_site_enable() */
    if (x->switches == switches)
        return;
    bool any = false;
    for (uint32_t k = 0; k < x->plan.n_copies; k++) {
        struct graph_copy *c = &x->plan.copies[k];
        bool on = session_site_on(c->site);
        switch_node(x, c->node, &c->off, !on);
        any = any || on;
    }
    if (!any) {
        set_empty_ticket(x);
        if (x->empty)
            switch_node(x, x->plan.open, &x->open_off, true);
        switch_node(x, x->plan.close, &x->close_off,
                    true); /* set_ticket() switches both on again */
    }
    x->switches = switches;
}

/* Switches all nodes of ours on: strip_embedded() finds them by their kernels, which disabled nodes may lack. */
static void switch_on(struct exec *x)
{
    for (uint32_t k = 0; k < x->plan.n_copies; k++)
        switch_node(x, x->plan.copies[k].node, &x->plan.copies[k].off, false);
    switch_node(x, x->plan.open, &x->open_off, false);
    switch_node(x, x->plan.close, &x->close_off, false);
    x->switches = 0; /* the next launch switches off again what is off */
}

/* ------------------------------------------------------------------------- a launch */

/* Occurrences in the order of the graph's sites. Under the capture context's lock. */
static void count_occurrences(struct exec *x)
{
    struct context *c = x->plan.context;
    for (uint32_t i = 0; i < x->plan.n_kernels; i++) {
        const struct graph_kernel *kernel = &x->plan.kernels[i];
        if (kernel->enabled)
            forward_advance(c, kernel->func->match.kind);
        for (uint32_t k = kernel->first_copy; k < kernel->first_copy + kernel->n_copies; k++) {
            struct admission *item = &x->scratch.items[k];
            if (kernel->enabled && !x->plan.copies[k].dead)
                admission_count(c, x->plan.copies[k].site, item);
            else
                item->state = ADMISSION_NONE;
        }
    }
}

static void expect_records(struct exec *x)
{
    for (uint32_t k = 0; k < x->plan.n_copies; k++) {
        const struct graph_copy *copy = &x->plan.copies[k];
        struct admission *item = &x->scratch.items[k];
        if (admission_wanted(item) && (copy->drop != DROP_NONE || plan_has_records(&copy->plan)))
            admission_expect(x->plan.context, item, &copy->plan, copy->drop);
    }
}

static void fill_ticket(struct exec *x, const struct admission_launch *l)
{
    struct dmi_ticket *t = &x->scratch.ticket.ticket;
    uint32_t mask = x->plan.context->ring.n_slots - 1;
    t->seq = l->number;
    t->n_copies = l->n;
    t->close_slot = (uint32_t)l->close_slot & mask;
    for (uint32_t k = 0; k < l->n; k++) {
        const struct admission *item = &l->items[k];
        bool live = item->state == ADMISSION_RESERVED;
        t->offset16[k] = live ? (uint32_t)(item->payload / RING_ALIGN) : DMI_NOT_WANTED;
        t->slot[k] = live ? (unsigned short)(item->slot & mask) : 0;
    }
}

/* The driver did not take the ticket: the launch runs without one. */
static void drop_reserved(struct admission_launch *l)
{
    admission_cancel(l);
    for (uint32_t k = 0; k < l->n; k++)
        if (l->items[k].state == ADMISSION_EXPECTED)
            admission_drop(l->context, &l->items[k], DMI_DROP_COPY_FAILED);
}

/* Return: true if the launch has a ticket with copies to make. */
static bool admit(struct exec *x, struct admission_launch *l)
{
    expect_records(x);
    if (!admission_reserve(l)) {
        set_empty_ticket(x);
        return false;
    }
    fill_ticket(x, l);
    x->state.last_slot = l->close_slot + 1;
    if (set_ticket(x))
        return true;
    drop_reserved(l);
    return false;
}

void graph_before(struct exec *x, struct stream stream, bool armed, struct graph_job *job)
{
    struct context *c = x->plan.context;
    *job = (struct graph_job){ .stream = stream };
    job->embedded = stream_is_capturing(stream);
    if (job->embedded || !armed) {
        /* embedded as a child graph, or the run has ended: it must run without a ticket */
        set_empty_ticket(x);
        if (job->embedded)
            switch_on(x);
        return;
    }
    job->counted = true;
    job->launch = (struct admission_launch){
        .context = c, .items = x->scratch.items, .n = x->plan.n_copies, .pieces = &x->scratch.pieces
    };
    follow_switches(x);
    graph_plan_check_memory(&x->plan);
    atomic_add_relaxed(&session.counters->launches_matched, 1);
    pthread_mutex_lock(&c->lock);
    count_occurrences(x);
    pthread_mutex_unlock(&c->lock);
    job->unticketed = !admit(x, &job->launch) && !x->open_off;
}

void graph_after(struct exec *x, struct graph_job *job, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        if (job->counted)
            admission_take_back(&job->launch);
        return;
    }
    if (job->embedded)
        strip_embedded(x, job->stream);
    if (job->unticketed)
        exec_state_unticketed(&x->state, job->stream);
    if (job->counted)
        admission_launched(&job->launch);
}
