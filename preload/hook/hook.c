/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/hook/hook.h"

#include "preload/base/driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

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

#define N_HOOKS (sizeof hooks / sizeof hooks[0])

static void *real_of(const struct hook *hook)
{
    return atomic_load_relaxed((void **)((char *)&driver_table + hook->real));
}

void *hook_wrap(void *fn)
{
    if (!fn || !driver_resolve())
        return fn;
    for (size_t i = 0; i < N_HOOKS; i++)
        if (fn == real_of(&hooks[i]))
            return hooks[i].wrapper;
    return fn;
}

static bool is_wrapper(const void *fn)
{
    for (size_t i = 0; i < N_HOOKS; i++)
        if (fn == hooks[i].wrapper)
            return true;
    return false;
}

/* Does the library export a driver entry point of this name? */
static bool has_name(const char *name)
{
    if (name[0] != 'c' || name[1] != 'u')
        return false;
    for (size_t i = 0; i < N_HOOKS; i++)
        if (!strcmp(name, hooks[i].name))
            return true;
    return false;
}

/*
 * What dlsym(@handle, @name) must answer, for dlsym.S: @answer and true, or false where glibc's own must be
 * *jumped* to, because it looks at its return address (RTLD_NEXT, RTLD_DEFAULT) and because dlerror() must tell
 * its story.
 */
__attribute__((visibility("hidden"))) bool dlsym_route(void *handle, const char *name,
                                                       void **answer);

bool dlsym_route(void *handle, const char *name, void **answer)
{
    driver_real_dlsym(NULL, NULL); /* fills the pointer that dlsym.S jumps through */
    if (!name || !has_name(name))
        return false;
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
        /*
         * The global scope begins with us, so these would find our wrapper where there is no driver: with none
         * loaded the answer is what comes after us, which is nothing.
         */
        if (driver_resolve())
            return false;
        *answer = driver_real_dlsym(RTLD_NEXT, name);
        return *answer == NULL;
    }
    void *found = driver_real_dlsym(handle, name);
    if (is_wrapper(found) && !driver_resolve()) {
        /* a handle of the global scope, as dlopen(NULL) gives: the same */
        *answer = driver_real_dlsym(RTLD_NEXT, name);
        return true;
    }
    *answer = hook_wrap(found);
    return found && *answer != found;
}
