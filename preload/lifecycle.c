/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/lifecycle.h"

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/log.h"
#include "policy/tap_names.h"
#include "preload/action/action.h"
#include "preload/base/current.h"
#include "preload/base/driver.h"
#include "preload/capture/forward.h"
#include "preload/capture/regions.h"
#include "preload/capture/said.h"
#include "preload/capture/shed.h"
#include "preload/capture/step.h"
#include "preload/context/device.h"
#include "preload/context/lifetime.h"
#include "preload/context/references.h"
#include "preload/control/server.h"
#include "preload/eager/tap.h"
#include "preload/eager/taps.h"
#include "preload/edit/edits.h"
#include "preload/function/functions.h"
#include "preload/graph/exec.h"
#include "preload/graph/order.h"
#include "preload/nvtx/names.h"
#include "preload/nvtx/ranges.h"
#include "preload/recording/nodes.h"
#include "preload/recording/recorder.h"
#include "preload/session/session.h"
#include "preload/trace/trace.h"
#include "preload/unmatched.h"

#include <dmi/ring.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FINISH_GRACE_NS 2000000000u /* for closing the files after the last flush */
#define EXIT_MS         5000        /* unless DMI_EXIT_MS says otherwise */

enum lifecycle_state {
    LIFECYCLE_NEW = 0,
    LIFECYCLE_STARTED = 1,  /* lifecycle_start() has decided */
    LIFECYCLE_FINISHED = 2, /* the last flush has begun: nothing is captured any more */
};

static struct lifecycle {
    int state;         /* enum lifecycle_state */
    uint64_t exit_ns;  /* bound of the last flush */
    pid_t finisher;    /* thread that does it */
    int finished;      /* 1: it has ended. Released and acquired by lifecycle_finish() */
    int early;         /* 1: a run began before CUDA; 2: CUDA came. Under the session's lock */
    bool looked;       /* for the spec; it and @spec under the session's lock */
    struct spec *spec; /* NULL: there is none, or it has errors */
} lifecycle;

/* ------------------------------------------------------------------------- start */

static void say_no_memory(void)
{
    log_line("no memory for the session; this process runs without capture");
}

/* The spec of a file or, where it names no file, of the taps that the environment lists. */
static int read_spec(const char *path, const char *const *vars, size_t n_vars,
                     struct spec_errors *errors, struct spec **spec)
{
    if (path && *path)
        return spec_load(path, vars, n_vars, errors, spec);
    _cleanup_(freep) char *text =
        tap_spec(getenv("DMI_TAP"), getenv("DMI_TAP_WRITE"), getenv("DMI_TAP_LAYERS"));
    return text ? spec_parse("DMI_TAP", text, strlen(text), vars, n_vars, errors, spec) : -ENOMEM;
}

