/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conditional.c - conditional nodes: a value that kernels set, and graphs that run or do not
 *
 * A launch takes the bodies as they are then, as it does with everything else. The value is looked at on a
 * worker when the node's turn comes: what is to run next is queued there, with another look after it for a
 * loop. The node is over once a look finds nothing to run.
 * Source: "Conditional Graph Nodes" in the CUDA programming guide, CUDA_CONDITIONAL_NODE_PARAMS in cuda.h
 */
#include "conditional.h"
#include "impl.h"

#include <stdlib.h>
#include <string.h>

#define HANDLE_MAGIC 0x5d31c00d00000000ull

/** struct condition - what a handle stands for; of its graph, and of the execs with its node */
struct condition {
    unsigned refs;
    _Atomic uint32_t value;
    uint32_t initial;
    bool assign; /* the initial value, at each launch */
    bool used;   /* there is a node */
    struct context *ctx;
};

/* By the handle's lower half. Kernels read it without a lock. */
static _Atomic(struct condition *) conditions[65536];

struct condition_list {
    struct condition_list *next;
    size_t index;
};

static struct condition *condition_of(uint64_t handle)
{
    if ((handle & ~0xffffull) != HANDLE_MAGIC)
        return NULL;
    return atomic_load(&conditions[handle & 0xffff]);
}

int condition_set(uint64_t handle, uint32_t value)
{
    struct condition *condition = condition_of(handle);

    if (condition)
        atomic_store(&condition->value, value);
    return condition != NULL;
}

static void condition_unref(struct condition *condition)
{
    if (--condition->refs)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(conditions); i++) {
        if (atomic_load(&conditions[i]) == condition)
            atomic_store(&conditions[i], NULL);
    }
    free(condition);
}

void conditions_free(struct condition_list *list)
{
    while (list) {
        struct condition_list *next = list->next;

        condition_unref(atomic_load(&conditions[list->index]));
        free(list);
        list = next;
    }
}

bool conditions_unused(const struct graph *graph)
{
    for (const struct condition_list *c = graph->conditions; c; c = c->next) {
        if (!atomic_load(&conditions[c->index])->used)
            return true;
    }
    return false;
}

