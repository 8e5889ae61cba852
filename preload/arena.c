/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/arena.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/log.h"
#include "preload/execs.h"
#include "preload/hooks.h"
#include "preload/process.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define DEFAULT_SLOTS     8192u
#define MAX_SLOTS         (1u << 16) /* a ticket names slots in 16 bits */
#define MAX_DEFAULT_BYTES (256ull << 20)
#define MIN_DEFAULT_BYTES (8ull << 20)
#define FREE_SHARE        32 /* of the free device memory, where nobody said how much */
#define MAKING_WAIT_NS    5000000000ull

/* made by kernels/build_fatbin.py */
extern const unsigned char dmi_fatbin[];

static struct arena arenas[ARENA_MAX];

struct arena *arena_find(CUcontext context)
{
    for (int i = 0; i < ARENA_MAX; i++) {
        /* acquires the release in arena_current() and make() */
        int state = atomic_load_acquire(&arenas[i].state);
        if (state != ARENA_FREE && atomic_load_relaxed(&arenas[i].context) == context)
            return &arenas[i];
    }
    return NULL;
}

void arena_each(void (*fn)(struct arena *arena, void *ctx), void *ctx)
{
    for (int i = 0; i < ARENA_MAX; i++) {
        int state = atomic_load_acquire(&arenas[i].state);
        if (state >= ARENA_READY)
            fn(&arenas[i], ctx);
    }
}

void arena_reset(void)
{
    memset(arenas, 0, sizeof arenas);
}

/* ------------------------------------------------------------------------- making one */

static uint32_t wanted_slots(void)
{
    uint64_t want = process.ring_slots ? process.ring_slots : DEFAULT_SLOTS;
    uint32_t slots = RING_MIN_SLOTS;
    while (slots < want && slots < MAX_SLOTS)
        slots *= 2;
    return slots;
}

