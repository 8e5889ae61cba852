/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/life_driver.h"

#include "preload/base/driver.h"
#include "preload/context/device.h"
#include "tests/unit/drain_kit.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define N_HANDLES (LIFE_DEVICES + LIFE_CONTEXTS)
#define N_SLOTS   1024u
#define N_BYTES   (256u << 10)
#define MAX_RINGS 4096
#define MAX_STACK 64

struct cuda_context {
    unsigned long long id; /* 0: it has ended */
    CUdevice device;
    uint32_t references; /* of one that is no primary one */
    uint64_t ring;       /* number of the one that it has; 0: none */
};

struct primary {
    struct cuda_context
        *context; /* NULL: none, though there may be references to it after a reset */
    uint32_t references;
};

/* What a thread holds of a context: that one, not what has its handle later. */
struct held {
    struct cuda_context *context;
    unsigned long long id;
};

struct ring_memory {
    unsigned char *data;
    unsigned long long context; /* id of the one that it is in */
};

static struct model {
    pthread_mutex_t lock; /* all below */
    struct cuda_context contexts[N_HANDLES];
    struct primary primaries[LIFE_DEVICES];
    unsigned long long next_id;
    struct ring_memory rings[MAX_RINGS]; /* no address comes back within a test */
    uint64_t n_rings;
    uint64_t misuses;
} model = { .lock = PTHREAD_MUTEX_INITIALIZER };

static __thread struct {
    struct held stack[MAX_STACK];
    int n;
    struct held drained; /* by a thread of ours */
    uint64_t seed;
} thread;

#define UNDER_LOCK(work)                                                                           \
    ({                                                                                             \
        pthread_mutex_lock(&model.lock);                                                           \
        CUresult _r = (work);                                                                      \
        pthread_mutex_unlock(&model.lock);                                                         \
        _r;                                                                                        \
    })

static struct cuda_context *context_at(CUcontext handle)
{
    return (struct cuda_context *)(void *)handle;
}

static bool lives(const struct cuda_context *c)
{
    return c && c->id;
}

/* Under the lock. Return: one whose handle another had that has ended, where there is one; NULL: too many. */
static struct cuda_context *begin(CUdevice device)
{
    struct cuda_context *c = model.contexts;
    while (c < model.contexts + N_HANDLES && lives(c))
        c++;
    if (c == model.contexts + N_HANDLES)
        return NULL;
    *c = (struct cuda_context){ .id = ++model.next_id, .device = device, .references = 1 };
    return c;
}

static void end(struct cuda_context *c)
{
    c->ring = 0;
    c->id = 0;
}

/* Under the lock. */
static bool is_same(struct held held)
{
    return held.id && held.context->id == held.id;
}

/* ------------------------------------------------------------------------- current */

static CUresult get_current(CUcontext *handle)
{
    *handle = thread.n ? (CUcontext)(void *)thread.stack[thread.n - 1].context : NULL;
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext handle)
{
    struct held held = { .context = context_at(handle) };
    pthread_mutex_lock(&model.lock);
    held.id = held.context ? held.context->id : 0;
    pthread_mutex_unlock(&model.lock);
    if (!held.id || thread.n == MAX_STACK)
        return CUDA_ERROR_INVALID_CONTEXT;
    thread.stack[thread.n++] = held;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *handle)
{
    if (!thread.n)
        return CUDA_ERROR_INVALID_CONTEXT;
    *handle = (CUcontext)(void *)thread.stack[--thread.n].context;
    return CUDA_SUCCESS;
}

/* An application's threads push and pop: this is the drain. */
static CUresult set_current(CUcontext handle)
{
    struct cuda_context *c = context_at(handle);
    pthread_mutex_lock(&model.lock);
    model.misuses += c && !lives(c); /* NULL: of one that is known to be gone */
    thread.drained = (struct held){ .context = c, .id = c ? c->id : 0 };
    pthread_mutex_unlock(&model.lock);
    return CUDA_SUCCESS;
}

