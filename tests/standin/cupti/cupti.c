/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cupti.c - libcupti.so.13, a test double for the part of CUPTI's activity API that DMI uses
 *
 * The stand-in driver's own executions are its records, in NVIDIA's structs. DMI_STANDIN_CUPTI says which version it is and what goes wrong,
 * words with commas between: 11080, 12020, 12080, 13000 (default), 13010, 13030, 13050 or 14000, the version whose layouts it writes; drop:N, each
 * Nth record is dropped, and counted; lose:N, the same, not counted; no-time:N, each Nth one has no times; late, buffers come at forced flushes alone; taken, another tool
 * has it: error 39; clock:N, its clock is N microseconds ahead of the system's; lag:N, its records alone are, and its clock does not say so; set:N:M, from record N on both are M microseconds ahead; alone, a subscriber is refused by error 39 while records of any kind are wanted; held, a forced flush gives its buffer back at the flush after it; slow:N, a flush takes N milliseconds;
 * other-graphs, records name graphs by ids that cuptiGetGraphExecId() does not give; own-nodes, they name nodes of execs by ids of their own, and those that
 * these were instantiated from only from 13050 on. A new registration gets the buffer that
 * was out under the one before, as with CUPTI before 13.3; fail:NAME:N:RESULT, call N of the function NAME (0: each) does nothing and has that result. It never pretends to be NVIDIA's: standin_cupti() says so.
 */
#include "../activity.h"

#include <cuda.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cupti_result.h>
/* after the result codes and cuda.h */
#include <cupti_activity.h>

#define EXPORTED     __attribute__((visibility("default")))
#define RECORD_BYTES 256 /* room for the largest */
#define SOURCE       240 /* sourceGraphNodeId of CUpti_ActivityKernel13 */
#define MAX_NAMES    4096

EXPORTED int standin_cupti(void);
EXPORTED uint64_t standin_cupti_kinds(void);
EXPORTED CUptiResult cuptiGetVersion(uint32_t *version);
/* the pinned headers lack these */
EXPORTED CUptiResult cuptiActivityEnable_v2(CUpti_SubscriberHandle subscriber,
                                            CUpti_ActivityKind kind, void *config);
EXPORTED CUptiResult cuptiActivityEnableAndDump_v2(CUpti_SubscriberHandle subscriber,
                                                   CUpti_ActivityKind kind, void *config);
EXPORTED CUptiResult cuptiActivityRegisterCallbacks_v2(CUpti_SubscriberHandle subscriber,
                                                       void *request, void *complete);

static const struct layout {
    const char *name;
    uint32_t version; /* as cuptiGetVersion() says it */
    size_t kernel, copy, set;
} layouts[] = {
    { "11080", 18, sizeof(CUpti_ActivityKernel8), sizeof(CUpti_ActivityMemcpy5),
      sizeof(CUpti_ActivityMemset4) },
    { "12020", 20, sizeof(CUpti_ActivityKernel9), sizeof(CUpti_ActivityMemcpy5),
      sizeof(CUpti_ActivityMemset4) },
    { "12080", 26, sizeof(CUpti_ActivityKernel9), sizeof(CUpti_ActivityMemcpy6),
      sizeof(CUpti_ActivityMemset4) },
    { "13000", 130000, sizeof(CUpti_ActivityKernel10), sizeof(CUpti_ActivityMemcpy6),
      sizeof(CUpti_ActivityMemset4) },
    { "13010", 130100, 224, sizeof(CUpti_ActivityMemcpy6), sizeof(CUpti_ActivityMemset4) },
    { "13030", 130300, 232, sizeof(CUpti_ActivityMemcpy6), sizeof(CUpti_ActivityMemset4) },
    { "13050", 130500, 248, 112, 104 },
    { "14000", 140000, 256, 128, 120 }, /* newer than those that are known */
};

struct reading {
    uint64_t ticks, real; /* of another clock, and CLOCK_REALTIME then */
};

