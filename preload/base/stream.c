/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/stream.h"

#include "core/atomic.h"
#include "preload/base/driver.h"

#include <stddef.h>

bool stream_is_capturing(struct stream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    __typeof__(cuStreamIsCapturing) *query = stream.per_thread
                                                 ? driver_table.cuStreamIsCapturing_ptsz
                                                 : driver_table.cuStreamIsCapturing;
    /* an error here means that the launch itself would break somebody's capture: keep out of it */
    return query && (query(stream.handle, &status) != CUDA_SUCCESS ||
                     status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* The capture under way on @stream, in the newest form that the driver has (11.3, 12.3). */
static CUresult capture_info(struct stream stream, CUstreamCaptureStatus *status, CUgraph *graph,
                             const CUgraphNode **nodes, size_t *n)
{
    const CUgraphEdgeData
        *edges; /* without them the driver refuses where one is not a plain edge */
    __typeof__(cuStreamGetCaptureInfo_v3) *info = stream.per_thread
                                                      ? driver_table.cuStreamGetCaptureInfo_v3_ptsz
                                                      : driver_table.cuStreamGetCaptureInfo_v3;
    __typeof__(cuStreamGetCaptureInfo_v2) *old = stream.per_thread
                                                     ? driver_table.cuStreamGetCaptureInfo_v2_ptsz
                                                     : driver_table.cuStreamGetCaptureInfo_v2;
    if (info)
        return info(stream.handle, status, NULL, graph, nodes, &edges, n);
    return old ? old(stream.handle, status, NULL, graph, nodes, n) : CUDA_ERROR_NOT_FOUND;
}

bool stream_capture_nodes(struct stream stream, CUgraph *graph, const CUgraphNode **nodes,
                          size_t *n)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    *graph = NULL;
    *nodes = NULL;
    *n = 0;
    return capture_info(stream, &status, graph, nodes, n) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_ACTIVE && *graph;
}

bool stream_capture(struct stream stream, CUgraph *graph, CUgraphNode *node)
{
    const CUgraphNode *nodes;
    size_t n;
    bool captured = stream_capture_nodes(stream, graph, &nodes, &n);
    if (captured && node)
        *node = n == 1 ? nodes[0] : NULL; /* what the stream's next operation waits for */
    return captured;
}

bool stream_record(struct stream stream, CUevent *event)
{
    __typeof__(cuEventRecord) *record =
        stream.per_thread ? driver_table.cuEventRecord_ptsz : driver_table.cuEventRecord;
    if (!*event && driver_table.cuEventCreate &&
        driver_table.cuEventCreate(event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        *event = NULL;
    return *event && record && record(*event, stream.handle) == CUDA_SUCCESS;
}

struct stream_relaxed stream_relax(void)
{
    struct stream_relaxed before = { .mode = CU_STREAM_CAPTURE_MODE_RELAXED };
    before.exchanged = driver_table.cuThreadExchangeStreamCaptureMode &&
                       driver_table.cuThreadExchangeStreamCaptureMode(&before.mode) == CUDA_SUCCESS;
    return before;
}

void stream_unrelax(struct stream_relaxed *before)
{
    if (before->exchanged)
        driver_table.cuThreadExchangeStreamCaptureMode(&before->mode);
}

CUcontext stream_context(struct stream stream)
{
    CUcontext context = NULL;
    return stream.handle && driver_table.cuStreamGetCtx &&
                   driver_table.cuStreamGetCtx(stream.handle, &context) == CUDA_SUCCESS
               ? context
               : NULL;
}

/* ------------------------------------------------------------------------- green contexts */

static bool any_green; /* atomic */

void stream_green_begins(void)
{
    atomic_store_relaxed(&any_green, true);
}

CUcontext stream_green_context(struct stream stream)
{
    CUgreenCtx green = NULL;
    CUcontext context = NULL;
    if (!atomic_load_relaxed(&any_green) || !stream.handle || !driver_table.cuStreamGetGreenCtx ||
        !driver_table.cuCtxFromGreenCtx ||
        driver_table.cuStreamGetGreenCtx(stream.handle, &green) != CUDA_SUCCESS || !green ||
        driver_table.cuCtxFromGreenCtx(&context, green) != CUDA_SUCCESS)
        return NULL;
    return context;
}
