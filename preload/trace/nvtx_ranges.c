/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/nvtx_ranges.h"

#include "preload/nvtx/consumers.h"
#include "preload/trace/range_ring.h"

#include <string.h>

/* Whose stack a domain is: the default one has no handle. */
static const char default_domain;

static const void *owner_of(const void *domain)
{
    return domain ? domain : &default_domain;
}

/* What reports call it: the text itself, where no engine is known to use it for something. */
static const char *name_of(const char *text, size_t *n)
{
    static const struct {
        const char *text, *name;
    } names[] = {
#define RANGE_NAME(text, name) { text, name },
#include "preload/trace/range_names.def"
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i].text) == *n && !memcmp(names[i].text, text, *n)) {
            *n = strlen(names[i].name);
            return names[i].name;
        }
    return text;
}

static void push(const void *domain, const char *text, size_t n)
{
    const char *name = name_of(text, &n);
    range_ring_begin(owner_of(domain), DMI_RANGE_NVTX, name, n);
}

static void pop(const void *domain)
{
    range_ring_end(owner_of(domain));
}

static bool wants(void)
{
    return true;
}

static struct consumer consumer = { .wants = wants, .push = push, .pop = pop };

void nvtx_ranges_use(void)
{
    consumers_use(&consumer);
}
