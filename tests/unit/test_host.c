/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host context (preload/context/host.c): threads tap their own memory, in a process without a driver, and overwrite it as soon as the tap has
 * returned. Whatever happens, a record holds what was there at the tap, or is counted under a reason. Writer and counters are the
 * test's own; runs under ThreadSanitizer.
 */
#include "core/atomic.h"
#include "preload/base/readable.h"
#include "preload/capture/said.h"
#include "preload/context/lifetime.h"
#include "preload/eager/tap.h"
#include "preload/eager/taps.h"
#include "tests/unit/drain_kit.h"

#include <dmi/dtype.h>
#include <dmi/format.h>

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define N_THREADS 4u
#define N_SITES   (N_THREADS + 1) /* the last one keeps the rows of request b */
#define N_TAPS    60u
#define SHAPES    4u
#define MAX_ROWS  40u
#define WIDTH     12u
#define ROOM      (8u * MAX_ROWS * WIDTH) /* elements of a thread's buffer: strides leave gaps */
#define POISON    0xdeadbeefu

static struct world {
    struct context *context;
    uint8_t off[N_SITES];
    uint64_t n_wrong, n_records, n_rows;
    uint32_t kept[MAX_ROWS], n_kept; /* of the last record of a selection */
} world;

static bool old_kernel; /* madvise() knows no MADV_POPULATE_READ */

int madvise(void *address, size_t n, int advice)
{
    if (old_kernel && advice == 22) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_madvise, address, n, advice);
}

/* ------------------------------------------------------------------------- what is tapped */

/* Element @i of what thread @t taps as number @n, in the order in which it is stored. */
static uint32_t element(uint32_t t, uint32_t n, uint32_t i)
{
    return t << 28 | n << 16 | i;
}

/* A tensor of u32 that a thread taps; dimensions in the order of the tap. */
struct shape {
    uint32_t n_dims, row_dims;
    uint64_t count[DMI_TAP_DIMS];
    int64_t stride[DMI_TAP_DIMS]; /* elements */
};

static struct shape shape_of(uint32_t number, uint32_t rows)
{
    switch (number % SHAPES) {
    case 0: return (struct shape){ 2, 1, { rows, WIDTH }, { WIDTH, 1 } };
    case 1: return (struct shape){ 2, 1, { rows, WIDTH }, { WIDTH + 5, 1 } }; /* gaps */
    case 2: return (struct shape){ 2, 1, { rows, WIDTH }, { 1, MAX_ROWS } };  /* transposed */
    default: /* [batch, head, token, d] */
        return (
            struct shape){ 4, 5, { 2, 3, rows / 2, 4 }, { 3 * MAX_ROWS * 4, MAX_ROWS * 4, 4, 1 } };
    }
}

/* Writes the elements where the shape says, in the order of what is stored: rows first. Return: how many. */
static uint32_t fill(uint32_t *buffer, const struct shape *s, uint32_t t, uint32_t number)
{
    uint32_t order[DMI_TAP_DIMS], n = 0, at = 0, total = 1;
    for (int rows = 1; rows >= 0; rows--)
        for (uint32_t d = 0; d < s->n_dims; d++)
            if ((s->row_dims >> d & 1) == (uint32_t)rows)
                order[n++] = d;
    for (uint32_t d = 0; d < s->n_dims; d++)
        total *= (uint32_t)s->count[d];
    for (; at < total; at++) {
        int64_t place = 0;
        for (uint32_t k = s->n_dims, rest = at; k-- > 0; rest /= (uint32_t)s->count[order[k]])
            place += rest % (uint32_t)s->count[order[k]] * s->stride[order[k]];
        buffer[place] = element(t, number, at);
    }
    return total;
}

static struct dmi_tap tap_of(const char *name, const void *data, const struct shape *s,
                             int32_t layer)
{
    struct dmi_tap tap = { .size = sizeof tap,
                           .version = DMI_TAP_VERSION,
                           .name = name,
                           .data = data,
                           .layer = layer,
                           .dtype = DMI_DTYPE_U32,
                           .n_dims = s->n_dims,
                           .row_dims = s->row_dims };
    for (uint32_t d = 0; d < s->n_dims; d++) {
        tap.count[d] = s->count[d];
        tap.stride[d] = s->stride[d] * 4;
    }
    return tap;
}

/* @moment: NULL: now */
static int tap_in(const char *name, const void *data, const struct shape *s, int32_t layer,
                  const struct dmi_moment *moment)
{
    struct dmi_tap tap = tap_of(name, data, s, layer);
    struct session_call call;
    ck_assert(session_enter(&call));
    int r = tap_at(&tap, moment);
    session_leave(&call);
    return r;
}

