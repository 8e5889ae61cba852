/* SPDX-License-Identifier: Apache-2.0 */
/* Steps and their times over a driver of the test's own: what is counted, which events are recorded where, and what is said where none can be. */
#include "cupti/tracer.h"
#include "preload/base/driver.h"
#include "preload/capture/said.h"
#include "preload/trace/beat.h"
#include "preload/trace/clock.h"
#include "preload/trace/events.h"
#include "preload/function/functions.h"
#include "preload/trace/lanes.h"
#include "preload/trace/named.h"
#include "preload/trace/range_ring.h"
#include "preload/trace/steps.h"
#include "preload/trace/summary.h"

#include <dmi/format.h>

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------------------- a driver */

#define CONTEXT(n) ((CUcontext)(uintptr_t)(0x1000 * (n)))
#define STREAM(n)  ((struct stream){ (CUstream)(uintptr_t)(0x10000 * (n)), false })

/* An event is a time on the device, in microseconds; a launch takes ten of them. */
struct CUevent_st {
    uint64_t us;
    CUcontext context;
    CUstream stream;
};

static struct {
    uint64_t now_us;
    bool capturing[2048], busy;
    bool done;                /* with all streams */
    int fail, calls;          /* the call of this number fails; 0: none */
    unsigned first_of_second; /* streams from this number on are of the second context */
    unsigned n_asked;         /* for the context of a stream, or the device of a context */
    unsigned n_events, n_captured;
    struct CUevent_st events[4096];
} device;

struct driver driver_table;
static __thread CUcontext current = CONTEXT(1);
static bool graphs_are_steps, kernels_are_steps;

bool named_graph(void)
{
    return graphs_are_steps;
}

bool named_kernel(const void *function)
{
    return kernels_are_steps && function == (void *)7;
}

static bool fails(void)
{
    return __atomic_add_fetch(&device.calls, 1, __ATOMIC_RELAXED) == device.fail;
}

static unsigned number_of(CUstream s)
{
    return (unsigned)((uintptr_t)s / 0x10000);
}

static CUresult get_current(CUcontext *c)
{
    *c = current;
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *d)
{
    device.n_asked++;
    *d = (int)((uintptr_t)current / 0x1000) - 1;
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext c)
{
    current = c;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *c)
{
    *c = current;
    current = CONTEXT(1);
    return CUDA_SUCCESS;
}

