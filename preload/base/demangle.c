/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/demangle.h"

#include "core/atomic.h"
#include "preload/base/driver.h"

#include <dlfcn.h>
#include <stddef.h>

typedef char *demangle_fn(const char *, char *, size_t *, int *);

static demangle_fn *found; /* its runtime is never unloaded: the reference below stays */

/* Python loads its modules with RTLD_LOCAL: their C++ runtime is in no global scope. */
static demangle_fn *find(void)
{
    static const char *const runtimes[] = { "libstdc++.so.6", "libc++abi.so.1" };
    demangle_fn *fn = (demangle_fn *)driver_real_dlsym(RTLD_DEFAULT, "__cxa_demangle");
    for (size_t i = 0; !fn && i < sizeof runtimes / sizeof runtimes[0]; i++) {
        void *lib = dlopen(runtimes[i], RTLD_LAZY | RTLD_NOLOAD);
        if (lib)
            fn = (demangle_fn *)driver_real_dlsym(lib, "__cxa_demangle");
    }
    dlerror(); /* what was not there is no error of the application's */
    return fn;
}

bool demangle_can(void)
{
    demangle_fn *fn = atomic_load_relaxed(&found);
    if (fn)
        return true;
    fn = find();
    atomic_store_relaxed(&found, fn);
    return fn != NULL;
}

char *demangle(const char *name)
{
    int status = 0;
    if (!demangle_is_for(name) || !demangle_can())
        return NULL;
    return atomic_load_relaxed(&found)(name, NULL, NULL, &status);
}
