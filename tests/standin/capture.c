/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - stream capture: queued work becomes nodes, events carry forks and joins
 *
 * A capture begins on one stream; others join by waiting for an event recorded in it and must be joined
 * back before it ends. Calls that a capture cannot tolerate make it invalid: which ones depends on the
 * modes of the captures and of the calling thread.
 * Source: cuStreamBeginCapture_v2(), cuThreadExchangeStreamCaptureMode() in the driver API reference
 */
#include "graph.h"
#include "impl.h"
#include "programmatic.h"

#include <stdlib.h>
#include <string.h>

/** struct capture_deps - the nodes that the next node will depend on */
struct capture_deps {
    size_t n, cap;
    CUgraphNode *nodes;
    CUgraphEdgeData *data;
    struct shown *shown; /* arrays that queries gave out, the last one first */
};

/** struct shown - an array that a query gave out; poison from the next call on its stream on */
struct shown {
    struct shown *next;
    size_t n;
    CUgraphEdgeData *data;
    CUgraphNode nodes[];
};

struct capture {
    struct capture *next;
    unsigned long long id;
    CUstreamCaptureMode mode;
    uint64_t thread;
    struct stream *origin;
    struct graph *graph;
    bool own_graph; /* created by the capture, not given to cuStreamBeginCaptureToGraph() */
    bool invalid;
};

static struct capture *captures;
static unsigned long long n_captures;

/* ---- dependency sets ---- */

void capture_deps_free(struct capture_deps *deps)
{
    if (!deps)
        return;
    while (deps->shown) {
        struct shown *shown = deps->shown;

        deps->shown = shown->next;
        free(shown->data);
        free(shown);
    }
    free(deps->nodes);
    free(deps->data);
    free(deps);
}

/*
 * "The array pointer is valid until the next API call which operates on the stream": cuStreamGetCaptureInfo_v3().
 * What it points to is poison then; the memory goes with the capture.
 */
void capture_deps_spoil(struct capture_deps *deps)
{
    if (!deps || !deps->shown || driver.config.handles == HANDLES_LENIENT)
        return;
    handles_poison(deps->shown->nodes, 0, deps->shown->n);
    memset(deps->shown->data, 0xdb, deps->shown->n * sizeof(*deps->shown->data));
}

/* One entry more than there are, so that a loop one too far finds poison too. */
static struct shown *deps_show(struct capture_deps *deps)
{
    size_t n = deps->n + 1;
    struct shown *shown = calloc(1, sizeof(*shown) + n * sizeof(CUgraphNode));

    if (shown)
        shown->data = calloc(n, sizeof(*shown->data));
    if (!shown || !shown->data) {
        free(shown);
        return NULL;
    }
    if (deps->n) {
        memcpy(shown->nodes, deps->nodes, deps->n * sizeof(*deps->nodes));
        memcpy(shown->data, deps->data, deps->n * sizeof(*deps->data));
    }
    handles_poison(shown->nodes, deps->n, n);
    memset(&shown->data[deps->n], 0xdb, sizeof(*shown->data));
    shown->n = n;
    shown->next = deps->shown;
    deps->shown = shown;
    return shown;
}

static bool deps_add(struct capture_deps *deps, CUgraphNode node, const CUgraphEdgeData *data)
{
    static const CUgraphEdgeData plain;

    for (size_t i = 0; i < deps->n; i++) {
        if (deps->nodes[i] == node)
            return true;
    }
    if (deps->n == deps->cap) {
        size_t cap = deps->cap ? 2 * deps->cap : 4;
        CUgraphNode *nodes = realloc(deps->nodes, cap * sizeof(*nodes));
        CUgraphEdgeData *edges;

        if (!nodes)
            return false;
        deps->nodes = nodes;
        edges = realloc(deps->data, cap * sizeof(*edges));
        if (!edges)
            return false;
        deps->data = edges;
        deps->cap = cap;
    }
    deps->nodes[deps->n] = node;
    deps->data[deps->n++] = data ? *data : plain;
    return true;
}