static CUresult stream_ctx(CUstream s, CUcontext *c)
{
    device.n_asked++;
    *c = CONTEXT(number_of(s) < device.first_of_second ? 1 : 2);
    return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream s, CUstreamCaptureStatus *status)
{
    *status = device.capturing[number_of(s)] ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                             : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult event_create(CUevent *e, unsigned flags)
{
    ck_assert_uint_eq(flags, CU_EVENT_DEFAULT);
    if (fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    unsigned n = __atomic_fetch_add(&device.n_events, 1, __ATOMIC_RELAXED);
    ck_assert_uint_lt(n, 4096);
    *e = &device.events[n];
    (*e)->context = current;
    return CUDA_SUCCESS;
}

static void (*while_recorded)(void); /* called once; atomic */

static CUresult event_record(CUevent e, CUstream s)
{
    void (*meanwhile)(void) = atomic_exchange_acq_rel(&while_recorded, NULL);
    if (meanwhile)
        meanwhile();
    if (device.capturing[number_of(s)])
        device.n_captured++;
    if (fails())
        return CUDA_ERROR_UNKNOWN;
    e->us = __atomic_load_n(&device.now_us, __ATOMIC_RELAXED);
    e->stream = s;
    return CUDA_SUCCESS;
}

static CUresult stream_query(CUstream s)
{
    ck_assert(!(atomic_load_relaxed(&trace_gate) & TRACE_GATE_CAPTURES));
    ck_assert(!device.capturing[number_of(s)]);
    return device.done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult event_query(CUevent e)
{
    (void)e;
    return fails() ? CUDA_ERROR_UNKNOWN : device.busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult event_elapsed(float *ms, CUevent a, CUevent b)
{
    if (fails())
        return CUDA_ERROR_UNKNOWN;
    ck_assert_ptr_eq(a->context, b->context);
    *ms = (float)((double)b->us - (double)a->us) / 1000;
    return CUDA_SUCCESS;
}

static void set_up(void)
{
    memset(&device, 0, sizeof device);
    device.first_of_second = 4;
    graphs_are_steps = kernels_are_steps = false;
    current = CONTEXT(1);
    driver_table = (struct driver){ .cuCtxGetCurrent = get_current,
                                    .cuCtxGetDevice = get_device,
                                    .cuCtxPushCurrent_v2 = push,
                                    .cuCtxPopCurrent_v2 = pop,
                                    .cuStreamGetCtx = stream_ctx,
                                    .cuStreamIsCapturing = is_capturing,
                                    .cuStreamQuery = stream_query,
                                    .cuEventCreate = event_create,
                                    .cuEventRecord = event_record,
                                    .cuEventQuery = event_query,
                                    .cuEventElapsedTime = event_elapsed };
    stepring_reset();
    steps_reset();
    said_reset();
    lanes_reset();
    events_reset();
    steps_start(false);
}

/* What is asked of CUPTI and of functions: every stream has its handle's number, but one that CUPTI does not know. */
#define UNKNOWN_STREAM 6u

bool tracer_stream_ids(void *context, void *stream, bool per_thread, uint32_t *context_id,
                       uint32_t *stream_id)
{
    (void)per_thread;
    *context_id = (uint32_t)((uintptr_t)context >> 12);
    *stream_id = (uint32_t)((uintptr_t)stream >> 16);
    return *stream_id != UNKNOWN_STREAM;
}

/* A function whose name takes the driver long: another thread may end its module meanwhile. */
#define SLOW ((void *)9)
static atomic_int slow; /* how often it was asked for; negative: a module ended in that call */
static atomic_bool module_ended;

char *functions_name(const void *handle)
{
    char name[32];
    if (handle == SLOW) {
        slow = 1;
        for (int i = 0; i < 50 && !module_ended; i++)
            usleep(1000);
        slow = module_ended ? -1 : slow;
    }
    snprintf(name, sizeof name, "%u", (unsigned)(uintptr_t)handle);
    return strdup(name);
}

uint64_t join_name(const char *name)
{
    return 1000 + (uint64_t)atoi(name);
}

/* ------------------------------------------------------------------------- what an engine does */

static void launch_function(unsigned stream, void *function, CUresult r)
{
    struct trace_thread *t = trace_launch_begins(function, STREAM(stream));
    __atomic_add_fetch(&device.now_us, 10, __ATOMIC_RELAXED);
    trace_launched(t, function, STREAM(stream), r);
}

static void launch(unsigned stream, CUresult r)
{
    launch_function(stream, (void *)7, r);
}

static void launch_graph(unsigned stream, uint64_t own)
{
    struct trace_thread *t = trace_graph_begins(STREAM(stream));
    device.now_us += 100;
    trace_graph_launched(t, STREAM(stream), CUDA_SUCCESS, 5, own);
}

static void step_begins(uint64_t sequence)
{
    const struct dmi_step said = { .size = sizeof said, .version = DMI_STEP_VERSION };
    steps_engine_begins(&said, sequence);
}

/* What the collector makes of the oldest step. */
static struct dmi_step_times collect(void)
{
    struct trace_step *step = stepring_oldest();
    ck_assert_ptr_nonnull(step);
    if (events_pending(step))
        ck_assert(events_settle(step));
    else
        events_drop(step);
    struct dmi_step_times at = step->at;
    stepring_free(step);
    return at;
}

/* ------------------------------------------------------------------------- tests */

START_TEST(a_step_has_its_launches_and_the_time_between_its_events)
{
    struct dmi_span spans[] = {
        { .request_id = "a",
          .first_position = 40,
          .n_tokens = 8,
          .n_cached = 32,
          .phase = DMI_PHASE_PREFILL },
        { .request_id = "b",
          .first_position = 9,
          .first_row = 8,
          .n_tokens = 1,
          .phase = DMI_PHASE_DECODE },
        { .first_row = 9, .n_tokens = 3, .flags = DMI_SPAN_PADDING },
    };
    const struct dmi_step said = { .size = sizeof said,
                                   .version = DMI_STEP_VERSION,
                                   .n_rows = 12,
                                   .n_spans = 3,
                                   .span_size = sizeof spans[0],
                                   .spans = spans };
    launch(1, CUDA_SUCCESS); /* before: of no step */
    steps_engine_begins(&said, 5);
    launch(1, CUDA_SUCCESS);
    launch(2, CUDA_ERROR_INVALID_VALUE); /* refused */
    launch_graph(2, 7);
    launch(1, CUDA_SUCCESS);
    steps_own(3);
    steps_stalled(true, 50);
    steps_stalled(false, 8);
    steps_engine_ends(false);
    device.now_us += 500;
    launch(1, CUDA_SUCCESS); /* after: of no step */
    step_begins(6);
    launch(1, CUDA_SUCCESS);
    steps_engine_ends(false);
    struct dmi_step_times a = collect(), b = collect();
    ck_assert_uint_eq(a.launches, 2);
    ck_assert_uint_eq(a.graph_launches, 1);
    ck_assert_uint_eq(a.own, 10);
    ck_assert_uint_eq(a.loads, 1);
    ck_assert_uint_eq(a.allocations, 1);
    ck_assert_uint_eq(a.stall_ns, 58);
    ck_assert_uint_eq(a.device_ns, 130000);
    ck_assert_uint_eq(a.flags, DMI_STEP_HAS_DEVICE);
    ck_assert_uint_eq(a.step, 5);
    ck_assert_uint_eq(a.rows, 12);
    ck_assert_uint_eq(a.requests, 2);
    ck_assert_uint_eq(a.prefill, 8);
    ck_assert_uint_eq(a.decode, 1);
    ck_assert_uint_eq(a.context, 58);
    ck_assert_uint_eq(a.source, DMI_STEP_ENGINE);
    ck_assert(a.begin_ns <= a.launch_ns && a.launch_ns <= a.end_ns && a.begin_ns);
    ck_assert_uint_eq(b.launches, 1);
    ck_assert_uint_eq(b.number, 1);
    ck_assert_uint_eq(b.flags, DMI_STEP_HAS_DEVICE | DMI_STEP_HAS_GAP);
    ck_assert_int_eq(b.gap_ns, 510000);
}
END_TEST

/* The host thinks for long between its wait and what it says next: that is no time of the device's. */
START_TEST(a_step_ends_with_its_last_launch_where_the_host_waited_after_it)
{
    for (uint64_t i = 0; i < 2; i++) {
        step_begins(i);
        launch(1, CUDA_SUCCESS);
        steps_look();
        steps_waited(2000, 700 + i);
        launch(1, CUDA_SUCCESS);
        steps_look();
        steps_look(); /* nothing new: the event stays */
        device.now_us += 5000;
    }
    step_begins(2);
    struct dmi_step_times a = collect(), b = collect();
    ck_assert_uint_eq(a.device_ns, 20000);
    ck_assert_uint_eq(a.waits, 1);
    ck_assert_uint_eq(a.wait_us, 2);
    ck_assert_uint_eq(a.waited_ns, 700);
    ck_assert_uint_eq(b.waited_ns, 701);
    ck_assert_uint_eq(b.device_ns, 20000);
    ck_assert_int_eq(b.gap_ns, 5000000);
    ck_assert_uint_eq(device.n_events, 4);
}
END_TEST

/* Its device time is an upper bound then, of the event that counts alone; and where the driver must not be asked, it may be. */
START_TEST(a_step_says_that_the_device_was_done_before_the_host_looked)
{
    for (uint64_t i = 0; i < 4; i++) {
        step_begins(i);
        launch(1, CUDA_SUCCESS);
        device.done = i != 1;
        steps_look();
        if (i == 2) { /* a later look comes in time */
            launch(1, CUDA_SUCCESS);
            device.done = false;
            steps_look();
        }
        if (i == 3) {
            launch(1, CUDA_SUCCESS);
            device.done = false;
            steps_capture_begins(); /* of another stream */
            steps_look();
            steps_capture_ends();
        }
    }
    step_begins(4);
    for (uint64_t i = 0; i < 4; i++) {
        uint32_t late = i == 0 || i == 3 ? DMI_STEP_HOST_LATE : 0;
        ck_assert_uint_eq(collect().flags & ~(uint32_t)DMI_STEP_HAS_GAP,
                          DMI_STEP_HAS_DEVICE | late);
    }
}
END_TEST

START_TEST(nothing_is_recorded_or_counted_on_a_capturing_stream)
{
    step_begins(0);
    steps_capture_begins();
    device.capturing[1] = true;
    launch(1, CUDA_SUCCESS);
    launch_graph(1, 3);
    launch(2, CUDA_SUCCESS); /* another stream runs */
    steps_engine_ends(false);
    device.capturing[1] = false;
    steps_capture_ends();
    step_begins(1);
    launch(1, CUDA_SUCCESS);
    device.capturing[1] = true; /* by a way past the library */
    steps_engine_ends(false);
    struct dmi_step_times a = collect(), b = collect();
    ck_assert_uint_eq(device.n_captured, 0);
    ck_assert_uint_eq(a.launches, 1);
    ck_assert_uint_eq(a.graph_launches, 0);
    ck_assert_uint_eq(a.own, 0);
    ck_assert_uint_eq(a.flags, DMI_STEP_HAS_DEVICE | DMI_STEP_HOST_LATE);
    ck_assert_uint_eq(b.launches, 1);
    ck_assert_uint_eq(b.flags, DMI_STEP_CAPTURING);
}
END_TEST

START_TEST(where_no_device_time_is_known_the_step_says_why)
{
    step_begins(0); /* nothing is launched */
    step_begins(1);
    launch(1, CUDA_SUCCESS);
    steps_stream_ends(STREAM(1).handle);
    step_begins(2);
    launch(1, CUDA_SUCCESS);
    launch(4, CUDA_SUCCESS); /* in another context */
    step_begins(3);
    launch(1, CUDA_SUCCESS);
    steps_engine_ends(false);
    events_context_ends();
    events_context_ended();
    step_begins(4);
    launch(1, CUDA_SUCCESS);
    steps_stop();
    static const uint32_t why[] = { DMI_STEP_NO_LAUNCH, DMI_STEP_STREAM_GONE, DMI_STEP_ELSEWHERE,
                                    DMI_STEP_CONTEXT_GONE, DMI_STEP_UNENDED | DMI_STEP_ELSEWHERE };
    for (uint32_t i = 0; i < 5; i++) {
        struct dmi_step_times at = collect();
        ck_assert_msg(at.flags == why[i] && !at.device_ns && at.step == i, "step %u: flags %#x", i,
                      at.flags);
    }
    launch(1, CUDA_SUCCESS);
    step_begins(5);
    ck_assert_ptr_null(stepring_oldest());
}
END_TEST

START_TEST(the_driver_is_asked_for_the_context_of_a_stream_once)
{
    for (uint64_t i = 0; i < 9; i++) {
        step_begins(i);
        launch(1, CUDA_SUCCESS);
        steps_engine_ends(false);
        ck_assert_uint_eq(collect().flags & DMI_STEP_HAS_DEVICE, DMI_STEP_HAS_DEVICE);
    }
    ck_assert_uint_eq(device.n_asked, 2);
}
END_TEST

/* The test's driver checks that both events of a step are of one context. */
START_TEST(a_stream_whose_handle_comes_back_may_be_of_another_context)
{
    for (uint64_t i = 0; i < 2; i++) {
        step_begins(i);
        launch(1, CUDA_SUCCESS);
        steps_engine_ends(false);
        struct dmi_step_times at = collect();
        ck_assert_uint_eq(at.device, i);
        ck_assert_uint_eq(at.flags, DMI_STEP_HAS_DEVICE);
        steps_stream_ends(STREAM(1).handle);
        device.first_of_second = 0;
    }
}
END_TEST

/* The time of what lies between is not idle time. */
START_TEST(no_gap_is_told_over_a_step_whose_end_is_not_known)
{
    for (uint64_t i = 0; i < 3; i++) {
        step_begins(i);
        launch(1, CUDA_SUCCESS);
        if (i == 1)
            steps_stream_ends(STREAM(1).handle);
        steps_engine_ends(false);
    }
    collect();
    ck_assert_uint_eq(collect().flags, DMI_STEP_STREAM_GONE);
    ck_assert_uint_eq(collect().flags, DMI_STEP_HAS_DEVICE);
}
END_TEST

/* Return: the flags of two steps, with the driver's call number _i failing. */
START_TEST(each_call_of_the_driver_may_fail)
{
    device.fail = _i;
    for (uint64_t i = 0; i < 3; i++) {
        step_begins(i);
        launch(1, CUDA_SUCCESS);
        steps_engine_ends(false);
    }
    uint32_t n_refused = 0;
    for (uint64_t i = 0; i < 3; i++) {
        struct dmi_step_times at = collect();
        ck_assert_uint_eq(at.launches, 1);
        n_refused += (at.flags & DMI_STEP_REFUSED) != 0;
        ck_assert(!(at.flags & DMI_STEP_REFUSED) == !!(at.flags & DMI_STEP_HAS_DEVICE));
        ck_assert_uint_eq(at.device_ns, at.flags & DMI_STEP_HAS_DEVICE ? 10000 : 0);
    }
    ck_assert_uint_le(n_refused, 1);
    if (_i <= 12) /* the events of three steps */
        ck_assert_uint_eq(n_refused, 1);
}
END_TEST

START_TEST(a_step_that_the_device_is_not_done_with_waits)
{
    step_begins(0);
    launch(1, CUDA_SUCCESS);
    steps_engine_ends(false);
    device.busy = true;
    ck_assert(!events_settle(stepring_oldest()));
    device.busy = false;
    ck_assert_uint_eq(collect().device_ns, 10000);
}
END_TEST

START_TEST(what_the_user_names_begins_steps_until_the_engine_says_some)
{
    kernels_are_steps = true;
    steps_start(true);
    launch(2, CUDA_SUCCESS);
    launch(2, CUDA_SUCCESS);
    kernels_are_steps = false;
    launch(2, CUDA_SUCCESS);
    kernels_are_steps = true;
    launch(2, CUDA_SUCCESS);
    steps_begins(DMI_STEP_FORWARD, STREAM(2)); /* a better source */
    launch(2, CUDA_SUCCESS);
    launch(2, CUDA_SUCCESS);
    step_begins(9);
    launch(2, CUDA_SUCCESS);
    steps_engine_ends(false);
    static const uint32_t launches[] = { 1, 2, 1, 2, 1 };
    static const uint16_t sources[] = { 2, 2, 2, 4, 5 };
    for (size_t i = 0; i < 5; i++) {
        struct dmi_step_times at = collect();
        ck_assert_uint_eq(at.launches, launches[i]);
        ck_assert_uint_eq(at.source, sources[i]);
        ck_assert_uint_eq(at.step, i == 4 ? 9 : DMI_NO_STEP);
    }
    ck_assert_ptr_null(stepring_oldest());
}
END_TEST

START_TEST(a_graph_or_a_range_begins_a_step)
{
    graphs_are_steps = true;
    launch_graph(1, 0);
    launch(1, CUDA_SUCCESS);
    launch_graph(1, 0);
    graphs_are_steps = false;
    uint64_t range = steps_range_begins();
    device.now_us += 1000;
    launch(1, CUDA_SUCCESS);
    launch(1, CUDA_SUCCESS);
    steps_range_ends(range);
    launch(1, CUDA_SUCCESS);
    struct dmi_step_times a = collect(), b = collect(), c = collect();
    ck_assert_uint_eq(a.graph_launches, 1);
    ck_assert_uint_eq(a.launches, 1);
    ck_assert_uint_eq(a.device_ns, 110000);
    ck_assert_uint_eq(b.graph_launches, 1);
    ck_assert_uint_eq(c.launches, 2);
    ck_assert_uint_eq(c.source, DMI_STEP_NAMED_RANGE);
    ck_assert_uint_eq(c.device_ns, 20000);
}
END_TEST

/* ------------------------------------------------------------------------- threads */

#define THREADS  4
#define LAUNCHES 20000

static void *launch_many(void *arg)
{
    for (int i = 0; i < LAUNCHES; i++)
        launch(1, CUDA_SUCCESS);
    (void)arg;
    return NULL;
}

static bool over;

static void *collect_all(void *arg)
{
    uint64_t *launches = arg;
    bool last = false;
    while (!last) {
        last = __atomic_load_n(&over, __ATOMIC_ACQUIRE);
        while (stepring_oldest())
            *launches += collect().launches;
    }
    return NULL;
}

/* Launches of all threads belong to one step, or to none, and none to two. */
START_TEST(threads_launch_while_steps_begin_and_end)
{
    pthread_t threads[THREADS], collector;
    uint64_t launches = 0, most = 0;
    over = false;
    step_begins(0);
    pthread_create(&collector, NULL, collect_all, &launches);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, launch_many, NULL);
    for (uint64_t i = 1; i < 200; i++) {
        struct timespec pause = { .tv_nsec = 20000 };
        step_begins(i);
        nanosleep(&pause, NULL);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    steps_stop();
    __atomic_store_n(&over, true, __ATOMIC_RELEASE);
    pthread_join(collector, NULL);
    most = THREADS * LAUNCHES;
    ck_assert_uint_eq(stepring_ended(), 200);
    ck_assert_uint_le(launches, most);
    /* what a thread launches between a step's end and its next look at the gate is of no step */
    ck_assert_uint_ge(launches, most - most / 10);
}
END_TEST

static pthread_barrier_t launched, ended;

static void *launch_once(void *arg)
{
    launch(2, CUDA_SUCCESS);
    pthread_barrier_wait(&launched);
    pthread_barrier_wait(&ended);
    return arg;
}

static void step_ends_after_a_launch_of_another_thread(void)
{
    pthread_t thread;
    pthread_barrier_init(&launched, NULL, 2);
    pthread_barrier_init(&ended, NULL, 2);
    pthread_create(&thread, NULL, launch_once, NULL);
    pthread_barrier_wait(&launched);
    steps_engine_ends(false);
    pthread_barrier_wait(&ended);
    pthread_join(thread, NULL);
}

/* The thread of its first launch is still in the driver, for the event before it. */
START_TEST(a_step_that_ends_before_its_first_event_is_recorded_has_no_time)
{
    step_begins(0);
    while_recorded = step_ends_after_a_launch_of_another_thread;
    launch(1, CUDA_SUCCESS);
    struct dmi_step_times at = collect();
    ck_assert_uint_eq(at.launches, 1);
    ck_assert_uint_eq(at.flags, DMI_STEP_ELSEWHERE);
    step_begins(1);
    launch(1, CUDA_SUCCESS);
    steps_engine_ends(false);
    at = collect();
    ck_assert(at.flags & DMI_STEP_HAS_DEVICE);
    ck_assert(!(at.flags & DMI_STEP_HAS_GAP));
    ck_assert_uint_eq(at.device_ns, 10000);
}
END_TEST

START_TEST(a_step_names_the_thread_that_said_it_also_in_a_child)
{
    step_begins(0);
    steps_engine_ends(false);
    ck_assert_uint_eq(collect().thread, (uint32_t)gettid());
    pid_t child = fork();
    if (!child) {
        stepring_reset();
        steps_reset();
        steps_start(false);
        step_begins(1);
        steps_engine_ends(false);
        _exit(collect().thread == (uint32_t)gettid() ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(a_thread_that_ends_leaves_its_launches)
{
    pthread_t thread;
    step_begins(0);
    pthread_create(&thread, NULL, launch_many, NULL);
    pthread_join(thread, NULL);
    steps_engine_ends(false);
    struct dmi_step_times at = collect();
    ck_assert_uint_eq(at.launches, LAUNCHES);
    ck_assert_uint_eq(at.flags, DMI_STEP_ELSEWHERE);
}
END_TEST

/* As an autograd engine's thread does: in the default stream, in the context that the case names. */
static void *launch_by_default(void *arg)
{
    current = arg;
    launch(0, CUDA_SUCCESS);
    current = CONTEXT(3 - (uintptr_t)arg / 0x1000); /* what it does later says nothing of it */
    pthread_barrier_wait(&launched);
    pthread_barrier_wait(&ended);
    return NULL;
}

static struct dmi_step_times step_with_a_launch_beside(CUcontext context)
{
    pthread_t thread;
    pthread_barrier_init(&launched, NULL, 2);
    pthread_barrier_init(&ended, NULL, 2);
    step_begins(0);
    launch(0, CUDA_SUCCESS);
    pthread_create(&thread, NULL, launch_by_default, context);
    pthread_barrier_wait(&launched);
    steps_engine_ends(false);
    pthread_barrier_wait(&ended);
    pthread_join(thread, NULL);
    return collect();
}

START_TEST(another_thread_may_launch_last_in_the_default_stream)
{
    struct dmi_step_times at = step_with_a_launch_beside(CONTEXT(1));
    ck_assert_uint_eq(at.launches, 2);
    ck_assert(at.flags & DMI_STEP_HAS_DEVICE);
    ck_assert_uint_eq(at.flags & DMI_STEP_ELSEWHERE, 0);
    set_up();
    at = step_with_a_launch_beside(CONTEXT(2));
    ck_assert_uint_eq(at.launches, 2);
    ck_assert(at.flags & DMI_STEP_ELSEWHERE);
    ck_assert(!(at.flags & DMI_STEP_HAS_DEVICE));
}
END_TEST

START_TEST(a_full_ring_loses_steps_and_counts_them)
{
    for (uint64_t i = 0; i < STEPRING_STEPS + 10; i++) {
        step_begins(i);
        launch(1, CUDA_SUCCESS);
    }
    steps_engine_ends(false);
    ck_assert_uint_eq(stepring_lost(), 10);
    ck_assert_uint_eq(stepring_ended(), STEPRING_STEPS + 10);
    for (uint64_t i = 0; i < STEPRING_STEPS; i++) {
        struct dmi_step_times at = collect();
        ck_assert(at.number == i && at.step == i);
    }
    ck_assert_ptr_null(stepring_oldest());
    step_begins(7777);
    steps_engine_ends(false);
    ck_assert_uint_eq(collect().number, STEPRING_STEPS);
}
END_TEST

/* ------------------------------------------------------------------------- ranges */

static const char here, there; /* owners */
static uint64_t n_taken, taken_names;

static void count_range(const struct range_entry *e)
{
    ck_assert_uint_le(e->begin_ns, e->end_ns);
    n_taken++;
    taken_names += !strcmp(e->name, "inner") || !strcmp(e->name, "outer");
}

static void *open_and_close(void *arg)
{
    for (int i = 0; i < 3000; i++) {
        range_ring_begin(&here, DMI_RANGE_SAID, "outer", 5);
        range_ring_begin(&here, DMI_RANGE_SAID, "inner", 5);
        range_ring_fact(&here, "i", i);
        range_ring_end(&here);
        range_ring_end(&here);
    }
    (void)arg;
    return NULL;
}

/* Threads open, close and end while the collector takes: nothing is torn, and what is missing is counted. */
START_TEST(ranges_are_taken_while_threads_make_them)
{
    pthread_t threads[THREADS];
    n_taken = taken_names = 0;
    range_ring_reset();
    range_ring_use(true);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, open_and_close, NULL);
        for (int i = 0; i < 200; i++)
            range_ring_take(count_range);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
    }
    range_ring_take(count_range);
    range_ring_use(false);
    ck_assert_uint_eq(n_taken + range_ring_lost(), 2 * THREADS * 6000);
    ck_assert_uint_eq(taken_names, n_taken);
    ck_assert_int_eq(range_ring_begin(&here, DMI_RANGE_SAID, "x", 1), 1);
}
END_TEST

static char last_name[RANGE_BYTES];
static uint16_t last_depth;

static void note_range(const struct range_entry *e)
{
    memcpy(last_name, e->name, sizeof last_name);
    last_depth = e->depth;
    n_taken++;
}

START_TEST(a_range_is_closed_by_its_own_stack_and_thread)
{
    char longest[200];
    memset(longest, 'n', sizeof longest);
    n_taken = 0;
    range_ring_reset();
    range_ring_use(true);
    ck_assert_int_eq(range_ring_end(&here), -ENOENT);
    ck_assert_int_eq(range_ring_begin(&here, DMI_RANGE_NVTX, "a", 1), 0);
    ck_assert_int_eq(range_ring_begin(&there, DMI_RANGE_SAID, longest, sizeof longest), 0);
    ck_assert_int_eq(range_ring_fact(&here, "key", 1), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(range_ring_fact(&there, longest, i), 0);
    ck_assert_int_eq(range_ring_fact(&there, "one more", 1), -ENOSPC);
    ck_assert_int_eq(range_ring_end(&here), 0); /* the outer one first */
    range_ring_take(note_range);
    ck_assert_str_eq(last_name, "a");
    ck_assert_int_eq(range_ring_end(&here), -ENOENT);
    ck_assert_int_eq(range_ring_end(&there), 0);
    range_ring_take(note_range);
    ck_assert_uint_eq(strlen(last_name), RANGE_BYTES - 1);
    ck_assert_uint_eq(last_depth, 1);
    ck_assert_uint_eq(n_taken, 2);
    ck_assert_uint_eq(range_ring_lost(), 0);
}
END_TEST

/* ------------------------------------------------------------------------- clocks and sums */

/* The real time of a thing that began at @mono_ns. */
static uint64_t real_of(const struct trace_clock *c, uint64_t mono_ns)
{
    return trace_clock_real(trace_clock_ahead(c, mono_ns), mono_ns);
}

START_TEST(monotonic_times_become_real_ones_and_a_clock_that_is_set_is_seen)
{
    struct trace_clock c = { 0 };
    ck_assert_int_eq(trace_clock_pair(&c, 1000, 5000000000), 0);
    ck_assert_uint_eq(real_of(&c, 1500), 5000000500);
    ck_assert_uint_eq(real_of(&c, 0), 0);
    ck_assert_int_eq(trace_clock_pair(&c, 2000, 5000001000 + 900000), 0); /* corrected, slowly */
    ck_assert_uint_eq(real_of(&c, 2000), 5000901000);
    ck_assert_int_eq(trace_clock_pair(&c, 3000, 5000902000 - 7000000), -7000000);
    ck_assert_uint_eq(real_of(&c, 3000), 4993902000);
    ck_assert_uint_eq(real_of(&c, 2999), 5000901999); /* it began before the clock was set */
}
END_TEST

START_TEST(what_began_between_a_setting_and_the_next_pair_lies_on_the_side_that_it_read)
{
    struct trace_clock c = { 0 };
    trace_clock_pair(&c, 1000, 5000000000);
    ck_assert_int_eq(trace_clock_ahead_of(&c, 1500, 5000000500 + 7000000), 4999999000);
    trace_clock_pair(&c, 9000, 5000008000 + 7000000);
    ck_assert_int_eq(trace_clock_ahead_of(&c, 1500, 5000000500), 4999999000);
    ck_assert_int_eq(trace_clock_ahead_of(&c, 2500, 5000001500 + 7000000), 4999999000 + 7000000);
    /* a thread that was held up for 2 ms between its readings */
    ck_assert_int_eq(trace_clock_ahead_of(&c, 1500, 5000000500 + 2000000), 4999999000);
    ck_assert_int_eq(trace_clock_ahead_of(&c, 2500, 5000001500 + 9000000), 4999999000 + 7000000);
    ck_assert_int_eq(trace_clock_ahead_of(&c, 9500, 5000008500), 4999999000 + 7000000);
}
END_TEST

START_TEST(a_clock_that_is_set_often_keeps_the_last_times)
{
    struct trace_clock c = { 0 };
    for (uint64_t i = 0; i < TRACE_CLOCK_SET + 5; i++)
        trace_clock_pair(&c, 100 * (i + 1), 100 * (i + 1) + 10000000 * i);
    ck_assert_uint_eq(real_of(&c, 100 * (TRACE_CLOCK_SET + 5)),
                      100 * (TRACE_CLOCK_SET + 5) + 10000000 * (TRACE_CLOCK_SET + 4));
    ck_assert_uint_eq(real_of(&c, 100 * (TRACE_CLOCK_SET + 5) - 1),
                      100 * (TRACE_CLOCK_SET + 5) - 1 + 10000000 * (TRACE_CLOCK_SET + 3));
    ck_assert_uint_eq(real_of(&c, 1), 1 + 10000000 * 5); /* by the oldest that is remembered */
}
END_TEST

START_TEST(quantiles_are_within_a_part_in_32)
{
    static struct summary s;
    s = (struct summary){ 0 };
    for (uint64_t i = 1; i <= 1000; i++)
        summary_add(&s,
                    &(struct dmi_step_times){ .end_ns = i * 1000003,
                                              .device_ns = i * i,
                                              .gap_ns = i % 2 ? 5 : -5,
                                              .launches = 3,
                                              .flags = DMI_STEP_HAS_DEVICE | DMI_STEP_HAS_GAP });
    static const double shares[] = { 0, 0.01, 0.5, 0.99, 1 };
    for (size_t i = 0; i < 5; i++) {
        double rank = 1 + (double)(uint64_t)(shares[i] * 999),
               got = (double)summary_quantile(&s.device, shares[i]);
        ck_assert_msg(got >= rank * rank * 31 / 32 && got <= rank * rank * 33 / 32, "%g: %g",
                      shares[i], got);
        got = (double)summary_quantile(&s.host, shares[i]);
        ck_assert_msg(got >= rank * 1000003 * 31 / 32 && got <= rank * 1000003 * 33 / 32, "%g: %g",
                      shares[i], got);
    }
    ck_assert_uint_eq(s.gap_ns, 2500);
    char lines[SUMMARY_LINES][SUMMARY_BYTES];
    ck_assert_uint_eq(summary_lines(&s, 2, 0, "the engine", "91.0% gemm", "/a/run", lines), 5);
    ck_assert_str_eq(
        lines[0],
        "trace: 1000 steps, begun by the engine; 1000 of them with a time on the device; 2 lost");
    ck_assert_ptr_nonnull(strstr(lines[2], "a step has 3.0 launches of kernels, 0.0 of graphs"));
    s = (struct summary){ 0 };
    ck_assert_uint_eq(summary_lines(&s, 0, 0, NULL, "", "/a/run", lines), 1);
    ck_assert_ptr_nonnull(strstr(lines[0], "DMI_TRACE_STEP names none"));
    ck_assert_uint_eq(summary_lines(&s, 0, 0, "kernel:x", "", "/a/run", lines), 1);
    ck_assert_ptr_nonnull(strstr(lines[0], "nothing ran that DMI_TRACE_STEP=kernel:x names"));
    ck_assert_uint_eq(summary_quantile(&s.device, 0.5), 0);
}
END_TEST

/* ------------------------------------------------------------------------- launches by stream */

static struct join_run runs[4096];
static size_t n_runs;

static void take_run(const struct join_run *run)
{
    ck_assert_uint_lt(n_runs, sizeof runs / sizeof *runs);
    runs[n_runs++] = *run;
}

static void take_runs(bool all)
{
    n_runs = 0;
    lanes_take(all, steps_deal(), take_run);
}

static const struct join_run *run_of(uint32_t stream, uint64_t deal)
{
    for (size_t i = 0; i < n_runs; i++)
        if (runs[i].stream == stream && runs[i].deal == deal)
            return &runs[i];
    ck_abort_msg("no run of stream %u, deal %u", stream, (unsigned)deal);
}

START_TEST(launches_are_counted_by_stream_and_step)
{
    lanes_use(true);
    launch(1, CUDA_SUCCESS);
    step_begins(5);
    uint64_t deal = steps_deal();
    launch(1, CUDA_SUCCESS);
    launch(2, CUDA_SUCCESS);
    launch(2, CUDA_ERROR_INVALID_VALUE);
    launch_graph(2, 0);
    launch(1, CUDA_SUCCESS);
    launch(UNKNOWN_STREAM, CUDA_SUCCESS);
    steps_engine_ends(false);
    launch(1, CUDA_SUCCESS);
    take_runs(false);
    ck_assert_uint_eq(lanes_open(1, 2), deal); /* a launch for it may be under way */
    take_runs(false);
    ck_assert_uint_eq(lanes_open(1, 2), UINT64_MAX);
    ck_assert_uint_eq(lanes_open(1, 1), deal + 1);
    const struct join_run *run = run_of(2, deal);
    ck_assert(run->kernels == 1 && run->graphs == 1 && run->in_step && !run->shared);
    ck_assert(run->first == 1007 && run->last == JOIN_GRAPH && run->context == 1);
    ck_assert_uint_eq(run->graph_ids, join_graph(JOIN_NO_GRAPHS, 5));
    step_begins(6);
    launch(1, CUDA_SUCCESS);
    take_runs(true);
    ck_assert_uint_eq(n_runs, 2); /* none of the stream that CUPTI does not know */
    ck_assert_uint_eq(lanes_lost(), 0);
    ck_assert(run_of(1, deal + 1)->kernels == 1 && !run_of(1, deal + 1)->in_step);
    ck_assert(run_of(1, deal + 2)->kernels == 1 && run_of(1, deal + 2)->in_step);
}
END_TEST

START_TEST(a_stream_is_idle_where_it_was_waited_for_and_nothing_launched_since)
{
    lanes_use(true);
    for (uint64_t i = 0; i < 4; i++) {
        step_begins(i);
        launch(1, CUDA_SUCCESS);
        launch(2, CUDA_SUCCESS);
        if (i == 0)
            lanes_stream_idle(STREAM(1), 1);
        if (i == 1)
            lanes_context_idle(NULL, 2);
        if (i == 2) {
            lanes_context_idle(CONTEXT(2), 3); /* another one */
            lanes_stream_idle(STREAM(1), 4);
            launch(1, CUDA_SUCCESS);
        }
    }
    uint64_t last = steps_deal();
    take_runs(true);
    for (uint64_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(run_of(1, last - 3 + i)->idle_ns, i == 1 ? 1 : i == 2 ? 2 : 0);
        ck_assert_uint_eq(run_of(2, last - 3 + i)->idle_ns, i == 2 ? 2 : 0);
    }
}
END_TEST

START_TEST(a_range_within_another_pauses_its_step)
{
    lanes_use(true);
    uint64_t outer = steps_range_begins();
    launch(1, CUDA_SUCCESS);
    uint64_t inner = steps_range_begins();
    launch(1, CUDA_SUCCESS);
    launch(1, CUDA_SUCCESS);
    steps_range_ends(inner);
    steps_range_ends(inner);
    launch(1, CUDA_SUCCESS);
    steps_range_ends(outer);
    launch(1, CUDA_SUCCESS);
    struct dmi_step_times a = collect(), b = collect();
    ck_assert_uint_eq(a.launches, 2);
    ck_assert_uint_eq(a.device_ns, 20000);
    ck_assert_uint_eq(b.launches, 2);
    ck_assert_uint_eq(b.device_ns, 40000);
    ck_assert_uint_eq((a.flags | b.flags) & DMI_STEP_SEVERAL, 0);
    ck_assert_ptr_null(stepring_oldest());
    take_runs(true);
    ck_assert_uint_eq(n_runs, 4);
    for (size_t i = 0; i < n_runs; i++)
        ck_assert(runs[i].in_step == (i < 3) && !runs[i].unsure &&
                  (!i || runs[i].deal > runs[i - 1].deal));
}
END_TEST

/* The engine says a step, as dmi_step_begin() does. */
static void say(uint64_t sequence, uint32_t flags)
{
    const struct dmi_step said = {
        .size = sizeof said, .version = DMI_STEP_VERSION, .step = sequence, .flags = flags
    };
    ck_assert_int_eq(said_begins(&said, sequence, NULL), 0);
    steps_engine_begins(&said, sequence);
}

static void resume(uint64_t number)
{
    uint64_t sequence;
    bool own;
    ck_assert_int_eq(said_resumes(number, 0, &sequence, &own), 0);
    steps_engine_resumes(sequence, own);
}

/* Two batches in turn, of the thread and of the process. */
START_TEST(a_step_that_pauses_goes_on)
{
    uint32_t flags = DMI_STEP_PAUSES | (_i ? DMI_STEP_OF_THREAD : 0);
    lanes_use(true);
    for (uint64_t i = 0; i < 2; i++) {
        say(i, flags);
        launch(1, CUDA_SUCCESS);
    }
    for (uint64_t i = 0; i < 6; i++) {
        resume(i % 2);
        launch(1 + i % 2, CUDA_SUCCESS);
    }
    for (uint64_t i = 0; i < 2; i++) {
        resume(i);
        steps_engine_ends(said_ends());
    }
    launch(1, CUDA_SUCCESS);
    for (uint64_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(stepring_oldest()->n_deals, 4);
        free(stepring_oldest()->deals);
        struct dmi_step_times at = collect();
        ck_assert_uint_eq(at.step, i);
        ck_assert_uint_eq(at.launches, 4);
        ck_assert_uint_eq(at.device_ns, 70000);
    }
    ck_assert_ptr_null(stepring_oldest());
    take_runs(true);
    ck_assert_uint_eq(n_runs, 9);
    uint64_t number, other;
    ck_assert_uint_eq(said_overlaps(&number, &other), 0);
}
END_TEST

START_TEST(of_too_many_steps_that_pause_the_first_ends)
{
    for (uint64_t i = 0; i < 18; i++)
        say(i, DMI_STEP_PAUSES);
    ck_assert_uint_eq(collect().step, 0);
    ck_assert_ptr_null(stepring_oldest());
    steps_stop();
    for (uint64_t i = 1; i < 18; i++)
        ck_assert_uint_ne(collect().flags & DMI_STEP_UNENDED, 0);
}
END_TEST

static pthread_barrier_t turn;

/* Each launches for its own step while the other's is under way. */
static void *launch_beside(void *arg)
{
    uint64_t who = (uint64_t)(uintptr_t)arg & 1;
    uint32_t flags = (uint64_t)(uintptr_t)arg & 2 ? DMI_STEP_OF_THREAD : 0;
    for (uint64_t i = 0; i < 8; i++) {
        for (uint64_t who_now = 0; who_now < 2; who_now++) {
            if (who_now == who && i % 4 == 0)
                say(2 * i + who, flags);
            else if (who_now == who && i % 4 == 3)
                steps_engine_ends(said_ends());
            else if (who_now == who)
                launch(1 + (unsigned)who, CUDA_SUCCESS);
            pthread_barrier_wait(&turn);
        }
    }
    return NULL;
}

static void two_threads(uintptr_t flags)
{
    pthread_t threads[2];
    lanes_use(true);
    pthread_barrier_init(&turn, NULL, 2);
    for (uintptr_t i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, launch_beside, (void *)(i | flags));
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    take_runs(true);
}

START_TEST(steps_of_threads_are_told_apart)
{
    uint64_t number, other;
    two_threads(2);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(collect().launches, 2);
    ck_assert_uint_eq(n_runs, 4);
    for (size_t i = 0; i < n_runs; i++)
        ck_assert(runs[i].in_step && !runs[i].unsure && !runs[i].shared && runs[i].kernels == 2);
    ck_assert_uint_eq(said_overlaps(&number, &other), 0);
}
END_TEST

/* Without the flag what the first one launches after the second one's step began is of no known step. */
START_TEST(steps_of_threads_that_overlap_are_counted)
{
    uint64_t number, other;
    two_threads(0);
    size_t n_unsure = 0, n_known = 0;
    for (size_t i = 0; i < n_runs; i++) {
        n_unsure += runs[i].unsure;
        n_known += runs[i].in_step;
        ck_assert(!runs[i].unsure || runs[i].stream == 1);
        ck_assert(!runs[i].in_step || runs[i].stream == 2);
    }
    ck_assert_uint_eq(n_unsure, 2);
    ck_assert_uint_eq(n_known, 2);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(collect().launches, i % 2 ? 2 : 0);
    ck_assert_uint_eq(said_overlaps(&number, &other), 4);
    ck_assert(number == 0 && other == 1);
}
END_TEST

static uint32_t n_lost_in;

static void note_lost(uint32_t context, uint32_t stream)
{
    (void)context, (void)stream;
    n_lost_in++;
}

/* A stream a request, with and without an end: what has a place goes on, and none is lost. */
START_TEST(places_of_streams_that_ended_or_are_still_are_free_again)
{
    lanes_use(true);
    for (uint64_t i = 0; i < 3000; i++) {
        step_begins(i);
        launch(1, CUDA_SUCCESS);
        launch(100 + i % 1500, CUDA_SUCCESS);
        if (!_i)
            lanes_stream_ends(STREAM(100 + i % 1500).handle);
        if (i % 64 == 63)
            take_runs(false);
    }
    take_runs(true);
    lanes_take_lost(note_lost);
    ck_assert_uint_eq(n_lost_in, 0);
    ck_assert_uint_eq(lanes_lost() + lanes_crowded(), 0);
}
END_TEST

/* More streams in one step than there are places: those that have none are named. */
START_TEST(streams_without_a_place_are_named)
{
    lanes_use(true);
    step_begins(1);
    for (uint64_t i = 0; i < 1030; i++)
        launch(100 + i, CUDA_SUCCESS);
    n_lost_in = 0;
    lanes_take_lost(note_lost);
    ck_assert_uint_eq(n_lost_in, 1030 - 1024);
    ck_assert_uint_eq(lanes_crowded(), 1030 - 1024);
    ck_assert_uint_eq(lanes_lost(), 0);
    take_runs(true);
}
END_TEST

static void *launch_in_steps_of_its_own(void *arg)
{
    (void)arg;
    steps_range_begins();
    launch(1, CUDA_SUCCESS);
    return NULL;
}

START_TEST(streams_of_several_threads_with_steps_of_their_own_are_named)
{
    pthread_t thread;
    lanes_use(true);
    steps_range_begins();
    launch(1, CUDA_SUCCESS);
    launch(2, CUDA_SUCCESS);
    pthread_create(&thread, NULL, launch_in_steps_of_its_own, NULL);
    pthread_join(thread, NULL);
    take_runs(true);
    ck_assert_uint_eq(n_runs, 3);
    for (size_t i = 0; i < n_runs; i++)
        ck_assert(runs[i].shared == (runs[i].stream == 1) && runs[i].in_step && runs[i].kernels);
}
END_TEST

static void *end_a_module(void *arg)
{
    (void)arg;
    while (!slow)
        usleep(100);
    lanes_forget();
    module_ended = true;
    return NULL;
}

START_TEST(no_module_ends_while_the_driver_names_a_function_of_it)
{
    pthread_t thread;
    lanes_use(true);
    step_begins(1);
    launch(1, CUDA_SUCCESS);
    launch_function(1, SLOW, CUDA_SUCCESS);
    pthread_create(&thread, NULL, end_a_module, NULL);
    step_begins(2);
    launch(1, CUDA_SUCCESS);
    ck_assert_int_eq(slow, 1);
    pthread_join(thread, NULL);
    step_begins(3);
    launch_function(1, SLOW, CUDA_SUCCESS);
    slow = 0;
    lanes_forget();
    step_begins(4);
    launch(1, CUDA_SUCCESS);
    ck_assert_msg(!slow, "a function that has ended was named");
}
END_TEST

#define NAP_NS 20000000u

/* Looks for @ns. Return: milliseconds in all in which the process stood still. */
static unsigned look_for(uint64_t ns)
{
    struct beat beat = { 0 };
    uint64_t begin, end, until = clock_mono_ns() + ns, stood = 0;
    while (clock_mono_ns() < until) {
        if (beat_look(&beat, NAP_NS, &begin, &end))
            stood += end - begin;
        nanosleep(&(struct timespec){ 0, NAP_NS }, NULL);
    }
    return (unsigned)(stood / 1000000);
}

/* A process that has nothing but this CPU. */
static pid_t on_one_cpu(int cpu)
{
    cpu_set_t one;
    pid_t child = fork();
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (!child && sched_setaffinity(0, sizeof one, &one))
        _exit(255);
    return child;
}

START_TEST(a_process_that_is_stopped_stands_still)
{
    int status;
    pid_t child = fork();
    if (!child)
        _exit((int)(look_for(1000000000u) / 10));
    nanosleep(&(struct timespec){ 0, 300000000 }, NULL);
    kill(child, SIGSTOP);
    nanosleep(&(struct timespec){ 0, 400000000 }, NULL);
    kill(child, SIGCONT);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_ge(WEXITSTATUS(status),
                     36); /* of 400 ms, up to 20 may be before a nap was over */
    ck_assert_int_le(WEXITSTATUS(status), 100);
}
END_TEST

/* It sleeps, and when it wakes others have the CPU. */
START_TEST(a_process_without_a_cpu_does_not_stand_still)
{
    pid_t others[4];
    int status, cpu = sched_getcpu();
    for (size_t i = 0; i < 4; i++)
        if (!(others[i] = on_one_cpu(cpu)))
            for (;;)
                ;
    pid_t child = on_one_cpu(cpu);
    if (!child)
        _exit(sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 })
                  ? 255
                  : (int)(look_for(1500000000u) / 10));
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    for (size_t i = 0; i < 4; i++) {
        kill(others[i], SIGKILL);
        waitpid(others[i], NULL, 0);
    }
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace");
    TCase *tc = tcase_create("trace");
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_add_test(tc, a_step_has_its_launches_and_the_time_between_its_events);
    tcase_add_test(tc, a_step_ends_with_its_last_launch_where_the_host_waited_after_it);
    tcase_add_test(tc, a_step_says_that_the_device_was_done_before_the_host_looked);
    tcase_add_test(tc, a_process_that_is_stopped_stands_still);
    tcase_add_test(tc, a_process_without_a_cpu_does_not_stand_still);
    tcase_add_test(tc, nothing_is_recorded_or_counted_on_a_capturing_stream);
    tcase_add_test(tc, where_no_device_time_is_known_the_step_says_why);
    tcase_add_test(tc, the_driver_is_asked_for_the_context_of_a_stream_once);
    tcase_add_test(tc, a_stream_whose_handle_comes_back_may_be_of_another_context);
    tcase_add_test(tc, no_gap_is_told_over_a_step_whose_end_is_not_known);
    tcase_add_loop_test(tc, each_call_of_the_driver_may_fail, 1, 16);
    tcase_add_test(tc, a_step_that_the_device_is_not_done_with_waits);
    tcase_add_test(tc, what_the_user_names_begins_steps_until_the_engine_says_some);
    tcase_add_test(tc, a_graph_or_a_range_begins_a_step);
    tcase_add_test(tc, a_range_within_another_pauses_its_step);
    tcase_add_loop_test(tc, a_step_that_pauses_goes_on, 0, 2);
    tcase_add_test(tc, of_too_many_steps_that_pause_the_first_ends);
    tcase_add_test(tc, steps_of_threads_are_told_apart);
    tcase_add_test(tc, steps_of_threads_that_overlap_are_counted);
    tcase_add_test(tc, threads_launch_while_steps_begin_and_end);
    tcase_add_test(tc, a_step_that_ends_before_its_first_event_is_recorded_has_no_time);
    tcase_add_test(tc, a_step_names_the_thread_that_said_it_also_in_a_child);
    tcase_add_test(tc, a_thread_that_ends_leaves_its_launches);
    tcase_add_test(tc, another_thread_may_launch_last_in_the_default_stream);
    tcase_add_test(tc, launches_are_counted_by_stream_and_step);
    tcase_add_test(tc, a_stream_is_idle_where_it_was_waited_for_and_nothing_launched_since);
    tcase_add_loop_test(tc, places_of_streams_that_ended_or_are_still_are_free_again, 0, 2);
    tcase_add_test(tc, streams_without_a_place_are_named);
    tcase_add_test(tc, streams_of_several_threads_with_steps_of_their_own_are_named);
    tcase_add_test(tc, no_module_ends_while_the_driver_names_a_function_of_it);
    tcase_add_test(tc, a_full_ring_loses_steps_and_counts_them);
    tcase_add_test(tc, ranges_are_taken_while_threads_make_them);
    tcase_add_test(tc, a_range_is_closed_by_its_own_stack_and_thread);
    tcase_add_test(tc, monotonic_times_become_real_ones_and_a_clock_that_is_set_is_seen);
    tcase_add_test(tc,
                   what_began_between_a_setting_and_the_next_pair_lies_on_the_side_that_it_read);
    tcase_add_test(tc, a_clock_that_is_set_often_keeps_the_last_times);
    tcase_add_test(tc, quantiles_are_within_a_part_in_32);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
