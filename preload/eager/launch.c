/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/eager/launch.h"

#include "core/atomic.h"
#include "preload/base/current.h"
#include "preload/capture/forward.h"
#include "preload/capture/params.h"
#include "preload/context/lifetime.h"
#include "preload/eager/pieces.h"
#include "preload/graph/order.h"
#include "preload/graph/tap.h"

#include <errno.h>
#include <string.h>

/* Where the tensors of this launch were last found; copied under the lock, put back under it. */
struct eager_ranges {
    struct memory_ranges at[SPEC_MAX_MATCHES];
    bool asked; /* the driver was asked for one of them */
};

static struct memory_ranges *range_of(struct context *c, const struct admission *item)
{
    return &c->sites[item->site].ranges[item->occurrence % CONTEXT_RANGES];
}

/* Is it one of the layers of which the spec wants this tap? */
static bool takes_layer(const struct eager_launch *l, uint32_t site)
{
    return !l->tap || spec_site_takes_layer(session_site(site), l->tap->layer, l->tap->n_layers);
}

/* One site's occurrence, by @take. Under the lock. */
static void count_site(const struct eager_launch *l, const struct func *func, uint32_t site,
                       struct context *c, struct admission *item,
                       void (*take)(struct context *, uint32_t, struct admission *))
{
    item->state = ADMISSION_NONE;
    if (!takes_layer(l, site))
        return;
    if (l->tap)
        forward_tap(c, site, l->tap->layer);
    take(c, site, item);
    item->range = variants_site(func, site);
    admission_locate(item, l->tap ? l->tap->layer : RUN_NO_LAYER);
}

/* It took its occurrence before, in whichever context. */
static void count_taken(const struct admission *taken, struct context *c, struct admission *item)
{
    *item = *taken;
    item->context = c;
    if (item->state == ADMISSION_COUNTED)
        atomic_add_relaxed(&session_counters(item->site)->launches, 1);
}

/* 1. Which occurrences of which sites this launch is. */
static void count_occurrences(const struct eager_launch *l, struct eager_job *job,
                              struct eager_ranges *ranges)
{
    const struct func *func = job->func;
    struct context *c = job->launch.context;
    pthread_mutex_lock(&c->lock);
    if (!l->moment)
        forward_follow(c, &job->launch.said);
    if (!l->tap || (func->match.kind >= 0 && !l->moment))
        forward_advance(c, func->match.kind);
    for (uint32_t i = 0; i < func->match.n_sites; i++) {
        struct admission *item = &job->items[i];
        if (l->moment)
            count_taken(&l->moment->items[i], c, item);
        else
            count_site(l, func, func->match.sites[i], c, item, admission_count);
        if (item->state == ADMISSION_COUNTED)
            ranges->at[i] = *range_of(c, item);
    }
    pthread_mutex_unlock(&c->lock);
    job->launch.n = func->match.n_sites;
    ranges->asked = false;
}

/* Return: DROP_NONE, or why what the operand reads cannot be read. */
static int check_device(const struct eager_job *job, const struct admission *item,
                        struct operand *operand, struct eager_ranges *ranges, uint32_t i)
{
    struct memory_ranges before = ranges->at[i];
    int device = job->launch.context->device;
    operand_limit(operand, device, &ranges->at[i]);
    int drop = operand_check_memory(operand, item->occurrence, device, &ranges->at[i]);
    ranges->asked = ranges->asked || memcmp(&before, &ranges->at[i], sizeof before);
    return drop;
}

/* The record could hold what another stream wrote while the copy read. */
static int check_event(const struct eager_launch *l, const struct eager_job *job, uint32_t site,
                       int drop)
{
    if (drop != DROP_NONE || !l->lets_others_start || session_site(site)->when != SPEC_AFTER)
        return drop;
    session_problem(site, PROBLEM_UNSUPPORTED,
                    "kernel %s was launched with an event that comes before the kernel ends: not "
                    "captured",
                    job->func->name);
    return DMI_DROP_UNSUPPORTED;
}

