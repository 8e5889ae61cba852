/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph_exec.c - executable graphs: instantiate, update, launch
 *
 * An exec has nodes of its own in an order that respects its edges, each with its work; nodes are found
 * by the template's node handles. A launch takes the works as they are then: a later change of
 * parameters does not reach launches that are queued. Branches are independent operations, so they run
 * in any order; launches of one exec run one after another.
 */
#include "conditional.h"
#include "impl.h"
#include "memory.h"
#include "programmatic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned long long n_execs;

/* ---- user objects: a body holds references of its own to those of its graph ---- */

static void users_let_go(struct op *op, void *data)
{
    (void)op;
    users_drop(data);
}

/*
 * References that an update replaced, or that a destroyed exec held, are kept until the exec's launches are over.
 * Source: CUDA programming guide, "CUDA user objects"
 */
static void users_release(struct exec_body *body, struct op *last)
{
    struct op *op = body->users && last && !last->done ? op_new(last->ctx, NULL) : NULL;

    if (op) {
        op->on_done = users_let_go;
        op->on_done_data = body->users;
        op_depend(op, last);
        op_commit(op);
    } else {
        users_drop(body->users);
    }
    body->users = NULL;
    for (size_t i = 0; i < body->n; i++) {
        for (size_t j = 0; exec_part(&body->nodes[i], j); j++)
            users_release(exec_part(&body->nodes[i], j), last);
    }
}

struct exec_body *exec_part(const struct exec_node *node, size_t i)
{
    if (node->cond)
        return i < node->cond->n ? node->cond->bodies[i] : NULL;
    return i == 0 ? node->child : NULL;
}

static void body_free_nodes(struct exec_body *body)
{
    if (!body)
        return;
    for (size_t i = 0; i < body->n; i++) {
        work_unref(body->nodes[i].work);
        free(body->nodes[i].deps);
        free(body->nodes[i].data);
        for (size_t j = 0; exec_part(&body->nodes[i], j); j++)
            body_free_nodes(exec_part(&body->nodes[i], j));
        exec_cond_free(body->nodes[i].cond);
    }
    free(body->nodes);
    free(body->by_creation);
    free(body);
}

void body_free(struct exec_body *body, struct op *last)
{
    if (body)
        users_release(body, last);
    body_free_nodes(body);
}

static CUresult body_make(struct graph *graph, struct exec_body **out, struct graph_node **error);

static CUresult cond_make(const struct cond_node *from, struct exec_cond **out,
                          struct graph_node **error)
{
    CUresult res = CUDA_SUCCESS;

    *out = exec_cond_new(from->condition, from->type, from->n);
    if (!*out)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < from->n && res == CUDA_SUCCESS; i++)
        res = body_make((struct graph *)from->graphs[i], &(*out)->bodies[i], error);
    return res;
}

/* What a node's work refers to has not ended. */
static bool work_lives(const struct work *work)
{
    if (work->ctx && !object_is(work->ctx, OBJECT_CONTEXT))
        return false;
    if (work->kind == WORK_KERNEL)
        return object_is(work->kernel.function, OBJECT_FUNCTION);
    if (work->kind == WORK_EVENT_RECORD || work->kind == WORK_EVENT_WAIT)
        return object_is(work->event.event, OBJECT_EVENT);
    return true;
}

