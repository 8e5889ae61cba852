/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/function/naming.h"

#include "core/cleanup.h"
#include "core/demangle.h"
#include "core/log.h"
#include "core/own_stack.h"

#include <string.h>

struct naming {
    const struct spec *spec;       /* or */
    const struct pattern *pattern; /* one alone */
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
    n->any = n->pattern ? pattern_matches(n->pattern, n->name) ||
                              (demangled && pattern_matches(n->pattern, demangled))
                        : spec_match_kernel(n->spec, n->name, demangled, n->match);
}

static void say_unread(const char *name)
{
    static bool said;
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        log_line(
            "kernel %.60s... (%zu characters) cannot be demangled: patterns see its name as it is",
            name, strlen(name));
}

static bool match(struct naming *n)
{
    size_t n_bytes = demangle_is_for(n->name) ? demangle_stack(n->name) : 0;
    if (!own_stack_run(match_name, n, n_bytes)) {
        n->any = n->pattern ? pattern_matches(n->pattern, n->name)
                            : spec_match_kernel(n->spec, n->name, NULL, n->match); /* as it is */
        n->unread = n_bytes;
    }
    if (n->unread && !n->any)
        say_unread(n->name);
    return n->any;
}

bool naming_match(const struct spec *spec, const char *name, struct spec_match *out)
{
    return match(&(struct naming){ .spec = spec, .name = name, .match = out });
}

bool naming_matches(const struct pattern *pattern, const char *name)
{
    return match(&(struct naming){ .pattern = pattern, .name = name });
}
