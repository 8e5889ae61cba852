/* SPDX-License-Identifier: Apache-2.0 */
/* One launch of an exec: occurrences, room in the ring, the ticket, and how it is all taken back. */
#include "preload/exec_private.h"

#include "core/atomic.h"
#include "preload/forward.h"
#include "preload/hooks.h"
#include "preload/process.h"

#include <errno.h>

static int no_param(void *ctx, struct expr_ref ref, void *dst, size_t n)
{
    (void)ctx;
    (void)ref;
    (void)dst;
    (void)n;
    return -ENOENT;
}

/* Memory may have been freed since pointers were checked: a copy of it would fault in the host's graph. */
static void check_memory(struct exec *x)
{
    uint64_t epoch = atomic_load_acquire(&process.memory_epoch);
    if (x->epoch == epoch)
        return;
    for (uint32_t i = 0; i < x->n_copies; i++)
        if (!x->copies[i].dead)
            want_check_memory(&x->copies[i].want);
    x->epoch = epoch;
}

/* Occurrences in the order of the graph's sites; under the lock. */
static void note_occurrences(struct exec *x)
{
    struct arena *a = x->arena;
    for (uint32_t i = 0; i < x->n_entries; i++) {
        const struct entry *e = &x->entries[i];
        if (e->enabled)
            forward_advance(a, e->func->match.kind);
        for (uint32_t k = e->first_copy; k < e->first_copy + e->n_copies; k++) {
            struct copy *c = &x->copies[k];
            const struct spec_site *site = &process.spec->sites[c->want.site];
            c->noted =
                e->enabled && !c->dead && forward_occurrence(a, c->want.site, &c->want.occurrence);
            c->expected = c->noted && c->want.occurrence >= site->first_occurrence &&
                          c->want.occurrence <= site->last_occurrence &&
                          process_site_on(c->want.site) && (c->want.error || c->want.plan.n_bytes);
            c->live = false;
            c->drop = 0;
            c->given_up = false;
            x->forward[k] = a->forward.sequence;
            if (c->noted)
                atomic_add_relaxed(&process.counters->sites[c->want.site].launches, 1);
        }
    }
}

static void drop(struct exec *x, struct copy *c, int reason)
{
    c->live = false;
    c->drop = reason;
    want_drop(x->arena, &c->want, reason);
}

/* Expected, and either live or a counted drop. Return: number of live ones */
static uint32_t admit(struct exec *x)
{
    struct expr_env env = { .param = no_param };
    uint32_t none[3] = { 0 }, n = 0;
    env.grid = env.block = none;
    for (uint32_t k = 0; k < x->n_copies; k++) {
        struct copy *c = &x->copies[k];
        if (!c->expected)
            continue;
        struct want at_launch =
            c->want; /* an error of the layer is this launch's, not the copy's */
        want_layer(&at_launch, &env);
        c->want.layer = at_launch.layer;
        want_expect(&c->want);
        if (at_launch.error) {
            drop(x, c, at_launch.error);
            continue;
        }
        c->live = true;
        x->sites[n] = c->want.site;
        x->sizes[n++] = c->want.plan.n_bytes;
    }
    return n;
}

static int reserve_once(struct exec *x, uint32_t n, uint64_t *first, uint64_t *seq)
{
    struct arena *a = x->arena;
    int r = DMI_DROP_CONTEXT_GONE + 1;
    pthread_mutex_lock(&a->lock);
    if (atomic_load_acquire(&a->broken)) {
        r = DMI_DROP_DEVICE_ERROR + 1;
    } else if (atomic_load_acquire(&a->state) == ARENA_READY) {
        *seq = atomic_add_relaxed(&process.next_launch, 1);
        r = ring_reserve_launch(&a->ring, *seq, x->sites, x->sizes, n, first, x->payloads);
        if (r)
            r = (r == RING_E_FULL ? DMI_DROP_RING_FULL : DMI_DROP_TOO_LARGE) + 1;
        uint32_t i = 0;
        for (uint32_t k = 0; k < x->n_copies && !r; k++)
            if (x->copies[k].live)
                want_fill_pending(a, &x->copies[k].want, x->forward[k], *first + i++);
    }
    pthread_mutex_unlock(&a->lock);
    return r;
}