/* Nodes in an order that respects the edges; INVALID_VALUE and the node where there is a cycle. */
static CUresult body_make(struct graph *graph, struct exec_body **out, struct graph_node **error)
{
    struct exec_body *body = calloc(1, sizeof(*body));
    struct graph_node **order = calloc(graph->n_nodes + 1, sizeof(*order));
    size_t *missing = calloc(graph->n_nodes + 1, sizeof(*missing));
    size_t n = 0, i = 0;
    CUresult res = CUDA_SUCCESS;

    *out = NULL;
    *error = NULL;
    if (body) {
        body->nodes = calloc(graph->n_nodes + 1, sizeof(*body->nodes));
        body->by_creation = calloc(graph->n_nodes + 1, sizeof(size_t));
    }
    if (!body || !order || !missing || !body->nodes || !body->by_creation) {
        res = CUDA_ERROR_OUT_OF_MEMORY;
        goto out;
    }
    for (struct graph_node *node = graph->first; node; node = node->next, i++) {
        node->index = i;
        missing[i] = node->in.n;
        if (!node->in.n)
            order[n++] = node;
    }
    for (size_t done = 0; done < n; done++) {
        for (size_t j = 0; j < order[done]->out.n; j++) {
            struct graph_node *next = order[done]->out.edges[j].node;

            if (--missing[next->index] == 0)
                order[n++] = next;
        }
    }
    if (n < graph->n_nodes) {
        for (struct graph_node *node = graph->first; node && !*error; node = node->next) {
            if (missing[node->index])
                *error = node;
        }
        res = CUDA_ERROR_INVALID_VALUE;
        goto out;
    }
    for (i = 0; i < n; i++) {
        body->by_creation[order[i]->index] = i;
        order[i]->index = i;
    }
    body->n = n;
    res = users_copy(graph->users, &body->users);
    for (i = 0; i < n && res == CUDA_SUCCESS; i++) {
        struct exec_node *node = &body->nodes[i];

        node->uid = order[i]->uid;
        node->type = order[i]->type;
        node->work = work_ref(order[i]->work);
        node->enabled = true;
        node->leaf = order[i]->out.n == 0;
        node->n_deps = order[i]->in.n;
        node->deps = calloc(node->n_deps + 1, sizeof(size_t));
        node->data = calloc(node->n_deps + 1, sizeof(CUgraphEdgeData));
        if (!node->deps || !node->data) {
            res = CUDA_ERROR_OUT_OF_MEMORY;
            goto out;
        }
        if (node->work && !work_lives(node->work)) {
            res = CUDA_ERROR_INVALID_VALUE;
            goto out;
        }
        for (size_t j = 0; j < node->n_deps; j++) {
            node->deps[j] = order[i]->in.edges[j].node->index;
            node->data[j] = order[i]->in.edges[j].data;
        }
        if (order[i]->child)
            res = body_make(order[i]->child, &node->child, error);
        else if (order[i]->cond)
            res = cond_make(order[i]->cond, &node->cond, error);
        if (res != CUDA_SUCCESS)
            goto out;
    }
out:
    free(order);
    free(missing);
    if (res != CUDA_SUCCESS) {
        body_free(body, NULL);
        return res;
    }
    *out = body;
    return CUDA_SUCCESS;
}

/* ---- copies, for what a launch runs later ---- */

static void *copy_of(const void *from, size_t n)
{
    void *to = malloc(n + 1);

    return to ? memcpy(to, from, n) : NULL;
}

static bool node_copy(const struct exec_node *from, struct exec_node *to)
{
    *to = *from;
    to->child = NULL;
    to->cond = NULL;
    to->work = work_ref(from->work);
    to->deps = copy_of(from->deps, from->n_deps * sizeof(*from->deps));
    to->data = copy_of(from->data, from->n_deps * sizeof(*from->data));
    if (from->child)
        to->child = body_copy(from->child);
    if (from->cond)
        to->cond = exec_cond_copy(from->cond);
    return to->deps && to->data && !to->child == !from->child && !to->cond == !from->cond;
}

struct exec_body *body_copy(const struct exec_body *from)
{
    struct exec_body *to = calloc(1, sizeof(*to));
    bool ok = to != NULL;

    if (ok)
        to->nodes = calloc(from->n + 1, sizeof(*to->nodes));
    if (ok && to->nodes)
        to->by_creation = copy_of(from->by_creation, from->n * sizeof(size_t));
    ok = ok && to->nodes && to->by_creation;
    for (size_t i = 0; i < from->n && ok; i++) {
        ok = node_copy(&from->nodes[i], &to->nodes[i]);
        to->n++;
    }
    if (ok)
        return to;
    body_free(to, NULL);
    return NULL;
}

struct exec_cond *exec_cond_copy(const struct exec_cond *from)
{
    struct exec_cond *to = exec_cond_new(from->condition, from->type, from->n);
    bool ok = to != NULL;

    for (unsigned i = 0; i < from->n && ok; i++) {
        to->bodies[i] = body_copy(from->bodies[i]);
        ok = to->bodies[i] != NULL;
    }
    if (ok)
        return to;
    for (unsigned i = 0; to && i < from->n; i++)
        body_free(to->bodies[i], NULL);
    exec_cond_free(to);
    return NULL;
}