static struct {
    pthread_mutex_t lock; /* all below */
    const struct layout *layout;
    uint64_t drop, lose, no_time;
    unsigned slow_ms;
    int64_t ahead_us, lag_us, set_us;
    uint64_t set_at;
    bool late, taken, alone, hold, other_graphs, own_nodes;
    char fails[64]; /* the function that fails; "": none */
    unsigned long fails_at, n_calls;
    CUptiResult failure;
    uint64_t (*clock)(void); /* NULL: CLOCK_REALTIME */
    struct reading given;    /* of it, when it was given */
    int n_subscribers;
    uint64_t kinds;               /* bit K: records of kind K are wanted */
    uint64_t kinds_of_subscriber; /* likewise, by its own calls */
    uint64_t kinds_of_context;    /* likewise, in the one context for which they were asked */
    uint32_t context;             /* its id */
    CUpti_BuffersCallbackRequestFunc request;
    CUpti_BuffersCallbackCompleteFunc complete;
    uint8_t *held; /* by a forced flush; NULL: none */
    size_t held_size, held_used;
    uint8_t *buffer; /* being filled; NULL: none */
    size_t size, used, most, n;
    uint64_t n_records, n_dropped;
    char *names[MAX_NAMES];
    size_t n_names;
} cupti = { .lock = PTHREAD_MUTEX_INITIALIZER };

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- what it is asked to be ---- */

static void read_word(const char *word)
{
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        if (!strcmp(word, layouts[i].name))
            cupti.layout = &layouts[i];
    }
    if (!strncmp(word, "drop:", 5))
        cupti.drop = strtoull(word + 5, NULL, 10);
    if (!strncmp(word, "lose:", 5))
        cupti.lose = strtoull(word + 5, NULL, 10);
    if (!strncmp(word, "no-time:", 8))
        cupti.no_time = strtoull(word + 8, NULL, 10);
    if (!strncmp(word, "slow:", 5))
        cupti.slow_ms = (unsigned)strtoul(word + 5, NULL, 10);
    if (!strncmp(word, "clock:", 6))
        cupti.ahead_us = strtoll(word + 6, NULL, 10);
    if (!strncmp(word, "lag:", 4))
        cupti.lag_us = strtoll(word + 4, NULL, 10);
    if (!strncmp(word, "set:", 4))
        sscanf(word + 4, "%" SCNu64 ":%" SCNd64, &cupti.set_at, &cupti.set_us);
    cupti.late |= !strcmp(word, "late");
    cupti.taken |= !strcmp(word, "taken");
    cupti.alone |= !strcmp(word, "alone");
    cupti.hold |= !strcmp(word, "held");
    cupti.other_graphs |= !strcmp(word, "other-graphs");
    cupti.own_nodes |= !strcmp(word, "own-nodes");
    if (!strncmp(word, "fail:", 5))
        sscanf(word + 5, "%63[^:]:%lu:%d", cupti.fails, &cupti.fails_at, (int *)&cupti.failure);
}

static void read_environment(void)
{
    const char *text = getenv("DMI_STANDIN_CUPTI");
    char *words = strdup(text ? text : ""), *rest = words;
    const char *word;

    cupti.layout = &layouts[3];
    while (rest && (word = strsep(&rest, ",")))
        read_word(word);
    free(words);
}

/* Does this call of a function fail? Without the lock. Return: its result; CUPTI_SUCCESS: it goes on. */
static CUptiResult failure_of(const char *function)
{
    unsigned long n;

    pthread_once(&once, read_environment);
    if (strcmp(function, cupti.fails))
        return CUPTI_SUCCESS;
    n = __atomic_add_fetch(&cupti.n_calls, 1, __ATOMIC_RELAXED);
    return !cupti.fails_at || cupti.fails_at == n ? cupti.failure : CUPTI_SUCCESS;
}

/* The first line of a function that may fail. */
#define MAY_FAIL()                                                                                 \
    do {                                                                                           \
        CUptiResult failure = failure_of(__func__);                                                \
                                                                                                   \
        if (failure)                                                                               \
            return failure;                                                                        \
    } while (0)

static void *driver(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *function = library ? dlsym(library, name) : NULL;

    if (library)
        dlclose(library);
    return function;
}

int standin_cupti(void)
{
    return 1;
}

/* For tests: a bit each kind that is enabled. */
uint64_t standin_cupti_kinds(void)
{
    pthread_mutex_lock(&cupti.lock);
    uint64_t kinds = cupti.kinds;
    pthread_mutex_unlock(&cupti.lock);
    return kinds;
}

CUptiResult cuptiGetVersion(uint32_t *version)
{
    MAY_FAIL();
    *version = cupti.layout->version;
    return CUPTI_SUCCESS;
}

static uint64_t real_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- records ---- */