CUresult impl_cuGraphConditionalHandleCreate(CUgraphConditionalHandle *pHandle_out, CUgraph hGraph,
                                             CUcontext handle, unsigned int defaultLaunchValue,
                                             unsigned int flags)
{
    struct condition *condition;
    struct condition_list *link;
    struct context *ctx;
    size_t i = 0;
    CUresult res;
    DRIVER_LOCKED;

    if (!pHandle_out || !graph_is(hGraph) || (flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT))
        return CUDA_ERROR_INVALID_VALUE;
    res = context_resolve(handle, &ctx);
    if (res != CUDA_SUCCESS)
        return res;
    while (i < ARRAY_SIZE(conditions) && atomic_load(&conditions[i]))
        i++;
    condition = i < ARRAY_SIZE(conditions) ? calloc(1, sizeof(*condition)) : NULL;
    link = condition ? malloc(sizeof(*link)) : NULL;
    if (!link) {
        free(condition);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    condition->refs = 1;
    condition->initial = defaultLaunchValue;
    condition->assign = flags & CU_GRAPH_COND_ASSIGN_DEFAULT;
    condition->ctx = ctx;
    atomic_store(&conditions[i], condition);
    *link = (struct condition_list){ ((struct graph *)hGraph)->conditions, i };
    ((struct graph *)hGraph)->conditions = link;
    *pHandle_out = HANDLE_MAGIC | i;
    return CUDA_SUCCESS;
}

/* ---- nodes ---- */

bool graph_has_conditional(const struct graph *graph)
{
    for (const struct graph_node *node = graph->first; node; node = node->next) {
        if (node->cond || (node->child && graph_has_conditional(node->child)))
            return true;
    }
    return false;
}

static bool size_fits(CUgraphConditionalNodeType type, unsigned n)
{
    switch (type) {
    case CU_GRAPH_COND_TYPE_IF: return n == 1 || n == 2;
    case CU_GRAPH_COND_TYPE_WHILE: return n == 1;
    case CU_GRAPH_COND_TYPE_SWITCH: return n >= 1 && n <= 4096;
    default: return false;
    }
}

void cond_node_free(struct cond_node *cond)
{
    if (!cond)
        return;
    for (unsigned i = 0; cond->graphs && i < cond->n; i++) {
        if (cond->graphs[i])
            graph_free((struct graph *)cond->graphs[i]);
    }
    condition_unref(cond->condition);
    free(cond->graphs);
    free(cond);
}

static struct cond_node *cond_node_new(struct condition *condition, CUgraphConditionalNodeType type,
                                       unsigned n)
{
    struct cond_node *cond = calloc(1, sizeof(*cond));

    if (!cond)
        return NULL;
    condition->refs++;
    *cond = (struct cond_node){
        .condition = condition, .type = type, .n = n, .graphs = calloc(n, sizeof(CUgraph))
    };
    for (unsigned i = 0; cond->graphs && i < n; i++) {
        cond->graphs[i] = (CUgraph)graph_new();
        if (!cond->graphs[i])
            break;
    }
    if (cond->graphs && cond->graphs[n - 1])
        return cond;
    cond_node_free(cond);
    return NULL;
}

CUresult graph_add_conditional(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
                               const CUgraphEdgeData *data, size_t n,
                               CUDA_CONDITIONAL_NODE_PARAMS *p)
{
    struct condition *condition = condition_of(p->handle);
    struct cond_node *cond;
    struct context *ctx;
    CUresult res;

    if (!condition || condition->used || !size_fits(p->type, p->size))
        return CUDA_ERROR_INVALID_VALUE;
    res = context_resolve(p->ctx, &ctx);
    if (res == CUDA_SUCCESS && ctx != condition->ctx)
        res = CUDA_ERROR_INVALID_VALUE;
    if (res != CUDA_SUCCESS)
        return res;
    cond = cond_node_new(condition, p->type, p->size);
    if (!cond)
        return CUDA_ERROR_OUT_OF_MEMORY;
    res = graph_add_entry(out, graph, deps, data, n, CU_GRAPH_NODE_TYPE_CONDITIONAL, NULL);
    if (res != CUDA_SUCCESS) {
        cond_node_free(cond);
        return res;
    }
    condition->used = true;
    ((struct graph_node *)*out)->cond = cond;
    for (unsigned i = 0; i < cond->n; i++)
        ((struct graph *)cond->graphs[i])->owner = (struct graph_node *)*out;
    p->phGraph_out = cond->graphs;
    return CUDA_SUCCESS;
}

/* ---- what a body may hold ---- */

static bool may_be_in_body(const struct graph_node *node, const struct context *ctx)
{
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return node->work->ctx == ctx;
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_GRAPH:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return true;
    default: return false;
    }
}

static struct graph_node *body_error(const struct graph *graph, const struct context *ctx)
{
    struct graph_node *error = NULL;

    for (struct graph_node *node = graph->first; node && !error; node = node->next) {
        if (!may_be_in_body(node, ctx))
            return node;
        if (node->child)
            error = body_error(node->child, ctx);
        for (unsigned i = 0; node->cond && i < node->cond->n && !error; i++)
            error = body_error((struct graph *)node->cond->graphs[i], ctx);
    }
    return error;
}

struct graph_node *conditional_error(const struct graph *graph)
{
    struct graph_node *error = NULL;

    for (struct graph_node *node = graph->first; node && !error; node = node->next) {
        if (node->child)
            error = conditional_error(node->child);
        for (unsigned i = 0; node->cond && i < node->cond->n && !error; i++)
            error = body_error((struct graph *)node->cond->graphs[i], node->cond->condition->ctx);
    }
    return error;
}

/* ---- execs ---- */

struct exec_cond *exec_cond_new(struct condition *condition, CUgraphConditionalNodeType type,
                                unsigned n)
{
    struct exec_cond *cond = calloc(1, sizeof(*cond) + n * sizeof(cond->bodies[0]));

    if (cond) {
        condition->refs++;
        cond->condition = condition;
        cond->type = type;
        cond->n = n;
    }
    return cond;
}

/* The bodies are gone already. */
void exec_cond_free(struct exec_cond *cond)
{
    if (!cond)
        return;
    condition_unref(cond->condition);
    free(cond);
}

