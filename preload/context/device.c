/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/device.h"

#include "core/log.h"
#include "preload/base/driver.h"
#include "preload/context/edit_region.h"
#include "preload/session/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DEFAULT_SLOTS     8192u
#define MAX_SLOTS         (1u << 16) /* a ticket names slots in 16 bits */
#define MAX_DEFAULT_BYTES (256ull << 20)
#define MIN_DEFAULT_BYTES (8ull << 20)
#define FREE_SHARE        32 /* of the free device memory, where nobody said how much */
#define KEEP_FREE_SHARE   64 /* of all device memory, where nobody said how much */

/* kernels/build_fatbin.py writes both: machine code and PTX, and the PTX alone, as text */
extern const unsigned char dmi_fatbin[], dmi_ptx[];

static uint32_t wanted_slots(void)
{
    uint64_t want = session.ring_slots ? session.ring_slots : DEFAULT_SLOTS;
    uint32_t slots = RING_MIN_SLOTS;
    while (slots < want && slots < MAX_SLOTS)
        slots *= 2;
    return slots;
}

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

static uint64_t wanted_bytes(uint64_t n_free)
{
    uint64_t bytes = session.ring_bytes;
    if (!bytes) {
        bytes = n_free / FREE_SHARE;
        if (bytes > MAX_DEFAULT_BYTES)
            bytes = MAX_DEFAULT_BYTES;
        if (bytes < MIN_DEFAULT_BYTES)
            bytes = MIN_DEFAULT_BYTES;
    }
    bytes = (bytes + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
    return bytes < RING_MIN_BYTES ? RING_MIN_BYTES : bytes;
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
#define TRY(name, ...)                                                                             \
    do {                                                                                           \
        int _r = check(err, driver_table.name(__VA_ARGS__), #name);                                \
        if (_r)                                                                                    \
            return _r;                                                                             \
    } while (0)

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
    TRY(cuModuleGetFunction, f, module, name);
    if (driver_table.cuFuncLoad)
        TRY(cuFuncLoad, *f);
    else
        TRY(cuFuncGetAttribute, &version, CU_FUNC_ATTRIBUTE_BINARY_VERSION, *f);
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
    void *map =
        mmap(NULL, c->n_desc_map, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r =
        driver_table.cuMemHostRegister_v2(map, c->n_desc_map, CU_MEMHOSTREGISTER_DEVICEMAP);
    if (r != CUDA_SUCCESS) {
        munmap(map, c->n_desc_map);
        return r;
    }
    /* a child must not share these pages with the device through copy-on-write */
    madvise(map, c->n_desc_map, MADV_DONTFORK);
    c->desc_map = map;
    return CUDA_SUCCESS;
}

/* Descriptors, then the lists of rows: those that slots use, those of launches without slots where there are any. */
static size_t descriptors_bytes(uint32_t n_slots)
{
    return ((size_t)n_slots * sizeof(struct dmi_desc) + 4095) & ~(size_t)4095;
}

static uint32_t unslotted_bytes(void)
{
    if (session.spec->n_places)
        return UNSLOTTED_EDIT_BYTES;
    for (uint32_t site = 0; site < session.spec->n_sites; site++)
        if (!spec_publishes(session_site(site)))
            return UNSLOTTED_BYTES;
    return 0;
}

/* Some machines register no memory (Tegra): there the driver's own serves, whose end the drain must not outlive. */
static int map_descriptors(struct err *err, struct context *c, uint32_t n_slots)
{
    c->n_desc_map = descriptors_bytes(n_slots) + ROW_LISTS_BYTES + unslotted_bytes() +
                    edit_region_counter_bytes();
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
    TRY(cuMemHostGetDevicePointer_v2, &c->desc_device, c->desc_map, 0);
    return 0;
}

/* Each slot's counter of blocks that are done, all 0. */
static int alloc_retired(struct err *err, struct context *c, uint32_t n_slots)
{
    size_t n = (size_t)n_slots * sizeof(uint32_t);
    TRY(cuMemAlloc_v2, &c->retired, n);
    /* on our own stream: the NULL stream has the application's work in front of it, and may not be used at all while
       one of its blocking streams is captured; the copies of other streams would not wait for it either */
    TRY(cuMemsetD8Async, c->retired, 0, n, c->stream);
    TRY(cuStreamSynchronize, c->stream);
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

static int init_ring(struct err *err, struct context *c, uint32_t n_slots, uint64_t n_bytes)
{
    struct ring_slot *slots = calloc(n_slots, sizeof *slots);
    if (!slots)
        return err_set(err, -ENOMEM, "no host memory for %u slots", n_slots);
    int r = ring_init(&c->ring, c->desc_map, slots, n_slots, n_bytes);
    if (r)
        free(slots);
    return r ? err_set(err, r, "a ring of %u slots and %llu bytes cannot be", n_slots,
                       (unsigned long long)n_bytes)
             : 0;
}

static int init_row_lists(struct err *err, struct context *c, uint32_t n_slots)
{
    size_t at = descriptors_bytes(n_slots);
    char *map = (char *)c->desc_map + at;
    c->lists_device = c->desc_device + at;
    int r = row_lists_init(&c->row_lists, map, 0, ROW_LISTS_BYTES);
    if (!r)
        r = unslotted_init(&c->unslotted, map, ROW_LISTS_BYTES, unslotted_bytes());
    return r ? err_set(err, r, "no host memory for lists of rows") : 0;
}

/* Without the memory for edits there is capture all the same. */
static void init_edits(struct context *c)
{
    struct err err = { 0 };
    size_t at = c->n_desc_map - edit_region_counter_bytes();
    c->edits.counts = (const uint64_t *)((char *)c->desc_map + at);
    c->edits.counters = c->desc_device + at;
    if (!edit_region_init(&err, c))
        return;
    log_line("no memory for edits in this context, they write nothing there: %s", err.msg);
    edit_region_give_back(c);
}

int device_init(struct err *err, struct context *c)
{
    size_t n_free, total;
    if (!device_memory(&n_free, &total))
        n_free = total = 0;
    uint32_t n_slots = wanted_slots();
    uint64_t n_bytes = wanted_bytes(n_free);
    c->keep_free = wanted_free(total);
    TRY(cuCtxGetDevice, &c->device);
    int r = load_kernels(err, c);
    if (r)
        return r;
    TRY(cuStreamCreate, &c->stream, CU_STREAM_NON_BLOCKING);
    r = map_descriptors(err, c, n_slots);
    if (!r)
        r = alloc_retired(err, c, n_slots);
    if (!r)
        r = alloc_payload(err, c, &n_bytes);
    if (!r)
        r = init_row_lists(err, c, n_slots);
    if (!r)
        init_edits(c);
    return r ? r : init_ring(err, c, n_slots, n_bytes);
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

void device_deinit(struct context *c)
{
    device_give_back(c);
    device_forget(c);
}

void device_forget(struct context *c)
{
    edit_region_forget(c);
    if (c->desc_map && !c->desc_is_drivers)
        munmap(c->desc_map, c->n_desc_map);
    c->desc_map = NULL;
    row_lists_deinit(&c->row_lists);
    unslotted_deinit(&c->unslotted);
    free(c->ring.slots);
    c->ring.slots = NULL;
}
