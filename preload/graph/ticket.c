/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/ticket.h"

#include "preload/base/driver.h"
#include "preload/context/launch_records.h"
#include "preload/graph/instrument.h"

#include <dmi/ring.h>

#include <string.h>

bool ticket_switch_node(const struct exec *x, struct graph_node *node, bool off)
{
    if (node->off == off || !node->node)
        return true;
    if (!driver_table.cuGraphNodeSetEnabled ||
        driver_table.cuGraphNodeSetEnabled(x->handle, node->node, !off) != CUDA_SUCCESS)
        return false;
    node->off = off;
    return true;
}

static bool switch_opens(struct exec *x, bool off)
{
    bool all = true;
    for (uint32_t i = 0; i < x->plan.n_tickets; i++)
        all = ticket_switch_node(x, &x->plan.opens[i], off) && all;
    return all;
}

/* What the ticket says of an action that is to run. */
static void fill_place(const struct admission *item, struct dmi_ticket *t, uint32_t at)
{
    t->offset16[at] = item->has_record ? (uint32_t)(item->payload / RING_ALIGN) : DMI_NO_PAYLOAD;
    t->slot[at] = (unsigned short)(item->has_record ? item->place : item->at);
    t->rows_of[at] = (unsigned char)item->choice;
}

/* How many actions ticket number @n is for. */
static uint32_t actions_of(const struct exec *x, uint32_t n)
{
    uint32_t rest = x->plan.n_nodes - n * DMI_TICKET_ACTIONS;
    return rest < DMI_TICKET_ACTIONS ? rest : DMI_TICKET_ACTIONS;
}

/* Ticket number @n of @launch: its actions from n * DMI_TICKET_ACTIONS on. */
static void fill(const struct exec *x, const struct admission_launch *l, uint32_t n,
                 struct dmi_ticket *t)
{
    uint32_t mask = x->plan.context->ring.n_slots - 1, first = n * DMI_TICKET_ACTIONS;
    t->seq = l->number;
    t->n_actions = actions_of(x, n);
    bool slots = l->slot != RING_NO_SLOT;
    t->close_slot = slots ? (uint32_t)l->slot & mask : DMI_NO_CLOSE;
    t->n_records = slots ? l->records->n : 0;
    t->payload = x->plan.context->payload + l->payload;
    memcpy(t->rows, l->choices, sizeof t->rows);
    for (uint32_t i = 0; i < t->n_actions; i++) {
        t->offset16[i] = DMI_NOT_WANTED;
        t->slot[i] = 0;
    }
    for (uint32_t k = 0; k < l->n; k++) {
        const struct admission *item = &l->items[k];
        uint32_t at = x->plan.actions[k].number - first;
        if (x->plan.actions[k].number != PLAN_NONE && at < t->n_actions &&
            item->state == ADMISSION_RESERVED)
            fill_place(item, t, at);
    }
}

/* What @launch says to the node that does all of its copies. */
static void fill_alone(const struct exec *x, const struct admission_launch *l, struct dmi_alone *a)
{
    const struct context *c = x->plan.context;
    a->seq = l->number;
    a->payload = c->payload + l->payload;
    a->desc = c->desc_device + (l->slot & (c->ring.n_slots - 1)) * sizeof(struct dmi_desc);
    for (uint32_t k = 0; k < l->n; k++) {
        const struct admission *item = &l->items[k];
        const struct graph_action *action = &x->plan.actions[k];
        /* a launch that repeats the last one has its items as that left them */
        if (action->number == PLAN_NONE ||
            (item->state != ADMISSION_RESERVED && item->state != ADMISSION_LAUNCHED))
            continue;
        a->offset16[action->number] = (uint32_t)(item->payload / RING_ALIGN);
        a->record[action->number] = (unsigned char)item->place;
        a->rows[action->number] =
            item->choice == DMI_ROWS_ALL
                ? (struct dmi_rows){ DMI_ROWS_FIRST, action->operand.view.dims[0] }
                : l->choices[item->choice];
    }
}

/* @l NULL: nothing. Where the driver does not take it the node stays off: it may have what was said of a launch that was refused. */
static bool set_alone(struct exec *x, const struct admission_launch *l)
{
    struct graph_node *node = &x->plan.nodes[0];
    struct dmi_alone a = { .seq = 0 };
    for (uint32_t i = 0; i < DMI_COPIES; i++)
        a.offset16[i] = DMI_NOT_WANTED;
    if (l && l->slot != RING_NO_SLOT)
        fill_alone(x, l, &a);
    bool set = instrument_set_alone(x->handle, &x->plan, &a) == CUDA_SUCCESS;
    if (!set)
        ticket_switch_node(x, node, true);
    x->empty = set && !a.seq;
    return set && (!a.seq || ticket_switch_node(x, node, false));
}

static bool set_all(struct exec *x, const struct admission_launch *l)
{
    struct dmi_ticket t = { 0 };
    bool set = true;
    repeat_pass(&x->repeat);
    if (x->plan.alone)
        return set_alone(x, l);
    for (uint32_t n = 0; n < x->plan.n_tickets && set; n++) {
        if (l)
            fill(x, l, n, &t);
        set = instrument_set_ticket(x->handle, &x->plan, n, &t) == CUDA_SUCCESS;
    }
    if (!set)
        /* opens hold tickets of before: used, which dmi_open sees, or of a launch that was refused */
        switch_opens(x, true);
    x->empty = set ? !l : false;
    return set;
}

bool ticket_deliver(struct exec *x, const struct admission_launch *l)
{
    return ticket_switch_node(x, &x->plan.close, false) && switch_opens(x, false) && set_all(x, l);
}

bool ticket_deliver_again(struct exec *x, const struct admission_launch *l)
{
    if (x->plan.alone)
        return set_alone(x, l);
    struct dmi_reopen again = { .seq = l->number,
                                .close_slot =
                                    (uint32_t)l->slot & (x->plan.context->ring.n_slots - 1),
                                .payload = x->plan.context->payload + l->payload };
    for (uint32_t n = 0; n < x->plan.n_tickets; n++) {
        again.n_actions = actions_of(x, n);
        if (instrument_set_again(x->handle, &x->plan, n, &again) != CUDA_SUCCESS)
            return false;
    }
    return true;
}

void ticket_clear(struct exec *x)
{
    if (!x->empty)
        set_all(x, NULL);
}

void ticket_sleep(struct exec *x)
{
    ticket_clear(x);
    if (x->empty)
        switch_opens(x, true);
    ticket_switch_node(x, &x->plan.close, true);
}

bool ticket_is_read(const struct exec *x)
{
    const struct graph_node *first = x->plan.alone ? x->plan.nodes : x->plan.opens;
    return x->plan.n_tickets && !first->off;
}
