/* SPDX-License-Identifier: Apache-2.0 */
/* What the application changes in single nodes of an exec. */
#include "core/any.h"
#include "core/atomic.h"
#include "preload/base/current.h"
#include "preload/context/lifetime.h"
#include "preload/graph/exec.h"
#include "preload/graph/instrument.h"

static struct graph_kernel *kernel_of(struct exec *x, CUgraphNode app)
{
    return FIRST(i, x->plan.n_kernels, x->plan.kernels[i].app == app, &x->plan.kernels[i], NULL);
}

static bool matches_site(const struct func *func, uint32_t site)
{
    return ANY(i, func->match.n_sites, func->match.sites[i] == site);
}

/* The action's kernel has new parameters: it must read what they say, or nothing. */
static void action_changed(struct exec *x, struct graph_action *c, const struct func *func,
                           const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    struct operand before = c->operand;
    bool stale = c->stale;
    c->dead = !matches_site(func, c->site);
    if (c->dead)
        return;
    graph_plan_action(&x->plan, c, func, k);
    if (c->drop == DMI_DROP_COPY_FAILED)
        x->plan.epoch = 0; /* the driver did not say: it is asked again before the next launch */
    if (c->number == PLAN_NONE || (!stale && operand_same(&before, &c->operand)))
        return;
    if (instrument_refresh(x->handle, &x->plan, c) == CUDA_SUCCESS ||
        !operand_has_records(&c->operand))
        return;
    c->stale = true;
    if (c->drop == DROP_NONE)
        c->drop = DMI_DROP_COPY_FAILED;
}

void exec_check_memory(struct exec *x)
{
    struct graph_plan *plan = &x->plan;
    uint64_t epoch = atomic_load_acquire(&session.memory_epoch); /* of session_memory_freed() */
    bool unsure = false;
    if (plan->epoch == epoch)
        return;
    repeat_pass(&x->repeat);
    for (uint32_t i = 0; i < plan->n_actions; i++) {
        struct graph_action *c = &plan->actions[i];
        if (c->dead || c->left != DROP_NONE)
            continue;
        session_about(c->kernel);
        if (graph_plan_limit(plan, c) || c->stale)
            c->stale = instrument_refresh(x->handle, plan, c) != CUDA_SUCCESS;
        graph_plan_check_memory(plan, c);
        unsure = unsure || (!c->stale && c->drop == DMI_DROP_COPY_FAILED);
    }
    session_about(NULL);
    plan->epoch = unsure ? 0 : epoch; /* what the driver did not say is asked again */
}

static bool has_action(const struct graph_plan *plan, const struct graph_kernel *kernel,
                       uint32_t site)
{
    for (EACH_ACTION(plan, kernel, c))
        if (plan->actions[c].site == site)
            return true;
    return false;
}

/* Sites that the kernel was none of before: there is no node for them. */
static bool add_sites(struct exec *x, struct graph_kernel *kernel, const struct func *func,
                      const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    struct err err = { 0 };
    if (exec_make_room(&err, x, x->plan.n_actions + func->match.n_sites))
        return false;
    for (uint32_t i = 0; i < func->match.n_sites; i++) {
        uint32_t site = func->match.sites[i];
        if (has_action(&x->plan, kernel, site))
            continue;
        session_problem(site, PROBLEM_UNSUPPORTED,
                        "kernel %s came into a graph after it was instantiated: not captured",
                        func->name);
        struct graph_action *action = graph_plan_add_action(&x->plan, kernel, site);
        if (!action)
            return false;
        graph_plan_action(&x->plan, action, func, k);
    }
    return true;
}

/*
 * A node that was no site when the exec was instantiated. Its place among the others is unknown. One that the map does not
 * know lies in the body of a conditional node.
 */
static struct graph_kernel *add_kernel(struct exec *x, CUgraphNode app, const struct func *func)
{
    struct node_pair pair;
    bool known = exec_pair(x, app, &pair);
    exec_shapes_lock();
    struct graph_kernel *kernel =
        graph_plan_add_kernel(&x->plan, (struct graph_kernel){
                                            .app = app,
                                            .position = known ? pair.position : PLAN_NONE,
                                            .in_body = !known,
                                            .ordered = !known,
                                            .enabled = !known || !pair.off,
                                            .func = func,
                                            .context = x->plan.context,
                                        });
    exec_shapes_unlock();
    return kernel;
}

static void changed(struct exec *x, CUgraphNode app, const struct func *func,
                    const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    struct graph_kernel *kernel = kernel_of(x, app);
    repeat_pass(&x->repeat);
    if (!kernel && func != &func_unmatched)
        kernel = add_kernel(x, app, func);
    if (!kernel) {
        functions_give_up(func, "came into a graph exec, and there is no memory for it");
        return;
    }
    for (EACH_ACTION(&x->plan, kernel, c))
        action_changed(x, &x->plan.actions[c], func, k);
    if (kernel->func == func && kernel->first_action != PLAN_NONE)
        return;
    repeat_deinit(&x->repeat);
    kernel->func = func;
    if (kernel->in_body)
        graph_plan_report_body(func);
    else if (!add_sites(x, kernel, func, k))
        functions_give_up(func, "came into a graph exec, and there is no memory for it");
    graph_plan_settle(&x->plan);
}

void exec_kernel_changed(struct exec *x, CUgraphNode app, const CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    const struct graph_kernel *before = x ? kernel_of(x, app) : NULL;
    const struct func *func = graph_plan_func_as(k, before ? before->func : NULL);
    if (!func && !before)
        return;
    if (!x) {
        functions_give_up(func, "came into a graph exec that cannot be followed");
        return;
    }
    struct current_visit visit =
        current_visit(x->plan.context ? context_handle(x->plan.context) : k->ctx);
    /* the first site of an exec decides where its launches are counted; NULL: where it is launched */
    if (!x->plan.context)
        x->plan.context = context_current();
    changed(x, app, func ? func : &func_unmatched, k);
    current_leave(&visit);
}
