/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/range_steps.h"

#include "preload/nvtx/consumers.h"
#include "preload/trace/named.h"
#include "preload/trace/steps.h"

static void begins(const void *domain, const char *text, size_t n)
{
    (void)domain;
    if (named_range(text, n))
        steps_begins_soon(DMI_STEP_NAMED_RANGE);
}

static void starts(const void *domain, uint64_t id, const char *text, size_t n)
{
    (void)id;
    begins(domain, text, n);
}

static bool wants(void)
{
    return named_source() == DMI_STEP_NAMED_RANGE;
}

/* A step ends where the next one begins, not with the range. */
static struct consumer consumer = { .wants = wants, .push = begins, .start = starts };

void range_steps_use(void)
{
    if (wants())
        consumers_use(&consumer);
}
