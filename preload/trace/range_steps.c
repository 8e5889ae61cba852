/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/range_steps.h"

#include "preload/base/handles.h"
#include "preload/nvtx/consumers.h"
#include "preload/trace/named.h"
#include "preload/trace/steps.h"
#include "storage/codec/hash.h"

#include <string.h>

#define MOST_OPEN                                                                                  \
    8u /* ranges of a thread that began steps; beyond, those that began first are forgotten */

/* A range that is open, and began a step. */
struct open {
    const void *domain;
    uint64_t text;  /* its hash */
    uint64_t step;  /* as steps_range_begins() has it; 0: it has ended */
    uint32_t above; /* ranges of its domain that are open within it, and began no step */
};

static __thread __attribute__((tls_model("initial-exec"))) struct {
    struct open at[MOST_OPEN];
    uint32_t n;
} here;

/* The innermost one of the domain; NULL: there is none. */
static struct open *innermost(const void *domain)
{
    for (uint32_t i = here.n; i--;)
        if (here.at[i].domain == domain)
            return &here.at[i];
    return NULL;
}

static void forget(struct open *o)
{
    memmove(o, o + 1, (size_t)(&here.at[here.n] - (o + 1)) * sizeof *o);
    here.n--;
}

/*
 * A range of the same text that is open was never popped, as by an exception, or calls itself: its step ends where this one begins. Within another range
 * that one goes on afterwards.
 */
static void push(const void *domain, const char *text, size_t n)
{
    struct open *around = innermost(domain);
    if (!named_range(text, n)) {
        if (around)
            around->above++;
        return;
    }
    uint64_t hash = hash_bytes(text, n);
    for (uint32_t i = 0; i < here.n; i++)
        if (here.at[i].domain == domain && here.at[i].text == hash) {
            steps_range_ends(here.at[i].step);
            here.at[i].step = 0;
        }
    if (here.n == MOST_OPEN) {
        steps_range_ends(here.at[0].step);
        forget(here.at);
    }
    here.at[here.n++] =
        (struct open){ .domain = domain, .text = hash, .step = steps_range_begins() };
}

static void pop(const void *domain)
{
    struct open *o = innermost(domain);
    if (!o)
        return;
    if (o->above) {
        o->above--;
        return;
    }
    steps_range_ends(o->step);
    forget(o);
}

/* ------------------------------------------------------------------------- started, and ended by any thread */

static struct handles started = HANDLES_INIT; /* the step of each, by domain and id */

static const void *key_of(const void *domain, uint64_t id)
{
    uint64_t both[] = { (uint64_t)(uintptr_t)domain, id };
    return (const void *)(uintptr_t)(hash_bytes(both, sizeof both) | 1);
}

static void starts(const void *domain, uint64_t id, const char *text, size_t n)
{
    uint64_t step = named_range(text, n) ? steps_range_begins() : 0;
    if (step)
        handles_set(&started, key_of(domain, id), (void *)(uintptr_t)step);
}

static void ends(const void *domain, uint64_t id)
{
    uint64_t step = (uint64_t)(uintptr_t)handles_find(&started, key_of(domain, id));
    if (!step)
        return;
    handles_set(&started, key_of(domain, id), NULL);
    steps_range_ends(step);
}

static bool wants(void)
{
    return named_source() == DMI_STEP_NAMED_RANGE;
}

static struct consumer consumer = {
    .wants = wants, .push = push, .pop = pop, .start = starts, .end = ends
};

void range_steps_use(void)
{
    if (wants())
        consumers_use(&consumer);
}