/* Names stay, as CUPTI's do. Lock held. */
static const char *name_of(const char *name)
{
    for (size_t i = 0; i < cupti.n_names; i++) {
        if (!strcmp(cupti.names[i], name))
            return cupti.names[i];
    }
    return cupti.n_names < MAX_NAMES ? (cupti.names[cupti.n_names++] = strdup(name)) : NULL;
}

/* What records of all kinds have, by the same names. */
#define COMMON(a)                                                                                  \
    .start = (a)->begin_ns, .end = (a)->end_ns, .deviceId = (a)->device,                           \
    .contextId = (a)->context, .streamId = (a)->stream, .correlationId = (a)->correlation,         \
    .graphId = (a)->graph, .graphNodeId = (a)->node

/* A record of @n_room bytes from one of @n: older versions have less of it, newer ones zeros after it. Return: @n_room. */
static size_t put_record(uint8_t *to, size_t n_room, const void *record, size_t n)
{
    memcpy(to, record, n_room < n ? n_room : n);
    return n_room;
}

static size_t put_kernel(const struct activity *a, uint8_t *to)
{
    CUpti_ActivityKernel10 k = { COMMON(a),
                                 .kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                 .registersPerThread = (uint16_t)a->registers,
                                 .gridX = (int32_t)a->grid[0],
                                 .gridY = (int32_t)a->grid[1],
                                 .gridZ = (int32_t)a->grid[2],
                                 .blockX = (int32_t)a->block[0],
                                 .blockY = (int32_t)a->block[1],
                                 .blockZ = (int32_t)a->block[2],
                                 .staticSharedMemory = (int32_t)a->static_shared,
                                 .dynamicSharedMemory = (int32_t)a->dynamic_shared,
                                 .name = name_of(a->name) };

    size_t n = put_record(to, cupti.layout->kernel, &k, sizeof(k));

    if (cupti.own_nodes && a->graph) {
        uint64_t own = a->node | 1ull << 40;

        memcpy(to + offsetof(CUpti_ActivityKernel10, graphNodeId), &own, sizeof(own));
        if (n >= SOURCE + sizeof(a->node))
            memcpy(to + SOURCE, &a->node, sizeof(a->node));
    }
    return n;
}

static size_t put_copy(const struct activity *a, uint8_t *to)
{
    CUpti_ActivityMemcpy6 c = {
        COMMON(a),
        .kind = CUPTI_ACTIVITY_KIND_MEMCPY,
        .copyKind = (uint8_t)a->how,
        .bytes = a->bytes,
    };

    return put_record(to, cupti.layout->copy, &c, sizeof(c));
}

static size_t put_set(const struct activity *a, uint8_t *to)
{
    CUpti_ActivityMemset4 s = { COMMON(a), .kind = CUPTI_ACTIVITY_KIND_MEMSET, .bytes = a->bytes };

    return put_record(to, cupti.layout->set, &s, sizeof(s));
}

static size_t put(const struct activity *a, uint8_t *to)
{
    memset(to, 0, RECORD_BYTES);
    switch (a->kind) {
    case ACTIVITY_KERNEL: return put_kernel(a, to);
    case ACTIVITY_COPY: return put_copy(a, to);
    default: return put_set(a, to);
    }
}

/* Gives the buffer back; the lock is free meanwhile, as callbacks may call. */
static void give_back(void)
{
    uint8_t *buffer = cupti.buffer;
    size_t size = cupti.size, used = cupti.used;
    CUpti_BuffersCallbackCompleteFunc complete = cupti.complete;

    cupti.buffer = NULL;
    pthread_mutex_unlock(&cupti.lock);
    if (buffer)
        complete(NULL, 0, buffer, size, used);
    pthread_mutex_lock(&cupti.lock);
}

/* Lock held. Return: false: there is none. */
static bool have_room(size_t n)
{
    if (cupti.buffer && (cupti.size - cupti.used < n || (cupti.most && cupti.n >= cupti.most)))
        give_back();
    if (cupti.buffer)
        return true;
    cupti.size = cupti.used = cupti.most = cupti.n = 0;
    if (cupti.request)
        cupti.request(&cupti.buffer, &cupti.size, &cupti.most);
    return cupti.buffer && cupti.size >= n;
}

/* Of several readings the one that took least: between the calls of another one the machine may do something else. */
static struct reading read_clock(void)
{
    struct reading best = { 0 };
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < 100 && least > 5000; i++) {
        uint64_t before = real_now(), ticks = cupti.clock(), took = real_now() - before;

        if (took < least) {
            least = took;
            best = (struct reading){ ticks, before + took / 2 };
        }
    }
    return best;
}

