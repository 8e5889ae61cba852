/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of capture contexts (preload/context/context.h) while threads retain, release, reset, attach, detach, create and
 * destroy CUDA contexts, make them current, launch and instantiate: the wrappers of preload/hook/context.c over a model of the
 * driver, with the library's own drain. Runs under ThreadSanitizer.
 */
#include "preload/base/current.h"
#include "preload/context/lifetime.h"
#include "preload/context/references.h"
#include "preload/hook/wrapper.h"
#include "tests/unit/drain_kit.h"
#include "tests/unit/life_driver.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_WORKERS 16
#define N_STEPS     60 /* a worker */
#define N_BYTES     40u
#define END_NS      (60 * SECOND) /* how long a call that may end a context waits for the drain */
#define STUCK_S     240

enum { KEPT, ENDING, N_SITES }; /* the site of launches on device 0, and of all others */

struct worker {
    pthread_t thread;
    uint64_t seed;
    uint32_t held[LIFE_DEVICES]; /* references that it holds */
    CUcontext own;
    uint32_t own_references, depth;
};

static struct world {
    struct spec spec;
    struct worker workers[MAX_WORKERS];
    struct context *kept; /* of device 0, to which somebody always holds a reference */
    uint64_t n_kept;      /* launches there; atomic */
    uint64_t n_wrong;     /* encoder only */
} world;

/* ------------------------------------------------------------------------- in the library's place */

int kit_append(const struct run_record *records, size_t n_records)
{
    for (size_t i = 0; i < n_records; i++) {
        const unsigned char *data = records[i].data;
        for (uint64_t k = 0; k < records[i].n_bytes; k++)
            atomic_add_relaxed(&world.n_wrong,
                               (uint64_t)(data[k] != life_driver_byte(records[i].launch, k)));
    }
    return 0;
}

bool driver_resolve(void)
{
    return false;
}

/* As preload/lifecycle.c has these, without functions and graphs. */
void lifecycle_waited(CUresult r)
{
    struct session_call call;
    if (r != CUDA_SUCCESS)
        return;
    session_enter(&call);
    struct context *c = context_current();
    if (c && context_use(c)) {
        if (context_is_over(c))
            context_gone(c);
        context_unuse(c);
    }
    context_prepare();
    session_leave(&call);
}

void lifecycle_waited_in(CUresult r, CUcontext handle)
{
    if (r != CUDA_SUCCESS || !current_push(handle))
        return;
    lifecycle_waited(r);
    current_pop();
}

void lifecycle_context_ends(struct context_call *call, const struct context_reference *reference)
{
    context_call_starts(call, reference, END_NS);
}

void lifecycle_context_ended(struct context_call *call, enum context_state before, bool gone)
{
    if (gone)
        context_gone(call->context);
    context_call_ends(call, before);
}

static void lives_on(struct context_call *call)
{
    context_call_ends(call, context_call_returns(call));
}

/* ------------------------------------------------------------------------- the application */

