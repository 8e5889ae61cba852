/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/function/naming.h"

#include "core/cleanup.h"
#include "core/log.h"
#include "preload/function/demangle.h"
#include "preload/function/own_stack.h"

#include <string.h>

struct naming {
    const struct spec *spec;
    const char *name;
    struct spec_match *match;
    bool any;
    bool unread; /* it could not be demangled */
};

static void match_name(void *arg)
{
    struct naming *n = arg;
    _cleanup_(freep) char *demangled = demangle_is_for(n->name) ? demangle(n->name) : NULL;
    n->unread = demangle_is_for(n->name) && !demangled;
    n->any = spec_match_kernel(n->spec, n->name, demangled, n->match);
}

static void say_unread(const char *name)
{
    static bool said;
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        log_line(
            "kernel %.60s... (%zu characters) cannot be demangled: patterns see its name as it is",
            name, strlen(name));
}

bool naming_match(const struct spec *spec, const char *name, struct spec_match *match)
{
    struct naming naming = { .spec = spec, .name = name, .match = match };
    size_t n_bytes = demangle_is_for(name) ? demangle_stack(name) : 0;
    if (!own_stack_run(match_name, &naming, n_bytes)) {
        naming.any = spec_match_kernel(spec, name, NULL, match); /* as it is */
        naming.unread = n_bytes;
    }
    if (naming.unread && !naming.any)
        say_unread(name);
    return naming.any;
}