static struct capture_deps *deps_copy(const struct capture_deps *from)
{
    struct capture_deps *deps = calloc(1, sizeof(*deps));

    for (size_t i = 0; deps && from && i < from->n; i++) {
        if (!deps_add(deps, from->nodes[i], &from->data[i])) {
            capture_deps_free(deps);
            return NULL;
        }
    }
    return deps;
}

/* ---- what is forbidden ---- */

static CUresult capture_check(struct capture *capture)
{
    return capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

static void invalidate(struct capture *capture)
{
    if (!capture->invalid)
        log_detail("\"invalidates\":%llu", capture->id);
    capture->invalid = true;
}

void capture_invalidate(struct stream *stream)
{
    if (stream->capture)
        invalidate(stream->capture);
}

CUresult capture_event_asked(struct event *event)
{
    invalidate(event->capture);
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult capture_unsafe(void)
{
    CUresult res = CUDA_SUCCESS;

    if (!captures || tls.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (struct capture *c = captures; c; c = c->next) {
        bool mine = c->thread == thread_id() && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool global = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                      tls.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;

        if (mine || global) {
            invalidate(c);
            res = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return res;
}

/* The legacy stream would wait for ever for a blocking stream that is capturing. */
CUresult capture_implicit(struct context *ctx)
{
    CUresult res = CUDA_SUCCESS;

    if (!captures)
        return CUDA_SUCCESS;
    for (struct stream *s = ctx->streams; s; s = s->next) {
        if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING)) {
            invalidate(s->capture);
            res = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return res;
}

/* ---- nodes ---- */

/*
 * What a launch with programmatic stream serialization comes after by plain edges, it comes after by programmatic ones.
 * Source: CUDA programming guide, "Use in CUDA Graphs" of programmatic dependent launch
 */
static void make_programmatic(struct capture_deps *deps)
{
    for (size_t i = 0; i < deps->n; i++) {
        const struct graph_node *node = (const struct graph_node *)deps->nodes[i];

        if (node->type == CU_GRAPH_NODE_TYPE_KERNEL && !deps->data[i].from_port)
            deps->data[i] = programmatic_edge;
    }
}

/* Programmatic edges lead to kernels alone: other nodes wait for the kernel's end, or for its begin. */
static void make_plain(struct capture_deps *deps)
{
    for (size_t i = 0; i < deps->n; i++) {
        if (deps->data[i].from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
            deps->data[i].from_port = CU_GRAPH_KERNEL_NODE_PORT_DEFAULT;
        deps->data[i].type = CU_GRAPH_DEPENDENCY_TYPE_DEFAULT;
    }
}

static CUresult add_behind(struct stream *stream, CUgraphNodeType type, struct work *work,
                           struct graph_node **out)
{
    struct capture_deps *deps = stream->deps;
    struct graph_node *node;
    CUresult res = capture_check(stream->capture);

    if (res != CUDA_SUCCESS) {
        work_unref(work);
        return res;
    }
    if (work && work->kind == WORK_KERNEL && work->kernel.programmatic)
        make_programmatic(deps);
    if (type != CU_GRAPH_NODE_TYPE_KERNEL)
        make_plain(deps);
    res = graph_add(stream->capture->graph, type, work, (struct graph_node *const *)deps->nodes,
                    deps->data, deps->n, &node);
    if (res != CUDA_SUCCESS) {
        invalidate(stream->capture);
        return res;
    }
    deps->n = 0;
    if (!deps_add(deps, (CUgraphNode)node, NULL))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (out)
        *out = node;
    log_detail("\"captured\":%llu,\"node\":%llu", stream->capture->id,
               (unsigned long long)node->uid);
    return CUDA_SUCCESS;
}

CUresult capture_add(struct stream *stream, struct work *work)
{
    return add_behind(stream, graph_work_type(work), work, NULL);
}

CUresult capture_add_exec(struct stream *stream, struct graph_exec *exec)
{
    struct graph_node *node;
    struct graph *child;
    CUresult res;

    if (exec_has_conditional(exec)) {
        stream->capture->invalid = true;
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    child = exec_to_graph(exec);
    if (!child)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (graph_has_memory(child)) {
        invalidate(stream->capture);
        graph_free(child);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    res = add_behind(stream, CU_GRAPH_NODE_TYPE_GRAPH, NULL, &node);
    if (res != CUDA_SUCCESS) {
        graph_free(child);
        return res;
    }
    child->owner = node;
    node->child = child;
    return CUDA_SUCCESS;
}

/* ---- events: forks and joins ---- */

CUresult capture_event_record(struct stream *stream, struct event *event, unsigned flags)
{
    struct capture_deps *deps;
    CUresult res = capture_check(stream->capture);

    if (res != CUDA_SUCCESS)
        return res;
    if (flags & CU_EVENT_RECORD_EXTERNAL) {
        struct work *work;

        res = node_work_event((CUevent)event, true, &work);
        return res != CUDA_SUCCESS ? res : capture_add(stream, work);
    }
    deps = deps_copy(stream->deps);
    if (!deps)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture_deps_free(event->deps);
    event->deps = deps;
    event->capture = stream->capture;
    return CUDA_SUCCESS;
}

CUresult capture_event_launched(struct stream *stream, struct event *event, unsigned char port)
{
    CUresult res = capture_event_record(stream, event, 0);

    for (size_t i = 0; res == CUDA_SUCCESS && i < event->deps->n; i++)
        event->deps->data[i] =
            (CUgraphEdgeData){ .from_port = port, .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC };
    return res;
}

CUresult capture_event_wait(struct stream *stream, struct event *event, unsigned flags)
{
    struct capture *capture = stream->capture;
    CUresult res;

    if (capture) {
        res = capture_check(capture);
        if (res != CUDA_SUCCESS)
            return res;
    }
    if (capture && (flags & CU_EVENT_WAIT_EXTERNAL)) {
        struct work *work;

        res = node_work_event((CUevent)event, false, &work);
        return res != CUDA_SUCCESS ? res : capture_add(stream, work);
    }
    if (!event->capture) {
        invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    res = capture_check(event->capture);
    if (res != CUDA_SUCCESS)
        return res;
    if (capture && capture != event->capture) {
        invalidate(capture);
        invalidate(event->capture);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (!capture) {
        if (stream == stream->ctx->legacy) {
            invalidate(event->capture);
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
        stream->deps = calloc(1, sizeof(*stream->deps));
        if (!stream->deps)
            return CUDA_ERROR_OUT_OF_MEMORY;
        stream->capture = event->capture;
    }
    for (size_t i = 0; i < event->deps->n; i++) {
        if (!deps_add(stream->deps, event->deps->nodes[i], &event->deps->data[i]))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* ---- begin and end ---- */

static void stream_leave(struct stream *stream)
{
    capture_deps_free(stream->deps);
    stream->deps = NULL;
    stream->capture = NULL;
}

/* Streams and events drop @capture; this function gives its graph to nobody. */
static void capture_free(struct capture *capture)
{
    struct capture **link = &captures;

    for (struct context *ctx = driver.contexts; ctx; ctx = ctx->next) {
        for (struct stream *s = ctx->streams; s; s = s->next) {
            if (s->capture == capture)
                stream_leave(s);
        }
        for (struct event *e = ctx->events; e; e = e->next) {
            if (e->capture == capture) {
                capture_deps_free(e->deps);
                e->deps = NULL;
                e->capture = NULL;
            }
        }
    }
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    capture->graph->captured = false;
    free(capture);
}

/*
 * Destroying the stream that began a capture ends the capture. Other streams may be destroyed before:
 * what they captured stays and must still be joined, so they are kept until then.
 */
void capture_forget_origin(struct stream *stream)
{
    struct capture *capture = stream->capture;
    struct graph *graph;

    if (!capture || capture->origin != stream)
        return;
    graph = capture->own_graph ? capture->graph : NULL;
    capture_free(capture);
    if (graph)
        graph_free(graph);
}

/** capture_forget() - the stream's context is destroyed with all of its streams */
void capture_forget(struct stream *stream)
{
    capture_forget_origin(stream);
    if (stream->capture) {
        invalidate(stream->capture);
        stream_leave(stream);
    }
}

static CUresult begin(CUstream hStream, CUgraph hGraph, const CUgraphNode *deps,
                      const CUgraphEdgeData *data, size_t n, CUstreamCaptureMode mode)
{
    struct stream *stream;
    struct capture *capture;
    CUresult res;
    DRIVER_LOCKED;

    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED || (n && !deps) ||
        (hGraph && (!graph_is(hGraph) || ((struct graph *)hGraph)->captured)))
        return CUDA_ERROR_INVALID_VALUE;
    res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    if (stream == stream->ctx->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    for (size_t i = 0; i < n; i++) {
        if (!object_is(deps[i], OBJECT_NODE) ||
            (CUgraph)((struct graph_node *)deps[i])->graph != hGraph)
            return CUDA_ERROR_INVALID_VALUE;
    }
    capture = calloc(1, sizeof(*capture));
    stream->deps = calloc(1, sizeof(*stream->deps));
    if (capture)
        capture->graph = hGraph ? (struct graph *)hGraph : graph_new();
    for (size_t i = 0; stream->deps && i < n; i++) {
        if (!deps_add(stream->deps, deps[i], data ? &data[i] : NULL)) {
            capture_deps_free(stream->deps);
            stream->deps = NULL;
        }
    }
    if (!capture || !capture->graph || !stream->deps) {
        capture_deps_free(stream->deps);
        stream->deps = NULL;
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->id = ++n_captures;
    capture->mode = mode;
    capture->thread = thread_id();
    capture->origin = stream;
    capture->own_graph = !hGraph;
    capture->graph->captured = true;
    capture->next = captures;
    captures = capture;
    stream->capture = capture;
    log_detail("\"stream\":%llu,\"capture\":%llu,\"graph\":%llu", stream->id, capture->id,
               capture->graph->id);
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    return begin(hStream, NULL, NULL, NULL, 0, mode);
}

CUresult impl_cuStreamBeginCapture(CUstream hStream)
{
    return begin(hStream, NULL, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult impl_cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                          const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *dependencyData,
                                          size_t numDependencies, CUstreamCaptureMode mode)
{
    if (!hGraph)
        return CUDA_ERROR_INVALID_VALUE;
    return begin(hStream, hGraph, dependencies, dependencyData, numDependencies, mode);
}

/* Marks @node and all before it; index 1 is the mark. */
static void mark_ancestors(struct graph_node *node)
{
    if (node->index == 1)
        return;
    node->index = 1;
    for (size_t i = 0; i < node->in.n; i++)
        mark_ancestors(node->in.edges[i].node);
}

/* The last node of every other stream of the capture must be an ancestor of the first stream's last node. */
static bool all_joined(struct capture *capture)
{
    for (struct graph_node *node = capture->graph->first; node; node = node->next)
        node->index = 0;
    for (size_t i = 0; i < capture->origin->deps->n; i++)
        mark_ancestors((struct graph_node *)capture->origin->deps->nodes[i]);
    for (struct context *ctx = driver.contexts; ctx; ctx = ctx->next) {
        for (struct stream *s = ctx->streams; s; s = s->next) {
            for (size_t i = 0; s->capture == capture && i < s->deps->n; i++) {
                if (((struct graph_node *)s->deps->nodes[i])->index != 1)
                    return false;
            }
        }
    }
    return true;
}

CUresult impl_cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    struct stream *stream;
    struct capture *capture;
    struct graph *graph;
    bool own;
    CUresult res;
    DRIVER_LOCKED;

    if (!phGraph)
        return CUDA_ERROR_INVALID_VALUE;
    *phGraph = NULL;
    res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    capture = stream->capture;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_id())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (capture->origin != stream) {
        invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->invalid)
        res = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!all_joined(capture))
        res = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    graph = capture->graph;
    own = capture->own_graph;
    log_detail("\"capture\":%llu,\"graph\":%llu,\"nodes\":%zu", capture->id, graph->id,
               graph->n_nodes);
    capture_free(capture);
    if (res == CUDA_SUCCESS)
        *phGraph = (CUgraph)graph;
    else if (own)
        graph_free(graph);
    return res;
}

/* ---- queries ---- */

static bool has_edge_data(const struct capture_deps *deps)
{
    static const CUgraphEdgeData plain;

    for (size_t i = 0; i < deps->n; i++) {
        if (memcmp(&deps->data[i], &plain, sizeof(plain)) != 0)
            return true;
    }
    return false;
}

static CUresult info(CUstream hStream, CUstreamCaptureStatus *status, cuuint64_t *id,
                     CUgraph *graph, const CUgraphNode **deps, const CUgraphEdgeData **data,
                     size_t *n)
{
    struct stream *stream;
    struct capture *capture;
    struct shown *shown;
    CUresult res;
    DRIVER_LOCKED;

    if (!status || (data && !deps))
        return CUDA_ERROR_INVALID_VALUE;
    res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    if (stream == stream->ctx->legacy) {
        for (struct stream *s = stream->ctx->streams; s; s = s->next) {
            if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING))
                return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    capture = stream->capture;
    if (!capture || capture->invalid) {
        *status = capture ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_NONE;
        return CUDA_SUCCESS;
    }
    if (deps && !data && has_edge_data(stream->deps))
        return CUDA_ERROR_LOSSY_QUERY;
    if (deps) {
        shown = deps_show(stream->deps);
        if (!shown)
            return CUDA_ERROR_OUT_OF_MEMORY;
        *deps = shown->nodes;
        if (data)
            *data = shown->data;
    }
    *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id)
        *id = capture->id;
    if (graph)
        *graph = (CUgraph)capture->graph;
    if (n)
        *n = stream->deps->n;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    return info(hStream, captureStatus, NULL, NULL, NULL, NULL, NULL);
}

CUresult impl_cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                     cuuint64_t *id_out)
{
    return info(hStream, captureStatus_out, id_out, NULL, NULL, NULL, NULL);
}

CUresult impl_cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                        cuuint64_t *id_out, CUgraph *graph_out,
                                        const CUgraphNode **dependencies_out,
                                        size_t *numDependencies_out)
{
    return info(hStream, captureStatus_out, id_out, graph_out, dependencies_out, NULL,
                numDependencies_out);
}

CUresult impl_cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                        cuuint64_t *id_out, CUgraph *graph_out,
                                        const CUgraphNode **dependencies_out,
                                        const CUgraphEdgeData **edgeData_out,
                                        size_t *numDependencies_out)
{
    return info(hStream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
                numDependencies_out);
}

CUresult impl_cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
                                                   const CUgraphEdgeData *dependencyData,
                                                   size_t numDependencies, unsigned int flags)
{
    struct stream *stream;
    CUresult res;
    DRIVER_LOCKED;

    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (numDependencies && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    res = stream_resolve(hStream, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    res = capture_check(stream->capture);
    if (res != CUDA_SUCCESS)
        return res;
    for (size_t i = 0; i < numDependencies; i++) {
        if (!object_is(dependencies[i], OBJECT_NODE) ||
            ((struct graph_node *)dependencies[i])->graph != stream->capture->graph)
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        stream->deps->n = 0;
    for (size_t i = 0; i < numDependencies; i++) {
        if (!deps_add(stream->deps, dependencies[i], dependencyData ? &dependencyData[i] : NULL))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies,
                                                size_t numDependencies, unsigned int flags)
{
    return impl_cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, NULL, numDependencies,
                                                     flags);
}

CUresult impl_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode old = tls.capture_mode;

    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    tls.capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