/* What the environment says. Return: NULL: nothing, or an empty text. */
static const char *said(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

/* Leaves what the command wants of it. Return: whether that could be done; else the spec is gone, and the log says why. */
static bool narrow(struct spec *spec)
{
    struct err err = { 0 };
    const char *sites = said("DMI_ONLY"), *layers = said("DMI_ONLY_LAYERS");
    if ((!sites && !layers) || !spec_narrow(&err, spec, sites, layers))
        return true;
    log_line("%s: %s; this process runs without capture", sites ? "DMI_ONLY" : "DMI_ONLY_LAYERS",
             err.msg);
    spec_free(spec);
    return false;
}

static struct spec *load_spec(const char *path)
{
    const char *vars[SPEC_MAX_VARS];
    const char *env_vars = getenv("DMI_VARS");
    _cleanup_(freep) char *text = strdup(env_vars ? env_vars : "");
    if (!text) {
        say_no_memory();
        return NULL;
    }
    struct spec_errors errors = { 0 };
    struct spec *spec = NULL;
    size_t n_vars = spec_split_vars(text, vars, SPEC_MAX_VARS);
    if (n_vars == SIZE_MAX) {
        log_line("DMI_VARS names more than %u variables: none is set", (unsigned)SPEC_MAX_VARS);
        n_vars = 0;
    }
    int r = read_spec(path, vars, n_vars, &errors, &spec);
    if (!path || !*path)
        path = "DMI_TAP";
    for (size_t i = 0; i < errors.n_lines; i++)
        log_line("%s", errors.lines[i]);
    if (r < 0 && !errors.n_lines)
        log_line("%s: %s; this process runs without capture", path, strerror(-r));
    else if (r)
        log_line("%s: %zu error%s; this process runs without capture", path, errors.n_lines,
                 errors.n_lines == 1 ? "" : "s");
    spec_errors_deinit(&errors);
    return r || !narrow(spec) ? NULL : spec;
}

static void in_child(void)
{
    /* run, threads and contexts are the parent's: off until CUDA is initialised here */
    atomic_store_relaxed(&session.armed, 0u);
    session = (struct session)SESSION_INIT;
    lifecycle = (struct lifecycle){ 0 };
    context_reset();
    references_reset();
    step_reset();
    said_reset();
    shed_reset();
    edits_reset();
    server_reset();
    functions_reset();
    variants_reset();
    ranges_reset();
    taps_reset();
    tap_reset();
    order_reset();
    exec_reset();
    recorder_reset();
    nodes_reset();
    regions_reset();
    trace_reset();
}

static uint64_t exit_bound_ns(void)
{
    const char *text = getenv("DMI_EXIT_MS");
    uint64_t ms = text && *text ? session_env_size("DMI_EXIT_MS") : EXIT_MS;
    return ms > UINT64_MAX / 1000000 ? UINT64_MAX / 4 : ms * 1000000;
}

/* Return: as session.rung. */
static uint32_t codec_rung_asked(void)
{
    static const char *const names[] = { "auto", "smallest", "packed", "stored" };
    const char *text = getenv("DMI_CODEC");
    if (!text || !*text)
        return 0;
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i]))
            return i;
    log_line("DMI_CODEC=%s is none of auto, smallest, packed, stored: auto is used", text);
    return 0;
}

/* What the session needs of a spec. Return: false: no memory. */
static bool follow(struct spec *spec)
{
    if (!session.ring_bytes)
        session.ring_bytes = spec->ring_bytes;
    uint64_t slots = session_env_size("DMI_RING_SLOTS");
    session.ring_slots = slots && slots <= UINT32_MAX ? (uint32_t)slots : spec->ring_slots;
    uint32_t n_kernels;
    const char *const *kernels = action_kernels(&n_kernels);
    device_use_kernels(kernels, n_kernels);
    session.reported = calloc(spec->n_sites + 1, sizeof *session.reported);
    session.sentences = calloc(spec->n_sites + 1, sizeof *session.sentences);
    session.off = calloc(spec->n_sites + 1, sizeof *session.off);
    session.spec = spec;
    session_set_overload(&spec->overload);
    bool good = session.reported && session.sentences && session.off && taps_init(spec);
    if (spec->has_taps)
        functions_expect(); /* a tap may come at any time: its ring is built before */
    return good;
}

/* @spec: NULL where nothing of @what follows one. Under the session's lock. */
static void arm(struct spec *spec, uint32_t what)
{
    static int registered, quick; /* survive in a child, as the handlers do */
    if (!registered && !pthread_atfork(NULL, NULL, in_child))
        registered = 1;
    if (!quick && !at_quick_exit(lifecycle_finish))
        quick = 1;
    lifecycle.exit_ns = exit_bound_ns();
    session.does = what;
    session.ring_bytes = session_env_size("DMI_RING_BYTES");
    uint64_t encoders = session_env_size("DMI_ENCODERS");
    session.rung = codec_rung_asked();
    session.encoders = encoders < UINT32_MAX ? (uint32_t)encoders : UINT32_MAX;
    session.next_launch = DMI_SEQ_FIRST;
    session.memory_epoch = 1;
    session.at_exit = lifecycle_finish;
    session.pid = getpid();
    bool good = !spec || follow(spec);
    if (!good)
        say_no_memory();
    atomic_store_release(&session.armed, good ? what : 0); /* to session_does() */
}

