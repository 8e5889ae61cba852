/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - memcpy and memset: checked when called, executed in stream order
 *
 * What a copy waits for follows the driver: from pageable memory the source is read before the call
 * returns; to pageable memory, and for the synchronous forms with a host side, the call waits; between
 * device addresses it does not. Copies to the host share one modelled link
 * (DMI_STANDIN_DTOH_BPS, _LATENCY_NS).
 */
#include "array.h"
#include "driver.h"
#include "impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STAGE_MAX = 64 * 1024, LINK_PIECE = 256 * 1024 };

static uint64_t side_row(const struct copy_side *side, size_t y, size_t z)
{
    return side->address + side->x + (side->y + y + (side->z + z) * side->height) * side->pitch;
}

/* A copy under way. The link takes @ns from @start on for all its bytes; 0: no time at all. */
struct transfer {
    const struct copy_work *copy;
    uint64_t start, ns;
    size_t done; /* bytes */
};

static void sleep_until(uint64_t ns)
{
    struct timespec at = { .tv_sec = (time_t)(ns / 1000000000u),
                           .tv_nsec = (long)(ns % 1000000000u) };

    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

/* Bytes cross the link while its time passes: not all at the start, and not all after it, which would cost more CPU. */
static void carry(struct transfer *t, char *to, const char *from, size_t n)
{
    size_t total = t->copy->width * t->copy->height * t->copy->depth;

    for (size_t at = 0; at < n;) {
        size_t piece = t->ns && n - at > LINK_PIECE ? LINK_PIECE : n - at;

        memmove(to + at, from + at, piece);
        at += piece;
        t->done += piece;
        if (t->ns)
            sleep_until(t->start + (uint64_t)((double)t->ns * (double)t->done / (double)total));
    }
}

static void copy_rows(void *data)
{
    struct transfer *t = data;
    const struct copy_work *copy = t->copy;

    for (size_t z = 0; z < copy->depth; z++) {
        for (size_t y = 0; y < copy->height; y++) {
            const void *from =
                copy->staged ? (const char *)copy->staged + (z * copy->height + y) * copy->width
                             : memory_host(side_row(&copy->src, y, z));

            carry(t, memory_host(side_row(&copy->dst, y, z)), from, copy->width);
        }
    }
}

/* The link carries one copy after another: each waits for its turn and its latency. */
static void link_take(struct transfer *t, size_t n, int device)
{
    uint64_t now = clock_ns(), latency = driver.config.dtoh_latency_ns;

    if (driver.config.dtoh_bps)
        t->ns = (uint64_t)((double)n * 1e9 / (double)driver.config.dtoh_bps);
    if (!t->ns && !latency)
        return;
    pthread_mutex_lock(&driver.lock);
    t->start = driver.devices[device].link_free_ns;
    t->start = (t->start > now ? t->start : now) + latency;
    driver.devices[device].link_free_ns = t->start + t->ns;
    pthread_mutex_unlock(&driver.lock);
    sleep_until(t->start);
}

CUresult copy_execute(struct copy_work *copy, struct op *op)
{
    struct transfer t = { .copy = copy };

    if (copy->to_host)
        link_take(&t, copy->width * copy->height * copy->depth, op->ctx->device);
    return guarded(copy_rows, &t) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static void set_rows(void *data)
{
    const struct set_work *set = data;

    for (size_t y = 0; y < set->height; y++) {
        char *row = memory_host(set->address + y * set->pitch);

        if (set->element == 1) {
            memset(row, (int)set->value, set->width);
            continue;
        }
        for (size_t x = 0; x < set->width; x++)
            memcpy(row + x * set->element, &set->value, set->element);
    }
}

CUresult set_execute(struct set_work *set)
{
    return guarded(set_rows, set) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* Both ends must be memory that the driver knows, or pageable host memory. */
static CUresult side_check(const struct copy_side *side, const struct copy_work *copy, bool *pinned)
{
    uint64_t first = side_row(side, 0, 0);
    uint64_t end = side_row(side, copy->height - 1, copy->depth - 1) + copy->width;
    CUresult res;

    *pinned = false;
    if (end < first)
        return CUDA_ERROR_INVALID_VALUE;
    res = memory_check(first, end - first, pinned);
    if (res != CUDA_SUCCESS)
        return res;
    if (side->type == CU_MEMORYTYPE_DEVICE && !*pinned)
        return CUDA_ERROR_INVALID_VALUE;
    if (side->type == CU_MEMORYTYPE_HOST && memory_is_device(first))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/**
 * copy_submit() - check @copy, then queue or capture it on @handle's stream; lock held
 * @sync: the caller's function is a synchronous one
 */
static CUresult copy_submit(const struct copy_work *copy, CUstream handle, bool sync)
{
    struct stream *stream;
    struct work *work;
    struct op *op;
    bool src_pinned, dst_pinned, src_host, dst_host;
    CUresult res;

    res = stream_resolve(handle, &stream);
    if (res == CUDA_SUCCESS && sync)
        res = capture_unsafe();
    if (res == CUDA_SUCCESS && stream == stream->ctx->legacy)
        res = capture_implicit(stream->ctx);
    if (res != CUDA_SUCCESS)
        return res;
    if (!copy->width || !copy->height || !copy->depth)
        return CUDA_SUCCESS;
    res = side_check(&copy->src, copy, &src_pinned);
    if (res == CUDA_SUCCESS)
        res = side_check(&copy->dst, copy, &dst_pinned);
    if (res != CUDA_SUCCESS)
        return res;
    work = work_new(WORK_COPY, stream->ctx);
    if (!work)
        return CUDA_ERROR_OUT_OF_MEMORY;
    work->copy = *copy;
    src_host = !memory_is_device(copy->src.address);
    dst_host = !memory_is_device(copy->dst.address);
    work->copy.to_host = dst_host && !src_host;
    log_detail("\"dst\":%llu,\"src\":%llu,\"bytes\":%zu,\"stream\":%llu",
               (unsigned long long)side_row(&copy->dst, 0, 0),
               (unsigned long long)side_row(&copy->src, 0, 0),
               copy->width * copy->height * copy->depth, stream->id);
    if (!stream->capture && src_host && !src_pinned) {
        size_t bytes = copy->width * copy->height * copy->depth;

        if (bytes <= STAGE_MAX && !sync) {
            work->copy.staged = malloc(bytes);
            if (!work->copy.staged) {
                work_unref(work);
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
            for (size_t z = 0; z < copy->depth; z++) {
                for (size_t y = 0; y < copy->height; y++)
                    memcpy((char *)work->copy.staged + (z * copy->height + y) * copy->width,
                           memory_host(side_row(&copy->src, y, z)), copy->width);
            }
        } else {
            sync = true;
        }
    }
    if (!stream->capture && dst_host && !dst_pinned)
        sync = true;
    if (!src_host && !dst_host)
        sync = false;
    res = stream_do(stream, work, &op);
    if (res == CUDA_SUCCESS && sync && op) {
        struct context *ctx = stream->ctx;

        queue_wait(op);
        res = ctx->sticky;
    }
    return res;
}

static CUresult copy_linear(uint64_t dst, CUmemorytype dst_type, uint64_t src,
                            CUmemorytype src_type, size_t n, CUstream stream, bool sync)
{
    struct copy_work copy = {
        .src = { .type = src_type, .address = src, .pitch = n, .height = 1 },
        .dst = { .type = dst_type, .address = dst, .pitch = n, .height = 1 },
        .width = n,
        .height = 1,
        .depth = 1,
        .params = { .srcMemoryType = src_type,
                    .dstMemoryType = dst_type,
                    .WidthInBytes = n,
                    .Height = 1,
                    .Depth = 1,
                    .srcPitch = n,
                    .dstPitch = n,
                    .srcHeight = 1,
                    .dstHeight = 1 },
    };
    DRIVER_LOCKED;

    if (src_type == CU_MEMORYTYPE_HOST)
        copy.params.srcHost = (const void *)(uintptr_t)src;
    else
        copy.params.srcDevice = src;
    if (dst_type == CU_MEMORYTYPE_HOST)
        copy.params.dstHost = (void *)(uintptr_t)dst;
    else
        copy.params.dstDevice = dst;
    return copy_submit(&copy, stream, sync);
}

#define HOST    CU_MEMORYTYPE_HOST
#define DEVICE  CU_MEMORYTYPE_DEVICE
#define UNIFIED CU_MEMORYTYPE_UNIFIED

CUresult impl_cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    return copy_linear(dstDevice, DEVICE, (uintptr_t)srcHost, HOST, ByteCount, NULL, true);
}

CUresult impl_cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy_linear((uintptr_t)dstHost, HOST, srcDevice, DEVICE, ByteCount, NULL, true);
}

CUresult impl_cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy_linear(dstDevice, DEVICE, srcDevice, DEVICE, ByteCount, NULL, true);
}

CUresult impl_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    return copy_linear(dst, UNIFIED, src, UNIFIED, ByteCount, NULL, true);
}

CUresult impl_cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                   CUstream hStream)
{
    return copy_linear(dstDevice, DEVICE, (uintptr_t)srcHost, HOST, ByteCount, hStream, false);
}

