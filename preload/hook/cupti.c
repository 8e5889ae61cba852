/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUPTI's functions by which another user of it is seen (cupti/lend.h): exported, and given by dlsym(). Where no tier of the trace uses CUPTI they
 * only go on to CUPTI's own.
 */
#include "preload/hook/cupti.h"

#include "core/any.h"
#include "core/atomic.h"
#include "cupti/lend.h"
#include "cupti/tracer.h"
#include "preload/base/driver.h"
#include "preload/hook/wrapper.h"
#include "preload/lifecycle.h"
#include "preload/trace/activity.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY       "libcupti.so"
#define NOT_THERE     15 /* CUPTI_ERROR_NOT_INITIALIZED */
#define DECLARE(name) name##_fn name;
#define PLACE(name)   name##_fn *name;

typedef library_register cuptiActivityRegisterCallbacks_fn;
typedef int cuptiActivityRegisterCallbacks_v2_fn(void *subscriber, void *request, void *complete);
typedef int cuptiActivityEnable_fn(int kind);
typedef int cuptiActivityEnable_v2_fn(void *subscriber, int kind, void *config);
typedef int cuptiActivityEnableAndDump_fn(int kind);
typedef int cuptiActivityEnableAndDump_v2_fn(void *subscriber, int kind, void *config);
typedef int cuptiActivityEnableContext_fn(void *context, int kind);
typedef int cuptiActivityDisable_fn(int kind);
typedef int cuptiActivityDisableContext_fn(void *context, int kind);
typedef int cuptiActivityRegisterTimestampCallback_fn(other_clock_read *clock);
typedef int cuptiSubscribe_fn(void **subscriber, void *callback, void *user);
typedef int cuptiSubscribe_v2_fn(void **subscriber, void *callback, void *user, void *parameters);
typedef int cuptiUnsubscribe_fn(void *subscriber);
typedef int cuptiFinalize_fn(void);

#pragma GCC visibility push(default)
LEND_CALLS(DECLARE)
#pragma GCC visibility pop

/* CUPTI's own, of the first copy that is found; they stay. */
static struct {
    LEND_CALLS(PLACE)
} real;

static const struct call {
    const char *name;
    void *wrapper;
    void **real;
} calls[] = {
#define CALL(name) { #name, (void *)name, (void **)&real.name },
    LEND_CALLS(CALL)
#undef CALL
};

/* ------------------------------------------------------------------------- CUPTI's own */

/* The path of the libcupti after the first @skip ones. */
struct path_search {
    unsigned skip;
    char path[PATH_MAX];
};

/* The loader holds a lock meanwhile that comes after dlopen()'s: nothing is opened here. */
static int look_at(struct dl_phdr_info *object, size_t n_bytes, void *ctx)
{
    struct path_search *s = ctx;
    const char *slash = strrchr(object->dlpi_name, '/');
    (void)n_bytes;
    if (strncmp(slash ? slash + 1 : object->dlpi_name, LIBRARY, strlen(LIBRARY)) || s->skip--)
        return 0;
    return snprintf(s->path, sizeof s->path, "%s", object->dlpi_name) > 0;
}

/* In a libcupti that the process has. The reference stays: pointers must not dangle. */
static void *find_loaded(const char *name)
{
    void *found = NULL;
    for (unsigned i = 0; !found; i++) {
        struct path_search s = { .skip = i };
        if (!dl_iterate_phdr(look_at, &s))
            break;
        void *handle = dlopen(s.path, RTLD_LAZY | RTLD_NOLOAD);
        found = handle ? driver_real_dlsym(handle, name) : NULL;
    }
    return found;
}

/* In the scope after ours, else in a libcupti that the process has. NULL: there is none. errno stays. */
static void *real_of(const struct call *call)
{
    int saved = errno;
    void *found = atomic_load_relaxed(call->real);
    if (found)
        return found;
    found = driver_real_dlsym(RTLD_NEXT, call->name);
    if (!found)
        found = find_loaded(call->name);
    if (!found)
        dlerror(); /* of ours */
    else
        atomic_store_relaxed(call->real, found);
    errno = saved;
    return found;
}

/* As real_of(), but for a program that sees no libcupti but what the tracer brought. */
static bool is_there(const struct call *call)
{
    return driver_real_dlsym(RTLD_NEXT, call->name) || (real_of(call) && !tracer_brought());
}

static const struct call *call_named(const char *name)
{
    return FIRST(i, sizeof calls / sizeof *calls, !strcmp(name, calls[i].name), &calls[i], NULL);
}

bool cupti_route(void *handle, const char *name, void **answer)
{
    const struct call *call = call_named(name);
    if (!call)
        return false;
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
        if (is_there(call))
            return false;
        *answer = driver_real_dlsym(RTLD_NEXT, name); /* nothing, for dlerror() to say */
        return true;
    }
    void *found = driver_real_dlsym(handle, name);
    bool whole = found == call->wrapper; /* by a handle of the global scope */
    if (!found || (whole && is_there(call)))
        return false;
    *answer = found == real_of(call) ? call->wrapper : whole ? NULL : found;
    return true;
}

/* ------------------------------------------------------------------------- wrappers */