/* By the clock that was given, on the line from when it was to now. Lock held. */
static void by_clock(struct activity *a)
{
    struct reading now = read_clock(), given = cupti.given;
    double rate = (double)(now.ticks - given.ticks) / (double)(now.real - given.real);
    int64_t n_begin = (int64_t)((double)(int64_t)(a->begin_ns - given.real) * rate);

    a->end_ns =
        given.ticks + (uint64_t)(n_begin + (int64_t)((double)(a->end_ns - a->begin_ns) * rate));
    a->begin_ns = given.ticks + (uint64_t)n_begin;
}

/* Lock held. */
static bool wanted(const struct activity *a)
{
    uint64_t here = a->context == cupti.context ? cupti.kinds_of_context : 0;

    return (cupti.kinds | cupti.kinds_of_subscriber | here) & 1ull << a->kind;
}

/* By how much CUPTI's own clock is ahead of the system's. Lock held. */
static int64_t own_ahead_us(void)
{
    return cupti.ahead_us + (cupti.set_at && cupti.n_records >= cupti.set_at ? cupti.set_us : 0);
}

static void observe(const struct activity *activity)
{
    struct activity a = *activity;
    uint8_t record[RECORD_BYTES];

    pthread_mutex_lock(&cupti.lock);
    if (wanted(&a)) {
        uint64_t number = ++cupti.n_records;

        if (cupti.other_graphs && a.graph)
            a.graph += 1u << 19;
        if (cupti.clock)
            by_clock(&a);
        a.begin_ns += (uint64_t)((own_ahead_us() + cupti.lag_us) * 1000);
        a.end_ns += (uint64_t)((own_ahead_us() + cupti.lag_us) * 1000);
        if (cupti.no_time && number % cupti.no_time == 0)
            a.begin_ns = a.end_ns = 0;
        size_t n = put(&a, record);

        if ((cupti.drop && number % cupti.drop == 0) || !have_room(n)) {
            cupti.n_dropped++;
        } else if (!cupti.lose || number % cupti.lose) {
            memcpy(cupti.buffer + cupti.used, record, n);
            cupti.used += n;
            cupti.n++;
        }
    }
    pthread_mutex_unlock(&cupti.lock);
}

/* ---- the activity API ---- */

EXPORTED CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                    CUpti_BuffersCallbackCompleteFunc complete)
{
    MAY_FAIL();
    if (cupti.taken)
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    pthread_mutex_lock(&cupti.lock);
    cupti.request = request;
    cupti.complete = complete;
    pthread_mutex_unlock(&cupti.lock);
    return CUPTI_SUCCESS;
}

/* Sets bits of @kinds; the driver tells what it runs from here on. */
static CUptiResult enable(uint64_t *kinds, CUpti_ActivityKind kind)
{
    void (*start)(void (*fn)(const struct activity *activity));

    *(void **)&start = driver("standin_observe");
    if (!start)
        return CUPTI_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&cupti.lock);
    *kinds |= 1ull << kind;
    pthread_mutex_unlock(&cupti.lock);
    start(observe);
    return CUPTI_SUCCESS;
}

static CUptiResult disable(uint64_t *kinds, CUpti_ActivityKind kind)
{
    pthread_mutex_lock(&cupti.lock);
    *kinds &= ~(1ull << kind);
    pthread_mutex_unlock(&cupti.lock);
    return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    MAY_FAIL();
    return enable(&cupti.kinds, kind);
}

EXPORTED CUptiResult cuptiActivityEnableAndDump(CUpti_ActivityKind kind)
{
    return enable(&cupti.kinds, kind);
}

/* 0: there is no such context. */
static uint32_t context_id(CUcontext context)
{
    uint32_t (*ask)(void *context);

    *(void **)&ask = driver("standin_context_id");
    return ask ? ask(context) : 0;
}

/* The kinds of one context are noted at a time. */
EXPORTED CUptiResult cuptiActivityEnableContext(CUcontext context, CUpti_ActivityKind kind)
{
    cupti.context = context_id(context);
    return cupti.context ? enable(&cupti.kinds_of_context, kind) : CUPTI_ERROR_INVALID_CONTEXT;
}

EXPORTED CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    MAY_FAIL();
    return disable(&cupti.kinds, kind);
}

EXPORTED CUptiResult cuptiActivityDisableContext(CUcontext context, CUpti_ActivityKind kind)
{
    (void)context;
    return disable(&cupti.kinds_of_context, kind);
}