/* 2. What each wanted one reads, and whether it may. No lock: this calls the driver. */
static void find_operands(const struct eager_launch *l, struct eager_job *job,
                          struct eager_ranges *ranges)
{
    struct params params;
    session_about(l->tap ? NULL : job->func->name);
    params_init(&params, functions_layout(job->func), l->kernel_params, l->extra);
    struct expr_env env = {
        .grid = l->grid,
        .block = l->block,
        .shared_bytes = l->shared_bytes,
        .param = params_read,
        .param_ctx = &params,
    };
    for (uint32_t i = 0; i < job->launch.n; i++) {
        struct admission *item = &job->items[i];
        struct operand *operand = &job->operands[i];
        if (!admission_wanted(&job->launch, item))
            continue;
        env.occ = item->occurrence;
        if (l->tap)
            operand_of_tap(item->site, l->tap, operand);
        else
            operand_of_site(item->site, &env, operand);
        int drop = l->on_host ? operand_check_host(operand, item->occurrence)
                              : check_device(job, item, operand, ranges, i);
        drop = check_event(l, job, item->site, drop);
        if (operand_has_records(operand)) /* a launch without rows has nothing to record */
            admission_expect(&job->launch, item, operand, drop);
    }
}

static void keep_ranges(struct eager_job *job, const struct eager_ranges *ranges)
{
    struct context *c = job->launch.context;
    if (!ranges->asked)
        return;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < job->launch.n; i++)
        if (job->items[i].state == ADMISSION_RESERVED)
            *range_of(c, &job->items[i]) = ranges->at[i];
    pthread_mutex_unlock(&c->lock);
}

/* 3. The kernels of ours, before or after the application's, in the order of the spec. */
static void launch_action(const struct eager_launch *l, struct eager_job *job,
                          struct admission *item)
{
    if (eager_launch_rows(l, &job->launch, item, 0, item->pick.n))
        item->state = ADMISSION_LAUNCHED;
    else
        admission_drop(&job->launch, item, DMI_DROP_COPY_FAILED);
}

static void launch_actions(const struct eager_launch *l, struct eager_job *job, enum spec_when when)
{
    for (uint32_t i = 0; i < job->launch.n; i++) {
        struct admission *item = &job->items[i];
        bool pieces = item->state == ADMISSION_PIECES;
        if ((!pieces && item->state != ADMISSION_RESERVED) ||
            session_site(item->site)->when != when)
            continue;
        if (pieces)
            pieces_copy(l, &job->launch, item);
        else
            launch_action(l, job, item);
    }
}

/*
 * Streams of a green context may be used while another one is current, and any stream while none is: the launch runs, and is
 * counted, in theirs. NULL: there is none, or no place for its state.
 */
static struct context *context_of(const struct eager_launch *l, struct eager_job *job)
{
    if (l->on_host) {
        struct context *host = context_host();
        return host && context_use(host) ? host : NULL;
    }
    CUcontext current = current_context();
    CUcontext handle = stream_green_context(l->stream);
    if (!handle)
        handle = current ? current : stream_context(l->stream);
    if (!current)
        job->guest_in = handle;
    struct context *c = handle && session_run() ? context_claim(handle) : NULL;
    return c && context_use(c) ? c : NULL;
}

/* It ran, and is no occurrence of anything. */
static void drop_homeless(const struct eager_launch *l, const struct func *func)
{
    for (uint32_t i = 0; i < func->match.n_sites; i++) {
        uint32_t site = func->match.sites[i];
        if (!takes_layer(l, site))
            continue;
        session_problem(site, PROBLEM_UNSUPPORTED,
                        "kernel %s was launched by a thread without a current context, or in one "
                        "of more than %d: not captured, and not counted as an occurrence",
                        func->name, CONTEXT_MAX);
        admission_refuse(site, DMI_DROP_UNSUPPORTED);
    }
}