static CUresult release(CUdevice device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

static CUcontext retain(CUdevice device)
{
    CUcontext handle = NULL;
    ck_assert_int_eq(cuDevicePrimaryCtxRetain(&handle, device), CUDA_SUCCESS);
    return handle;
}

static void count(uint32_t site, int sign)
{
    session_count(&session_counters(site)->expected, sign, 1, N_BYTES, N_BYTES);
}

/* A record's place in the ring. Return: DROP_NONE or why there is none. */
static int reserve(struct context *c, uint32_t site, struct dmi_desc *record, uint64_t *index)
{
    uint64_t payload = 0, seq = 0;
    pthread_mutex_lock(&c->lock);
    int reason = context_refusal(c);
    if (reason == DROP_NONE) {
        seq = atomic_add_relaxed(&session.next_launch, 1);
        if (ring_reserve(&c->ring, seq, site, N_BYTES, index, &payload))
            reason = DMI_DROP_RING_FULL;
        else
            *(struct record_note *)ring_user(&c->ring, *index) =
                (struct record_note){ .n_dims = 1, .dims = { N_BYTES }, .kept = ROW_LISTS_NONE };
    }
    pthread_mutex_unlock(&c->lock);
    *record =
        (struct dmi_desc){ .ready = seq, .payload = payload, .n_bytes = N_BYTES, .site = site };
    return reason;
}

/* As the library does around a launch; the copy runs later, or never, if the context ends before. */
static void launch_in(struct context *c, uint32_t site, uint64_t *seed)
{
    struct dmi_desc record;
    uint64_t index;
    count(site, 1);
    int reason = reserve(c, site, &record, &index);
    if (reason != DROP_NONE) {
        session_drop(site, (enum dmi_drop)reason, N_BYTES, N_BYTES);
        return;
    }
    kit_nap(seed);
    if (life_driver_write(c, &record)) {
        kit_nap(seed);
        life_driver_publish(c, index, &record);
    } else if (ring_cancel(&c->ring, index)) {
        count(site, -1); /* the driver refused the launch */
    }
}

/* As a correct program does: in a context that this thread, or for device 0 the main thread, holds. */
static bool may_use_current(const struct worker *w)
{
    CUdevice primary;
    CUcontext current = life_driver_current(&primary);
    return current && (primary < 0 ? current == w->own : !primary || w->held[primary]);
}

static void launch(uint64_t *seed)
{
    struct session_call call;
    session_enter(&call);
    CUcontext handle = current_context();
    struct context *c = handle ? context_claim(handle) : NULL;
    if (c && context_use(c)) {
        uint32_t site = c == world.kept ? KEPT : ENDING;
        if (site == KEPT)
            atomic_add_relaxed(&world.n_kept, 1);
        launch_in(c, site, seed);
        context_unuse(c);
    }
    session_leave(&call);
}

static void push(struct worker *w, CUcontext handle)
{
    if (w->depth < 32 && cuCtxPushCurrent_v2(handle) == CUDA_SUCCESS)
        w->depth++;
}

static void pop(struct worker *w)
{
    CUcontext popped;
    if (!w->depth)
        return;
    driver_table.cuCtxPopCurrent_v2(&popped);
    w->depth--;
}

/* Nobody resets what others use, or retain. What is only held may be reset. */
static pthread_rwlock_t whole = PTHREAD_RWLOCK_INITIALIZER;

/* A transport does not use it. */
static void hold(struct worker *w, CUdevice device, bool uses)
{
    pthread_rwlock_rdlock(&whole);
    CUcontext handle = retain(device);
    if (uses)
        push(w, handle);
    w->held[device]++;
    pthread_rwlock_unlock(&whole);
}

/* It launches, or instantiates a graph. */
static void use(struct worker *w, bool launches)
{
    pthread_rwlock_rdlock(&whole);
    if (may_use_current(w) && launches)
        launch(&w->seed);
    else if (may_use_current(w))
        lifecycle_waited(CUDA_SUCCESS);
    pthread_rwlock_unlock(&whole);
}

static void reset(void)
{
    pthread_rwlock_wrlock(&whole);
    cuDevicePrimaryCtxReset_v2(1);
    pthread_rwlock_unlock(&whole);
}

/* Other threads do not name it. */
static void create(struct worker *w)
{
    if (w->own || w->depth >= 32 || cuCtxCreate_v2(&w->own, 0, 0) != CUDA_SUCCESS)
        return;
    w->own_references = 1;
    w->depth++;
}

static void attach(struct worker *w)
{
    CUcontext same;
    if (!w->own || cuCtxPushCurrent_v2(w->own) != CUDA_SUCCESS)
        return;
    ck_assert_int_eq(cuCtxAttach(&same, 0), CUDA_SUCCESS);
    w->own_references++;
    driver_table.cuCtxPopCurrent_v2(&same);
}

static void detach(struct worker *w)
{
    if (!w->own)
        return;
    ck_assert_int_eq(cuCtxDetach(w->own), CUDA_SUCCESS);
    if (!--w->own_references)
        w->own = NULL;
}

static void destroy(struct worker *w)
{
    if (w->own)
        ck_assert_int_eq(cuCtxDestroy_v2(w->own), CUDA_SUCCESS);
    w->own = NULL;
    ck_assert_int_eq(cuCtxDestroy_v2(NULL), CUDA_ERROR_INVALID_CONTEXT);
}

static void step(struct worker *w)
{
    CUdevice device = (int)(kit_next(&w->seed) % LIFE_DEVICES);
    switch (kit_next(&w->seed) % 12) {
    case 0: hold(w, device, false); break;
    case 1: hold(w, device, true); break;
    case 2:
    case 3:
        if (w->held[device])
            ck_assert_int_eq(release(device), CUDA_SUCCESS);
        w->held[device] -= !!w->held[device];
        break;
    case 4: create(w); break;
    case 5: attach(w); break;
    case 6: detach(w); break;
    case 7: pop(w); break;
    case 8: use(w, false); break;
    case 9:
        if (kit_next(&w->seed) % 2)
            reset();
        else
            destroy(w);
        break;
    default: use(w, true);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < N_STEPS; i++) {
        step(w);
        ck_assert_int_eq(context_state(world.kept), CONTEXT_READY);
        kit_nap(&w->seed);
    }
    while (w->depth)
        pop(w);
    while (w->own)
        detach(w);
    for (int d = 0; d < LIFE_DEVICES; d++)
        for (; w->held[d]; w->held[d]--)
            release(d);
    return NULL;
}

/* ------------------------------------------------------------------------- a world */

static void set_up(bool with_ids)
{
    kit_reset(N_SITES);
    context_reset();
    references_reset();
    life_driver_install(with_ids);
    memset(&world, 0, sizeof world);
    world.spec.n_sites = N_SITES;
    session.spec = &world.spec;
    session.armed = 1;
    session.encoders = 1;
    session.next_launch = DMI_SEQ_FIRST;
    world.kept = context_find(retain(0));
    ck_assert(world.kept && context_state(world.kept) == CONTEXT_READY);
}

static void check_sums(void)
{
    for (uint32_t i = 0; i < N_SITES; i++) {
        const struct dmi_site_counters *c = &session.counters->sites[i];
        uint64_t sum = c->captured.records;
        for (int r = 0; r < DMI_DROP_COUNT; r++)
            sum += c->dropped[r].records;
        ck_assert_uint_eq(c->expected.records, sum);
    }
    ck_assert_uint_eq(world.n_wrong, 0);
    ck_assert_uint_eq(life_driver_misuses(), 0);
    ck_assert(context_threads_ended());
    ck_assert_ptr_null(context_dismantle());
}

/* Nothing of device 0 is lost; of the others what went with their contexts. */
static void check_fates(void)
{
    const struct dmi_site_counters *c = session.counters->sites;
    ck_assert_uint_eq(c[KEPT].expected.records, world.n_kept);
    ck_assert_uint_eq(c[KEPT].captured.records, world.n_kept);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_CONTEXT_GONE) + kit_dropped(DMI_DROP_UNSUPPORTED) +
                          kit_captured(),
                      c[KEPT].expected.records + c[ENDING].expected.records);
}

