/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/side.h"

#include "preload/base/driver.h"
#include "preload/context/device.h"
#include "preload/context/host.h"

#include <string.h>

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

const struct context_side side_device = { .init = device_init,
                                          .give_back = device_give_back,
                                          .forget = device_forget,
                                          .pin = device_pin,
                                          .enter = device_enter,
                                          .fetch = device_fetch,
                                          .finish = device_finish };

/* ------------------------------------------------------------------------- the host */

static void host_give_back(struct context *c)
{
    (void)c; /* nothing lies on a device */
}

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

const struct context_side side_host = { .init = host_init,
                                        .give_back = host_give_back,
                                        .forget = host_forget,
                                        .pin = host_pin,
                                        .enter = host_ready,
                                        .fetch = host_fetch,
                                        .finish = host_ready };