static int reserve(struct exec *x, uint32_t n, uint64_t *first, uint64_t *seq)
{
    uint64_t end = 0;
    int r;
    do
        r = reserve_once(x, n, first, seq);
    while (r == DMI_DROP_RING_FULL + 1 && launch_wait(&end));
    return r;
}

static void fill_ticket(struct exec *x, uint32_t n, uint64_t first, uint64_t seq)
{
    struct dmi_ticket *t = &x->ticket.ticket;
    uint32_t mask = x->arena->ring.n_slots - 1, i = 0;
    t->seq = seq;
    t->n_copies = x->n_copies;
    t->close_slot = (uint32_t)(first + n) & mask;
    for (uint32_t k = 0; k < x->n_copies; k++) {
        bool live = x->copies[k].live;
        t->offset16[k] = live ? (uint32_t)(x->payloads[i] / RING_ALIGN) : DMI_NOT_WANTED;
        t->slot[k] = live ? (unsigned short)((first + i) & mask) : 0;
        i += live;
    }
}

/* Switches a node of ours for launches to come. @off: what it is now. */
static CUresult switch_node(const struct exec *x, CUgraphNode node, bool *off, bool to_off)
{
    if (*off == to_off)
        return CUDA_SUCCESS;
    CUresult r = driver_table.cuGraphNodeSetEnabled
                     ? driver_table.cuGraphNodeSetEnabled(x->handle, node, !to_off)
                     : CUDA_ERROR_NOT_SUPPORTED;
    if (r == CUDA_SUCCESS)
        *off = to_off;
    return r;
}

static CUresult set_ticket(struct exec *x)
{
    CUresult r = CUDA_SUCCESS;
    if (x->ticket.ticket.n_copies)
        r = switch_node(x, x->close, &x->close_off, false);
    if (r == CUDA_SUCCESS && x->ticket.ticket.n_copies)
        r = switch_node(x, x->open, &x->open_off, false);
    if (r == CUDA_SUCCESS) {
        r = exec_set_params(x, x->open, x->arena->open, 1, COPY_THREADS, &x->ticket);
        if (r == CUDA_SUCCESS)
            x->empty = !x->ticket.ticket.n_copies;
    }
    if (r != CUDA_SUCCESS)
        /* Open holds the ticket before: used, which dmi_open sees, or of a launch that was refused. */
        switch_node(x, x->open, &x->open_off, true);
    return r;
}

static void set_empty_ticket(struct exec *x)
{
    if (x->empty)
        return;
    x->ticket.ticket.seq = 0;
    x->ticket.ticket.n_copies = 0;
    set_ticket(x);
}

/*
 * Copies of sites that are off cost less as disabled nodes than as kernels that do nothing. Only that: the ticket
 * decides what is copied, so a node that the driver does not disable harms nobody. Of one that it does not
 * enable again the records come out as not_run.
 */
static void follow_switches(struct exec *x)
{
    uint64_t switches = atomic_load_acquire(&process.switches); /* of dmi_site_enable() */
    if (x->switches == switches)
        return;
    bool any = false;
    for (uint32_t k = 0; k < x->n_copies; k++) {
        struct copy *c = &x->copies[k];
        bool on = process_site_on(c->want.site);
        switch_node(x, c->node, &c->off, !on);
        any = any || on;
    }
    if (!any) {
        set_empty_ticket(x);
        if (x->empty)
            switch_node(x, x->open, &x->open_off, true);
        switch_node(x, x->close, &x->close_off, true); /* set_ticket() switches both on again */
    }
    x->switches = switches;
}

/* All nodes of ours, so that they can be told from the host's in what a capture makes of the exec. */
static void switch_on(struct exec *x)
{
    for (uint32_t k = 0; k < x->n_copies; k++)
        switch_node(x, x->copies[k].node, &x->copies[k].off, false);
    switch_node(x, x->open, &x->open_off, false);
    switch_node(x, x->close, &x->close_off, false);
    x->switches = 0; /* the next launch switches off again what is off */
}

