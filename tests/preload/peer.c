/* SPDX-License-Identifier: Apache-2.0 */
/* peer.c - another preloaded library, which looks names up as such libraries do. */
#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT void *peer_next(const char *name);
EXPORT void *peer_default(const char *name);

EXPORT void *peer_next(const char *name)
{
    void *volatile found =
        dlsym(RTLD_NEXT, name); /* no tail call: glibc looks at the return address */
    return found;
}

EXPORT void *peer_default(const char *name)
{
    void *volatile found = dlsym(RTLD_DEFAULT, name);
    return found;
}