bool exec_has_conditional(const struct graph_exec *exec)
{
    return body_has_conditional(exec->body);
}

/* ---- instantiate: four ABIs ---- */

static struct graph_exec *execs;

/* A graph with memory nodes has one exec at a time; those from before it had any do not count. */
static bool has_exec(const struct graph *graph)
{
    for (struct graph_exec *exec = execs; exec; exec = exec->next) {
        if (exec->graph == graph->id)
            return true;
    }
    return false;
}

static size_t body_count(const struct exec_body *body)
{
    size_t n = body->n;

    for (size_t i = 0; i < body->n; i++) {
        for (size_t j = 0; exec_part(&body->nodes[i], j); j++)
            n += body_count(exec_part(&body->nodes[i], j));
    }
    return n;
}

static size_t body_edges(const struct exec_body *body)
{
    size_t n = 0;

    for (size_t i = 0; i < body->n; i++) {
        n += body->nodes[i].n_deps;
        for (size_t j = 0; exec_part(&body->nodes[i], j); j++)
            n += body_edges(exec_part(&body->nodes[i], j));
    }
    return n;
}

/* What the nodes cost, taken from the current context's device. */
static CUresult nodes_take(struct graph_exec *exec)
{
    struct context *ctx;
    size_t bytes = driver.config.node_bytes * body_count(exec->body);

    exec->device = context_current(&ctx) == CUDA_SUCCESS ? ctx->device : 0;
    if (!memory_take(exec->device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec->node_bytes = bytes;
    return CUDA_SUCCESS;
}

static bool are_alike(const struct edge_list *list)
{
    for (size_t i = 1; i < list->n; i++) {
        if (!list->edges[i].data.type != !list->edges[0].data.type)
            return false;
    }
    return true;
}

/* DMI_STANDIN_EDGES=alike: no driver is known to refuse this; the documents do not say that none does. */
static bool has_mixed_edges(const struct graph *graph)
{
    for (const struct graph_node *node = graph->first; node; node = node->next) {
        if (!are_alike(&node->in) || !are_alike(&node->out))
            return true;
    }
    return false;
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, cuuint64_t flags,
                            CUgraphNode *error_out)
{
    struct graph *graph = (struct graph *)handle;
    struct graph_exec *exec;
    struct graph_node *error = NULL;
    CUresult res;
    DRIVER_LOCKED;

    if (error_out)
        *error_out = NULL;
    if (!out || !graph_is(handle))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & ~(cuuint64_t)(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                              CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                              CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
                              CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (driver.config.alike_edges && has_mixed_edges(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (graph->moved || (graph_has_memory(graph) && has_exec(graph)))
        return CUDA_ERROR_INVALID_VALUE;
    error = conditional_error(graph);
    if (error || conditions_unused(graph)) {
        if (error_out)
            *error_out = (CUgraphNode)error;
        return CUDA_ERROR_INVALID_VALUE;
    }
    exec = object_new(OBJECT_EXEC, sizeof(*exec));
    if (!exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    res = body_make(graph, &exec->body, &error);
    if (res != CUDA_SUCCESS) {
        if (error_out)
            *error_out = (CUgraphNode)error;
        object_free(exec);
        return res;
    }
    res = nodes_take(exec);
    if (res != CUDA_SUCCESS) {
        body_free(exec->body, NULL);
        object_free(exec);
        return res;
    }
    exec->id = ++n_execs;
    exec->flags = flags;
    exec->graph = graph_has_memory(graph) ? graph->id : 0;
    exec->next = execs;
    execs = exec;
    *out = (CUgraphExec)exec;
    log_detail("\"graph\":%llu,\"exec\":%llu,\"nodes\":%zu,\"edges\":%zu", graph->id, exec->id,
               graph->n_nodes, body_edges(exec->body));
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                          unsigned long long flags)
{
    return instantiate(phGraphExec, hGraph, flags, NULL);
}

CUresult impl_cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph,
                                    CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
    CUresult res = instantiate(phGraphExec, hGraph, 0, phErrorNode);

    if (logBuffer && bufferSize)
        snprintf(logBuffer, bufferSize, "%s",
                 res == CUDA_SUCCESS ? "" : "the graph cannot be instantiated");
    return res;
}

CUresult impl_cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                                 char *logBuffer, size_t bufferSize)
{
    return impl_cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

static bool unused(CUgraph handle)
{
    DRIVER_LOCKED;

    return graph_is(handle) && conditions_unused((struct graph *)handle);
}

CUresult impl_cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    CUresult res;

    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    res = instantiate(phGraphExec, hGraph, p->flags, &p->hErrNode_out);
    p->result_out = res == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                    : p->hErrNode_out   ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                        : CUDA_GRAPH_INSTANTIATE_ERROR;
    if (res == CUDA_ERROR_INVALID_VALUE && unused(hGraph))
        p->result_out = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
    return res;
}

CUresult impl_cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
    DRIVER_LOCKED;

    if (!object_is(hGraphExec, OBJECT_EXEC) || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = ((struct graph_exec *)hGraphExec)->flags;
    return CUDA_SUCCESS;
}

/* ---- launch ---- */

/* A kernel whose grid is still empty can be a node, and cannot be launched. */
static bool body_cannot_run(const struct exec_body *body)
{
    for (size_t i = 0; i < body->n; i++) {
        const struct exec_node *node = &body->nodes[i];

        for (size_t j = 0; exec_part(node, j); j++) {
            if (body_cannot_run(exec_part(node, j)))
                return true;
        }
        if (node->enabled && node->work && !work_lives(node->work))
            return true;
        if (node->type == CU_GRAPH_NODE_TYPE_KERNEL && node->enabled &&
            (!node->work->kernel.grid[0] || !node->work->kernel.grid[1] ||
             !node->work->kernel.grid[2]))
            return true;
    }
    return false;
}

static bool is_of_events(const struct work *work)
{
    return work && (work->kind == WORK_EVENT_RECORD || work->kind == WORK_EVENT_WAIT);
}

/*
 * The operation that @node begins with, uncommitted. What comes after the node waits for *last, which is
 * another one for nodes that stand for several.
 */
static struct op *node_open(const struct launch *launch, struct exec_node *node, int index,
                            struct op **last)
{
    struct context *ctx = launch->stream->ctx;
    struct work *work = node->enabled && !is_of_events(node->work) ? work_ref(node->work) : NULL;
    struct op *first;

    if (node->cond)
        return conditional_launch(launch, node->cond, last);
    first = op_new(work && work->ctx ? work->ctx : ctx, work);
    if (!first) {
        work_unref(work);
        return NULL;
    }
    first->correlation = launch->correlation;
    first->stream = launch->stream->id;
    first->exec = launch->exec;
    first->node = node->uid;
    if (work && work->kind == WORK_KERNEL)
        first->seq = launch_log(&work->kernel, launch->stream, launch->exec, index);
    *last = op_ref(first);
    return first;
}

/* A child graph lies between @first and another marker. */
static CUresult child_launch(const struct launch *launch, struct exec_body *child, struct op *first,
                             struct op **last)
{
    struct op *end = op_new(launch->stream->ctx, NULL);
    CUresult res;

    if (!end)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op_depend(end, first);
    res = body_launch(launch, child, first, end);
    op_unref(*last);
    *last = op_ref(end);
    op_commit(end);
    return res;
}

CUresult body_launch(const struct launch *launch, struct exec_body *body, struct op *begin,
                     struct op *end)
{
    struct op **ops = calloc(body->n + 1, sizeof(*ops)); /* what comes after each node waits for */
    CUresult res = CUDA_SUCCESS;
    size_t i;

    if (!ops)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (i = 0; i < body->n && res == CUDA_SUCCESS; i++) {
        struct exec_node *node = &body->nodes[i];
        struct op *first = node_open(launch, node, (int)i, &ops[i]);

        if (!first) {
            res = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        for (size_t j = 0; j < node->n_deps; j++)
            programmatic_depend(first, ops[node->deps[j]], &node->data[j]);
        if (!node->n_deps)
            op_depend(first, begin);
        if (node->work && node->work->kind == WORK_EVENT_WAIT)
            op_depend(first, node->work->event.event->marker);
        if (node->child)
            res = child_launch(launch, node->child, first, &ops[i]);
        if (node->work && node->work->kind == WORK_EVENT_RECORD)
            event_set_marker(node->work->event.event, first);
        op_commit(first);
    }
    for (size_t j = 0; j < i; j++) {
        if (body->nodes[j].leaf)
            op_depend(end, ops[j]);
        op_unref(ops[j]);
    }
    free(ops);
    return res;
}

CUresult impl_cuGraphLaunch(CUgraphExec hGraph, CUstream hStream)
{
    struct graph_exec *exec = (struct graph_exec *)hGraph;
    struct launch launch = { 0 };
    struct op *begin, *end;
    CUresult res;
    DRIVER_LOCKED;

    if (!object_is(exec, OBJECT_EXEC) || body_cannot_run(exec->body))
        return CUDA_ERROR_INVALID_VALUE;
    res = stream_resolve(hStream, &launch.stream);
    if (res != CUDA_SUCCESS)
        return res;
    if (launch.stream->capture)
        return capture_add_exec(launch.stream, exec);
    if (launch.stream == launch.stream->ctx->legacy) {
        res = capture_implicit(launch.stream->ctx);
        if (res != CUDA_SUCCESS)
            return res;
    }
    res = graph_memory_begin(exec);
    if (res != CUDA_SUCCESS)
        return res;
    launch.exec = exec->id;
    log_detail("\"exec\":%llu,\"stream\":%llu", exec->id, launch.stream->id);
    end = op_new(launch.stream->ctx, NULL);
    begin = end ? stream_open(launch.stream, NULL) : NULL;
    if (!begin) {
        op_unref(end);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    launch.correlation = begin->correlation;
    op_depend(begin, exec->last);
    op_depend(end, begin);
    conditional_begin(exec->body, begin);
    res = body_launch(&launch, exec->body, begin, end);
    op_unref(launch.stream->tail);
    launch.stream->tail = op_ref(end);
    op_unref(exec->last);
    exec->last = op_ref(end);
    graph_memory_end(exec, end);
    op_commit(end);
    op_commit(begin);
    return res;
}

CUresult impl_cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    struct stream *stream;
    CUresult res;
    DRIVER_LOCKED;

    if (!object_is(hGraphExec, OBJECT_EXEC))
        return CUDA_ERROR_INVALID_VALUE;
    res = stream_resolve(hStream, &stream);
    return res != CUDA_SUCCESS ? res : graph_memory_back((struct graph_exec *)hGraphExec);
}

/* Queued launches go on; what they hold is released when they are done. */
CUresult impl_cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    struct graph_exec *exec = (struct graph_exec *)hGraphExec;
    struct graph_exec **link = &execs;
    DRIVER_LOCKED;

    if (!object_is(exec, OBJECT_EXEC))
        return CUDA_ERROR_INVALID_VALUE;
    while (*link != exec)
        link = &(*link)->next;
    *link = exec->next;
    memory_give(exec->device, exec->node_bytes);
    body_free(exec->body, exec->last);
    op_unref(exec->last);
    object_free(exec);
    return CUDA_SUCCESS;
}

static struct graph *body_to_graph(struct exec_body *body)
{
    struct graph *graph = graph_new();
    struct graph_node **nodes = calloc(body->n + 1, sizeof(*nodes));
    CUresult res = graph && nodes ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

    for (size_t i = 0; i < body->n && res == CUDA_SUCCESS; i++) {
        struct exec_node *node = &body->nodes[body->by_creation[i]];
        struct graph_node **made = &nodes[body->by_creation[i]];

        res = graph_add(graph, node->enabled ? node->type : CU_GRAPH_NODE_TYPE_EMPTY,
                        node->enabled ? work_ref(node->work) : NULL, NULL, NULL, 0, made);
        if (res == CUDA_SUCCESS && node->child) {
            (*made)->child = body_to_graph(node->child);
            if ((*made)->child)
                (*made)->child->owner = *made;
            else
                res = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    for (size_t k = 0; k < body->n && res == CUDA_SUCCESS; k++) {
        size_t i = body->by_creation[k];

        for (size_t j = 0; j < body->nodes[i].n_deps && res == CUDA_SUCCESS; j++) {
            bool plain = !body->nodes[body->nodes[i].deps[j]].enabled || !body->nodes[i].enabled;

            res = graph_connect(nodes[body->nodes[i].deps[j]], nodes[i],
                                plain ? NULL : &body->nodes[i].data[j]);
        }
    }
    free(nodes);
    if (res != CUDA_SUCCESS && graph) {
        graph_free(graph);
        graph = NULL;
    }
    return graph;
}

struct graph *exec_to_graph(struct graph_exec *exec)
{
    return body_to_graph(exec->body);
}

/* ---- changing single nodes of an exec ---- */

static struct exec_node *body_find(struct exec_body *body, uint64_t uid)
{
    for (size_t i = 0; i < body->n; i++) {
        struct exec_node *found;

        if (body->nodes[i].uid == uid)
            return &body->nodes[i];
        for (size_t j = 0; exec_part(&body->nodes[i], j); j++) {
            found = body_find(exec_part(&body->nodes[i], j), uid);
            if (found)
                return found;
        }
    }
    return NULL;
}

/* Callers almost always ask in creation order: try the node after the last hit first. */
static struct exec_node *exec_find(CUgraphExec hExec, CUgraphNode hNode)
{
    static size_t hint;
    struct exec_body *body;
    uint64_t uid;

    if (!object_is(hExec, OBJECT_EXEC) || !object_is(hNode, OBJECT_NODE))
        return NULL;
    body = ((struct graph_exec *)hExec)->body;
    uid = ((struct graph_node *)hNode)->uid;
    for (size_t i = 0; i < 4 && hint + i < body->n; i++) {
        if (body->nodes[hint + i].uid == uid)
            return &body->nodes[hint += i];
    }
    for (size_t i = 0; i < body->n; i++) {
        if (body->nodes[i].uid == uid)
            return &body->nodes[hint = i];
    }
    return body_find(body, uid);
}

/* The node keeps its context, and a kernel node its attributes. */
static CUresult exec_set(CUgraphExec hExec, CUgraphNode hNode, CUgraphNodeType type, CUresult made,
                         struct work *const *made_work)
{
    struct exec_node *node;
    struct work *work = *made_work;

    if (made != CUDA_SUCCESS)
        return made;
    node = exec_find(hExec, hNode);
    if (!node || node->type != type || (node->work && node->work->ctx != work->ctx && work->ctx)) {
        work_unref(work);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
        work->kernel.cooperative = node->work->kernel.cooperative;
        work->kernel.priority = node->work->kernel.priority;
        memcpy(work->kernel.cluster, node->work->kernel.cluster, sizeof(work->kernel.cluster));
        log_detail("\"exec\":%llu,\"node\":%llu,\"kernel\":\"%.200s\"",
                   ((struct graph_exec *)hExec)->id, (unsigned long long)node->uid,
                   work->kernel.function->name);
    }
    work_unref(node->work);
    node->work = work;
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)
{
    struct work *work = NULL;
    DRIVER_LOCKED;

    return exec_set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_KERNEL,
                    node_work_kernel(nodeParams, true, &work), &work);
}

CUresult impl_cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                             const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    CUDA_KERNEL_NODE_PARAMS_v2 v2 = { 0 };

    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&v2, nodeParams, sizeof(*nodeParams));
    return impl_cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &v2);
}

CUresult impl_cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                             const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    struct work *work = NULL;
    DRIVER_LOCKED;

    return exec_set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_MEMCPY,
                    node_work_copy(copyParams, ctx, &work), &work);
}