/* A subscriber's own calls, which CUPTI 13.2 and later have: refused as a second subscriber is. */
static CUptiResult of_subscriber(CUpti_SubscriberHandle subscriber)
{
    if ((void *)subscriber != &cupti.n_subscribers)
        return CUPTI_ERROR_INVALID_PARAMETER;
    return cupti.alone && cupti.kinds ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
                                      : CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiActivityEnable_v2(CUpti_SubscriberHandle subscriber,
                                            CUpti_ActivityKind kind, void *config)
{
    CUptiResult r = of_subscriber(subscriber);

    (void)config;
    return r ? r : enable(&cupti.kinds_of_subscriber, kind);
}

EXPORTED CUptiResult cuptiActivityEnableAndDump_v2(CUpti_SubscriberHandle subscriber,
                                                   CUpti_ActivityKind kind, void *config)
{
    return cuptiActivityEnable_v2(subscriber, kind, config);
}

EXPORTED CUptiResult cuptiActivityRegisterCallbacks_v2(CUpti_SubscriberHandle subscriber,
                                                       void *request, void *complete)
{
    (void)request, (void)complete;
    return of_subscriber(subscriber);
}

EXPORTED CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock)
{
    pthread_mutex_lock(&cupti.lock);
    cupti.clock = clock;
    cupti.given = read_clock();
    pthread_mutex_unlock(&cupti.lock);
    return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiGetTimestamp(uint64_t *timestamp)
{
    MAY_FAIL();
    pthread_mutex_lock(&cupti.lock);
    *timestamp = cupti.clock ? cupti.clock() : real_now() + (uint64_t)(own_ahead_us() * 1000);
    pthread_mutex_unlock(&cupti.lock);
    return CUPTI_SUCCESS;
}

/* CUPTI loses what is in a buffer, and forgets who registered. */
EXPORTED CUptiResult cuptiFinalize(void)
{
    pthread_mutex_lock(&cupti.lock);
    cupti.kinds = cupti.kinds_of_subscriber = cupti.kinds_of_context = 0;
    cupti.request = NULL;
    cupti.complete = NULL;
    cupti.buffer = NULL;
    cupti.size = cupti.used = 0;
    cupti.clock = NULL;
    cupti.n_subscribers = 0;
    pthread_mutex_unlock(&cupti.lock);
    return CUPTI_SUCCESS;
}

/* One at a time, that is never called. */
EXPORTED CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback,
                                    void *user)
{
    CUptiResult r = CUPTI_SUCCESS;

    (void)callback, (void)user;
    pthread_once(&once, read_environment);
    pthread_mutex_lock(&cupti.lock);
    if (cupti.n_subscribers || (cupti.alone && cupti.kinds))
        r = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    else
        *subscriber = (void *)&cupti.n_subscribers;
    cupti.n_subscribers += !r;
    pthread_mutex_unlock(&cupti.lock);
    return r;
}

EXPORTED CUptiResult cuptiSubscribe_v2(CUpti_SubscriberHandle *subscriber,
                                       CUpti_CallbackFunc callback, void *user,
                                       CUpti_SubscriberParams *parameters)
{
    (void)parameters;
    return cuptiSubscribe(subscriber, callback, user);
}

EXPORTED CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber)
{
    pthread_mutex_lock(&cupti.lock);
    CUptiResult r = (void *)subscriber == &cupti.n_subscribers && cupti.n_subscribers
                        ? CUPTI_SUCCESS
                        : CUPTI_ERROR_INVALID_PARAMETER;
    cupti.n_subscribers -= !r;
    cupti.kinds_of_subscriber = 0;
    pthread_mutex_unlock(&cupti.lock);
    return r;
}

/* What was held comes back, and what is being filled is held. Lock held. */
static void turn_over(bool hold)
{
    uint8_t *buffer = cupti.buffer;
    size_t size = cupti.size, used = cupti.used;

    cupti.buffer = cupti.held;
    cupti.size = cupti.held_size;
    cupti.used = cupti.held_used;
    cupti.held = NULL;
    if (cupti.buffer)
        give_back();
    cupti.buffer = hold ? NULL : buffer;
    cupti.held = hold ? buffer : NULL;
    cupti.size = cupti.held_size = size;
    cupti.used = cupti.held_used = used;
}