void exec_cond_take(struct exec_cond *old, struct exec_cond *new)
{
    struct condition *condition = old->condition;

    old->condition = new->condition;
    new->condition = condition;
}

/* ---- launches ---- */

struct cond_run {
    struct launch launch;
    struct context *ctx;
    struct exec_cond *cond; /* a copy of its own */
    struct op *last;        /* not committed: what comes after the node waits for it */
    bool ran;
};

static void run_end(struct cond_run *run)
{
    op_commit(run->last);
    for (unsigned i = 0; i < run->cond->n; i++)
        body_free(run->cond->bodies[i], NULL);
    exec_cond_free(run->cond);
    free(run);
}

static struct op *look_new(struct cond_run *run)
{
    struct work *work = work_new(WORK_CONDITION, run->ctx);
    struct op *op;

    if (!work)
        return NULL;
    work->condition.run = run;
    op = op_new(run->ctx, work);
    if (!op)
        work_unref(work);
    return op;
}

struct op *conditional_launch(const struct launch *launch, struct exec_cond *cond, struct op **last)
{
    struct cond_run *run = calloc(1, sizeof(*run));
    struct op *first;

    *last = NULL;
    if (!run)
        return NULL;
    run->launch = *launch;
    run->ctx = cond->condition->ctx;
    run->cond = exec_cond_copy(cond);
    run->last = run->cond ? op_new(run->ctx, NULL) : NULL;
    first = run->last ? look_new(run) : NULL;
    if (!first) {
        op_unref(run->last);
        free(run);
        return NULL;
    }
    op_depend(run->last, first);
    *last = op_ref(run->last);
    return first;
}

/* The body that a value asks for, or NULL. */
static struct exec_body *choose(const struct cond_run *run)
{
    uint32_t value = atomic_load(&run->cond->condition->value);

    if (run->ran && run->cond->type != CU_GRAPH_COND_TYPE_WHILE)
        return NULL;
    if (run->cond->type == CU_GRAPH_COND_TYPE_SWITCH)
        return value < run->cond->n ? run->cond->bodies[value] : NULL;
    if (value)
        return run->cond->bodies[0];
    return run->cond->type == CU_GRAPH_COND_TYPE_IF && run->cond->n == 2 ? run->cond->bodies[1]
                                                                         : NULL;
}

void conditional_look(struct cond_run *run)
{
    struct exec_body *body;
    struct op *begin, *next;
    DRIVER_LOCKED;

    body = run->ctx->sticky == CUDA_SUCCESS && !atomic_load(&driver.ended) ? choose(run) : NULL;
    begin = body ? op_new(run->ctx, NULL) : NULL;
    next = begin ? look_new(run) : NULL;
    if (!next) {
        if (body)
            context_fail(run->ctx, CUDA_ERROR_OUT_OF_MEMORY);
        op_unref(begin);
        run_end(run);
        return;
    }
    run->ran = true;
    op_depend(next, begin);
    if (body_launch(&run->launch, body, begin, next) != CUDA_SUCCESS)
        context_fail(run->ctx, CUDA_ERROR_OUT_OF_MEMORY);
    op_commit(next);
    op_commit(begin);
}

bool body_has_conditional(const struct exec_body *body)
{
    for (size_t i = 0; i < body->n; i++) {
        const struct exec_node *node = &body->nodes[i];

        if (node->cond || (node->child && body_has_conditional(node->child)))
            return true;
    }
    return false;
}

static void assign(const struct exec_body *body)
{
    for (size_t i = 0; i < body->n; i++) {
        const struct exec_node *node = &body->nodes[i];

        if (node->cond && node->cond->condition->assign)
            atomic_store(&node->cond->condition->value, node->cond->condition->initial);
        for (size_t j = 0; exec_part(node, j); j++)
            assign(exec_part(node, j));
    }
}

static void on_begin(struct op *op, void *data)
{
    (void)op;
    assign(data);
    body_free(data, NULL);
}

/* The values are set when the launch begins, not when it is queued: the one before may still look at them. */
void conditional_begin(struct exec_body *body, struct op *begin)
{
    if (!body_has_conditional(body))
        return;
    begin->on_done_data = body_copy(body);
    if (begin->on_done_data)
        begin->on_done = on_begin;
}
