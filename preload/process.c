/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/process.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/log.h"
#include "preload/arena.h"
#include "preload/execs.h"
#include "preload/forward.h"
#include "preload/funcs.h"
#include "preload/graphs.h"

#include <dmi/ring.h>

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FINISH_GRACE_NS 2000000000u /* for closing the files behind the last flush */
#define EXIT_MS         5000        /* unless DMI_EXIT_MS says otherwise */

enum process_state {
    PROCESS_NEW = 0,
    PROCESS_STARTED = 1,  /* process_start() has decided */
    PROCESS_FINISHED = 2, /* the last flush has begun: nothing is captured any more */
};

struct process process = { .step = UINT64_MAX, .lock = PTHREAD_MUTEX_INITIALIZER };

/* ------------------------------------------------------------------------- environment */

/* A number with an optional K, M or G (binary). Return: 0 where it is unset or senseless. */
static uint64_t env_size(const char *name)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return 0;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    unsigned shift = 0;
    switch (*end) {
    case 'K':
    case 'k':
        shift = 10;
        end++;
        break;
    case 'M':
    case 'm':
        shift = 20;
        end++;
        break;
    case 'G':
    case 'g':
        shift = 30;
        end++;
        break;
    }
    if (errno || *end || end == text || text[0] == '-' || value > (UINT64_MAX >> shift)) {
        log_line("%s=%s is no size (bytes, or a number with K, M or G): ignored", name, text);
        return 0;
    }
    return (uint64_t)value << shift;
}

static enum run_fsync env_fsync(void)
{
    const char *text = getenv("DMI_FSYNC");
    if (!text || !*text || !strcmp(text, "close"))
        return RUN_FSYNC_CLOSE;
    if (!strcmp(text, "never"))
        return RUN_FSYNC_NEVER;
    if (!strcmp(text, "chunk"))
        return RUN_FSYNC_CHUNK;
    log_line("DMI_FSYNC=%s is none of never, close, chunk: close is used", text);
    return RUN_FSYNC_CLOSE;
}

static struct spec *load_spec(const char *path)
{
    const char *vars[SPEC_MAX_VARS];
    const char *env_vars = getenv("DMI_VARS");
    _cleanup_(freep) char *text = strdup(env_vars ? env_vars : "");
    if (!text)
        return NULL;
    struct spec_errors errors = { 0 };
    struct spec *spec = NULL;
    size_t n_vars = spec_split_vars(text, vars, SPEC_MAX_VARS);
    if (n_vars == SIZE_MAX) {
        log_line("DMI_VARS names more than %u variables: none is set", (unsigned)SPEC_MAX_VARS);
        n_vars = 0;
    }
    int r = spec_load(path, vars, n_vars, &errors, &spec);
    for (size_t i = 0; i < errors.n_lines; i++)
        log_line("%s", errors.lines[i]);
    if (r < 0 && !errors.n_lines)
        log_line("%s: %s; this process runs without capture", path, strerror(-r));
    else if (r)
        log_line("%s: %zu error%s; this process runs without capture", path, errors.n_lines,
                 errors.n_lines == 1 ? "" : "s");
    spec_errors_deinit(&errors);
    return r ? NULL : spec;
}

/* ------------------------------------------------------------------------- start */

static void in_child(void)
{
    /* the parent's run, threads and contexts are not ours: off until CUDA is initialised here */
    atomic_store_relaxed(&process.armed, 0);
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    process = (struct process){ .step = UINT64_MAX, .lock = unlocked };
    arena_reset();
    funcs_reset();
    graphs_reset();
    execs_reset();
}

void process_start(void)
{
    if (atomic_load_acquire(&process.state) != PROCESS_NEW) /* of the release below */
        return;
    int saved = errno;
    pthread_mutex_lock(&process.lock);
    if (process.state == PROCESS_NEW) {
        const char *path = getenv("DMI_SPEC");
        log_init(getenv("DMI_LOG"));
        struct spec *spec = path && *path ? load_spec(path) : NULL;
        if (spec) {
            static int registered; /* survives in a child, as the handler does */
            if (!registered && !pthread_atfork(NULL, NULL, in_child))
                registered = 1;
            const char *exit_ms = getenv("DMI_EXIT_MS");
            uint64_t ms = exit_ms && *exit_ms ? env_size("DMI_EXIT_MS") : EXIT_MS;
            process.exit_ns = ms > UINT64_MAX / 1000000 ? UINT64_MAX / 4 : ms * 1000000;
            process.ring_bytes = env_size("DMI_RING_BYTES");
            if (!process.ring_bytes)
                process.ring_bytes = spec->ring_bytes;
            uint64_t slots = env_size("DMI_RING_SLOTS");
            process.ring_slots = slots && slots <= UINT32_MAX ? (uint32_t)slots : spec->ring_slots;
            process.next_launch = DMI_SEQ_FIRST;
            process.memory_epoch = 1;
            process.pid = getpid();
            process.reported = calloc(spec->n_sites + 1, sizeof *process.reported);
            process.off = calloc(spec->n_sites + 1, sizeof *process.off);
            process.spec = spec;
            /* acquired by every wrapper that looks at the spec */
            atomic_store_release(&process.armed, process.reported && process.off);
        }
        atomic_store_release(&process.state, PROCESS_STARTED);
    }
    pthread_mutex_unlock(&process.lock);
    errno = saved;
}

