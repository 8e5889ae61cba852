/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/graph/launch.h"

#include "core/atomic.h"
#include "preload/base/current.h"
#include "preload/capture/forward.h"
#include "preload/context/launch_records.h"
#include "preload/context/lifetime.h"
#include "preload/graph/strip.h"
#include "preload/graph/ticket.h"
#include "preload/nvtx/ranges.h"

/* ------------------------------------------------------------------------- nodes on and off */

/* Is the site on and, where it is a place, has it edits? */
static bool acts(uint32_t site)
{
    const struct spec_site *s = session_site(site);
    return session_site_on(site) && (!spec_is_place(s) || edits_reach_site(site));
}

/*
 * Actions of sites that are off cost less as disabled nodes than as kernels that do nothing. Only that: the ticket
 * decides what is copied, so a node that the driver does not disable harms nobody. Of one that it does not
 * enable again the records come out as not_run.
 */
static void follow_switches(struct exec *x)
{
    uint64_t switches = atomic_load_acquire(&session.switches); /* of session_site_switch() */
    if (x->switches == switches || !x->plan.n_nodes)
        return;
    repeat_pass(&x->repeat);
    bool any = false;
    for (uint32_t k = 0; k < x->plan.n_nodes; k++)
        x->plan.nodes[k].wanted = false;
    for (uint32_t k = 0; k < x->plan.n_actions; k++) {
        const struct graph_action *c = &x->plan.actions[k];
        if (c->number == PLAN_NONE || !acts(c->site))
            continue;
        any = x->plan.nodes[graph_plan_lead(&x->plan, c->number)].wanted = true;
    }
    for (uint32_t k = 0; k < x->plan.n_nodes; k++)
        if (x->plan.nodes[k].node)
            ticket_switch_node(x, &x->plan.nodes[k], !x->plan.nodes[k].wanted);
    if (!any)
        ticket_sleep(x);
    x->switches = switches;
}

/* Switches all nodes of ours on: strip_embedded() finds them by their kernels, which disabled nodes may lack. */
static void switch_on(struct exec *x)
{
    for (uint32_t k = 0; k < x->plan.n_nodes; k++)
        ticket_switch_node(x, &x->plan.nodes[k], false);
    for (uint32_t k = 0; k < x->plan.n_tickets; k++)
        ticket_switch_node(x, &x->plan.opens[k], false);
    if (x->plan.n_nodes)
        ticket_switch_node(x, &x->plan.close, false);
    x->switches = 0; /* the next launch switches off again what is off */
}

/* ------------------------------------------------------------------------- a launch */

/*
 * The forward that the kernel begins, -1: none. One that a range of the launching thread has begun, *@begun, does not begin
 * again where the same range was open when the graph was captured.
 */
static int kind_of(const struct func *func, int *begun)
{
    bool again = *begun >= 0 && variants_kind(func) == *begun;
    if (again)
        *begun = -1;
    return again ? -1 : func->match.kind;
}

/* Counting a launch's kernels. */
struct counting {
    int begun;  /* kind of the forward that a range of the launching thread has begun; -1: none */
    bool first; /* nothing was counted yet, and the next launch may repeat what is counted */
};

static void advance(struct exec *x, struct context *c, int kind, struct counting *n)
{
    forward_advance(c, kind);
    if (n->first)
        repeat_before(&x->repeat, &x->plan, c, kind);
    n->first = false;
}

/* The next occurrences of the kernel's sites in @c (NULL: it counts nothing). Under the lock of that. */
static void count_kernel(struct exec *x, const struct graph_kernel *kernel, struct context *c,
                         struct counting *n)
{
    bool counts = kernel->enabled && c && !kernel->in_body;
    if (counts && kernel->func != &func_unmatched &&
        (!kernel->is_tap || kernel->func->match.kind >= 0))
        advance(x, c, kind_of(kernel->func, &n->begun), n);
    for (EACH_ACTION(&x->plan, kernel, k)) {
        struct admission *item = &x->scratch.items[k];
        if (counts && kernel->is_tap && !x->plan.actions[k].dead && n->first)
            advance(x, c, -1, n);
        if (counts && kernel->is_tap && !x->plan.actions[k].dead)
            forward_tap(c, x->plan.actions[k].site, x->plan.actions[k].operand.layer);
        if (counts && !x->plan.actions[k].dead)
            admission_count(c, x->plan.actions[k].site, item);
        else
            item->state = ADMISSION_NONE;
        item->range = variants_site(kernel->func, x->plan.actions[k].site);
        admission_locate(item, x->plan.actions[k].operand.layer);
    }
}

