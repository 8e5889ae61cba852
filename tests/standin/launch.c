/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - cuLaunchKernel and its relatives: arguments checked and copied when called
 */
#include "driver.h"
#include "image.h"
#include "impl.h"
#include "programmatic.h"
#include "ptx/ptx.h"

#include <stdlib.h>
#include <string.h>

enum { SHARE_MIN_NS = 60000, SHARE_CHUNK_NS = 20000 };
enum { MAX_THREADS = 1024, MAX_STATIC_SHARED = 49152, MAX_OPTIN_SHARED = 166912 };

static CUresult check_shape(const struct function *function, const unsigned grid[3],
                            const unsigned block[3], unsigned shared_bytes)
{
    const struct kernel_info *info = function->info;
    int max_threads = info->max_threads ? info->max_threads : MAX_THREADS;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];

    /* An empty grid is refused where it is launched: a node may have one until its parameters are set anew. */
    if (!block[0] || !block[1] || !block[2])
        return CUDA_ERROR_INVALID_VALUE;
    if (grid[0] > 2147483647u || grid[1] > 65535 || grid[2] > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (block[0] > 1024 || block[1] > 1024 || block[2] > 64 || threads > (uint64_t)max_threads)
        return CUDA_ERROR_INVALID_VALUE;
    if (shared_bytes > MAX_OPTIN_SHARED || info->static_shared + shared_bytes > MAX_OPTIN_SHARED)
        return CUDA_ERROR_INVALID_VALUE;
    if (info->static_shared + shared_bytes > MAX_STATIC_SHARED &&
        shared_bytes > (unsigned)function->max_dynamic_shared)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* `extra` holds one packed buffer; a short one is a mistake that a driver reports, a long one too. */
static CUresult params_from_extra(const struct function *function, void **extra,
                                  struct kernel_work *kernel)
{
    const void *buffer = NULL;
    size_t size = 0;
    bool have_size = false;

    for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            buffer = extra[i + 1];
        } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            if (!extra[i + 1])
                return CUDA_ERROR_INVALID_VALUE;
            size = *(const size_t *)extra[i + 1];
            have_size = true;
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (!have_size || (size && !buffer) || size < function->info->params_bytes ||
        size > MAX_PARAM_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    /* Trailing padding of the caller's struct is not part of the parameters. */
    if (size > ((function->info->params_bytes + 15) & ~(size_t)15))
        return CUDA_ERROR_INVALID_VALUE;
    if (function->info->params_bytes)
        memcpy(kernel->params, buffer, function->info->params_bytes);
    kernel->from_extra = true;
    kernel->extra_size = function->info->params_bytes;
    kernel->extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
    kernel->extra[1] = kernel->params;
    kernel->extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
    kernel->extra[3] = &kernel->extra_size;
    kernel->extra[4] = CU_LAUNCH_PARAM_END;
    return CUDA_SUCCESS;
}

CUresult kernel_work_new(struct context *ctx, CUfunction handle, const unsigned grid[3],
                         const unsigned block[3], unsigned shared_bytes, void **params,
                         void **extra, struct work **out)
{
    const struct kernel_info *info;
    struct function *function;
    struct kernel_work *kernel;
    struct work *work;
    CUresult res;

    res = function_resolve(handle, ctx, &function);
    if (res != CUDA_SUCCESS)
        return res;
    info = function->info;
    res = check_shape(function, grid, block, shared_bytes);
    if (res != CUDA_SUCCESS)
        return res;
    if ((params && extra) || (!params && !extra && info->n_params))
        return CUDA_ERROR_INVALID_VALUE;
    work = work_new(WORK_KERNEL, ctx);
    if (!work)
        return CUDA_ERROR_OUT_OF_MEMORY;
    kernel = &work->kernel;
    kernel->function = function;
    memcpy(kernel->grid, grid, sizeof(kernel->grid));
    memcpy(kernel->block, block, sizeof(kernel->block));
    kernel->shared_bytes = shared_bytes;
    kernel->n_params_bytes = info->params_bytes;
    kernel->params = calloc(1, info->params_bytes + 16);
    kernel->values = calloc(info->n_params + 1, sizeof(void *));
    if (!kernel->params || !kernel->values) {
        work_unref(work);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (extra)
        res = params_from_extra(function, extra, kernel);
    for (unsigned i = 0; i < info->n_params; i++) {
        kernel->values[i] = kernel->params + info->params[i].offset;
        if (params && !params[i])
            res = CUDA_ERROR_INVALID_VALUE;
        if (params && res == CUDA_SUCCESS)
            memcpy(kernel->values[i], params[i], info->params[i].size);
    }
    if (res != CUDA_SUCCESS) {
        work_unref(work);
        return res;
    }
    *out = work;
    return CUDA_SUCCESS;
}

/** kernel_attribute() - apply a launch or node attribute; unknown ones change nothing here */
void kernel_attribute(struct kernel_work *kernel, CUlaunchAttributeID id,
                      const CUlaunchAttributeValue *value)
{
    switch (id) {
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        kernel->programmatic = value->programmaticStreamSerializationAllowed != 0;
        break;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: kernel->cooperative = value->cooperative != 0; break;
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        kernel->updatable = value->deviceUpdatableKernelNode.deviceUpdatable != 0;
        break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: kernel->priority = value->priority; break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        kernel->cluster[0] = value->clusterDim.x;
        kernel->cluster[1] = value->clusterDim.y;
        kernel->cluster[2] = value->clusterDim.z;
        break;
    default: break;
    }
}

/* Clusters are not executed; one block a cluster is the same as none. */
static CUresult attributes_check(const CUlaunchAttribute *attrs, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const CUlaunchAttributeValue *v = &attrs[i].value;

            if (v->clusterDim.x > 1 || v->clusterDim.y > 1 || v->clusterDim.z > 1)
                return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return CUDA_SUCCESS;
}

/* The event that an attribute records, and by which port of the kernel's node; NULL: it is no such attribute. */
static CUevent event_of(const CUlaunchAttribute *attr, unsigned char *port)
{
    *port = CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER;
    if (attr->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
        return attr->value.launchCompletionEvent.event;
    if (attr->id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
        return NULL;
    if (!attr->value.programmaticEvent.triggerAtBlockStart)
        *port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
    return attr->value.programmaticEvent.event;
}

/* "The event must disable timing": cuda.h, CUlaunchAttributeValue::programmaticEvent */
static CUresult events_check(const CUlaunchAttribute *attrs, unsigned n)
{
    unsigned char port;

    for (unsigned i = 0; i < n; i++) {
        const struct event *event = (const struct event *)event_of(&attrs[i], &port);

        if (event && (!object_is(event, OBJECT_EVENT) || !(event->flags & CU_EVENT_DISABLE_TIMING)))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* The launch is @op, or (NULL) the last node of the capturing @stream. */
static CUresult events_record(struct stream *stream, struct op *op, const CUlaunchAttribute *attrs,
                              unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        CUgraphEdgeData data = { 0 };
        struct event *event = (struct event *)event_of(&attrs[i], &data.from_port);
        struct op *marker = event && op ? op_new(stream->ctx, NULL) : NULL;

        if (!event)
            continue;
        if (op && !marker)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (!op) {
            CUresult res = capture_event_launched(stream, event, data.from_port);

            if (res != CUDA_SUCCESS)
                return res;
            continue;
        }
        programmatic_depend(marker, op, &data);
        event_set_marker(event, marker);
        op_commit(marker);
    }
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction f, const unsigned grid[3], const unsigned block[3],
                       unsigned shared_bytes, CUstream handle, void **params, void **extra,
                       const CUlaunchAttribute *attrs, unsigned n_attrs)
{
    struct stream *stream;
    struct work *work;
    CUresult res;
    DRIVER_LOCKED;

    res = stream_resolve(handle, &stream);
    if (res != CUDA_SUCCESS)
        return res;
    print_flush(stream->ctx);
    if (!grid[0] || !grid[1] || !grid[2])
        return CUDA_ERROR_INVALID_VALUE;
    res = attributes_check(attrs, n_attrs);
    if (res == CUDA_SUCCESS)
        res = events_check(attrs, n_attrs);
    if (res == CUDA_SUCCESS)
        res = kernel_work_new(stream->ctx, f, grid, block, shared_bytes, params, extra, &work);
    if (res != CUDA_SUCCESS)
        return res;
    work->kernel.priority = stream->priority;
    for (unsigned i = 0; i < n_attrs; i++)
        kernel_attribute(&work->kernel, attrs[i].id, &attrs[i].value);
    res = work->kernel.cooperative ? together_fits(&work->kernel) : CUDA_SUCCESS;
    if (res != CUDA_SUCCESS) {
        work_unref(work);
        return res;
    }
    if (stream->capture) {
        res = capture_add(stream, work);
        return res == CUDA_SUCCESS ? events_record(stream, NULL, attrs, n_attrs) : res;
    }
    if (stream == stream->ctx->legacy) {
        res = capture_implicit(stream->ctx);
        if (res != CUDA_SUCCESS) {
            work_unref(work);
            return res;
        }
    }
    uint64_t seq = launch_log(&work->kernel, stream, 0, -1);
    struct op *op = stream_open(stream, work);

    if (!op) {
        work_unref(work);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->seq = seq;
    res = events_record(stream, op, attrs, n_attrs);
    op_commit(op);
    return res;
}

CUresult impl_cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                             unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                             unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                             void **kernelParams, void **extra)
{
    return launch(f, (unsigned[]){ gridDimX, gridDimY, gridDimZ },
                  (unsigned[]){ blockDimX, blockDimY, blockDimZ }, sharedMemBytes, hStream,
                  kernelParams, extra, NULL, 0);
}

CUresult impl_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                               void **extra)
{
    if (!config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    return launch(f, (unsigned[]){ config->gridDimX, config->gridDimY, config->gridDimZ },
                  (unsigned[]){ config->blockDimX, config->blockDimY, config->blockDimZ },
                  config->sharedMemBytes, config->hStream, kernelParams, extra, config->attrs,
                  config->numAttrs);
}

CUresult impl_cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                        unsigned int gridDimZ, unsigned int blockDimX,
                                        unsigned int blockDimY, unsigned int blockDimZ,
                                        unsigned int sharedMemBytes, CUstream hStream,
                                        void **kernelParams)
{
    CUlaunchAttribute attr = { .id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1 };

    return launch(f, (unsigned[]){ gridDimX, gridDimY, gridDimZ },
                  (unsigned[]){ blockDimX, blockDimY, blockDimZ }, sharedMemBytes, hStream,
                  kernelParams, NULL, &attr, 1);
}

/* A grid that runs. */
struct grid {
    const struct kernel_work *kernel;
    const struct ptx_dependents *dependents;
};

static CUresult run_blocks(uint64_t first, uint64_t n, void *data)
{
    const struct grid *grid = data;
    const struct function *function = grid->kernel->function;

    return image_run(function->module->image, function->index, grid->kernel, first, n, NULL,
                     grid->dependents);
}

/*
 * A grid is shared out when that is worth waking others for: by what a block cost last time, or, the
 * first time, what its first block costs. Under a delay seed every grid is, block by block, so that
 * blocks meet in all orders.
 */
static CUresult run_grid(struct kernel_work *kernel, struct op *op)
{
    struct function *function = kernel->function;
    uint64_t n_blocks = (uint64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2];
    uint64_t block_ns = atomic_load_explicit(&function->block_ns, memory_order_relaxed);
    uint64_t first = 0, start, chunk;
    struct ptx_dependents dependents;
    struct grid grid = { kernel, programmatic_begin(op, n_blocks, &dependents) };
    CUresult res;

    if (kernel->cooperative)
        return together_run(kernel);
    if (driver.config.delay_seed && n_blocks > 1)
        return queue_share(0, n_blocks, 1, run_blocks, &grid);
    start = clock_ns();
    if (!block_ns && n_blocks > 1) {
        res = run_blocks(0, 1, &grid);
        if (res != CUDA_SUCCESS)
            return res;
        first = 1;
        block_ns = clock_ns() - start + 1;
    }
    if (driver.config.n_threads > 1 && n_blocks - first > 1 &&
        block_ns * (n_blocks - first) > SHARE_MIN_NS) {
        chunk = SHARE_CHUNK_NS / (block_ns + 1) + 1;
        if (chunk * 2 > n_blocks - first)
            chunk = (n_blocks - first + 1) / 2;
        res = queue_share(first, n_blocks, chunk, run_blocks, &grid);
        atomic_store_explicit(&function->block_ns, block_ns, memory_order_relaxed);
        return res;
    }
    res = run_blocks(first, n_blocks - first, &grid);
    atomic_store_explicit(&function->block_ns, (clock_ns() - start) / n_blocks + 1,
                          memory_order_relaxed);
    return res;
}

CUresult kernel_run(struct kernel_work *kernel, struct op *op)
{
    CUresult res;

    dump_launch(kernel, op->seq, false);
    res = run_grid(kernel, op);
    if (res == CUDA_SUCCESS)
        dump_launch(kernel, op->seq, true);
    return res;
}

/* ---- the launch interface of CUDA 2 and 3, which PyCUDA still has ---- */

CUresult impl_cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z)
{
    struct function *function;
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = function_resolve(hfunc, ctx, &function);
    if (res != CUDA_SUCCESS)
        return res;
    if (x <= 0 || y <= 0 || z <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    function->set_block[0] = (unsigned)x;
    function->set_block[1] = (unsigned)y;
    function->set_block[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

CUresult impl_cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes)
{
    struct function *function;
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = function_resolve(hfunc, ctx, &function);
    if (res == CUDA_SUCCESS)
        function->set_shared = bytes;
    return res;
}

CUresult impl_cuParamSetSize(CUfunction hfunc, unsigned int numbytes)
{
    struct function *function;
    struct context *ctx;
    unsigned char *grown;
    CUresult res;
    DRIVER_LOCKED;

    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = function_resolve(hfunc, ctx, &function);
    if (res != CUDA_SUCCESS)
        return res;
    if (numbytes > MAX_PARAM_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    grown = realloc(function->set_params, MAX_PARAM_BYTES);
    if (!grown)
        return CUDA_ERROR_OUT_OF_MEMORY;
    function->set_params = grown;
    function->set_params_bytes = numbytes;
    return CUDA_SUCCESS;
}

CUresult impl_cuParamSetv(CUfunction hfunc, int offset, void *ptr, unsigned int numbytes)
{
    struct function *function;
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = function_resolve(hfunc, ctx, &function);
    if (res != CUDA_SUCCESS)
        return res;
    if (offset < 0 || !ptr || numbytes > MAX_PARAM_BYTES ||
        (unsigned)offset > MAX_PARAM_BYTES - numbytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function->set_params)
        function->set_params = calloc(1, MAX_PARAM_BYTES);
    if (!function->set_params)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(function->set_params + offset, ptr, numbytes);
    return CUDA_SUCCESS;
}

CUresult impl_cuParamSeti(CUfunction hfunc, int offset, unsigned int value)
{
    return impl_cuParamSetv(hfunc, offset, &value, sizeof(value));
}

CUresult impl_cuParamSetf(CUfunction hfunc, int offset, float value)
{
    return impl_cuParamSetv(hfunc, offset, &value, sizeof(value));
}

CUresult impl_cuLaunchGridAsync(CUfunction hfunc, int grid_width, int grid_height, CUstream hStream)
{
    struct function *function;
    unsigned block[3], shared;
    size_t bytes;
    void *buffer;

    if (!object_is(hfunc, OBJECT_FUNCTION) || grid_width <= 0 || grid_height <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    function = (struct function *)hfunc;
    memcpy(block, function->set_block, sizeof(block));
    shared = function->set_shared;
    bytes = function->set_params_bytes;
    buffer = function->set_params;
    return launch(hfunc, (unsigned[]){ (unsigned)grid_width, (unsigned)grid_height, 1 }, block,
                  shared, hStream, NULL,
                  (void *[]){ CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE,
                              &bytes, CU_LAUNCH_PARAM_END },
                  NULL, 0);
}

CUresult impl_cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
    return impl_cuLaunchGridAsync(f, grid_width, grid_height, NULL);
}

CUresult impl_cuLaunch(CUfunction f)
{
    return impl_cuLaunchGridAsync(f, 1, 1, NULL);
}