CUresult impl_cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                   CUstream hStream)
{
    return copy_linear((uintptr_t)dstHost, HOST, srcDevice, DEVICE, ByteCount, hStream, false);
}

CUresult impl_cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                   CUstream hStream)
{
    return copy_linear(dstDevice, DEVICE, srcDevice, DEVICE, ByteCount, hStream, false);
}

CUresult impl_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    return copy_linear(dst, UNIFIED, src, UNIFIED, ByteCount, hStream, false);
}

CUresult impl_cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount)
{
    (void)dstContext;
    (void)srcContext;
    return copy_linear(dstDevice, DEVICE, srcDevice, DEVICE, ByteCount, NULL, true);
}

CUresult impl_cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
    (void)dstContext;
    (void)srcContext;
    return copy_linear(dstDevice, DEVICE, srcDevice, DEVICE, ByteCount, hStream, false);
}

/* An array's side: within it, and whole elements. Offsets are the side's already, the extent is @copy's. */
static CUresult side_of_array(struct copy_side *side, CUarray handle, const struct copy_work *copy)
{
    struct array *array = array_resolve(handle);

    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    if (side->x % array->element || copy->width % array->element)
        return CUDA_ERROR_INVALID_VALUE;
    if (side->x > array->desc.Width * array->element ||
        copy->width > array->desc.Width * array->element - side->x || side->y > array->rows ||
        copy->height > array->rows - side->y || side->z > array->slices ||
        copy->depth > array->slices - side->z)
        return CUDA_ERROR_INVALID_VALUE;
    side->array = array;
    side->address = array->address;
    side->pitch = array->pitch;
    side->height = array->rows;
    return CUDA_SUCCESS;
}