/* The launch's slots, which nobody will publish. Records that the drain gave up on before are counted. */
static void cancel(struct exec *x, const struct exec_job *job)
{
    uint64_t slot = job->first;
    if (!job->n_slots)
        return;
    for (uint32_t k = 0; k < x->n_copies; k++) {
        struct copy *c = &x->copies[k];
        if (!c->live)
            continue;
        c->given_up = !ring_cancel(&x->arena->ring, slot++);
        c->live = !c->given_up;
    }
    ring_cancel(&x->arena->ring, slot);
}

static void drop_live(struct exec *x, int reason)
{
    for (uint32_t k = 0; k < x->n_copies; k++)
        if (x->copies[k].live)
            drop(x, &x->copies[k], reason);
}

void execs_launch_before(struct exec *x, CUstream stream, bool per_thread, struct exec_job *job)
{
    int saved = errno;
    *job = (struct exec_job){ .stream = stream, .per_thread = per_thread };
    __atomic_fetch_add(&process.active, 1, __ATOMIC_SEQ_CST); /* see launch_before() */
    bool captured = launch_is_captured(stream, per_thread);
    if (captured || !__atomic_load_n(&process.armed, __ATOMIC_SEQ_CST)) {
        /* embedded as a child graph, or the run has ended: it must run without a ticket */
        set_empty_ticket(x);
        if (captured) {
            job->embedded = x;
            switch_on(x);
        }
        errno = saved;
        return;
    }
    struct arena *a = x->arena;
    job->exec = x;
    follow_switches(x);
    check_memory(x);
    atomic_add_relaxed(&process.counters->launches_matched, 1);
    pthread_mutex_lock(&a->lock);
    note_occurrences(x);
    pthread_mutex_unlock(&a->lock);
    uint32_t n = admit(x);
    uint64_t first = 0, seq = 0;
    int r = n ? reserve(x, n, &first, &seq) : 0;
    if (n && r) {
        drop_live(x, r);
        n = 0;
    }
    if (n) {
        job->first = first;
        job->n_slots = n + 1;
        fill_ticket(x, n, first, seq);
        x->last_slot = first + n + 1;
        if (set_ticket(x) != CUDA_SUCCESS) {
            cancel(x, job);
            job->n_slots = 0;
            drop_live(x, DMI_DROP_COPY_FAILED + 1);
        }
    } else {
        set_empty_ticket(x);
    }
    job->unticketed = !job->n_slots && !x->open_off;
    errno = saved;
}

/* The driver refused the launch: it is as if nobody had asked for its records. */
static void take_back(struct exec *x, const struct exec_job *job)
{
    cancel(x, job);
    pthread_mutex_lock(&x->arena->lock);
    for (uint32_t k = 0; k < x->n_copies; k++) {
        struct copy *c = &x->copies[k];
        struct dmi_site_counters *counters = &process.counters->sites[c->want.site];
        if (c->noted) {
            forward_take_back(x->arena, c->want.site);
            atomic_sub_relaxed(&counters->launches, 1);
        }
        if (!c->expected || c->given_up)
            continue;
        process_count(&counters->expected, -1, 1, c->want.plan.dims[0], c->want.plan.n_bytes);
        if (c->drop)
            process_count(&counters->dropped[c->drop - 1], -1, 1, c->want.plan.dims[0],
                          c->want.plan.n_bytes);
    }
    pthread_mutex_unlock(&x->arena->lock);
}

void execs_launch_after(struct exec_job *job, CUresult result)
{
    int saved = errno;
    if (job->embedded && result == CUDA_SUCCESS)
        execs_embedded(job->embedded, job->stream, job->per_thread);
    if (job->unticketed && result == CUDA_SUCCESS)
        exec_unticketed(job->exec, job->stream, job->per_thread);
    if (job->exec && result != CUDA_SUCCESS)
        take_back(job->exec, job);
    atomic_sub_relaxed(&process.active, 1);
    errno = saved;
}
