/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/naming.h"

#include "core/cleanup.h"
#include "preload/base/demangle.h"
#include "preload/base/own_stack.h"

struct naming {
    const struct spec *spec;
    const char *name;
    struct spec_match *match;
    bool any;
};

static void match_name(void *arg)
{
    struct naming *n = arg;
    _cleanup_(freep) char *demangled = demangle(n->name);
    n->any = spec_match_kernel(n->spec, n->name, demangled, n->match);
}

bool naming_match(const struct spec *spec, const char *name, struct spec_match *match)
{
    struct naming naming = { .spec = spec, .name = name, .match = match };
    own_stack_run(match_name, &naming);
    return naming.any;
}