/**
 * copy_work_from_params() - a 3D description as work; lock held
 * Return: INVALID_VALUE for what cannot be, INVALID_HANDLE for what is no array.
 */
CUresult copy_work_from_params(const CUDA_MEMCPY3D *p, struct copy_work *copy)
{
    CUresult res = CUDA_SUCCESS;

    if (p->srcLOD || p->dstLOD)
        return CUDA_ERROR_INVALID_VALUE;
    memset(copy, 0, sizeof(*copy));
    copy->params = *p;
    copy->width = p->WidthInBytes;
    copy->height = p->Height;
    copy->depth = p->Depth;
    copy->src = (struct copy_side){
        .type = p->srcMemoryType,
        .address = p->srcMemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)p->srcHost : p->srcDevice,
        .pitch = p->srcPitch ? p->srcPitch : p->srcXInBytes + p->WidthInBytes,
        .height = p->srcHeight ? p->srcHeight : p->srcY + p->Height,
        .x = p->srcXInBytes,
        .y = p->srcY,
        .z = p->srcZ,
    };
    copy->dst = (struct copy_side){
        .type = p->dstMemoryType,
        .address = p->dstMemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)p->dstHost : p->dstDevice,
        .pitch = p->dstPitch ? p->dstPitch : p->dstXInBytes + p->WidthInBytes,
        .height = p->dstHeight ? p->dstHeight : p->dstY + p->Height,
        .x = p->dstXInBytes,
        .y = p->dstY,
        .z = p->dstZ,
    };
    if (p->srcMemoryType == CU_MEMORYTYPE_ARRAY)
        res = side_of_array(&copy->src, p->srcArray, copy);
    if (res == CUDA_SUCCESS && p->dstMemoryType == CU_MEMORYTYPE_ARRAY)
        res = side_of_array(&copy->dst, p->dstArray, copy);
    if (res != CUDA_SUCCESS)
        return res;
    if (copy->width > copy->src.pitch || copy->width > copy->dst.pitch)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/** copy_work_check() - is this copy allowed: for graph nodes, which are checked when added; lock held */
CUresult copy_work_check(struct copy_work *copy)
{
    bool src_pinned, dst_pinned;
    CUresult res;

    if (!copy->width || !copy->height || !copy->depth)
        return CUDA_ERROR_INVALID_VALUE;
    res = side_check(&copy->src, copy, &src_pinned);
    if (res == CUDA_SUCCESS)
        res = side_check(&copy->dst, copy, &dst_pinned);
    copy->to_host = memory_is_device(copy->src.address) && !memory_is_device(copy->dst.address);
    return res;
}

