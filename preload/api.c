/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of include/dmi/dmi.h. */
#include "core/atomic.h"
#include "core/clock.h"
#include "preload/capture/said.h"
#include "preload/capture/shed.h"
#include "preload/capture/step.h"
#include "preload/context/context.h"
#include "preload/context/workers.h"
#include "preload/control/switch.h"
#include "preload/eager/kernel.h"
#include "preload/eager/tap.h"
#include "preload/edit/accounts.h"
#include "preload/edit/edits.h"
#include "preload/lifecycle.h"
#include "preload/session/session.h"
#include "preload/trace/range_ring.h"
#include "preload/trace/steps.h"
#include "storage/writer/steps.h"

#include <dmi/dmi.h>
#include <dmi/format.h>
#include <dmi/span.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* There is no run: what the program says goes nowhere. */
static bool is_off(void)
{
    return !session_does(SESSION_WRITES);
}

/* The same, of what is said of taps or asked of them, and (@what) of steps: they may be of host memory, where no CUDA comes before them. */
static bool stays_off(enum session_work what)
{
    if (is_off())
        lifecycle_start_early(SESSION_SITES);
    if (is_off() && what == SESSION_TRACE)
        lifecycle_start_early(SESSION_TRACE);
    return is_off();
}

/* There are no sites: what the program says of them goes nowhere. */
static bool has_no_sites(void)
{
    return !session_does(SESSION_SITES);
}

/* Enters. Return: the run, NULL: there is none any more. */
static struct run *enter_run(struct session_call *call)
{
    return session_enter_for(call, SESSION_WRITES) ? session_run() : NULL;
}

/* What @tell, an expression in the run, run, says; DMI_STATUS_OFF where @off, and where there is no run any more. */
#define IN_RUN(off, tell)                                                                          \
    ({                                                                                             \
        struct session_call _call;                                                                 \
        int _said = DMI_STATUS_OFF;                                                                \
        if (!(off)) {                                                                              \
            struct run *run = enter_run(&_call);                                                   \
            _said = run ? (tell) : _said;                                                          \
            session_leave(&_call);                                                                 \
        }                                                                                          \
        _said;                                                                                     \
    })

/* Whether the structs are of a size and version that can be read at all; *@why where they are not. */
static bool is_known(const struct dmi_step *step, const char **why)
{
    *why = "there is no struct dmi_step, or its size or version is not one that is known";
    if (!step || step->size < DMI_STEP_LEAST || step->version != DMI_STEP_VERSION)
        return false;
    *why = "the size of its spans is not one that is known";
    return !step->n_spans || step->span_size >= DMI_SPAN_LEAST;
}

/*
 * A request whose id cannot be costs the others of its step nothing: its rows belong to no request, as those of padding do.
 * @copy: gets the step with such spans, which are the caller's to free; its spans are NULL where all ids are good
 * Return: 0 or -ENOMEM.
 */
static int leave_out_ids(struct run *run, const struct dmi_step *step, struct dmi_step *copy)
{
    const char *why = NULL;
    for (uint32_t i = 0; !why && i < step->n_spans; i++)
        why = steps_wrong_id(dmi_span_at(step, i));
    *copy = *step;
    copy->spans = NULL;
    if (!why)
        return 0;
    struct dmi_span *spans = calloc(step->n_spans, sizeof *spans);
    if (!spans)
        return -ENOMEM;
    for (uint32_t i = 0; i < step->n_spans; i++) {
        spans[i] = dmi_span_read(step, i);
        why = steps_wrong_id(&spans[i]);
        if (!why)
            continue;
        run_refuse_id(run, step->step, why);
        spans[i].request_id = spans[i].tags = NULL;
        spans[i].cached_ids = NULL;
        spans[i].flags |= DMI_SPAN_PADDING;
    }
    copy->spans = spans;
    copy->span_size = sizeof *spans;
    return 0;
}

