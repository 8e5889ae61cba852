/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of include/dmi/dmi.h, and the ways out of a process that skip atexit handlers. */
#include "core/atomic.h"
#include "core/clock.h"
#include "preload/arena.h"
#include "preload/hooks.h"
#include "preload/process.h"

#include <dmi/dmi.h>

#include <dlfcn.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int check_step(const struct dmi_step *step)
{
    if (!step || step->size < sizeof *step || step->version != DMI_STEP_VERSION ||
        (step->n_spans && step->span_size < sizeof(struct dmi_span)))
        return DMI_STATUS_BAD_VERSION;
    if (step->n_spans && !step->spans)
        return -EINVAL;
    for (uint32_t i = 0; i < step->n_spans; i++) {
        const struct dmi_span *span =
            (const void *)((const char *)step->spans + (size_t)i * step->span_size);
        if (span->first_row > step->n_rows || span->n_tokens > step->n_rows - span->first_row)
            return -EINVAL;
        if (!span->request_id && !(span->flags & DMI_SPAN_PADDING))
            return -EINVAL;
    }
    return 0;
}

EXPORT int dmi_step_begin(const struct dmi_step *step)
{
    if (!atomic_load_acquire(&process.armed))
        return DMI_STATUS_OFF;
    int r = check_step(step);
    if (r)
        return r;
    int saved = errno;
    /* counted as active: the run must not be closed under us (process_finish) */
    __atomic_fetch_add(&process.active, 1, __ATOMIC_SEQ_CST);
    struct run *run = __atomic_load_n(&process.armed, __ATOMIC_SEQ_CST) ? process_run() : NULL;
    r = DMI_STATUS_OFF;
    if (run) {
        uint64_t sequence = atomic_add_relaxed(&process.next_step, 1);
        r = run_step(run, sequence, step);
        if (r == 0) {
            atomic_add_relaxed(&process.counters->steps, 1);
            atomic_store_release(&process.step, sequence); /* to fill_pending() in launch.c */
        } else {
            /* rows that nobody is named for are better than rows of the last step's requests */
            atomic_store_release(&process.step, UINT64_MAX);
        }
        atomic_add_acq_rel(&process.step_forward, 1); /* acquired by forward_advance() */
    }
    atomic_sub_relaxed(&process.active, 1);
    errno = saved;
    return r;
}

EXPORT int dmi_step_end(void)
{
    if (!atomic_load_acquire(&process.armed))
        return DMI_STATUS_OFF;
    atomic_store_release(&process.step, UINT64_MAX); /* to fill_pending() in launch.c */
    return DMI_OK;
}

EXPORT int dmi_site_enable(const char *pattern, int on)
{
    if (!pattern)
        return -EINVAL;
    if (!atomic_load_acquire(&process.armed))
        return DMI_STATUS_OFF;
    int saved = errno, r = -ENOENT;
    for (uint32_t i = 0; i < process.spec->n_sites; i++) {
        if (fnmatch(pattern, process.spec->sites[i].about.name, 0))
            continue;
        atomic_store_relaxed(&process.off[i], !on);
        r = 0;
    }
    atomic_add_acq_rel(&process.switches, 1); /* acquired by follow_switches() in exec_launch.c */
    errno = saved;
    return r;
}

struct flush {
    uint64_t end_ns;
    bool done;
};

static void flush_arena(struct arena *a, void *ctx)
{
    struct flush *flush = ctx;
    uint64_t now = clock_mono_ns();
    if (atomic_load_acquire(&a->state) == ARENA_READY &&
        !drain_wait(a, atomic_load_acquire(&a->ring.head_slot),
                    now < flush->end_ns ? flush->end_ns - now : 0))
        flush->done = false;
}

EXPORT int dmi_flush(uint64_t timeout_ns)
{
    if (!atomic_load_acquire(&process.armed))
        return DMI_STATUS_OFF;
    int saved = errno;
    __atomic_fetch_add(&process.active, 1, __ATOMIC_SEQ_CST);
    struct run *run = __atomic_load_n(&process.armed, __ATOMIC_SEQ_CST) ? process_run() : NULL;
    int r = DMI_STATUS_OFF;
    if (run) {
        uint64_t now = clock_mono_ns();
        struct flush flush = { .end_ns =
                                   timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns,
                               .done = true };
        arena_each(flush_arena, &flush);
        r = run_flush(run);
        if (r == 0 && !flush.done)
            r = DMI_STATUS_TIMEOUT;
    }
    atomic_sub_relaxed(&process.active, 1);
    errno = saved;
    return r;
}

/*
 * _exit() skips the atexit handlers, and with them our last flush. A child of vfork() that calls
 * it shares our memory: process_finish() looks at the pid.
 */
typedef void exit_fn(int);

static _Noreturn void leave(const char *name, int status)
{
    process_finish();
    exit_fn *real = (exit_fn *)hooks_real_dlsym(RTLD_NEXT, name);
    for (;;) {
        if (real)
            real(status);
    }
}

EXPORT _Noreturn void _exit(int status)
{
    leave("_exit", status);
}

EXPORT _Noreturn void _Exit(int status)
{
    leave("_Exit", status);
}