EXPORTED CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    MAY_FAIL();
    struct timespec pause = { cupti.slow_ms / 1000, cupti.slow_ms % 1000 * 1000000L };
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&cupti.lock);
    if (cupti.hold)
        turn_over(flag);
    if (cupti.buffer && cupti.used && (!cupti.late || flag))
        give_back();
    pthread_mutex_unlock(&cupti.lock);
    return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream,
                                                       size_t *dropped)
{
    (void)context, (void)stream;
    MAY_FAIL();
    pthread_mutex_lock(&cupti.lock);
    *dropped = cupti.n_dropped;
    cupti.n_dropped = 0;
    pthread_mutex_unlock(&cupti.lock);
    return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t *size,
                                               void *value)
{
    MAY_FAIL();
    return attribute && size && value ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

/* Bytes of the record at @at; 0: it is of no kind that is written. */
static size_t record_bytes(const uint8_t *at)
{
    switch (((const CUpti_Activity *)(const void *)at)->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return cupti.layout->kernel;
    case CUPTI_ACTIVITY_KIND_MEMCPY: return cupti.layout->copy;
    case CUPTI_ACTIVITY_KIND_MEMSET: return cupti.layout->set;
    default: return 0;
    }
}

EXPORTED CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t n, CUpti_Activity **record)
{
    MAY_FAIL();
    uint8_t *before = (uint8_t *)*record;
    size_t next = before ? (size_t)(before - buffer) + record_bytes(before) : 0;

    if (next >= n)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    size_t bytes = record_bytes(buffer + next);

    if (!bytes)
        return CUPTI_ERROR_INVALID_KIND;
    if (n - next < bytes)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)(void *)(buffer + next);
    return CUPTI_SUCCESS;
}

/* ---- ids ---- */

EXPORTED CUptiResult cuptiGetStreamIdEx(CUcontext context, CUstream stream, uint8_t per_thread,
                                        uint32_t *id)
{
    uint32_t (*ask)(void *stream, int per_thread);

    (void)context;
    MAY_FAIL();
    *(void **)&ask = driver("standin_stream_id");
    *id = ask ? ask(stream, per_thread) : 0;
    return *id ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_STREAM;
}

EXPORTED CUptiResult cuptiGetContextId(CUcontext context, uint32_t *id)
{
    MAY_FAIL();
    *id = context_id(context);
    return *id ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_CONTEXT;
}

EXPORTED CUptiResult cuptiGetGraphExecId(CUgraphExec exec, uint32_t *id)
{
    uint32_t (*ask)(void *exec);

    MAY_FAIL();
    *(void **)&ask = driver("standin_exec_id");
    *id = ask ? ask(exec) : 0;
    return *id ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

EXPORTED CUptiResult cuptiGetGraphNodeId(CUgraphNode node, uint64_t *id)
{
    uint64_t (*ask)(void *node);

    MAY_FAIL();
    *(void **)&ask = driver("standin_node_id");
    *id = ask ? ask(node) : 0;
    return *id ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

/* ---- what PyTorch's profiler asks for besides: this double takes it, calls nothing back and writes no record of it ---- */

#define TAKES(name, ...)                                                                           \
    EXPORTED CUptiResult name(__VA_ARGS__)                                                         \
    {                                                                                              \
        return CUPTI_SUCCESS;                                                                      \
    }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
TAKES(cuptiActivityEnableCudaEventDeviceTimestamps, uint8_t enable)
TAKES(cuptiActivityEnableDriverApi, CUpti_CallbackId cbid, uint8_t enable)
TAKES(cuptiActivityEnableRuntimeApi, CUpti_CallbackId cbid, uint8_t enable)
TAKES(cuptiActivityPopExternalCorrelationId, CUpti_ExternalCorrelationKind kind, uint64_t *last)
TAKES(cuptiActivityPushExternalCorrelationId, CUpti_ExternalCorrelationKind kind, uint64_t id)
TAKES(cuptiEnableCallback, uint32_t enable, CUpti_SubscriberHandle subscriber,
      CUpti_CallbackDomain domain, CUpti_CallbackId cbid)
TAKES(cuptiEnableDomain, uint32_t enable, CUpti_SubscriberHandle subscriber,
      CUpti_CallbackDomain domain)
#pragma GCC diagnostic pop

EXPORTED CUptiResult cuptiGetResultString(CUptiResult result, const char **text)
{
    static _Thread_local char number[40];

    snprintf(number, sizeof(number), "CUPTI's result %d", (int)result);
    *text = number;
    return CUPTI_SUCCESS;
}