/* Instead of following a spec. Under the session's lock. */
static void arm_recorder(const char *path)
{
    static int registered; /* as in arm() */
    struct err err = { 0 };
    struct spec *spec = recorder_spec();
    if (!spec)
        return;
    if (recorder_start(&err, path)) {
        log_line("%s; this process runs without a recording", err.msg);
        spec_free(spec);
        return;
    }
    if (!registered && !atexit(lifecycle_finish))
        registered = 1;
    arm(spec, SESSION_RECORDING);
    log_line("recording to %s", path);
}

static void begin_run(void)
{
    bool traces = session_does(SESSION_TRACE);
    const char *path = run_path(session.run);
    if (session.spec) {
        log_line("armed: %u site%s of %s%s, in %s", session.spec->n_sites,
                 session.spec->n_sites == 1 ? "" : "s", session.spec->path,
                 traces ? ", and times of steps" : "", path);
        edits_start();
    } else {
        log_line("armed: times of steps, in %s", path);
    }
    server_start();
    if (traces)
        trace_start();
}

/* A process in which nothing matches leaves a run that says so. */
static void open_first_run(void)
{
    struct session_call call;
    if (!session_does(SESSION_WRITES))
        return;
    if (session_enter_for(&call, SESSION_WRITES) && session_run())
        begin_run();
    session_leave(&call);
}

/* Does the environment name a spec, or taps? */
static bool has_spec(void)
{
    return said("DMI_SPEC") || said("DMI_TAP") || said("DMI_TAP_WRITE");
}

/* Once. Under the session's lock. */
static struct spec *find_spec(void)
{
    const char *path = getenv("DMI_SPEC");
    if (lifecycle.looked)
        return lifecycle.spec;
    log_init(getenv("DMI_LOG"));
    lifecycle.looked = true;
    lifecycle.spec = has_spec() ? load_spec(path) : NULL;
    if (lifecycle.spec && spec_has_nvtx(lifecycle.spec))
        nvtx_names_use(lifecycle.spec);
    return lifecycle.spec;
}

void lifecycle_read_spec(void)
{
    pthread_mutex_lock(&session.lock);
    find_spec();
    trace_read();
    pthread_mutex_unlock(&session.lock);
}

/* Launches could not be followed, and who taps cannot tell which taps are of host memory. Under the session's lock. */
static void leave_off(const char *lacks)
{
    log_line("the driver has no %s: nothing is captured from here on", lacks);
    atomic_store_release(&session.armed, 0u); /* to session_does() */
}

/*
 * The driver has registered a handler of its own since: they run in reverse order, and the last flush needs a driver. It happens
 * once, by the handler that comes first.
 */
static void meet_driver(void)
{
    int saved = errno;
    pthread_mutex_lock(&session.lock);
    if (lifecycle.early == 1) {
        const char *lacks = driver_resolve() ? driver_lacks() : NULL;
        lifecycle.early = 2;
        if (lacks && session.spec)
            leave_off(lacks);
        atexit(lifecycle_finish);
    }
    pthread_mutex_unlock(&session.lock);
    trace_meets_driver();
    errno = saved;
}

/* What a run does that begins for @what before CUDA; 0: none begins. Under the session's lock. */
static uint32_t early_work(enum session_work what)
{
    if (said("DMI_RECORD"))
        return 0;
    const struct spec *spec = find_spec();
    uint32_t traces = trace_wanted() ? SESSION_TRACE : 0;
    if (what == SESSION_TRACE)
        return has_spec() ? 0 : traces;
    return spec && spec->has_taps ? SESSION_SITES | traces : 0;
}