/* The context of a kernel may end at any time, and be NULL then. */
static struct context *kernel_context(const struct graph_kernel *kernel)
{
    return atomic_load_relaxed(&kernel->context);
}

static void count_elsewhere(struct exec *x, const struct said *said,
                            const struct graph_kernel *kernel, struct counting *n)
{
    struct context *c = kernel_context(kernel);
    if (!c || !context_use(c)) {
        count_kernel(x, kernel, NULL, n);
        return;
    }
    pthread_mutex_lock(&c->lock);
    forward_follow(c, said);
    count_kernel(x, kernel, c, n);
    pthread_mutex_unlock(&c->lock);
    context_unuse(c);
}

/* Occurrences in the order of the graph's sites; kernels of other contexts count theirs. */
static void count_occurrences(struct exec *x, const struct said *said, struct context *c, int begun)
{
    bool others = false;
    struct counting n = { .begun = begun, .first = begun < 0 };
    x->repeat.noted = false;
    pthread_mutex_lock(&c->lock);
    forward_follow(c, said);
    if (begun >= 0)
        forward_advance(c, begun);
    for (uint32_t i = 0; i < x->plan.n_kernels; i++) {
        const struct graph_kernel *kernel = &x->plan.kernels[i];
        if (kernel_context(kernel) == c)
            count_kernel(x, kernel, c, &n);
        else
            others = true;
    }
    x->repeat.noted = x->repeat.noted && !others;
    repeat_after(&x->repeat, c);
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; others && i < x->plan.n_kernels; i++)
        if (kernel_context(&x->plan.kernels[i]) != c)
            count_elsewhere(x, said, &x->plan.kernels[i], &n);
}

static void expect_records(struct exec *x, const struct admission_launch *l)
{
    for (uint32_t k = 0; k < x->plan.n_actions; k++) {
        const struct graph_action *action = &x->plan.actions[k];
        struct admission *item = &x->scratch.items[k];
        int drop = action->left != DROP_NONE ? action->left : action->drop;
        if (drop != DROP_NONE)
            session_about(action->kernel);
        if (admission_wanted(l, item) &&
            (action->drop != DROP_NONE || operand_has_records(&action->operand)))
            admission_expect(l, item, &action->operand, drop);
    }
    session_about(NULL);
}

/* The driver did not take the ticket: the launch runs without one. */
static void drop_reserved(struct admission_launch *l)
{
    admission_cancel(l);
    for (uint32_t k = 0; k < l->n; k++)
        if (l->items[k].state == ADMISSION_EXPECTED)
            admission_drop(l, &l->items[k], DMI_DROP_COPY_FAILED);
}

/* Return: true if the ring tells when the launch is over: it has a ticket, and slots. */
static bool deliver(struct exec *x, struct admission_launch *l)
{
    bool slots = l->slot != RING_NO_SLOT;
    if (slots)
        x->state.last_slot = l->slot + ring_launch_slots(l->records->n);
    if (ticket_deliver(x, l))
        return slots;
    drop_reserved(l);
    return false;
}

/* Return: as deliver(). */
static bool admit(struct exec *x, struct admission_launch *l)
{
    expect_records(x, l);
    if (admission_reserve(l))
        return deliver(x, l);
    ticket_clear(x);
    return false;
}

/* Counts the launch, and reserves what it captures. Return: as deliver(). */
static bool begin_launch(struct exec *x, struct graph_job *job)
{
    struct admission_launch *l = &job->launch;
    int begun = ranges_take_kind();
    job->repeats = begun < 0 && repeat_launch(&x->repeat, l);
    if (!job->repeats) {
        count_occurrences(x, &l->said, l->context, begun);
        return admit(x, l);
    }
    x->state.last_slot = l->slot + ring_launch_slots(l->records->n);
    if (ticket_deliver_again(x, l))
        return true;
    job->repeats = false;
    x->repeat.refused = true;
    repeat_undo(&x->repeat, l);
    return deliver(x, l);
}

/*
 * An exec whose context was unknown when it was instantiated or updated is counted where it is first
 * launched. Return: its context, used; NULL: it is still not known, or has ended.
 */
