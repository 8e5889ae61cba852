/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/side.h"

#include "kernels/edit_host.h"
#include "preload/base/driver.h"
#include "preload/context/device.h"
#include "preload/context/edit_region.h"
#include "preload/context/host.h"
#include "preload/context/memory.h"

#include <string.h>
#include <sys/mman.h>

#define DROP_THREADS 256u
#define DROP_BLOCKS  64u

/* ------------------------------------------------------------------------- a device */

/* Only faster copies: a driver that refuses serves pageable memory as well. */
static void device_pin(void *map, size_t n_bytes)
{
    driver_table.cuMemHostRegister_v2(map, n_bytes, 0);
}

static CUresult device_enter(struct context *c)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult r = driver_table.cuCtxSetCurrent(context_handle(c));
    if (driver_table.cuThreadExchangeStreamCaptureMode)
        driver_table.cuThreadExchangeStreamCaptureMode(&mode);
    return r;
}

static CUresult device_fetch(struct context *c, void *to, uint64_t from, uint64_t n_bytes)
{
    return driver_table.cuMemcpyDtoHAsync_v2(to, c->payload + from, n_bytes, c->stream);
}

static CUresult device_finish(struct context *c)
{
    return driver_table.cuStreamSynchronize(c->stream);
}

static CUresult device_alloc(CUdeviceptr *at, uint64_t n_bytes)
{
    return driver_table.cuMemAlloc_v2(at, n_bytes);
}

static void device_free(CUdeviceptr at, uint64_t n_bytes)
{
    (void)n_bytes;
    driver_table.cuMemFree_v2(at);
}

static CUresult device_put(struct context *c, CUdeviceptr at, const void *from, uint64_t n_bytes)
{
    return driver_table.cuMemcpyHtoDAsync_v2(at, from, n_bytes, c->stream);
}

static CUresult device_drop(struct context *c, struct dmi_bank_drop *drop)
{
    void *params[] = { drop };
    return driver_table.cuLaunchKernel(c->bank.drop, DROP_BLOCKS, 1, 1, DROP_THREADS, 1, 1, 0,
                                       c->stream, params, NULL);
}

const struct context_side side_device = { .init = device_init,
                                          .give_back = device_give_back,
                                          .forget = device_forget,
                                          .pin = device_pin,
                                          .enter = device_enter,
                                          .fetch = device_fetch,
                                          .finish = device_finish,
                                          .alloc = device_alloc,
                                          .free = device_free,
                                          .put = device_put,
                                          .drop = device_drop };

/* ------------------------------------------------------------------------- the host */

static void host_pin(void *map, size_t n_bytes)
{
    (void)map, (void)n_bytes;
}

static CUresult host_ready(struct context *c)
{
    (void)c;
    return CUDA_SUCCESS;
}

static CUresult host_fetch(struct context *c, void *to, uint64_t from, uint64_t n_bytes)
{
    memcpy(to, (const char *)(uintptr_t)c->payload + from, n_bytes);
    return CUDA_SUCCESS;
}

static CUresult host_alloc(CUdeviceptr *at, uint64_t n_bytes)
{
    void *map = memory_map(n_bytes);
    *at = (CUdeviceptr)(uintptr_t)map;
    return map ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void host_free(CUdeviceptr at, uint64_t n_bytes)
{
    munmap((void *)(uintptr_t)at, n_bytes);
}

static CUresult host_put(struct context *c, CUdeviceptr at, const void *from, uint64_t n_bytes)
{
    (void)c;
    memcpy((void *)(uintptr_t)at, from, n_bytes);
    return CUDA_SUCCESS;
}

static CUresult host_drop(struct context *c, struct dmi_bank_drop *drop)
{
    (void)c;
    edit_host_drop(drop);
    return CUDA_SUCCESS;
}

const struct context_side side_host = { .init = host_init,
                                        .give_back = edit_region_give_back,
                                        .forget = host_forget,
                                        .pin = host_pin,
                                        .enter = host_ready,
                                        .fetch = host_fetch,
                                        .finish = host_ready,
                                        .alloc = host_alloc,
                                        .free = host_free,
                                        .put = host_put,
                                        .drop = host_drop };