/* CUPTI's function in a wrapper. */
#define CUPTI(name)                                                                                \
    ({                                                                                             \
        name##_fn *_fn = (name##_fn *)real_of(&calls[CALL_##name]);                                \
        if (!_fn)                                                                                  \
            return NOT_THERE;                                                                      \
        _fn;                                                                                       \
    })

enum {
#define NUMBER(name) CALL_##name,
    LEND_CALLS(NUMBER)
#undef NUMBER
};

/* May the tracer use CUPTI in this process? errno stays. */
static bool lends(void)
{
    const char *tier = getenv("DMI_TRACE");
    if (!tier || !*tier)
        return false;
    int saved = errno;
    lifecycle_read_spec(); /* or nothing knows what is wanted */
    errno = saved;
    return activity_wanted();
}

int cuptiActivityRegisterCallbacks(library_request *request, library_complete *complete)
{
    library_register *fn = CUPTI(cuptiActivityRegisterCallbacks);
    return lends() ? lend_register(fn, request, complete) : fn(request, complete);
}

/* @call: CUPTI's, by which another user enables @kind in @context, NULL: in all. Return: its result. */
#define ENABLES(context, kind, call)                                                               \
    ({                                                                                             \
        bool _lends = lends();                                                                     \
        if (_lends)                                                                                \
            lend_enables(context, kind);                                                           \
        int _r = call;                                                                             \
        if (_r && _lends)                                                                          \
            lend_disabled(context, kind);                                                          \
        _r;                                                                                        \
    })

#define DISABLES(context, kind, call)                                                              \
    ({                                                                                             \
        bool _lends = lends();                                                                     \
        int _r = !_lends || lend_disables(kind) ? (call) : LIBRARY_OK;                             \
        if (_lends)                                                                                \
            lend_disabled(context, kind);                                                          \
        _r;                                                                                        \
    })

int cuptiActivityEnable(int kind)
{
    cuptiActivityEnable_fn *fn = CUPTI(cuptiActivityEnable);
    return ENABLES(NULL, kind, fn(kind));
}

int cuptiActivityEnableAndDump(int kind)
{
    cuptiActivityEnableAndDump_fn *fn = CUPTI(cuptiActivityEnableAndDump);
    return ENABLES(NULL, kind, fn(kind));
}

int cuptiActivityEnableContext(void *context, int kind)
{
    cuptiActivityEnableContext_fn *fn = CUPTI(cuptiActivityEnableContext);
    return ENABLES(context, kind, fn(context, kind));
}

int cuptiActivityDisable(int kind)
{
    cuptiActivityDisable_fn *fn = CUPTI(cuptiActivityDisable);
    return DISABLES(NULL, kind, fn(kind));
}

int cuptiActivityDisableContext(void *context, int kind)
{
    cuptiActivityDisableContext_fn *fn = CUPTI(cuptiActivityDisableContext);
    return DISABLES(context, kind, fn(context, kind));
}

int cuptiActivityRegisterTimestampCallback(other_clock_read *clock)
{
    cuptiActivityRegisterTimestampCallback_fn *fn = CUPTI(cuptiActivityRegisterTimestampCallback);
    return lends() ? lend_clock(fn, clock) : fn(clock);
}

/* @call: CUPTI's, of a subscriber's, which there may be one of: where it is refused, it is tried again once CUPTI is lent. Return: its result. */
#define SUBSCRIBERS(call)                                                                          \
    ({                                                                                             \
        int _r = call;                                                                             \
        if (_r == LIBRARY_TAKEN && lends() && lend_for_subscriber())                               \
            _r = call;                                                                             \
        _r;                                                                                        \
    })

int cuptiSubscribe(void **subscriber, void *callback, void *user)
{
    cuptiSubscribe_fn *fn = CUPTI(cuptiSubscribe);
    return SUBSCRIBERS(fn(subscriber, callback, user));
}

int cuptiSubscribe_v2(void **subscriber, void *callback, void *user, void *parameters)
{
    cuptiSubscribe_v2_fn *fn = CUPTI(cuptiSubscribe_v2);
    return SUBSCRIBERS(fn(subscriber, callback, user, parameters));
}

int cuptiActivityRegisterCallbacks_v2(void *subscriber, void *request, void *complete)
{
    cuptiActivityRegisterCallbacks_v2_fn *fn = CUPTI(cuptiActivityRegisterCallbacks_v2);
    return SUBSCRIBERS(fn(subscriber, request, complete));
}

int cuptiActivityEnable_v2(void *subscriber, int kind, void *config)
{
    cuptiActivityEnable_v2_fn *fn = CUPTI(cuptiActivityEnable_v2);
    return SUBSCRIBERS(fn(subscriber, kind, config));
}

int cuptiActivityEnableAndDump_v2(void *subscriber, int kind, void *config)
{
    cuptiActivityEnableAndDump_v2_fn *fn = CUPTI(cuptiActivityEnableAndDump_v2);
    return SUBSCRIBERS(fn(subscriber, kind, config));
}

int cuptiUnsubscribe(void *subscriber)
{
    int r = CUPTI(cuptiUnsubscribe)(subscriber);
    if (!r && lends())
        lend_subscriber_ended();
    return r;
}

int cuptiFinalize(void)
{
    cuptiFinalize_fn *fn = CUPTI(cuptiFinalize);
    return lends() ? lend_finalize(fn) : fn();
}
