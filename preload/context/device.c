/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/device.h"

#include "preload/base/driver.h"
#include "preload/context/edit_region.h"
#include "preload/context/memory.h"
#include "preload/session/session.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define KEEP_FREE_SHARE 64 /* of all device memory, where nobody said how much */

/* kernels/build_fatbin.py writes both: machine code and PTX, and the PTX alone, as text */
extern const unsigned char dmi_fatbin[], dmi_ptx[];

/* Of the current context's device, in bytes. Return: false where the driver does not say. */
static bool device_memory(size_t *n_free, size_t *total)
{
    return driver_table.cuMemGetInfo_v2(n_free, total) == CUDA_SUCCESS;
}

uint64_t device_free_bytes(void)
{
    size_t n_free, total;
    return device_memory(&n_free, &total) ? n_free : UINT64_MAX;
}

/* What a graph with copies may not take: room for the application's own graphs. */
static uint64_t wanted_free(uint64_t total)
{
    return session.spec->keep_free_said ? session.spec->keep_free : total / KEEP_FREE_SHARE;
}

/* Return: 0, or -EIO with the call's name in @err. */
static int check(struct err *err, CUresult r, const char *call)
{
    return r == CUDA_SUCCESS ? 0 : err_set(err, -EIO, "%s gave error %d", call, (int)r);
}

/* Calls the driver; the function that it stands in returns where that fails. */
#define CALL(name, ...) TRY(check(err, driver_table.name(__VA_ARGS__), #name))

static struct {
    const char *const *names;
    uint32_t n;
} action_kernels;

void device_use_kernels(const char *const *names, uint32_t n)
{
    action_kernels.names = names;
    action_kernels.n = n < CONTEXT_KERNELS ? n : CONTEXT_KERNELS;
}

/* Drivers load functions at their first use, and wait for the device then: it must not be in a launch. */
static int load_function(struct err *err, CUfunction *f, CUmodule module, const char *name)
{
    int version;
    CALL(cuModuleGetFunction, f, module, name);
    if (driver_table.cuFuncLoad)
        CALL(cuFuncLoad, *f);
    else
        CALL(cuFuncGetAttribute, &version, CU_FUNC_ATTRIBUTE_BINARY_VERSION, *f);
    return 0;
}

/*
 * The machine code is of a newer toolkit than an old driver's, whose promise to run it ends with its major version; the
 * PTX is of the oldest version that ptxas takes it for.
 */
static CUresult load_module(CUmodule *module)
{
    CUresult r = driver_table.cuModuleLoadData(module, dmi_fatbin);
    if (r == CUDA_ERROR_INVALID_IMAGE || r == CUDA_ERROR_NO_BINARY_FOR_GPU ||
        r == CUDA_ERROR_INVALID_SOURCE)
        r = driver_table.cuModuleLoadData(module, dmi_ptx);
    return r;
}

static int load_kernels(struct err *err, struct context *c)
{
    struct context_kernels *k = &c->kernels;
    int r = check(err, load_module(&c->module), "cuModuleLoadData");
    if (!r)
        r = load_function(err, &k->open, c->module, "dmi_open");
    if (!r)
        r = load_function(err, &k->reopen, c->module, "dmi_reopen");
    if (!r)
        r = load_function(err, &k->close, c->module, "dmi_close");
    if (!r && session.spec->bank_bytes)
        r = load_function(err, &c->bank.drop, c->module, "dmi_bank_drop");
    for (uint32_t i = 0; i < action_kernels.n && !r; i++)
        r = load_function(err, &k->actions[i], c->module, action_kernels.names[i]);
    return r;
}

/* Host memory of our own that kernels can write: it outlives the CUDA context, as cuMemHostAlloc's does not. */
static CUresult register_descriptors(struct context *c)
{
    void *map = memory_map(c->n_desc_map);
    if (!map)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r =
        driver_table.cuMemHostRegister_v2(map, c->n_desc_map, CU_MEMHOSTREGISTER_DEVICEMAP);
    if (r != CUDA_SUCCESS) {
        munmap(map, c->n_desc_map);
        return r;
    }
    c->desc_map = map;
    return CUDA_SUCCESS;
}