void lifecycle_start_early(enum session_work what)
{
    static uint32_t unwanted; /* by the environment, which stays; atomic */
    if (atomic_load_relaxed(&unwanted) & what ||
        atomic_load_acquire(&lifecycle.state) != LIFECYCLE_NEW) /* of lifecycle_start() */
        return;
    int saved = errno;
    pthread_mutex_lock(&session.lock);
    uint32_t wanted = early_work(what);
    if (!wanted)
        __atomic_fetch_or(&unwanted, (uint32_t)what, __ATOMIC_RELAXED);
    if (wanted && lifecycle.state == LIFECYCLE_NEW) {
        lifecycle.early = 1;
        arm(wanted & SESSION_SITES ? lifecycle.spec : NULL, wanted);
        atomic_store_release(&lifecycle.state, LIFECYCLE_STARTED);
    }
    pthread_mutex_unlock(&session.lock);
    if (wanted)
        open_first_run();
    errno = saved;
}

void lifecycle_start(void)
{
    if (atomic_load_acquire(&lifecycle.state) != LIFECYCLE_NEW) { /* of the release below */
        meet_driver();
        return;
    }
    int saved = errno;
    pthread_mutex_lock(&session.lock);
    if (lifecycle.state == LIFECYCLE_NEW) {
        const char *recording = getenv("DMI_RECORD");
        bool records = recording && *recording;
        struct spec *spec = records ? NULL : find_spec();
        bool traces = !records && trace_wanted();
        const char *lacks = driver_resolve() ? driver_lacks() : NULL;
        if (lacks && (records || spec || traces))
            log_line("the driver has no %s: this process runs without capture", lacks);
        else if (records)
            arm_recorder(recording);
        else if (spec || traces)
            arm(spec, (spec ? SESSION_SITES : 0) | (traces ? SESSION_TRACE : 0));
        atomic_store_release(&lifecycle.state, LIFECYCLE_STARTED);
    }
    pthread_mutex_unlock(&session.lock);
    open_first_run();
    errno = saved;
}

/* ------------------------------------------------------------------------- calls that may wait */

static void ended(struct context *c)
{
    if (context_gone(c))
        exec_forget_context(c);
}

/* Another CUDA context may have the handle of one whose end the library has not noticed yet. */
static void notice_end(struct context *c)
{
    if (!context_use(c))
        return;
    if (context_is_over(c))
        ended(c);
    context_unuse(c);
}

static void prepare(void)
{
    struct context *c = context_current();
    if (!c || context_state(c) == CONTEXT_READY)
        return;
    notice_end(c);
    context_prepare();
}

static bool is_started(CUresult r)
{
    if (r == CUDA_SUCCESS && atomic_load_relaxed(&lifecycle.state) == LIFECYCLE_NEW)
        lifecycle_start();
    return r == CUDA_SUCCESS && session_does(SESSION_SITES) && functions_matched();
}

void lifecycle_waited(CUresult r)
{
    struct session_call call;
    if (!is_started(r))
        return;
    if (session_enter(&call))
        prepare();
    session_leave(&call);
}

/* Or can have none. */
static bool has_ring(CUcontext handle)
{
    const struct context *c = context_find(handle);
    enum context_state state = c ? context_state(c) : CONTEXT_FREE;
    return state == CONTEXT_READY || state == CONTEXT_FAILED;
}

void lifecycle_waited_in(CUresult r, CUcontext handle)
{
    struct session_call call;
    if (!handle || !is_started(r) || has_ring(handle))
        return;
    if (session_enter(&call) && current_push(handle)) {
        prepare();
        current_pop();
    }
    session_leave(&call);
}

/* ------------------------------------------------------------------------- contexts */

void lifecycle_context_ends(struct context_call *call, const struct context_reference *reference)
{
    if (reference->last)
        functions_drop_functions();
    context_call_starts(call, reference, lifecycle.exit_ns);
}

void lifecycle_context_ended(struct context_call *call, enum context_state before, bool gone)
{
    if (gone)
        ended(call->context);
    context_call_ends(call, before);
    if (gone || (call->reference.last && !call->context))
        regions_unsure(); /* memory of it may have ended */
}

