/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/hook/hook.h"

#include "core/any.h"
#include "preload/base/driver.h"
#include "preload/hook/cupti.h"
#include "preload/hook/wrapper.h"

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

__thread __attribute__((tls_model("initial-exec"))) bool hook_passed_on;

#define N_HOOKS (sizeof hooks / sizeof hooks[0])

static void *real_of(const struct hook *hook)
{
    return atomic_load_relaxed((void **)((char *)&driver_table + hook->real));
}

void *hook_wrap(void *fn)
{
    if (!fn || !driver_resolve())
        return fn;
    return FIRST(i, N_HOOKS, fn == real_of(&hooks[i]), hooks[i].wrapper, fn);
}

static bool is_wrapper(const void *fn)
{
    return ANY(i, N_HOOKS, fn == hooks[i].wrapper);
}

/* The hook on a driver entry point, NULL: there is none of this name. */
static const struct hook *hook_named(const char *name)
{
    if (name[0] != 'c' || name[1] != 'u')
        return NULL;
    return FIRST(i, N_HOOKS, !strcmp(name, hooks[i].name), &hooks[i], NULL);
}

__thread __attribute__((tls_model("initial-exec"))) nvtx_initialize *hook_nvtx_tool;
bool hook_wants_nvtx;

/* NVTX has opened the library that the environment names, and calls at once what we answer. */
static bool nvtx_route(void *handle, const char *name, void **answer)
{
    void *found = driver_real_dlsym(handle, name);
    *answer = (void *)InitializeInjectionNvtx2;
    hook_nvtx_tool = found == *answer ? NULL : (nvtx_initialize *)found;
    return found;
}

/* Is there a driver, and does it have what @hook is in front of? */
static bool driver_has(const struct hook *hook)
{
    return driver_resolve() && real_of(hook);
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
    if (name && !strncmp(name, "cupti", strlen("cupti")))
        return cupti_route(handle, name, answer);
    const struct hook *hook = name ? hook_named(name) : NULL;
    if (!hook)
        return hook_wants_nvtx && name && handle != RTLD_DEFAULT && handle != RTLD_NEXT &&
               !strcmp(name, "InitializeInjectionNvtx2") && nvtx_route(handle, name, answer);
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
        /*
         * The global scope begins with us, so these would find our wrapper where there is no driver, or an old one
         * that has no such function: the answer is then what comes after us, which is nothing.
         */
        if (driver_has(hook))
            return false;
        *answer = driver_real_dlsym(RTLD_NEXT, name);
        return *answer == NULL;
    }
    void *found = driver_real_dlsym(handle, name);
    if (is_wrapper(found) && !driver_has(hook)) {
        /* a handle of the global scope, as dlopen(NULL) gives: the same */
        *answer = driver_real_dlsym(RTLD_NEXT, name);
        return true;
    }
    *answer = hook_wrap(found);
    return found && *answer != found;
}