static uint64_t wanted_bytes(void)
{
    uint64_t bytes = process.ring_bytes;
    if (!bytes) {
        size_t free_bytes = 0, total = 0;
        if (driver_table.cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS)
            bytes = free_bytes / FREE_SHARE;
        if (bytes > MAX_DEFAULT_BYTES)
            bytes = MAX_DEFAULT_BYTES;
        if (bytes < MIN_DEFAULT_BYTES)
            bytes = MIN_DEFAULT_BYTES;
    }
    bytes = (bytes + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
    return bytes < RING_MIN_BYTES ? RING_MIN_BYTES : bytes;
}

/* Host memory of our own that kernels can write: it outlives the context, as cuMemHostAlloc's does not. */
static CUresult map_descriptors(struct arena *a, uint32_t n_slots)
{
    a->n_desc_map = ((size_t)n_slots * sizeof(struct dmi_desc) + 4095) & ~(size_t)4095;
    a->desc_map =
        mmap(NULL, a->n_desc_map, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a->desc_map == MAP_FAILED) {
        a->desc_map = NULL;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* a child must not share these pages with the device through copy-on-write */
    madvise(a->desc_map, a->n_desc_map, MADV_DONTFORK);
    CUresult r =
        driver_table.cuMemHostRegister_v2(a->desc_map, a->n_desc_map, CU_MEMHOSTREGISTER_DEVICEMAP);
    if (r != CUDA_SUCCESS)
        return r;
    return driver_table.cuMemHostGetDevicePointer_v2(&a->desc_device, a->desc_map, 0);
}

static CUresult alloc_payload(struct arena *a, uint64_t *n_bytes)
{
    CUresult r = driver_table.cuMemAlloc_v2(&a->payload, *n_bytes);
    /* a smaller ring drops more, and says so; but a size that was asked for is not exceeded either */
    while (r == CUDA_ERROR_OUT_OF_MEMORY && *n_bytes > (1u << 20)) {
        *n_bytes = (*n_bytes / 2) & ~(uint64_t)(RING_ALIGN - 1);
        r = driver_table.cuMemAlloc_v2(&a->payload, *n_bytes);
    }
    return r;
}

static CUresult make_device_side(struct arena *a, const char **step)
{
    uint32_t n_slots = wanted_slots();
    uint64_t n_bytes = wanted_bytes();
    CUresult r;
#define TRY(call)                                                                                  \
    do {                                                                                           \
        *step = #call;                                                                             \
        r = (call);                                                                                \
        if (r != CUDA_SUCCESS)                                                                     \
            return r;                                                                              \
    } while (0)
    TRY(driver_table.cuCtxGetDevice(&a->device));
    TRY(driver_table.cuModuleLoadData(&a->module, dmi_fatbin));
    TRY(driver_table.cuModuleGetFunction(&a->copy, a->module, "dmi_copy_eager"));
    TRY(driver_table.cuModuleGetFunction(&a->copy_graph, a->module, "dmi_copy_graph"));
    TRY(driver_table.cuModuleGetFunction(&a->open, a->module, "dmi_open"));
    TRY(driver_table.cuModuleGetFunction(&a->close, a->module, "dmi_close"));
    TRY(driver_table.cuStreamCreate(&a->stream, CU_STREAM_NON_BLOCKING));
    TRY(map_descriptors(a, n_slots));
    TRY(driver_table.cuMemAlloc_v2(&a->retired, (size_t)n_slots * sizeof(uint32_t)));
    /* on our own stream: the NULL stream has the host's work in front of it, and may not be used at all while
       one of its blocking streams is captured; the copies of other streams would not wait for it either */
    TRY(driver_table.cuMemsetD8Async(a->retired, 0, (size_t)n_slots * sizeof(uint32_t), a->stream));
    TRY(driver_table.cuStreamSynchronize(a->stream));
    TRY(alloc_payload(a, &n_bytes));
#undef TRY
    struct ring_slot *slots = calloc(n_slots, sizeof *slots);
    a->pending = calloc(n_slots, sizeof *a->pending);
    *step = "host memory of the ring";
    if (!slots || !a->pending) {
        free(slots);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (ring_init(&a->ring, a->desc_map, slots, n_slots, n_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    *step = "the drain's threads";
    return drain_start(a) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

/* What a making that failed half-way holds. */
static void give_back(struct arena *a)
{
    if (a->payload)
        driver_table.cuMemFree_v2(a->payload);
    if (a->retired)
        driver_table.cuMemFree_v2(a->retired);
    if (a->stream)
        driver_table.cuStreamDestroy_v2(a->stream);
    if (a->module)
        driver_table.cuModuleUnload(a->module);
    if (a->desc_map) {
        driver_table.cuMemHostUnregister(a->desc_map);
        munmap(a->desc_map, a->n_desc_map);
    }
    drain_free(a);
    free(a->ring.slots);
    free(a->pending);
}

static void make(struct arena *a)
{
    const char *step = "";
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    a->lock = unlocked;
    a->forward = (struct arena_forward){ .kind = -1 };
    a->sites = calloc(process.spec->n_sites + 1, sizeof *a->sites);
    /* the calling thread may be capturing in a mode that forbids these calls to it */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool exchanged = driver_table.cuThreadExchangeStreamCaptureMode &&
                     driver_table.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    CUresult r = a->sites ? make_device_side(a, &step) : CUDA_ERROR_OUT_OF_MEMORY;
    if (exchanged)
        driver_table.cuThreadExchangeStreamCaptureMode(&mode);
    if (r != CUDA_SUCCESS) {
        log_line("no ring in this context, its sites are not captured: %s gave error %d", step,
                 (int)r);
        give_back(a);
    }
    /* to arena_find() */
    atomic_store_release(&a->state, r == CUDA_SUCCESS ? ARENA_READY : ARENA_FAILED);
}

static struct arena *claim(CUcontext context, bool *mine)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    *mine = false;
    pthread_mutex_lock(&lock);
    struct arena *a = arena_find(context);
    for (int i = 0; !a && i < ARENA_MAX; i++)
        if (arenas[i].state == ARENA_FREE) {
            a = &arenas[i];
            memset(a, 0, sizeof *a);
            a->context = context;
            atomic_store_release(&a->state, ARENA_MAKING); /* to arena_find() */
            *mine = true;
        }
    pthread_mutex_unlock(&lock);
    return a;
}

struct arena *arena_current(void)
{
    CUcontext context = NULL;
    if (driver_table.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return NULL;
    struct arena *a = arena_find(context);
    if (!a) {
        bool mine;
        if (!process_run())
            return NULL;
        a = claim(context, &mine);
        if (mine)
            make(a);
    }
    /* another thread makes it, and waits for nothing that we might hold but the driver */
    uint64_t end = clock_mono_ns() + MAKING_WAIT_NS;
    while (a && atomic_load_acquire(&a->state) == ARENA_MAKING) {
        struct timespec pause = { .tv_nsec = 100000 };
        nanosleep(&pause, NULL);
        if (clock_mono_ns() > end)
            return NULL;
    }
    return a;
}

/* ------------------------------------------------------------------------- its end */

bool arena_stop(struct arena *a, uint64_t timeout_ns, enum dmi_drop reason)
{
    int ready = ARENA_READY;
    if (!atomic_cas_acq_rel(&a->state, &ready, ARENA_STOPPED))
        return ready != ARENA_MAKING;
    /* whoever is reserving has seen READY: let that end */
    pthread_mutex_lock(&a->lock);
    pthread_mutex_unlock(&a->lock);
    return drain_stop(a, timeout_ns, reason);
}

void arena_detach(struct arena *a)
{
    atomic_store_relaxed(&a->context, (CUcontext)NULL);
}

void arena_attach(struct arena *a, CUcontext context)
{
    atomic_store_relaxed(&a->context, context);
}

void arena_resume(struct arena *a)
{
    if (atomic_load_acquire(&a->state) == ARENA_STOPPED && !a->drain_runs && !drain_start(a))
        atomic_store_release(&a->state, ARENA_READY); /* to arena_find() */
}

void arena_forget(struct arena *a)
{
    int state = atomic_load_acquire(&a->state);
    execs_forget_arena(a);
    atomic_store_relaxed(&a->context, (CUcontext)NULL);
    if (state == ARENA_STOPPED && !a->drain_runs && !a->encoder_runs) {
        drain_free(a);
        munmap(a->desc_map, a->n_desc_map);
        free(a->ring.slots);
        free(a->pending);
        state = ARENA_FAILED;
    }
    /* one whose threads did not end stays as it is: they still look at it */
    if (state == ARENA_FAILED) {
        free(a->sites);
        a->sites = NULL;
        atomic_store_release(&a->state, ARENA_FREE); /* to claim() */
    }
}
