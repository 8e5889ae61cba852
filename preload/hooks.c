/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/hooks.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#ifdef __x86_64__
#define OLDEST_GLIBC "GLIBC_2.2.5"
#else
#define OLDEST_GLIBC "GLIBC_2.17"
#endif

struct driver driver_table;
static int resolved; /* released by hooks_resolve() once driver_table is whole */

/* Name, wrapper and place of the real pointer of each hook, in hooks.def's order. */
static const struct hook {
    const char *name;
    void *wrapper;
    size_t real;
} hooks[] = {
#define HOOK(name) { #name, (void *)name, offsetof(struct driver, name) },
#define USE(name)
#include "preload/hooks.def"
#undef HOOK
#undef USE
};

static const struct use {
    const char *name;
    size_t real;
} uses[] = {
#define HOOK(name)
#define USE(name) { #name, offsetof(struct driver, name) },
#include "preload/hooks.def"
#undef HOOK
#undef USE
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void **real_slot(size_t offset)
{
    return (void **)((char *)&driver_table + offset);
}

typedef void *dlsym_fn(void *, const char *);

/* For preload/dlsym.S, which jumps through it; hooks_real_dlsym() fills it. */
__attribute__((visibility("hidden"))) dlsym_fn *dlsym_real;

void *hooks_real_dlsym(void *handle, const char *name)
{
    dlsym_fn *real = atomic_load_relaxed(&dlsym_real);
    if (!real) {
        /* glibc 2.34 moved it from libdl to libc under a new version */
        real = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (!real)
            real = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", OLDEST_GLIBC);
        atomic_store_relaxed(&dlsym_real, real);
    }
    return name && real ? real(handle, name) : NULL;
}

bool hooks_resolve(void)
{
    /* acquires the release below */
    if (atomic_load_acquire(&resolved))
        return true;
    int saved = errno;
    hooks_real_dlsym(NULL, NULL);
    /*
     * NOLOAD: a driver is never brought into a process that did not ask for one. The reference
     * that it takes stays: pointers into the driver must not dangle.
     */
    void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (lib) {
        for (size_t i = 0; i < COUNT(hooks); i++)
            atomic_store_relaxed(real_slot(hooks[i].real), hooks_real_dlsym(lib, hooks[i].name));
        for (size_t i = 0; i < COUNT(uses); i++)
            atomic_store_relaxed(real_slot(uses[i].real), hooks_real_dlsym(lib, uses[i].name));
        /* two threads may both come here and write the same pointers */
        atomic_store_release(&resolved, 1);
    }
    /* a dlopen that found nothing, or a name that an old driver lacks, is nobody's error but ours */
    dlerror();
    errno = saved;
    return lib != NULL;
}

void *hooks_wrap(void *fn)
{
    if (!fn || !hooks_resolve())
        return fn;
    for (size_t i = 0; i < COUNT(hooks); i++)
        if (fn == atomic_load_relaxed(real_slot(hooks[i].real)))
            return hooks[i].wrapper;
    return fn;
}

static bool is_wrapper(const void *fn)
{
    for (size_t i = 0; i < COUNT(hooks); i++)
        if (fn == hooks[i].wrapper)
            return true;
    return false;
}

bool hooks_has_name(const char *name)
{
    if (name[0] != 'c' || name[1] != 'u')
        return false;
    for (size_t i = 0; i < COUNT(hooks); i++)
        if (!strcmp(name, hooks[i].name))
            return true;
    return false;
}

/*
 * What dlsym(@handle, @name) must answer, for dlsym.S: @answer and true, or false where glibc's
 * own must be *jumped* to, because it looks at its return address (RTLD_NEXT, RTLD_DEFAULT) and
 * because dlerror() must tell its story.
 */
__attribute__((visibility("hidden"))) bool dlsym_route(void *handle, const char *name,
                                                       void **answer);

bool dlsym_route(void *handle, const char *name, void **answer)
{
    if (!atomic_load_relaxed(&dlsym_real))
        hooks_real_dlsym(NULL, NULL);
    if (!name || !hooks_has_name(name))
        return false;
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
        /*
         * The global scope begins with us, so these would find our wrapper where no driver is:
         * with none loaded the answer is what stands behind us, which is nothing.
         */
        if (hooks_resolve())
            return false;
        *answer = hooks_real_dlsym(RTLD_NEXT, name);
        return *answer == NULL;
    }
    void *found = hooks_real_dlsym(handle, name);
    if (is_wrapper(found) && !hooks_resolve()) {
        /* a handle of the global scope, as dlopen(NULL) gives: the same */
        *answer = hooks_real_dlsym(RTLD_NEXT, name);
        return true;
    }
    *answer = hooks_wrap(found);
    return found && *answer != found;
}
