/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cupti_user.c - another user of CUPTI in a program, as a profiler is: driver_calls loads it and passes on what its text says. It knows nothing of DMI.
 * Built twice: linked against the stand-in for libcupti, and (LOOKED_UP) with functions that it looks up in the library that CUPTI_USER names.
 *
 *     register, enable KIND, disable KIND, dump KIND (enables it, too), enablehere KIND, disablehere KIND (in the current context), register2, enable2 KIND,
 *     dump2 KIND (the subscriber's), flush FLAG, clock, subscribe, subscribe2, unsubscribe, finalize: CUPTI's calls
 *     records: all records that came back so far, a line each, then whether each buffer was its own
 *     back: waits until somebody else, whom there is with DMI's library alone, has enabled kernels again
 *     find: whether a program that has no handle finds CUPTI
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda.h>
#include <cupti_result.h>
/* after the result codes and cuda.h */
#include <cupti_activity.h>

#define EXPORT  __attribute__((visibility("default")))
#define BUFFERS 64
#define BYTES   65536u

EXPORT int cupti_user(const char *op, const char *argument);
/* The pinned headers lack these. */
CUptiResult cuptiActivityEnable_v2(CUpti_SubscriberHandle subscriber, CUpti_ActivityKind kind,
                                   void *config);
CUptiResult cuptiActivityEnableAndDump_v2(CUpti_SubscriberHandle subscriber,
                                          CUpti_ActivityKind kind, void *config);
CUptiResult cuptiActivityRegisterCallbacks_v2(CUpti_SubscriberHandle subscriber, void *request,
                                              void *complete);
uint64_t standin_cupti_kinds(void); /* the stand-in's: a bit each kind that is enabled */

#ifdef LOOKED_UP
static void *look_up(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen(getenv("CUPTI_USER"), RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}
#define CUPTI(name) ((__typeof__(name) *)look_up(#name))
#else
#define CUPTI(name) name
#endif

static struct {
    pthread_mutex_t lock;
    uint8_t *given[BUFFERS], *back[BUFFERS];
    size_t n_valid[BUFFERS], n_given, n_back;
    unsigned n_foreign; /* buffers that came back and are not its own */
    CUpti_SubscriberHandle subscriber;
} user = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void request(uint8_t **buffer, size_t *size, size_t *most)
{
    pthread_mutex_lock(&user.lock);
    *buffer = user.n_given < BUFFERS ? calloc(1, BYTES) : NULL;
    *size = *buffer ? BYTES : 0;
    *most = 0;
    if (*buffer)
        user.given[user.n_given++] = *buffer;
    pthread_mutex_unlock(&user.lock);
}

static bool is_own(const uint8_t *buffer)
{
    for (size_t i = 0; i < user.n_given; i++)
        if (user.given[i] == buffer)
            return true;
    return false;
}

static void complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)context, (void)stream, (void)size;
    pthread_mutex_lock(&user.lock);
    if (!is_own(buffer)) {
        user.n_foreign++;
    } else if (user.n_back < BUFFERS) {
        user.back[user.n_back] = buffer;
        user.n_valid[user.n_back++] = valid;
    }
    pthread_mutex_unlock(&user.lock);
}

/* As a processor's counter. */
static uint64_t tick(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 3 * ((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec) + 12345;
}

static void called(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *info)
{
    (void)data, (void)domain, (void)id, (void)info;
}

static void print_record(const CUpti_Activity *at)
{
    const CUpti_ActivityKernel10 *kernel = (const void *)at;
    if (at->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
        printf("record kernel %s %d\n", kernel->name, kernel->gridX);
    else
        printf("record of kind %d\n", (int)at->kind);
}

static int records(void)
{
    pthread_mutex_lock(&user.lock);
    for (size_t i = 0; i < user.n_back; i++) {
        CUpti_Activity *at = NULL;
        while (!CUPTI(cuptiActivityGetNextRecord)(user.back[i], user.n_valid[i], &at))
            print_record(at);
    }
    printf("record foreign %u\n", user.n_foreign);
    user.n_back = 0;
    pthread_mutex_unlock(&user.lock);
    return 0;
}

static int wait_for_others(void)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    bool enabled = !dlsym(RTLD_DEFAULT, "dmi_step_end");
    for (int i = 0; !enabled && i < 60000; i++) {
        nanosleep(&pause, NULL);
        enabled = CUPTI(standin_cupti_kinds)() & 1ull << CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    }
    return 0;
}

static CUcontext current(void)
{
    CUresult (*ask)(CUcontext * context);
    CUcontext context = NULL;
    *(void **)&ask = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "cuCtxGetCurrent");
    return ask && !ask(&context) ? context : NULL;
}

static int call(const char *op, int n)
{
    if (!strcmp(op, "register"))
        return CUPTI(cuptiActivityRegisterCallbacks)(request, complete);
    if (!strcmp(op, "enable"))
        return CUPTI(cuptiActivityEnable)((CUpti_ActivityKind)n);
    if (!strcmp(op, "disable"))
        return CUPTI(cuptiActivityDisable)((CUpti_ActivityKind)n);
    if (!strcmp(op, "dump"))
        return CUPTI(cuptiActivityEnableAndDump)((CUpti_ActivityKind)n);
    if (!strcmp(op, "enablehere"))
        return CUPTI(cuptiActivityEnableContext)(current(), (CUpti_ActivityKind)n);
    if (!strcmp(op, "disablehere"))
        return CUPTI(cuptiActivityDisableContext)(current(), (CUpti_ActivityKind)n);
    if (!strcmp(op, "enable2"))
        return CUPTI(cuptiActivityEnable_v2)(user.subscriber, (CUpti_ActivityKind)n, NULL);
    if (!strcmp(op, "dump2"))
        return CUPTI(cuptiActivityEnableAndDump_v2)(user.subscriber, (CUpti_ActivityKind)n, NULL);
    if (!strcmp(op, "register2"))
        return CUPTI(cuptiActivityRegisterCallbacks_v2)(user.subscriber, NULL, NULL);
    if (!strcmp(op, "flush"))
        return CUPTI(cuptiActivityFlushAll)((uint32_t)n);
    if (!strcmp(op, "clock"))
        return CUPTI(cuptiActivityRegisterTimestampCallback)(tick);
    if (!strcmp(op, "subscribe"))
        return CUPTI(cuptiSubscribe)(&user.subscriber, called, NULL);
    if (!strcmp(op, "subscribe2"))
        return CUPTI(cuptiSubscribe_v2)(&user.subscriber, called, NULL, NULL);
    if (!strcmp(op, "unsubscribe"))
        return CUPTI(cuptiUnsubscribe)(user.subscriber);
    if (!strcmp(op, "finalize"))
        return CUPTI(cuptiFinalize)();
    if (!strcmp(op, "back"))
        return wait_for_others();
    if (!strcmp(op, "find"))
        return dlsym(RTLD_DEFAULT, "cuptiActivityEnable") != NULL;
    return !strcmp(op, "records") ? records() : -1;
}

int cupti_user(const char *op, const char *argument)
{
    int saved = errno;
    int r = call(op, argument ? atoi(argument) : 0);
    errno = saved;
    return r;
}