/* ------------------------------------------------------------------------- the run */

/*
 * A write behind RLIMIT_FSIZE raises SIGXFSZ in the writing thread, which ends a process that has not
 * said otherwise. Our own threads block all signals; in the host's threads it is blocked while we write.
 */
struct quiet {
    sigset_t before, before_pending;
};

static void quiet_begin(struct quiet *q)
{
    sigset_t xfsz;
    sigemptyset(&xfsz);
    sigaddset(&xfsz, SIGXFSZ);
    sigpending(&q->before_pending);
    pthread_sigmask(SIG_BLOCK, &xfsz, &q->before);
}

static void quiet_end(const struct quiet *q)
{
    sigset_t xfsz, pending;
    sigemptyset(&xfsz);
    sigaddset(&xfsz, SIGXFSZ);
    sigpending(&pending);
    if (sigismember(&pending, SIGXFSZ) && !sigismember(&q->before_pending, SIGXFSZ)) {
        struct timespec none = { 0 };
        sigtimedwait(&xfsz, NULL, &none); /* ours: the host never hears of it */
    }
    pthread_sigmask(SIG_SETMASK, &q->before, NULL);
}

static int open_run(struct err *err, struct run **run)
{
    const struct spec *spec = process.spec;
    _cleanup_(freep) struct dmi_site *sites = calloc(spec->n_sites + 1, sizeof *sites);
    _cleanup_(freep) struct run_text *conventions =
        calloc(spec->n_conventions + 1, sizeof *conventions);
    _cleanup_(freep) struct run_text *absent = calloc(spec->n_absent + 1, sizeof *absent);
    if (!sites || !conventions || !absent)
        return err_set(err, -ENOMEM, "no memory");
    for (uint32_t i = 0; i < spec->n_sites; i++)
        sites[i] = spec->sites[i].about;
    for (size_t i = 0; i < spec->n_conventions; i++)
        conventions[i] = (struct run_text){ spec->conventions[i].key, spec->conventions[i].value };
    for (size_t i = 0; i < spec->n_absent; i++)
        absent[i] = (struct run_text){ spec->absent[i].name, spec->absent[i].why };
    const char *out = getenv("DMI_OUT");
    struct run_options options = {
        .out_dir = out && *out ? out : "dmi-out",
        .spec_path = spec->path,
        .spec_text = spec->text,
        .n_spec_text = spec->n_text,
        .model = spec->model,
        .library_version = DMI_VERSION,
        .sites = sites,
        .n_sites = spec->n_sites,
        .conventions = conventions,
        .n_conventions = spec->n_conventions,
        .absent = absent,
        .n_absent = spec->n_absent,
        .segment_bytes = env_size("DMI_SEGMENT_BYTES"),
        .fsync = env_fsync(),
    };
    return run_open(err, &options, run);
}

static void at_exit(void)
{
    process_finish();
}

struct run *process_run(void)
{
    struct run *run = atomic_load_acquire(&process.run); /* of the release below */
    if (run || !atomic_load_acquire(&process.armed))
        return run;
    int saved = errno;
    pthread_mutex_lock(&process.lock);
    if (!process.run && process.state == PROCESS_STARTED && process.armed) {
        struct err err = { 0 };
        struct quiet quiet;
        quiet_begin(&quiet);
        int r = open_run(&err, &run);
        quiet_end(&quiet);
        if (r) {
            log_line("no run can be written, this process runs without capture: %s", err.msg);
            atomic_store_release(&process.armed, 0);
        } else {
            process.counters = run_counters(run);
            static pid_t registered; /* of the process that did; handlers are inherited by fork */
            /*
             * The driver registered its own handler in cuInit, before this one; they run in
             * reverse order, so the last flush still has a driver.
             */
            if (!registered && !atexit(at_exit))
                registered = getpid();
            atomic_store_release(&process.run, run);
        }
    }
    run = process.run;
    pthread_mutex_unlock(&process.lock);
    errno = saved;
    return run;
}

/* ------------------------------------------------------------------------- accounting */

void process_count(struct dmi_tally *tally, int sign, uint64_t records, uint64_t rows,
                   uint64_t bytes)
{
    uint64_t s = (uint64_t)(int64_t)sign; /* unsigned arithmetic wraps as the counters do */
    atomic_add_relaxed(&tally->records, s * records);
    atomic_add_relaxed(&tally->rows, s * rows);
    atomic_add_relaxed(&tally->bytes, s * bytes);
}