CUresult impl_cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                             const CUDA_MEMSET_NODE_PARAMS *memsetParams,
                                             CUcontext ctx)
{
    struct work *work = NULL;
    DRIVER_LOCKED;

    return exec_set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_MEMSET,
                    node_work_set(memsetParams, ctx, &work), &work);
}

CUresult impl_cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    struct work *work = NULL;
    DRIVER_LOCKED;

    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    return exec_set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_HOST,
                    node_work_host(nodeParams->fn, nodeParams->userData, &work), &work);
}

CUresult impl_cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                 CUevent event)
{
    struct work *work = NULL;
    DRIVER_LOCKED;

    return exec_set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                    node_work_event(event, true, &work), &work);
}

CUresult impl_cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                               CUevent event)
{
    struct work *work = NULL;
    DRIVER_LOCKED;

    return exec_set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                    node_work_event(event, false, &work), &work);
}

CUresult impl_cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                       CUgraphNodeParams *p)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return impl_cuGraphExecKernelNodeSetParams_v2(
            hGraphExec, hNode, (const CUDA_KERNEL_NODE_PARAMS_v2 *)&p->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return impl_cuGraphExecMemcpyNodeSetParams(hGraphExec, hNode, &p->memcpy.copyParams,
                                                   p->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return impl_cuGraphExecMemsetNodeSetParams(
            hGraphExec, hNode, (const CUDA_MEMSET_NODE_PARAMS *)&p->memset, p->memset.ctx);
    case CU_GRAPH_NODE_TYPE_HOST:
        return impl_cuGraphExecHostNodeSetParams(hGraphExec, hNode,
                                                 (const CUDA_HOST_NODE_PARAMS *)&p->host);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return impl_cuGraphExecEventRecordNodeSetEvent(hGraphExec, hNode, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return impl_cuGraphExecEventWaitNodeSetEvent(hGraphExec, hNode, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return impl_cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, p->graph.graph);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult impl_cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
                                    unsigned int isEnabled)
{
    struct exec_node *node;
    DRIVER_LOCKED;

    node = exec_find(hGraphExec, hNode);
    if (!node ||
        (node->type != CU_GRAPH_NODE_TYPE_KERNEL && node->type != CU_GRAPH_NODE_TYPE_MEMSET &&
         node->type != CU_GRAPH_NODE_TYPE_MEMCPY))
        return CUDA_ERROR_INVALID_VALUE;
    node->enabled = isEnabled != 0;
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
                                    unsigned int *isEnabled)
{
    struct exec_node *node;
    DRIVER_LOCKED;

    node = exec_find(hGraphExec, hNode);
    if (!node || !isEnabled ||
        (node->type != CU_GRAPH_NODE_TYPE_KERNEL && node->type != CU_GRAPH_NODE_TYPE_MEMSET &&
         node->type != CU_GRAPH_NODE_TYPE_MEMCPY))
        return CUDA_ERROR_INVALID_VALUE;
    *isEnabled = node->enabled;
    return CUDA_SUCCESS;
}

/* ---- updating an exec from a graph of the same shape ---- */

static CUgraphNode nth_node(struct graph *graph, size_t n)
{
    struct graph_node *node = graph->first;

    while (node && n--)
        node = node->next;
    return (CUgraphNode)node;
}

static struct graph *graph_part(CUgraphNode handle, size_t i)
{
    struct graph_node *node = (struct graph_node *)handle;

    return node->cond ? (struct graph *)node->cond->graphs[i] : node->child;
}

/*
 * Nodes are paired in order of creation, their dependencies in edge order. Nothing is changed unless
 * all fits: the checks run first, over children too.
 * Source: cuGraphExecUpdate() in the driver API reference, "results and error nodes"
 */
static CUgraphExecUpdateResult body_compare(struct exec_body *old, struct exec_body *new,
                                            struct graph *graph, CUgraphNode *error,
                                            CUgraphNode *error_from)
{
    size_t old_leaves = 0, new_leaves = 0, last_leaf = 0;

    *error = *error_from = NULL;
    if (old->n != new->n)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < new->n; i++) {
        old_leaves += old->nodes[old->by_creation[i]].leaf;
        if (new->nodes[new->by_creation[i]].leaf) {
            new_leaves++;
            last_leaf = i;
        }
    }
    if (new_leaves > old_leaves) {
        *error = nth_node(graph, last_leaf);
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    for (size_t i = 0; i < new->n; i++) {
        struct exec_node *a = &old->nodes[old->by_creation[i]],
                         *b = &new->nodes[new->by_creation[i]];
        CUgraphNode node = nth_node(graph, i);

        if (a->n_deps != b->n_deps) {
            *error = node;
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        }
        for (size_t j = 0; j < b->n_deps; j++) {
            size_t from = 0;

            while (new->by_creation[from] != b->deps[j])
                from++;
            if (old->by_creation[from] != a->deps[j] ||
                memcmp(&a->data[j], &b->data[j], sizeof(a->data[j])) != 0) {
                *error = node;
                *error_from = nth_node(graph, from);
                return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
            }
        }
        *error = node;
        if (a->type != b->type)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if ((a->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || a->type == CU_GRAPH_NODE_TYPE_MEM_FREE) &&
            a->work->alloc.address != b->work->alloc.address)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
        if (a->type == CU_GRAPH_NODE_TYPE_KERNEL) {
            if (a->work->ctx != b->work->ctx)
                return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
            if (a->work->kernel.cooperative != b->work->kernel.cooperative)
                return CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
        } else if (a->work && b->work && a->work->ctx != b->work->ctx &&
                   a->work->kind != WORK_HOST) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        }
        if (a->cond && (a->cond->type != b->cond->type || a->cond->n != b->cond->n))
            return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        for (size_t j = 0; exec_part(a, j); j++) {
            CUgraphExecUpdateResult result = body_compare(exec_part(a, j), exec_part(b, j),
                                                          graph_part(node, j), error, error_from);

            if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
                return result;
        }
        *error = NULL;
    }
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

/* @old takes over what @new holds; @last: the last launch of @old */
static void body_take(struct exec_body *old, struct exec_body *new, struct op *last)
{
    struct exec_body gone = { .users = old->users };

    old->users = new->users;
    new->users = NULL;
    users_release(&gone, last);
    for (size_t i = 0; i < new->n; i++) {
        struct exec_node *a = &old->nodes[old->by_creation[i]],
                         *b = &new->nodes[new->by_creation[i]];

        work_unref(a->work);
        a->work = work_ref(b->work);
        if (a->cond)
            exec_cond_take(a->cond, b->cond);
        for (size_t j = 0; exec_part(a, j); j++)
            body_take(exec_part(a, j), exec_part(b, j), last);
    }
}

CUresult impl_cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                                   CUgraphExecUpdateResultInfo *info)
{
    struct graph_exec *exec = (struct graph_exec *)hGraphExec;
    struct exec_body *body;
    struct graph_node *cycle;
    CUresult res;
    DRIVER_LOCKED;

    if (!info)
        return CUDA_ERROR_INVALID_VALUE;
    *info = (CUgraphExecUpdateResultInfo){ .result = CU_GRAPH_EXEC_UPDATE_ERROR };
    if (!object_is(exec, OBJECT_EXEC) || !graph_is(hGraph) || ((struct graph *)hGraph)->moved)
        return CUDA_ERROR_INVALID_VALUE;
    res = body_make((struct graph *)hGraph, &body, &cycle);
    if (res != CUDA_SUCCESS) {
        info->errorNode = (CUgraphNode)cycle;
        return res;
    }
    info->result = body_compare(exec->body, body, (struct graph *)hGraph, &info->errorNode,
                                &info->errorFromNode);
    if (info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS)
        body_take(exec->body, body, exec->last);
    body_free(body, NULL);
    log_detail("\"exec\":%llu,\"graph\":%llu,\"update\":%d", exec->id, ((struct graph *)hGraph)->id,
               (int)info->result);
    return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS
                                                        : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult impl_cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                                CUgraphExecUpdateResult *updateResult_out)
{
    CUgraphExecUpdateResultInfo info;
    CUresult res;

    if (!updateResult_out)
        return CUDA_ERROR_INVALID_VALUE;
    res = impl_cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
    *updateResult_out = info.result;
    if (hErrorNode_out)
        *hErrorNode_out = info.errorNode;
    return res;
}

CUresult impl_cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                 CUgraph childGraph)
{
    struct exec_node *node;
    struct exec_body *body;
    struct graph_node *cycle;
    CUgraphNode error, from;
    CUresult res;
    DRIVER_LOCKED;

    node = exec_find(hGraphExec, hNode);
    if (!node || !node->child || !graph_is(childGraph))
        return CUDA_ERROR_INVALID_VALUE;
    res = body_make((struct graph *)childGraph, &body, &cycle);
    if (res != CUDA_SUCCESS)
        return res;
    if (body_compare(node->child, body, (struct graph *)childGraph, &error, &from) ==
        CU_GRAPH_EXEC_UPDATE_SUCCESS)
        body_take(node->child, body, ((struct graph_exec *)hGraphExec)->last);
    else
        res = CUDA_ERROR_INVALID_VALUE;
    body_free(body, NULL);
    return res;
}