/* Whatever was, a context that is used anew is captured. */
static void check_capture_goes_on(uint64_t *seed)
{
    uint64_t before = session.counters->sites[ENDING].captured.records;
    CUcontext handle = retain(1);
    ck_assert(current_push(handle));
    for (int i = 0; i < 3; i++)
        launch(seed);
    current_pop();
    ck_assert_int_eq(release(1), CUDA_SUCCESS);
    ck_assert_uint_eq(session.counters->sites[ENDING].captured.records, before + 3);
}

static void stuck(int signal)
{
    static const char words[] = "test_life: the schedule stands still\n";
    (void)signal;
    if (write(2, words, sizeof words - 1))
        abort();
}

START_TEST(random_schedules_end_no_context_of_others_and_lose_nothing)
{
    uint64_t seed = (uint64_t)_i * 104729 + 5;
    int n = 2 + (int)(kit_next(&seed) % (MAX_WORKERS - 1));
    signal(SIGALRM, stuck);
    alarm(STUCK_S);
    set_up(kit_next(&seed) % 3);
    for (int i = 0; i < n; i++) {
        world.workers[i].seed = kit_next(&seed);
        ck_assert_int_eq(
            pthread_create(&world.workers[i].thread, NULL, worker_main, &world.workers[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(world.workers[i].thread, NULL);
    while (life_driver_references(1))
        release(1);
    check_capture_goes_on(&seed);
    ck_assert_int_eq(release(0), CUDA_SUCCESS);
    alarm(0);
    check_sums();
    check_fates();
    ck_assert_int_eq(context_state(world.kept), CONTEXT_FREE);
}
END_TEST

/* ------------------------------------------------------------------------- one thing at a time */

/* References to the primary context of device 0. */
static const struct context_reference last_one = { .last = true }, other_one = { .last = false };

/* A record of device 0 that is in flight for as long as the test wants. */
static uint64_t in_flight(struct dmi_desc *record)
{
    uint64_t index;
    count(KEPT, 1);
    ck_assert_int_eq(reserve(world.kept, KEPT, record, &index), DROP_NONE);
    ck_assert(life_driver_write(world.kept, record));
    return index;
}

static void finish(uint64_t n_captured)
{
    ck_assert_int_eq(release(0), CUDA_SUCCESS);
    check_sums();
    ck_assert_uint_eq(kit_captured(), n_captured);
    ck_assert_int_eq(context_state(world.kept), CONTEXT_FREE);
}

START_TEST(a_release_that_leaves_a_reference_waits_for_nothing)
{
    struct dmi_desc record;
    set_up(true);
    uint64_t index = in_flight(&record);
    retain(0);
    pthread_t drain = world.kept->drain.id;
    ck_assert_int_eq(release(0), CUDA_SUCCESS); /* else it waits for END_NS, and drops */
    ck_assert_int_eq(context_state(world.kept), CONTEXT_READY);
    ck_assert(pthread_equal(drain, world.kept->drain.id));
    ck_assert(life_driver_publish(world.kept, index, &record));
    finish(1);
}
END_TEST

/* A reference that the library did not see: the drain stops, and takes what was launched meanwhile once it goes on. */
START_TEST(a_context_that_lives_on_goes_on)
{
    uint64_t seed = 1;
    CUcontext unseen;
    set_up(_i);
    driver_table.cuDevicePrimaryCtxRetain(&unseen, 0);
    ck_assert(current_push(unseen));
    launch(&seed);
    struct context_call call;
    context_call_starts(&call, &last_one, END_NS);
    ck_assert_int_eq(context_state(world.kept), CONTEXT_STOPPED);
    ck_assert_uint_eq(kit_captured(), 1);
    launch(&seed);
    ck_assert_uint_eq(kit_captured(), 1);
    lives_on(&call);
    ck_assert_int_eq(context_state(world.kept), CONTEXT_READY);
    ck_assert_int_eq(release(0), CUDA_SUCCESS);
    ck_assert_int_eq(context_state(world.kept), CONTEXT_READY);
    launch(&seed);
    current_pop();
    finish(3);
}
END_TEST

START_TEST(what_was_launched_while_the_context_ended_is_counted)
{
    uint64_t seed = 1, index;
    struct dmi_desc record;
    struct context_call call;
    set_up(true);
    context_call_starts(&call, &last_one, END_NS);
    index = in_flight(&record);
    ck_assert_int_eq(driver_table.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    ck_assert(!life_driver_publish(world.kept, index, &record));
    ck_assert(context_gone(world.kept) && !context_gone(world.kept));
    launch_in(world.kept, KEPT, &seed);
    lives_on(&call);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_CONTEXT_GONE), 2);
    check_sums();
    ck_assert_int_eq(context_state(world.kept), CONTEXT_FREE);
}
END_TEST

/* Each row: calls that begin (A, B: may end it; x, y: may not) and leave (a, b; X, Y), and the state after them. */
static const struct overlap {
    const char *calls;
    enum context_state state;
} overlaps[] = {
    { "x", CONTEXT_READY },       { "xXAa", CONTEXT_READY },      { "A", CONTEXT_STOPPED },
    { "ABa", CONTEXT_STOPPED },   { "ABab", CONTEXT_READY },      { "ABba", CONTEXT_READY },
    { "xAa", CONTEXT_STOPPED },   { "xAaX", CONTEXT_READY },      { "xAXa", CONTEXT_READY },
    { "Axa", CONTEXT_READY },     { "AxXa", CONTEXT_READY },      { "xAyaY", CONTEXT_STOPPED },
    { "xAayX", CONTEXT_READY },   { "xAayXBY", CONTEXT_STOPPED }, { "AxBa", CONTEXT_STOPPED },
    { "AxBab", CONTEXT_STOPPED }, { "AxBabX", CONTEXT_READY },
};

START_TEST(the_last_of_several_calls_resumes)
{
    struct context_call calls[4];
    bool open[4] = { false };
    const char *names = "ABxy", *ends = "abXY";
    set_up(true);
    for (const char *p = overlaps[_i].calls; *p; p++) {
        const char *begins = strchr(names, *p), *leaves = strchr(ends, *p);
        open[(begins ? begins - names : leaves - ends)] = begins;
        if (begins)
            context_call_starts(&calls[begins - names], *p < 'a' ? &last_one : &other_one, END_NS);
        else if (leaves)
            lives_on(&calls[leaves - ends]);
    }
    ck_assert_int_eq(context_state(world.kept), overlaps[_i].state);
    for (int i = 0; i < 4; i++)
        if (open[i])
            lives_on(&calls[i]);
    ck_assert_int_eq(context_state(world.kept), CONTEXT_READY);
    finish(0);
}
END_TEST

START_TEST(a_closed_context_does_not_go_on)
{
    struct context_call call;
    set_up(true);
    context_call_starts(&call, &last_one, END_NS);
    context_close(world.kept);
    lives_on(&call);
    ck_assert_int_eq(context_state(world.kept), CONTEXT_STOPPED);
    ck_assert_int_eq(context_refusal(world.kept), DMI_DROP_CONTEXT_GONE);
    finish(0);
}
END_TEST

static CUcontext other, second; /* of another thread */

static void *create_other(void *unused)
{
    uint64_t seed = 2;
    ck_assert_int_eq(cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    launch(&seed);
    return unused;
}

static void *reset_create_and_retain(void *unused)
{
    ck_assert_int_eq(cuDevicePrimaryCtxReset_v2(1), CUDA_SUCCESS);
    ck_assert_int_eq(cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    second = retain(1);
    return unused;
}

static void in_another_thread(void *(*work)(void *))
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, work, NULL), 0);
    pthread_join(thread, NULL);
}

static void another_thread_creates(void)
{
    in_another_thread(create_other);
}

static void another_thread_resets(void)
{
    in_another_thread(reset_create_and_retain);
}

/* The driver gives its handle out before the call that ends it has returned, or while the library asks whether it lives. Later ends of the primary context are none of the new one's. */
START_TEST(another_context_has_the_handle_before_the_call_returns)
{
    uint64_t seed = 1;
    set_up(_i % 2);
    CUcontext primary = context_handle(world.kept);
    life_driver_before_return(_i / 2, another_thread_creates);
    ck_assert_int_eq(release(0), CUDA_SUCCESS);
    ck_assert_ptr_eq(other, primary);
    ck_assert_int_eq(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    ck_assert_int_eq(context_state(context_find(other)), CONTEXT_READY);
    ck_assert(current_push(other));
    launch(&seed);
    current_pop();
    ck_assert_int_eq(cuCtxDestroy_v2(other), CUDA_SUCCESS);
    check_sums();
    ck_assert_uint_eq(kit_captured(), 2);
}
END_TEST

/* It has no ring: the new one would get it, and the call that ends the old one would end it there. */
START_TEST(another_context_has_the_handle_of_one_that_counts)
{
    uint64_t seed = 1;
    CUcontext counting;
    set_up(true);
    ck_assert_int_eq(driver_table.cuDevicePrimaryCtxRetain(&counting, 1), CUDA_SUCCESS);
    ck_assert(current_push(counting));
    launch(&seed);
    current_pop();
    ck_assert_int_eq(context_state(context_find(counting)), CONTEXT_COUNTING);
    life_driver_before_return(
        3, another_thread_creates); /* the library looks, and asks for the handle */
    ck_assert_int_eq(cuDevicePrimaryCtxReset_v2(1), CUDA_SUCCESS);
    ck_assert_ptr_eq(other, counting);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_UNSUPPORTED), 2);
    ck_assert(current_push(other));
    lifecycle_waited(CUDA_SUCCESS);
    launch(&seed);
    current_pop();
    ck_assert_int_eq(cuCtxDestroy_v2(other), CUDA_SUCCESS);
    finish(1);
}
END_TEST

/* A transport retains, and does not look at the handle: the primary context has another one by now. */
START_TEST(an_old_handle_is_not_noted_over_a_new_one)
{
    set_up(_i);
    life_driver_before_return(0, another_thread_resets);
    CUcontext old = retain(1);
    ck_assert_ptr_eq(old, other);
    ck_assert_ptr_ne(second, other);
    ck_assert_ptr_eq(context_primary(1), second);
    ck_assert_int_eq(release(1), CUDA_SUCCESS);
    ck_assert_int_eq(context_state(context_find(second)), CONTEXT_READY);
    ck_assert_int_eq(release(1), CUDA_SUCCESS);
    ck_assert_ptr_null(context_find(second));
    ck_assert_int_eq(context_state(context_find(other)), CONTEXT_READY);
    ck_assert_int_eq(cuCtxDestroy_v2(other), CUDA_SUCCESS);
    finish(0);
}
END_TEST

START_TEST(what_is_used_stays)
{
    set_up(true);
    struct context *c = world.kept;
    ck_assert(context_use(c));
    ck_assert_int_eq(release(0), CUDA_SUCCESS);
    ck_assert_int_eq(context_state(c), CONTEXT_GONE);
    ck_assert(c->sites && c->ring.slots && !context_use(c));
    context_unuse(c);
    ck_assert_int_eq(context_state(c), CONTEXT_FREE);
}
END_TEST

/* test_life [SCHEDULES [FIRST]] */
int main(int argc, char **argv)
{
    int n_schedules = argc > 1 ? atoi(argv[1]) : 30, first = argc > 2 ? atoi(argv[2]) : 0;
    Suite *suite = suite_create("life");
    TCase *single = tcase_create("one thing at a time");
    tcase_set_timeout(single, STUCK_S);
    tcase_add_test(single, a_release_that_leaves_a_reference_waits_for_nothing);
    tcase_add_loop_test(single, a_context_that_lives_on_goes_on, 0, 2);
    tcase_add_test(single, what_was_launched_while_the_context_ended_is_counted);
    tcase_add_loop_test(single, the_last_of_several_calls_resumes, 0,
                        sizeof overlaps / sizeof overlaps[0]);
    tcase_add_test(single, a_closed_context_does_not_go_on);
    tcase_add_loop_test(single, another_context_has_the_handle_before_the_call_returns, 0, 4);
    tcase_add_test(single, another_context_has_the_handle_of_one_that_counts);
    tcase_add_loop_test(single, an_old_handle_is_not_noted_over_a_new_one, 0, 2);
    tcase_add_test(single, what_is_used_stays);
    suite_add_tcase(suite, single);
    TCase *random = tcase_create("random");
    tcase_set_timeout(random, STUCK_S + 10);
    tcase_add_loop_test(random, random_schedules_end_no_context_of_others_and_lose_nothing, first,
                        first + n_schedules);
    suite_add_tcase(suite, random);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