static int tap(const char *name, const void *data, const struct shape *s, int32_t layer)
{
    return tap_in(name, data, s, layer, NULL);
}

static int take(const char *name, const void *data, const struct shape *s, int32_t layer,
                struct dmi_moment **moment)
{
    struct dmi_tap tap = tap_of(name, data, s, layer);
    struct session_call call;
    ck_assert(session_enter(&call));
    int r = tap_take_moment(&tap, moment);
    session_leave(&call);
    return r;
}

/* What the encoders have of it. */
int kit_append(const struct run_record *records, size_t n_records)
{
    for (size_t i = 0; i < n_records; i++) {
        const struct run_record *r = &records[i];
        const uint32_t *data = r->data;
        uint32_t n = (uint32_t)(r->n_bytes / 4), number = (uint32_t)r->layer;
        bool good = r->device == DMI_NO_DEVICE;
        for (uint32_t k = 0; k < n && good; k++) {
            uint32_t at = r->kept ? r->kept[k / WIDTH] * WIDTH + k % WIDTH : k;
            good = data[k] == element(r->site, number, at);
        }
        world.n_wrong += !good;
        world.n_records++;
        world.n_rows += r->dims[0];
        world.n_kept = r->kept ? r->dims[0] : 0;
        if (r->kept)
            memcpy(world.kept, r->kept, r->dims[0] * sizeof *r->kept);
    }
    return 0;
}

/* All taps here have names. */
void run_refuse_tap(struct run *run, const char *why)
{
    (void)run, (void)why;
    ck_abort();
}

/* ------------------------------------------------------------------------- fixture */

static void set_up(uint64_t ring_bytes, const char *overload)
{
    char text[1024];
    struct spec_errors errors = { 0 };
    struct spec *spec = NULL;
    size_t n = (size_t)snprintf(text, sizeof text, "hookspec: 1\noverload: %s\nsites:\n", overload);
    for (uint32_t t = 0; t < N_THREADS; t++)
        n += (size_t)snprintf(text + n, sizeof text - n, "  - {tap: t%u}\n", t);
    n += (size_t)snprintf(text + n, sizeof text - n, "  - {tap: chosen, requests: 'b'}\n");
    int r = spec_parse("host", text, n, NULL, 0, &errors, &spec);
    ck_assert_msg(r == 0, "%s", errors.n_lines ? errors.lines[0] : "no spec");
    spec_errors_deinit(&errors);
    kit_reset(N_SITES);
    memset(&driver_table, 0, sizeof driver_table); /* there is none */
    memset(&world, 0, sizeof world);
    session.armed = session.does = SESSION_SITES;
    session.next_launch = DMI_SEQ_FIRST;
    session.memory_epoch = 1;
    session.ring_bytes = ring_bytes;
    session.off = world.off;
    session.spec = spec;
    session_set_overload(&spec->overload);
    taps_reset();
    ck_assert(taps_init(spec));
    struct session_call call;
    session_enter(&call);
    world.context = context_host();
    session_leave(&call);
    ck_assert(world.context && context_refusal(world.context) == DROP_NONE);
}

/* All that is in flight is written. */
static void finish(void)
{
    ck_assert(context_use(world.context));
    context_stop(world.context, 20ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
}

static void tear_down(void)
{
    ck_assert(context_gone(world.context));
    context_unuse(world.context);
    ck_assert_int_eq(context_state(world.context), CONTEXT_FREE);
    spec_free(session.spec);
}

static uint64_t expected(void)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < N_SITES; i++)
        n += session.counters->sites[i].expected.records;
    return n;
}

static uint64_t dropped(void)
{
    uint64_t n = 0;
    for (int i = 0; i < DMI_DROP_COUNT; i++)
        n += kit_dropped((enum dmi_drop)i);
    return n;
}

/* ------------------------------------------------------------------------- threads */

struct tapper {
    pthread_t id;
    uint32_t number;
    uint64_t seed;
};

static void *tapper_main(void *arg)
{
    struct tapper *t = arg;
    uint32_t *buffer = calloc(ROOM, sizeof *buffer);
    const char name[] = { 't', (char)('0' + t->number), 0 };
    ck_assert(buffer);
    for (uint32_t n = 0; n < N_TAPS; n++) {
        struct shape s = shape_of((uint32_t)kit_next(&t->seed),
                                  2 + 2 * (uint32_t)(kit_next(&t->seed) % (MAX_ROWS / 2 - 1)));
        fill(buffer, &s, t->number, n);
        ck_assert_int_eq(tap(name, buffer, &s, (int32_t)n), DMI_OK);
        for (uint32_t i = 0; i < ROOM; i++) /* the next batch comes at once */
            buffer[i] = POISON;
        kit_nap(&t->seed);
    }
    free(buffer);
    return NULL;
}