static int take_step(struct run *run, const struct dmi_step *step)
{
    uint64_t sequence = atomic_add_relaxed(&session.next_step, 1);
    int r = run_step(run, sequence, step);
    bool follows = r == 0 && !has_no_sites();
    struct step *rows = follows ? shed_step(step_new(sequence, step, said_is_over)) : NULL;
    if (r == 0)
        atomic_add_relaxed(&session.counters->steps, 1);
    if (follows && !rows)
        r = -ENOMEM;
    if (r == 0)
        r = said_begins(step, sequence, rows);
    if (r == 0)
        steps_engine_begins(step, sequence);
    return r;
}

static int note_step(struct run *run, const struct dmi_step *given)
{
    const char *why;
    if (!is_known(given, &why)) {
        run_refuse_step(run, why);
        return DMI_STATUS_BAD_VERSION;
    }
    const struct dmi_step step = dmi_step_read(given);
    if (step.n_rows > STEP_MAX_ROWS) {
        run_refuse_step(run, "it has more than 16,777,216 rows");
        return -EINVAL;
    }
    struct dmi_step copy = { .spans = NULL };
    bool fits = step.n_spans <= DMI_MAX_SPANS && step.spans;
    if (fits && leave_out_ids(run, &step, &copy)) {
        run_refuse_step(run, "no memory");
        return -ENOMEM;
    }
    int r = take_step(run, copy.spans ? &copy : &step);
    free((void *)(uintptr_t)copy.spans);
    return r;
}

/* Steps that overlap another, until now. */
static void note_overlaps(struct run *run)
{
    uint64_t number, other, n = said_overlaps(&number, &other);
    if (n)
        run_steps_overlap(run, n, number, other);
}

EXPORT int dmi_step_begin(const struct dmi_step *step)
{
    struct session_call call;
    if (stays_off(SESSION_TRACE))
        return DMI_STATUS_OFF;
    struct run *run = enter_run(&call);
    int r = run ? note_step(run, step) : DMI_STATUS_OFF;
    if (run && r) /* nobody's rows are better than those of an earlier step */
        steps_engine_ends(said_refused());
    if (run)
        note_overlaps(run);
    session_leave(&call);
    return r;
}

EXPORT int dmi_step_resume(uint64_t step, uint32_t part)
{
    struct session_call call;
    if (is_off())
        return DMI_STATUS_OFF;
    struct run *run = enter_run(&call);
    uint64_t sequence;
    bool own;
    int r = run ? said_resumes(step, part, &sequence, &own) : DMI_STATUS_OFF;
    if (run && !r)
        steps_engine_resumes(sequence, own);
    else if (run)
        steps_engine_ends(own);
    session_leave(&call);
    return r;
}

EXPORT int dmi_step_end(void)
{
    struct session_call call;
    if (is_off())
        return DMI_STATUS_OFF;
    bool own = said_ends();
    if (!session_does(SESSION_TRACE))
        return DMI_OK;
    if (session_enter_for(&call, SESSION_TRACE))
        steps_engine_ends(own);
    session_leave(&call);
    return DMI_OK;
}

EXPORT int dmi_accept(const char *request_id, uint64_t step, uint32_t n_accepted)
{
    return IN_RUN(is_off(), run_accept(run, request_id, step, n_accepted));
}

EXPORT int dmi_request_end(const char *request_id, uint32_t reason)
{
    struct session_call call;
    if (is_off())
        return DMI_STATUS_OFF;
    struct run *run = enter_run(&call);
    int r = run ? run_request_end(run, request_id, reason) : DMI_STATUS_OFF;
    bool follows = r == 0 && !has_no_sites();
    if (follows)
        shed_request_end(request_id);
    if (follows && session.spec->n_places)
        edits_request_end(request_id);
    session_leave(&call);
    return r;
}

EXPORT int dmi_tap(const struct dmi_tap *tap)
{
    return dmi_tap_at(tap, NULL);
}

EXPORT int dmi_tap_at(const struct dmi_tap *tap, const struct dmi_moment *moment)
{
    struct session_call call;
    if (stays_off(SESSION_SITES) || has_no_sites())
        return DMI_STATUS_OFF;
    int r = session_enter(&call) ? tap_at(tap, moment) : DMI_STATUS_OFF;
    steps_own_ahead(eager_take_own(), (struct stream){ .handle = tap ? tap->stream : NULL });
    session_leave(&call);
    return r;
}