static void admit(const struct eager_launch *l, struct eager_job *job)
{
    struct eager_ranges ranges;
    admission_begin(&job->launch, l->moment ? &l->moment->said : NULL);
    count_occurrences(l, job, &ranges);
    find_operands(l, job, &ranges);
    job->in_pieces = pieces_set_aside(&job->launch);
    uint32_t n = admission_reserve(&job->launch);
    if (n)
        keep_ranges(job, &ranges);
    if (n || job->in_pieces)
        launch_actions(l, job, SPEC_BEFORE);
}

void eager_before(const struct eager_launch *l, const struct func *func, struct eager_job *job)
{
    job->launch = (struct admission_launch){ .items = job->items };
    job->homeless = false;
    job->guest_in = NULL;
    job->captured = !l->on_host && stream_is_capturing(l->stream);
    job->func = func = ranges_pick(func, job->captured, &job->ranges);
    if (job->captured || !func_concerns(func))
        return; /* nothing runs now: its copies are added when the graph is instantiated */
    job->launch.context = context_of(l, job);
    job->homeless = !job->launch.context && session_run(); /* else that was reported */
    if (!job->launch.context)
        return;
    atomic_add_relaxed(&session.counters->launches_matched, 1);
    struct current_visit visit = current_visit(job->guest_in);
    admit(l, job);
    current_leave(&visit);
}

int eager_take_moment(const struct eager_launch *l, struct dmi_moment *moment)
{
    struct eager_job job = { .guest_in = NULL };
    struct context *c = context_of(l, &job);
    const struct func *func = moment->func;
    bool any = false;
    if (!c)
        return -ENODEV;
    moment->said = said_now(true);
    moment->n = func->match.n_sites;
    pthread_mutex_lock(&c->lock);
    forward_follow(c, &moment->said);
    for (uint32_t i = 0; i < moment->n; i++) {
        count_site(l, func, func->match.sites[i], c, &moment->items[i], admission_take);
        any = any || moment->items[i].state == ADMISSION_COUNTED;
    }
    pthread_mutex_unlock(&c->lock);
    context_unuse(c);
    if (!any)
        step_release(moment->said.rows);
    return any ? DMI_OK : DMI_STATUS_OFF;
}

/* A capturing stream made it a node: its place in the order of the graph's sites is now. */
static void note_captured(const struct eager_launch *l, const struct eager_job *job)
{
    const struct func *func = job->func;
    CUgraph graph;
    CUgraphNode node;
    if (!func_concerns(func))
        return;
    bool answered = stream_capture(l->stream, &graph, &node);
    if (!answered && !current_context())
        drop_homeless(l, func); /* so the driver does not answer about the NULL stream */
    else if (!answered)
        functions_give_up(func, "was captured, and the driver did not say what became of it");
    else if (node)
        order_note_kernel(graph, node, func);
}

/* The same of a tap, which becomes no node. */
static void note_tapped(const struct eager_launch *l, const struct func *func)
{
    CUgraph graph;
    struct graph_tap *tap = graph_tap_new(l->stream, func, l->tap, &graph);
    if (tap)
        order_note_tap(graph, tap);
    else if (!current_context())
        drop_homeless(l, func);
    else
        functions_give_up(func, "was captured, and the driver did not say where");
}

void eager_after(const struct eager_launch *l, struct eager_job *job, CUresult result)
{
    if (result != CUDA_SUCCESS)
        ranges_untake(&job->ranges);
    else if (job->captured && l->tap)
        note_tapped(l, job->func);
    else if (job->captured)
        note_captured(l, job);
    else if (job->homeless)
        drop_homeless(l, job->func);
    if (!job->launch.context)
        return;
    struct current_visit visit = current_visit(job->guest_in);
    if (result == CUDA_SUCCESS)
        launch_actions(l, job, SPEC_AFTER);
    else
        admission_take_back(&job->launch);
    admission_settle(&job->launch, l->stream);
    current_leave(&visit);
    admission_end(&job->launch);
    context_unuse(job->launch.context);
}