/* Some machines register no memory (Tegra): there the driver's own serves, whose end the drain must not outlive. */
static int map_descriptors(struct err *err, struct context *c, uint32_t n_slots)
{
    c->n_desc_map = memory_map_bytes(n_slots);
    CUresult r = register_descriptors(c);
    if (r != CUDA_SUCCESS && driver_table.cuMemHostAlloc) {
        r = driver_table.cuMemHostAlloc(&c->desc_map, c->n_desc_map, CU_MEMHOSTALLOC_DEVICEMAP);
        c->desc_is_drivers = r == CUDA_SUCCESS;
        if (c->desc_is_drivers)
            memset(c->desc_map, 0, c->n_desc_map);
        else
            c->desc_map = NULL;
    }
    if (r != CUDA_SUCCESS)
        return check(err, r, "cuMemHostRegister_v2");
    CALL(cuMemHostGetDevicePointer_v2, &c->desc_device, c->desc_map, 0);
    return 0;
}

/* Each slot's counter of blocks that are done, all 0. */
static int alloc_retired(struct err *err, struct context *c, uint32_t n_slots)
{
    size_t n = (size_t)n_slots * sizeof(uint32_t);
    CALL(cuMemAlloc_v2, &c->retired, n);
    /* on our own stream: the NULL stream has the application's work in front of it, and may not be used at all while
       one of its blocking streams is captured; the copies of other streams would not wait for it either */
    CALL(cuMemsetD8Async, c->retired, 0, n, c->stream);
    CALL(cuStreamSynchronize, c->stream);
    return 0;
}

static int alloc_payload(struct err *err, struct context *c, uint64_t *n_bytes)
{
    CUresult r = driver_table.cuMemAlloc_v2(&c->payload, *n_bytes);
    /* a smaller ring drops more, and says so; but a size that was asked for is not exceeded either */
    while (r == CUDA_ERROR_OUT_OF_MEMORY && *n_bytes > (1u << 20)) {
        *n_bytes = (*n_bytes / 2) & ~(uint64_t)(RING_ALIGN - 1);
        r = driver_table.cuMemAlloc_v2(&c->payload, *n_bytes);
    }
    return check(err, r, "cuMemAlloc_v2");
}

int device_init(struct err *err, struct context *c)
{
    size_t n_free, total;
    if (!device_memory(&n_free, &total))
        n_free = total = 0;
    uint32_t n_slots = memory_slots();
    uint64_t n_bytes = memory_payload_bytes(n_free);
    c->keep_free = wanted_free(total);
    CALL(cuCtxGetDevice, &c->device);
    int r = load_kernels(err, c);
    if (r)
        return r;
    CALL(cuStreamCreate, &c->stream, CU_STREAM_NON_BLOCKING);
    r = map_descriptors(err, c, n_slots);
    if (!r)
        r = alloc_retired(err, c, n_slots);
    if (!r)
        r = alloc_payload(err, c, &n_bytes);
    if (!r)
        r = memory_init(err, c, n_slots, n_bytes);
    if (!r)
        memory_init_edits(c);
    return r;
}

void device_give_back(struct context *c)
{
    unslotted_give_back(&c->unslotted);
    if (c->payload)
        driver_table.cuMemFree_v2(c->payload);
    if (c->retired)
        driver_table.cuMemFree_v2(c->retired);
    edit_region_give_back(c);
    if (c->stream)
        driver_table.cuStreamDestroy_v2(c->stream);
    if (c->module)
        driver_table.cuModuleUnload(c->module);
    if (c->desc_map && c->desc_is_drivers)
        driver_table.cuMemFreeHost(c->desc_map);
    else if (c->desc_map)
        driver_table.cuMemHostUnregister(c->desc_map);
}

void device_forget(struct context *c)
{
    memory_forget(c, !c->desc_is_drivers);
}