EXPORT int dmi_moment_take(const struct dmi_tap *tap, struct dmi_moment **moment)
{
    struct session_call call;
    if (!moment)
        return -EINVAL;
    *moment = NULL;
    if (stays_off(SESSION_SITES) || has_no_sites())
        return DMI_STATUS_OFF;
    int r = session_enter(&call) ? tap_take_moment(tap, moment) : DMI_STATUS_OFF;
    steps_own_ahead(eager_take_own(), (struct stream){ .handle = tap ? tap->stream : NULL });
    session_leave(&call);
    return r;
}

EXPORT void dmi_moment_release(struct dmi_moment *moment)
{
    tap_release_moment(moment);
}

EXPORT int dmi_site_enable(const char *pattern, int on)
{
    struct session_call call;
    if (!pattern)
        return -EINVAL;
    if (stays_off(SESSION_SITES) || has_no_sites())
        return DMI_STATUS_OFF;
    int r = DMI_STATUS_OFF;
    if (session_enter(&call)) {
        int n = switch_sites(pattern, on != 0, NULL);
        r = n > 0 ? 0 : n ? n : -ENOENT;
    }
    session_leave(&call);
    return r;
}

EXPORT int dmi_describe(const char *key, const char *value)
{
    return IN_RUN(stays_off(SESSION_SITES), run_describe(run, key, value));
}

struct flush {
    uint64_t end_ns;
    bool done;
};

static void flush_context(struct context *c, void *arg)
{
    struct flush *flush = arg;
    uint64_t now = clock_mono_ns();
    if (atomic_load_acquire(&c->state) == CONTEXT_READY &&
        !workers_wait(c, atomic_load_acquire(&c->ring.head_slot),
                      now < flush->end_ns ? flush->end_ns - now : 0))
        flush->done = false;
}

static int flush_all(struct run *run, uint64_t timeout_ns)
{
    uint64_t now = clock_mono_ns();
    struct flush flush = { .end_ns = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns,
                           .done = true };
    context_each(flush_context, &flush);
    int r = run_flush(run);
    return r == 0 && !flush.done ? DMI_STATUS_TIMEOUT : r;
}

EXPORT int dmi_flush(uint64_t timeout_ns)
{
    return IN_RUN(is_off(), flush_all(run, timeout_ns));
}

EXPORT int64_t dmi_edits_missed(const char *request_id)
{
    return has_no_sites() || !request_id ? 0 : IN_SESSION(accounts_aborting(request_id), 0);
}

/* Whom ranges of these functions belong to: NVTX has stacks of its own. */
static const char said_ranges;

/* As the functions of <dmi/dmi.h> answer. */
static int range_status(int r)
{
    return r > 0 ? DMI_STATUS_OFF : r;
}

EXPORT int dmi_range_begin(const char *name)
{
    if (!name)
        return -EINVAL;
    int r = range_ring_begin(&said_ranges, DMI_RANGE_SAID, name, strlen(name));
    if (r <= 0)
        return r;
    lifecycle_start_early(SESSION_TRACE);
    return range_status(range_ring_begin(&said_ranges, DMI_RANGE_SAID, name, strlen(name)));
}

EXPORT int dmi_range_begin_at(const char *name, uint64_t begin_ns, uint32_t flags)
{
    if (flags & ~(uint32_t)DMI_RANGE_FLAG_OVERLAPS || begin_ns > clock_mono_ns())
        return -EINVAL;
    int r = dmi_range_begin(name);
    if (!r)
        range_ring_since(begin_ns, flags ? DMI_RANGE_OVERLAPS : DMI_RANGE_SAID);
    return r;
}

EXPORT int dmi_range_fact(const char *key, int64_t value)
{
    return key ? range_status(range_ring_fact(&said_ranges, key, value)) : -EINVAL;
}

EXPORT int dmi_range_end(void)
{
    return range_status(range_ring_end(&said_ranges));
}