/* NULL: of the current one. */
static CUresult get_id(CUcontext handle, unsigned long long *id)
{
    if (!handle)
        get_current(&handle);
    pthread_mutex_lock(&model.lock);
    *id = context_at(handle)->id;
    pthread_mutex_unlock(&model.lock);
    return *id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult address_range(CUdeviceptr *base, size_t *n, CUdeviceptr p)
{
    uint64_t ring = 0;
    pthread_mutex_lock(&model.lock);
    if (thread.n)
        ring = thread.stack[thread.n - 1].context->ring;
    *base = ring ? (CUdeviceptr)(uintptr_t)model.rings[ring].data : 0;
    pthread_mutex_unlock(&model.lock);
    *n = N_BYTES;
    return *base == p ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static void (*meanwhile)(void); /* of the thread that calls life_driver_before_return() */
static int n_before_it;         /* calls */

void life_driver_before_return(int n, void (*fn)(void))
{
    n_before_it = n;
    meanwhile = fn;
}

/* A call returns some time after it has begun or ended a context, or looked: other threads get the handle meanwhile. */
static void return_late(void)
{
    void (*fn)(void) = meanwhile;
    if (fn && !n_before_it--) {
        meanwhile = NULL;
        fn();
    }
    for (int i = 0; i < 8; i++)
        kit_nap(&thread.seed);
}

/* ------------------------------------------------------------------------- primary contexts */

static CUresult retain(CUcontext *handle, CUdevice device)
{
    struct primary *p = &model.primaries[device];
    pthread_mutex_lock(&model.lock);
    if (!p->context) /* or after a reset */
        p->context = begin(device);
    p->references += p->context != NULL;
    *handle = (CUcontext)(void *)p->context;
    pthread_mutex_unlock(&model.lock);
    return_late();
    return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void end_primary(struct primary *p)
{
    if (p->context)
        end(p->context);
    p->context = NULL;
}

static CUresult release(CUdevice device)
{
    struct primary *p = &model.primaries[device];
    pthread_mutex_lock(&model.lock);
    bool good = p->references;
    p->references -= good;
    if (!p->references)
        end_primary(p);
    pthread_mutex_unlock(&model.lock);
    return_late();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* References stay; the context begins again with the next one, or at once. */
static CUresult reset(CUdevice device)
{
    struct primary *p = &model.primaries[device];
    pthread_mutex_lock(&model.lock);
    end_primary(p);
    if (p->references && model.next_id % 2)
        p->context = begin(device);
    pthread_mutex_unlock(&model.lock);
    return_late();
    return CUDA_SUCCESS;
}

static CUresult get_state(CUdevice device, unsigned *flags, int *active)
{
    *flags = 0;
    pthread_mutex_lock(&model.lock);
    *active = model.primaries[device].context != NULL;
    pthread_mutex_unlock(&model.lock);
    return_late();
    return CUDA_SUCCESS;
}

uint32_t life_driver_references(CUdevice device)
{
    return (uint32_t)UNDER_LOCK((CUresult)model.primaries[device].references);
}

CUcontext life_driver_current(CUdevice *primary)
{
    struct held current = thread.n ? thread.stack[thread.n - 1] : (struct held){ 0 };
    *primary = -1;
    pthread_mutex_lock(&model.lock);
    bool lives_on = is_same(current);
    for (int d = 0; d < LIFE_DEVICES && lives_on; d++)
        if (model.primaries[d].context == current.context)
            *primary = d;
    pthread_mutex_unlock(&model.lock);
    return lives_on ? (CUcontext)(void *)current.context : NULL;
}

/* ------------------------------------------------------------------------- other contexts */

/* Under the lock. Handles are left for the primary contexts. */
static bool any_left(void)
{
    int n = 0;
    for (int i = 0; i < N_HANDLES; i++)
        n += lives(&model.contexts[i]);
    for (int d = 0; d < LIFE_DEVICES; d++)
        n -= model.primaries[d].context != NULL;
    return n < LIFE_CONTEXTS;
}

static CUresult create(CUcontext *handle, unsigned flags, CUdevice device)
{
    (void)flags;
    pthread_mutex_lock(&model.lock);
    struct cuda_context *c = any_left() ? begin(device) : NULL;
    pthread_mutex_unlock(&model.lock);
    *handle = (CUcontext)(void *)c;
    return c ? push(*handle) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult attach(CUcontext *handle, unsigned flags)
{
    struct cuda_context *c = thread.n ? thread.stack[thread.n - 1].context : NULL;
    (void)flags;
    pthread_mutex_lock(&model.lock);
    bool good = lives(c);
    if (good)
        c->references++;
    pthread_mutex_unlock(&model.lock);
    *handle = (CUcontext)(void *)c;
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult give_back(struct cuda_context *c)
{
    if (!lives(c))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!--c->references)
        end(c);
    return CUDA_SUCCESS;
}

static CUresult detach(CUcontext handle)
{
    CUresult r = UNDER_LOCK(give_back(context_at(handle)));
    return_late();
    return r;
}

static CUresult destroyed(struct cuda_context *c)
{
    if (!lives(c))
        return CUDA_ERROR_INVALID_CONTEXT;
    end(c);
    return CUDA_SUCCESS;
}

static CUresult destroy(CUcontext handle)
{
    CUresult r = UNDER_LOCK(destroyed(context_at(handle)));
    return_late();
    return r;
}

/* ------------------------------------------------------------------------- the ring */

unsigned char life_driver_byte(uint64_t seq, uint64_t i)
{
    return (unsigned char)(seq * 37 + i * 3);
}

/* Under the lock. */
static bool is_there(const struct context *c)
{
    for (int i = 0; i < N_HANDLES; i++)
        if (model.contexts[i].ring && model.contexts[i].ring == c->retired)
            return true;
    return false;
}

bool life_driver_write(const struct context *c, const struct dmi_desc *record)
{
    pthread_mutex_lock(&model.lock);
    bool there = is_there(c);
    struct held current = thread.n ? thread.stack[thread.n - 1] : (struct held){ 0 };
    model.misuses += is_same(current) && model.rings[c->retired].context != current.id;
    unsigned char *to = (unsigned char *)(uintptr_t)c->payload + record->payload;
    for (uint64_t i = 0; there && i < record->n_bytes; i++)
        to[i] = life_driver_byte(record->ready, i);
    pthread_mutex_unlock(&model.lock);
    return there;
}

bool life_driver_publish(const struct context *c, uint64_t index, const struct dmi_desc *record)
{
    pthread_mutex_lock(&model.lock);
    bool there = is_there(c);
    if (there)
        ring_publish(ring_desc(&c->ring, index), record);
    pthread_mutex_unlock(&model.lock);
    return there;
}

static CUresult copy_out(void *to, CUdeviceptr from, size_t n, CUstream stream)
{
    (void)stream;
    pthread_mutex_lock(&model.lock);
    bool good = is_same(thread.drained);
    model.misuses += !good;
    if (good)
        memcpy(to, (const void *)(uintptr_t)from, n);
    pthread_mutex_unlock(&model.lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult synchronize(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

uint64_t life_driver_misuses(void)
{
    pthread_mutex_lock(&model.lock);
    uint64_t n = model.misuses;
    pthread_mutex_unlock(&model.lock);
    return n;
}

int device_init(struct err *err, struct context *c)
{
    unsigned char *memory = malloc(N_BYTES);
    struct dmi_desc *desc = calloc(N_SLOTS, sizeof *desc);
    struct ring_slot *slots = calloc(N_SLOTS, sizeof *slots);
    ck_assert(memory && desc && slots);
    pthread_mutex_lock(&model.lock);
    struct held current = thread.stack[thread.n - 1];
    bool good = is_same(current);
    ck_assert_uint_lt(model.n_rings + 1, MAX_RINGS);
    c->retired = ++model.n_rings;
    model.rings[c->retired] = (struct ring_memory){ .data = memory, .context = current.id };
    if (good)
        current.context->ring = c->retired;
    c->device = current.context->device;
    pthread_mutex_unlock(&model.lock);
    ck_assert_int_eq(ring_init(&c->ring, desc, slots, N_SLOTS, N_BYTES), 0);
    c->payload = (CUdeviceptr)(uintptr_t)memory;
    return good ? 0 : err_set(err, -EIO, "the context has ended");
}

void device_give_back(struct context *c)
{
    (void)c;
}

void device_forget(struct context *c)
{
    free(c->ring.desc);
    free(c->ring.slots);
    c->ring.desc = NULL;
    c->ring.slots = NULL;
}

void life_driver_install(bool with_ids)
{
    while (model.n_rings)
        free(model.rings[model.n_rings--].data);
    memset(model.contexts, 0, sizeof model.contexts);
    memset(model.primaries, 0, sizeof model.primaries);
    model.next_id = 0;
    model.misuses = 0;
    thread.n = 0;
    driver_table.cuCtxGetCurrent = get_current;
    driver_table.cuCtxSetCurrent = set_current;
    driver_table.cuCtxPushCurrent_v2 = push;
    driver_table.cuCtxPopCurrent_v2 = pop;
    driver_table.cuCtxGetId = with_ids ? get_id : NULL;
    driver_table.cuMemGetAddressRange_v2 = address_range;
    driver_table.cuDevicePrimaryCtxRetain = retain;
    driver_table.cuDevicePrimaryCtxRelease_v2 = release;
    driver_table.cuDevicePrimaryCtxReset_v2 = reset;
    driver_table.cuDevicePrimaryCtxGetState = get_state;
    driver_table.cuCtxCreate_v2 = create;
    driver_table.cuCtxAttach = attach;
    driver_table.cuCtxDetach = detach;
    driver_table.cuCtxDestroy_v2 = destroy;
    driver_table.cuMemcpyDtoHAsync_v2 = copy_out;
    driver_table.cuStreamSynchronize = synchronize;
}