static struct context *context_of(struct exec *x, struct stream stream, struct graph_job *job)
{
    struct context *c = x->plan.context;
    if (atomic_load_relaxed(&x->orphan))
        return NULL;
    CUcontext handle = current_context();
    bool is_guest = !handle;
    if (!c) {
        handle = handle ? handle : stream_context(stream);
        c = handle && session_run() ? context_claim(handle) : NULL;
    }
    if (!c || !context_use(c))
        return NULL;
    if (!x->plan.context)
        graph_plan_count_in(&x->plan, c);
    job->guest_in = is_guest ? context_handle(c) : NULL;
    return c;
}

static void prepare(struct exec *x, struct stream stream, bool armed, struct graph_job *job)
{
    struct context *c = job->context;
    job->embedded = stream_is_capturing(stream);
    if (job->embedded || !armed) {
        /* embedded as a child graph, or the run has ended: it must run without a ticket */
        ticket_clear(x);
        if (job->embedded)
            switch_on(x);
        return;
    }
    job->counted = c != NULL;
    job->homeless = !c && !atomic_load_relaxed(&x->orphan) && session_run();
    if (!c)
        return;
    job->launch = (struct admission_launch){
        .context = c, .items = x->scratch.items, .n = x->plan.n_actions, .together = true
    };
    follow_switches(x);
    exec_check_memory(x);
    atomic_add_relaxed(&session.counters->launches_matched, 1);
    admission_begin(&job->launch, NULL);
    job->by_event = !begin_launch(x, job) && ticket_is_read(x);
}

/* The driver does not say how often they ran: which occurrence comes next is in doubt. */
static void count_bodies(const struct graph_plan *plan, const struct said *said)
{
    for (uint32_t i = 0; i < plan->n_kernels; i++) {
        const struct graph_kernel *kernel = &plan->kernels[i];
        const struct spec_match *match = &kernel->func->match;
        if (!kernel->in_body)
            continue;
        for (uint32_t s = 0; s < match->n_sites; s++)
            atomic_add_relaxed(&session_counters(match->sites[s])->uncounted, 1);
        struct context *c = kernel_context(kernel);
        if (c && context_use(c)) {
            forward_doubt(c, said, match);
            context_unuse(c);
        }
    }
}

void graph_before(struct exec *x, struct stream stream, bool armed, struct graph_job *job)
{
    *job = (struct graph_job){ .stream = stream };
    if (armed)
        job->context = context_of(x, stream, job);
    struct current_visit visit = current_visit(job->guest_in);
    prepare(x, stream, armed, job);
    current_leave(&visit);
}

/* It ran in a context that the library does not know. */
static void drop_homeless(const struct exec *x)
{
    for (uint32_t k = 0; k < x->plan.n_actions; k++) {
        const struct graph_action *action = &x->plan.actions[k];
        if (action->dead)
            continue;
        session_problem(action->site, PROBLEM_UNSUPPORTED,
                        "a graph with it was launched by a thread without a current context: not "
                        "captured, and not counted as an occurrence");
        admission_refuse(action->site, DMI_DROP_UNSUPPORTED);
    }
}

static void launched(struct exec *x, struct graph_job *job)
{
    if (job->embedded && !strip_embedded(x, job->stream))
        graph_plan_give_up(&x->plan, "ran, or was captured, and the driver did not say which");
    if (job->by_event)
        exec_state_by_event(&x->state, job->stream);
    if (job->counted && !job->repeats) {
        admission_launched(&job->launch);
        repeat_learn(&x->repeat, &x->plan, &job->launch);
    }
    if (job->counted && x->plan.has_bodies)
        count_bodies(&x->plan, &job->launch.said);
}

/* The driver refused it. */
static void take_back(struct exec *x, struct graph_job *job)
{
    if (job->repeats)
        repeat_undo(&x->repeat, &job->launch);
    admission_take_back(&job->launch);
}

void graph_after(struct exec *x, struct graph_job *job, CUresult result)
{
    struct current_visit visit = current_visit(job->guest_in);
    if (result == CUDA_SUCCESS && job->homeless)
        drop_homeless(x);
    else if (result == CUDA_SUCCESS)
        launched(x, job);
    else if (job->counted)
        take_back(x, job);
    if (job->counted) {
        admission_settle(&job->launch, job->stream);
        admission_end(&job->launch);
    }
    current_leave(&visit);
    if (job->context)
        context_unuse(job->context);
}