static void tap_from_threads(uint64_t seed)
{
    struct tapper tappers[N_THREADS];
    for (uint32_t t = 0; t < N_THREADS; t++) {
        tappers[t] = (struct tapper){ .number = t, .seed = seed * 31 + t };
        ck_assert_int_eq(pthread_create(&tappers[t].id, NULL, tapper_main, &tappers[t]), 0);
    }
    for (uint32_t t = 0; t < N_THREADS; t++)
        pthread_join(tappers[t].id, NULL);
    finish();
    ck_assert_uint_eq(world.n_wrong, 0);
    ck_assert_uint_eq(expected(), N_THREADS * N_TAPS);
    ck_assert_uint_eq(kit_captured(), world.n_records);
    ck_assert_uint_eq(kit_captured() + dropped(), expected());
}

/*
 * A record has up to 1,920 bytes: larger than some of these rings, so that it comes in pieces, or is too large where rows do not lie along one
 * dimension.
 */
START_TEST(threads_wait_for_room_and_nothing_is_lost)
{
    set_up(512u << _i % 6, "{mode: complete, wait_ms: 20000}");
    tap_from_threads((uint64_t)_i);
    ck_assert_uint_eq(dropped(), kit_dropped(DMI_DROP_TOO_LARGE));
    ck_assert(_i % 6 < 2 || !dropped());
    tear_down();
}
END_TEST

START_TEST(what_finds_no_room_is_counted)
{
    set_up(1024u << _i % 4, "{mode: best-effort}");
    tap_from_threads((uint64_t)_i);
    ck_assert_uint_eq(dropped(), kit_dropped(DMI_DROP_RING_FULL) + kit_dropped(DMI_DROP_TOO_LARGE));
    tear_down();
}
END_TEST

/* ------------------------------------------------------------------------- one thread */

static void say_step(void)
{
    struct dmi_span spans[] = {
        { .request_id = "a", .n_tokens = 3 },
        { .request_id = "b", .first_row = 3, .n_tokens = 2 },
        { .request_id = "a", .first_position = 3, .first_row = 5, .n_tokens = 1 },
        { .request_id = "b", .first_position = 2, .first_row = 6, .n_tokens = 1 },
    };
    struct dmi_step step = { .size = sizeof step,
                             .version = DMI_STEP_VERSION,
                             .n_rows = 8,
                             .n_spans = sizeof spans / sizeof *spans,
                             .span_size = sizeof *spans,
                             .spans = spans };
    struct step *rows = step_new(0, &step, said_is_over);
    ck_assert(rows);
    ck_assert_int_eq(said_begins(&step, 0, rows), 0);
}

START_TEST(rows_of_a_request_are_chosen)
{
    static uint32_t buffer[ROOM];
    struct shape s = shape_of((uint32_t)_i, 8);
    set_up(1u << 16, "{mode: complete}");
    say_step();
    fill(buffer, &s, N_THREADS, 3);
    ck_assert_int_eq(tap("chosen", buffer, &s, 3), DMI_OK);
    memset(buffer, 0, sizeof buffer);
    finish();
    static const uint32_t wanted[] = { 3, 4, 6 };
    ck_assert_uint_eq(world.n_records, 1);
    ck_assert_uint_eq(world.n_wrong, 0);
    ck_assert_uint_eq(world.n_kept, 3);
    ck_assert_mem_eq(world.kept, wanted, sizeof wanted);
    said_ends();
    tear_down();
}
END_TEST

static const struct shape plain = { 2, 1, { 8, WIDTH }, { WIDTH, 1 } };
static uint32_t later[ROOM];

static void *tap_later(void *moment)
{
    ck_assert_int_eq(tap_in("chosen", later, &plain, 3, moment), DMI_OK);
    return NULL;
}

START_TEST(a_tap_at_an_earlier_moment_is_of_its_step)
{
    static const uint32_t wanted[] = { 3, 4, 6 };
    struct dmi_moment *moment, *none;
    pthread_t other;
    set_up(1u << 16, "{mode: complete}");
    say_step();
    fill(later, &plain, N_THREADS, 3);
    ck_assert_int_eq(take("chosen", later, &plain, 3, &moment), DMI_OK);
    ck_assert_int_eq(take("stranger", later, &plain, 3, &none), DMI_STATUS_OFF);
    ck_assert_ptr_null(none);
    said_ends(); /* from here on no row is of a request */
    ck_assert_uint_eq(expected(), 0);
    ck_assert_uint_eq(session.counters->sites[N_THREADS].launches, 0);
    ck_assert_int_eq(pthread_create(&other, NULL, tap_later, moment), 0);
    pthread_join(other, NULL);
    ck_assert_int_eq(tap_in("t0", later, &plain, 3, moment), -EINVAL);
    tap_later(moment);
    tap_release_moment(moment);
    tap_release_moment(NULL);
    finish();
    ck_assert_uint_eq(session.counters->sites[N_THREADS].launches, 2);
    ck_assert_uint_eq(world.n_records, 2);
    ck_assert_uint_eq(world.n_wrong, 0);
    ck_assert_uint_eq(world.n_kept, 3);
    ck_assert_mem_eq(world.kept, wanted, sizeof wanted);
    ck_assert_uint_eq(kit_captured() + dropped(), expected());
    tear_down();
}
END_TEST