/* ------------------------------------------------------------------------- the end */

struct deadline {
    uint64_t end_ns; /* monotonic */
    bool all;        /* every context's threads ended */
};

static void stop_context(struct context *c, void *arg)
{
    struct deadline *d = arg;
    uint64_t now = clock_mono_ns();
    context_close(c);
    if (!context_stop(c, now < d->end_ns ? d->end_ns - now : 0, DMI_DROP_EXIT_TIMEOUT))
        d->all = false;
    forward_check(c);
}

/*
 * Another thread leaves at the same time: it must not end the process under the last flush. The flush is
 * bounded, and so is this; a handler that exits within it does not wait for itself.
 */
static void wait_for_finisher(void)
{
    uint64_t end = clock_mono_ns() + lifecycle.exit_ns + FINISH_GRACE_NS;
    while (!atomic_load_acquire(&lifecycle.finished) && /* of lifecycle_finish() */
           atomic_load_relaxed(&lifecycle.finisher) != gettid() && clock_mono_ns() < end) {
        struct timespec pause = { .tv_nsec = 500000 };
        nanosleep(&pause, NULL);
    }
}

/* Until nobody is in the session any more. Return: false if somebody still is when the time has passed. */
static bool wait_for_calls(uint64_t end_ns)
{
    while (__atomic_load_n(&session.active, __ATOMIC_SEQ_CST) && clock_mono_ns() < end_ns) {
        struct timespec pause = { .tv_nsec = 50000 };
        nanosleep(&pause, NULL);
    }
    return !__atomic_load_n(&session.active, __ATOMIC_SEQ_CST);
}

/* Those since the engine's last step. */
static void note_overlaps(struct run *run)
{
    uint64_t number, other, n = said_overlaps(&number, &other);
    if (n)
        run_steps_overlap(run, n, number, other);
}

static void close_run(void)
{
    struct run *run = session.run;
    if (session.spec)
        edits_finish();
    note_overlaps(run);
    session.run = NULL;
    session.counters = NULL;
    session.live = NULL;
    int r = run_close(run);
    if (r)
        log_line("closing the run: %s", strerror(-r));
}

static void flush_and_close(void)
{
    struct deadline deadline = { .end_ns = clock_mono_ns() + lifecycle.exit_ns };
    session_attach();
    if (session.spec)
        unmatched_report();
    __atomic_store_n(&session.armed, 0, __ATOMIC_SEQ_CST); /* see session_enter() */
    deadline.all = server_stop(deadline.end_ns);
    deadline.all &= wait_for_calls(deadline.end_ns);
    context_each(stop_context, &deadline);
    deadline.all &= context_threads_ended();
    deadline.all &= trace_stop(deadline.end_ns);
    /* A thread that did not end in time may still write: then the run stays as a killed one, which readers take. */
    if (deadline.all)
        close_run();
    else
        log_line("the last flush did not end within %llu ms: what was not written is counted as "
                 "lost_at_kill",
                 (unsigned long long)(lifecycle.exit_ns / 1000000));
}

void lifecycle_finish(void)
{
    int saved = errno, started = LIFECYCLE_STARTED;
    bool finishing = atomic_load_acquire(&lifecycle.state) == LIFECYCLE_FINISHED;
    /* a vfork child calls _exit with our memory and its own pid: the run goes on without it */
    if (getpid() != session.pid || recorder_finish() ||
        !(finishing || atomic_load_acquire(&session.run)))
        return;
    if (atomic_cas_acq_rel(&lifecycle.state, &started, LIFECYCLE_FINISHED)) {
        atomic_store_relaxed(&lifecycle.finisher, gettid());
        flush_and_close();
        atomic_store_release(&lifecycle.finished, 1); /* to wait_for_finisher() */
    } else {
        wait_for_finisher();
    }
    errno = saved;
}