static CUresult copy_3d(const CUDA_MEMCPY3D *p, CUstream stream, bool sync)
{
    struct copy_work copy;
    CUresult res;
    DRIVER_LOCKED;

    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    res = copy_work_from_params(p, &copy);
    return res != CUDA_SUCCESS ? res : copy_submit(&copy, stream, sync);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *p, CUstream stream, bool sync)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    return copy_3d(
        &(CUDA_MEMCPY3D){
            .srcXInBytes = p->srcXInBytes,
            .srcY = p->srcY,
            .srcMemoryType = p->srcMemoryType,
            .srcHost = p->srcHost,
            .srcDevice = p->srcDevice,
            .srcArray = p->srcArray,
            .srcPitch = p->srcPitch,
            .dstXInBytes = p->dstXInBytes,
            .dstY = p->dstY,
            .dstMemoryType = p->dstMemoryType,
            .dstHost = p->dstHost,
            .dstDevice = p->dstDevice,
            .dstArray = p->dstArray,
            .dstPitch = p->dstPitch,
            .WidthInBytes = p->WidthInBytes,
            .Height = p->Height,
            .Depth = 1,
        },
        stream, sync);
}

CUresult impl_cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_2d(pCopy, NULL, true);
}

CUresult impl_cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_2d(pCopy, NULL, true);
}

CUresult impl_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    return copy_2d(pCopy, hStream, false);
}

CUresult impl_cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    return copy_3d(pCopy, NULL, true);
}

CUresult impl_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    return copy_3d(pCopy, hStream, false);
}

/* ---- bytes of one row of an array: offsets are within it ---- */

static CUresult copy_row(CUDA_MEMCPY3D p, size_t n, CUstream stream, bool sync)
{
    p.WidthInBytes = n;
    p.Height = p.Depth = 1;
    return copy_3d(&p, stream, sync);
}

#define TO_ARRAY(a, at)   .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = (a), .dstXInBytes = (at)
#define FROM_ARRAY(a, at) .srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = (a), .srcXInBytes = (at)

CUresult impl_cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
                              size_t ByteCount)
{
    return copy_row(
        (CUDA_MEMCPY3D){ .srcMemoryType = HOST, .srcHost = srcHost, TO_ARRAY(dstArray, dstOffset) },
        ByteCount, NULL, true);
}

CUresult impl_cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
                                   size_t ByteCount, CUstream hStream)
{
    return copy_row(
        (CUDA_MEMCPY3D){ .srcMemoryType = HOST, .srcHost = srcHost, TO_ARRAY(dstArray, dstOffset) },
        ByteCount, hStream, false);
}

CUresult impl_cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    return copy_row((CUDA_MEMCPY3D){ FROM_ARRAY(srcArray, srcOffset), .dstMemoryType = HOST,
                                     .dstHost = dstHost },
                    ByteCount, NULL, true);
}

CUresult impl_cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset,
                                   size_t ByteCount, CUstream hStream)
{
    return copy_row((CUDA_MEMCPY3D){ FROM_ARRAY(srcArray, srcOffset), .dstMemoryType = HOST,
                                     .dstHost = dstHost },
                    ByteCount, hStream, false);
}

CUresult impl_cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice,
                              size_t ByteCount)
{
    return copy_row((CUDA_MEMCPY3D){ .srcMemoryType = DEVICE,
                                     .srcDevice = srcDevice,
                                     TO_ARRAY(dstArray, dstOffset) },
                    ByteCount, NULL, true);
}

CUresult impl_cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset,
                              size_t ByteCount)
{
    return copy_row((CUDA_MEMCPY3D){ FROM_ARRAY(srcArray, srcOffset), .dstMemoryType = DEVICE,
                                     .dstDevice = dstDevice },
                    ByteCount, NULL, true);
}

CUresult impl_cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray,
                              size_t srcOffset, size_t ByteCount)
{
    return copy_row(
        (CUDA_MEMCPY3D){ FROM_ARRAY(srcArray, srcOffset), TO_ARRAY(dstArray, dstOffset) },
        ByteCount, NULL, true);
}

static CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER *p, CUstream stream, bool sync)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    return copy_3d(
        &(CUDA_MEMCPY3D){
            .srcXInBytes = p->srcXInBytes,
            .srcY = p->srcY,
            .srcZ = p->srcZ,
            .srcLOD = p->srcLOD,
            .srcMemoryType = p->srcMemoryType,
            .srcHost = p->srcHost,
            .srcDevice = p->srcDevice,
            .srcArray = p->srcArray,
            .srcPitch = p->srcPitch,
            .srcHeight = p->srcHeight,
            .dstXInBytes = p->dstXInBytes,
            .dstY = p->dstY,
            .dstZ = p->dstZ,
            .dstLOD = p->dstLOD,
            .dstMemoryType = p->dstMemoryType,
            .dstHost = p->dstHost,
            .dstDevice = p->dstDevice,
            .dstArray = p->dstArray,
            .dstPitch = p->dstPitch,
            .dstHeight = p->dstHeight,
            .WidthInBytes = p->WidthInBytes,
            .Height = p->Height,
            .Depth = p->Depth,
        },
        stream, sync);
}

CUresult impl_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
    return copy_3d_peer(pCopy, NULL, true);
}

CUresult impl_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
    return copy_3d_peer(pCopy, hStream, false);
}

/* ---- memset ---- */

/** set_work_check() - for calls and graph nodes; lock held */
CUresult set_work_check(const struct set_work *set)
{
    size_t row = set->width * set->element;
    bool pinned;
    CUresult res;

    if (set->element != 1 && set->element != 2 && set->element != 4)
        return CUDA_ERROR_INVALID_VALUE;
    if (!set->width || !set->height || (set->height > 1 && set->pitch < row) ||
        set->address % set->element)
        return CUDA_ERROR_INVALID_VALUE;
    res = memory_check(set->address, (set->height - 1) * set->pitch + row, &pinned);
    return res != CUDA_SUCCESS ? res : pinned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_submit(uint64_t dst, size_t pitch, unsigned element, unsigned value,
                           size_t width, size_t height, CUstream handle, bool sync)
{
    struct set_work set = { .address = dst,
                            .pitch = pitch,
                            .width = width,
                            .height = height,
                            .element = element,
                            .value = value };
    struct stream *stream;
    struct work *work;
    struct op *op;
    CUresult res;
    DRIVER_LOCKED;

    res = stream_resolve(handle, &stream);
    if (res == CUDA_SUCCESS && sync)
        res = capture_unsafe();
    if (res != CUDA_SUCCESS || !width || !height)
        return res;
    res = set_work_check(&set);
    if (res != CUDA_SUCCESS)
        return res;
    work = work_new(WORK_SET, stream->ctx);
    if (work)
        work->set = set;
    log_detail("\"dst\":%llu,\"bytes\":%zu,\"value\":%u,\"stream\":%llu", (unsigned long long)dst,
               width * height * element, value, stream->id);
    res = stream_do(stream, work, &op);
    /* Of the synchronous forms only those on pinned host memory wait. */
    if (res == CUDA_SUCCESS && sync && op && !memory_is_device(dst)) {
        struct context *ctx = stream->ctx;

        queue_wait(op);
        res = ctx->sticky;
    }
    return res;
}

CUresult impl_cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
    return set_submit(dstDevice, N, 1, uc, N, 1, NULL, true);
}

CUresult impl_cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
    return set_submit(dstDevice, 2 * N, 2, us, N, 1, NULL, true);
}

CUresult impl_cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
    return set_submit(dstDevice, 4 * N, 4, ui, N, 1, NULL, true);
}

CUresult impl_cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                              size_t Width, size_t Height)
{
    return set_submit(dstDevice, dstPitch, 1, uc, Width, Height, NULL, true);
}

CUresult impl_cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                               size_t Width, size_t Height)
{
    return set_submit(dstDevice, dstPitch, 2, us, Width, Height, NULL, true);
}

CUresult impl_cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                               size_t Width, size_t Height)
{
    return set_submit(dstDevice, dstPitch, 4, ui, Width, Height, NULL, true);
}

CUresult impl_cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
{
    return set_submit(dstDevice, N, 1, uc, N, 1, hStream, false);
}

CUresult impl_cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream)
{
    return set_submit(dstDevice, 2 * N, 2, us, N, 1, hStream, false);
}

CUresult impl_cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)
{
    return set_submit(dstDevice, 4 * N, 4, ui, N, 1, hStream, false);
}

CUresult impl_cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                size_t Width, size_t Height, CUstream hStream)
{
    return set_submit(dstDevice, dstPitch, 1, uc, Width, Height, hStream, false);
}

CUresult impl_cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                 size_t Width, size_t Height, CUstream hStream)
{
    return set_submit(dstDevice, dstPitch, 2, us, Width, Height, hStream, false);
}

CUresult impl_cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                 size_t Width, size_t Height, CUstream hStream)
{
    return set_submit(dstDevice, dstPitch, 4, ui, Width, Height, hStream, false);
}