START_TEST(a_moment_of_the_parents_is_now_in_its_child)
{
    struct dmi_moment *moment;
    set_up(1u << 16, "{mode: complete}");
    fill(later, &plain, 0, 2);
    ck_assert_int_eq(take("t0", later, &plain, 2, &moment), DMI_OK);
    tap_reset();
    ck_assert_int_eq(tap_in("t0", later, &plain, 2, moment), DMI_OK);
    tap_release_moment(moment);
    finish();
    ck_assert_uint_eq(kit_captured(), 1);
    ck_assert_uint_eq(world.n_wrong, 0);
    tear_down();
}
END_TEST

/* Two pages, of which the second cannot be read. */
static char *half_readable(size_t page)
{
    char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(map != MAP_FAILED);
    ck_assert_int_eq(mprotect(map + page, page, PROT_NONE), 0);
    return map;
}

START_TEST(a_pointer_to_nothing_is_a_counted_drop)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *map = half_readable(page);
    struct shape s = { 2, 1, { 8, WIDTH }, { WIDTH, 1 } };
    old_kernel = _i;
    set_up(1u << 16, "{mode: complete}");
    fill((uint32_t *)map, &s, 0, 0);
    ck_assert_int_eq(tap("t0", map, &s, 0), DMI_OK);
    ck_assert_int_eq(tap("t0", map + page, &s, 1), DMI_OK);
    ck_assert_int_eq(tap("t0", map + page - 16, &s, 2),
                     DMI_OK); /* it begins where it can be read */
    ck_assert_int_eq(tap("t0", NULL, &s, 3), DMI_OK);
    ck_assert_int_eq(tap("t0", (void *)(uintptr_t)0x7000, &s, 4), DMI_OK);
    munmap(map, 2 * page);
    ck_assert_int_eq(tap("t0", map, &s, 5), DMI_OK);
    finish();
    ck_assert_uint_eq(kit_captured(), 1);
    ck_assert_uint_eq(world.n_wrong, 0);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_BAD_POINTER), 5);
    ck_assert_uint_eq(kit_captured() + dropped(), expected());
    tear_down();
    old_kernel = false;
}
END_TEST

START_TEST(what_can_be_read_is_known_without_a_fault)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 1000 * page;
    old_kernel = _i;
    char *map = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(map != MAP_FAILED);
    uint64_t at = (uint64_t)(uintptr_t)map;
    ck_assert_int_eq(readable_check(at, n), 0);
    ck_assert_int_eq(readable_check(at + 1, n - 1), 0);
    ck_assert_int_eq(mprotect(map + 700 * page, page, PROT_NONE), 0);
    ck_assert_int_eq(readable_check(at, n), -EFAULT);
    ck_assert_int_eq(readable_check(at, 700 * page), 0);
    ck_assert_int_eq(readable_check(at, 700 * page + 1), -EFAULT);
    ck_assert_int_eq(readable_check(at + 701 * page - 1, 2), -EFAULT);
    ck_assert_int_eq(readable_check(at + 701 * page, n - 701 * page), 0);
    ck_assert_int_eq(readable_check(UINT64_MAX - page, 1), -EFAULT);
    munmap(map, n);
    ck_assert_int_eq(readable_check(at, 1), -EFAULT);
    old_kernel = false;
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("host");
    TCase *tcase = tcase_create("host");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, threads_wait_for_room_and_nothing_is_lost, 0, 12);
    tcase_add_loop_test(tcase, what_finds_no_room_is_counted, 0, 12);
    tcase_add_loop_test(tcase, rows_of_a_request_are_chosen, 0, 3);
    tcase_add_test(tcase, a_tap_at_an_earlier_moment_is_of_its_step);
    tcase_add_test(tcase, a_moment_of_the_parents_is_now_in_its_child);
    tcase_add_loop_test(tcase, a_pointer_to_nothing_is_a_counted_drop, 0, 2);
    tcase_add_loop_test(tcase, what_can_be_read_is_known_without_a_fault, 0, 2);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    kit_free();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