void process_drop(uint32_t site, enum dmi_drop reason, uint64_t rows, uint64_t bytes)
{
    struct dmi_site_counters *c = process_site(site);
    if (c)
        process_count(&c->dropped[reason], 1, 1, rows, bytes);
}

static const char *const problem_names[] = {
    [PROBLEM_BAD_POINTER] = "bad_pointer", [PROBLEM_BAD_EXPR] = "bad_expr",
    [PROBLEM_TOO_LARGE] = "too_large",     [PROBLEM_COUNT] = "count_differs",
    [PROBLEM_NO_MATCH] = "no_match",       [PROBLEM_UNSUPPORTED] = "unsupported",
    [PROBLEM_COPY_FAILED] = "copy_failed", [PROBLEM_NO_PARAMS] = "no_parameter_info",
};

void process_problem(uint32_t site, enum problem problem, const char *fmt, ...)
{
    if (atomic_load_relaxed(&process.reported[site]) & (1u << problem))
        return;
    if (__atomic_fetch_or(&process.reported[site], 1u << problem, __ATOMIC_RELAXED) &
        (1u << problem))
        return;
    int saved = errno;
    char sentence[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    const struct spec_site *s = &process.spec->sites[site];
    log_line("site %s (%s:%d): %s", s->about.name, process.spec->path, s->line, sentence);
    struct run *run = process_run();
    if (run)
        run_problem(run, s->about.name, problem_names[problem], sentence);
    errno = saved;
}

/* ------------------------------------------------------------------------- the end */

struct deadline {
    uint64_t end_ns; /* monotonic */
    bool all;        /* every arena's threads ended */
};

static void stop_arena(struct arena *arena, void *ctx)
{
    struct deadline *d = ctx;
    uint64_t now = clock_mono_ns();
    if (!arena_stop(arena, now < d->end_ns ? d->end_ns - now : 0, DMI_DROP_EXIT_TIMEOUT))
        d->all = false;
    forward_check(arena);
}

static void tell_unmatched(void)
{
    const uint32_t met =
        1u << PROBLEM_UNSUPPORTED; /* launches that matched, but were not looked into */
    for (uint32_t i = 0; i < process.spec->n_sites; i++)
        if (!atomic_load_relaxed(&process.counters->sites[i].launches) &&
            !(atomic_load_relaxed(&process.reported[i]) & met))
            process_problem(i, PROBLEM_NO_MATCH, "no launch matched the kernel pattern %s",
                            process.spec->sites[i].about.kernel);
}

/*
 * Another thread leaves at the same time: it must not end the process under the last flush. The
 * flush is bounded, and so is this; a handler that exits within it does not wait for itself.
 */
static void wait_for_finisher(void)
{
    uint64_t end = clock_mono_ns() + process.exit_ns + FINISH_GRACE_NS;
    int saved = errno;
    while (!atomic_load_acquire(&process.finished) && /* of process_finish() */
           atomic_load_relaxed(&process.finisher) != gettid() && clock_mono_ns() < end) {
        struct timespec pause = { .tv_nsec = 500000 };
        nanosleep(&pause, NULL);
    }
    errno = saved;
}

void process_finish(void)
{
    /* a vfork child calls _exit with our memory and its own pid: the run goes on without it */
    if (!atomic_load_acquire(&process.run) || getpid() != process.pid)
        return;
    int started = PROCESS_STARTED;
    if (!atomic_cas_acq_rel(&process.state, &started, PROCESS_FINISHED)) {
        wait_for_finisher();
        return;
    }
    atomic_store_relaxed(&process.finisher, gettid());
    int saved = errno;
    tell_unmatched();
    __atomic_store_n(&process.armed, 0, __ATOMIC_SEQ_CST); /* see launch_before() */
    struct deadline deadline = { .end_ns = clock_mono_ns() + process.exit_ns, .all = true };
    while (__atomic_load_n(&process.active, __ATOMIC_SEQ_CST) &&
           clock_mono_ns() < deadline.end_ns) {
        struct timespec pause = { .tv_nsec = 50000 };
        nanosleep(&pause, NULL);
    }
    deadline.all = !__atomic_load_n(&process.active, __ATOMIC_SEQ_CST);
    arena_each(stop_arena, &deadline);
    /*
     * A thread of ours that did not end in time may still write: then the run stays as a killed
     * one, which readers take as it is.
     */
    if (deadline.all) {
        struct quiet quiet;
        quiet_begin(&quiet);
        int r = run_close(process.run);
        quiet_end(&quiet);
        process.run = NULL;
        process.counters = NULL;
        if (r)
            log_line("closing the run: %s", strerror(-r));
    } else {
        log_line("the last flush did not end within %llu ms: what was not written is counted as "
                 "lost_at_kill",
                 (unsigned long long)(process.exit_ns / 1000000));
    }
    atomic_store_release(&process.finished, 1); /* to wait_for_finisher() */
    errno = saved;
}
