/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUPTI's records as events. NVIDIA's own structs fill the buffers, one layout after the other. Two walkers read them: one of the test's,
 * which knows sizes from the headers, and cuptiActivityGetNextRecord of the library that TEST_CUPTI names, which needs no driver: the pinned toolkit's
 * (13.0), and those of other versions (test_cupti_versions.py).
 */
#include "core/clock.h"
#include "cupti/layouts.h"
#include "cupti/other_clock.h"
#include "cupti/records.h"

#include <check.h>
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cupti_result.h>
/* after the result codes and cuda.h */
#include <cupti_activity.h>

#define N 10000

/* What each version's headers say. The toolkit's headers have no struct of 13.1 or later: those sizes are from the 13.5.25 wheel. */
static const struct version {
    uint32_t version;
    size_t kernel, copy, set, peer;
} versions[] = {
    { 18, sizeof(CUpti_ActivityKernel8), sizeof(CUpti_ActivityMemcpy5),
      sizeof(CUpti_ActivityMemset4), sizeof(CUpti_ActivityMemcpyPtoP4) },
    { 19, sizeof(CUpti_ActivityKernel9), sizeof(CUpti_ActivityMemcpy5),
      sizeof(CUpti_ActivityMemset4), sizeof(CUpti_ActivityMemcpyPtoP4) },
    { 24, sizeof(CUpti_ActivityKernel9), sizeof(CUpti_ActivityMemcpy5),
      sizeof(CUpti_ActivityMemset4), sizeof(CUpti_ActivityMemcpyPtoP4) },
    { 26, sizeof(CUpti_ActivityKernel9), sizeof(CUpti_ActivityMemcpy6),
      sizeof(CUpti_ActivityMemset4), sizeof(CUpti_ActivityMemcpyPtoP4) },
    { 130000, sizeof(CUpti_ActivityKernel10), sizeof(CUpti_ActivityMemcpy6),
      sizeof(CUpti_ActivityMemset4), sizeof(CUpti_ActivityMemcpyPtoP4) },
    { 130001, sizeof(CUpti_ActivityKernel10), sizeof(CUpti_ActivityMemcpy6),
      sizeof(CUpti_ActivityMemset4), sizeof(CUpti_ActivityMemcpyPtoP4) },
    { 130100, 224, sizeof(CUpti_ActivityMemcpy6), sizeof(CUpti_ActivityMemset4),
      sizeof(CUpti_ActivityMemcpyPtoP4) },
    { 130200, 224, sizeof(CUpti_ActivityMemcpy6), sizeof(CUpti_ActivityMemset4),
      sizeof(CUpti_ActivityMemcpyPtoP4) },
    { 130300, 232, sizeof(CUpti_ActivityMemcpy6), sizeof(CUpti_ActivityMemset4),
      sizeof(CUpti_ActivityMemcpyPtoP4) },
    { 130500, 248, 112, 104, sizeof(CUpti_ActivityMemcpyPtoP4) },
};
#define N_VERSIONS (sizeof versions / sizeof *versions)
#define PINNED     5 /* the row of the toolkit's headers */

/* ------------------------------------------------------------------------- making records */

static const char *const names[] = { "_Z4gemmPf", "rms_norm", "" };

/* Numbers that differ from record to record, and from field to field. */
static struct records_event event_of(uint32_t i)
{
    static const uint32_t kinds[] = { LAYOUTS_KERNEL, LAYOUTS_COPY,   LAYOUTS_KERNEL,   LAYOUTS_SET,
                                      LAYOUTS_KERNEL, LAYOUTS_KERNEL, LAYOUTS_COPY_PEER };
    struct records_event e = { .kind = kinds[i % 7],
                               .correlation = 3 * i + 1,
                               .begin_ns = 1700000000000000000 + 1000ull * i,
                               .end_ns = 1700000000000000000 + 1000ull * i + i % 900,
                               .device = i % 3,
                               .context = i % 5 + 1,
                               .stream = i % 11 + 7,
                               .graph = i % 4 ? i + 2 : 0,
                               .node = i % 4 ? i + (1ull << 33) : 0 };
    if (e.kind != LAYOUTS_KERNEL) {
        e.bytes = 1ull << (i % 40);
        e.how = e.kind == LAYOUTS_SET ? 0 : i % 8 + 1;
        return e;
    }
    for (uint32_t k = 0; k < 3; k++) {
        e.grid[k] = i + k + 1;
        e.block[k] = 4 * i + k + 1;
    }
    e.static_shared = i + 9;
    e.dynamic_shared = i + 8;
    e.registers = i % 256;
    e.name = i % 13 ? names[i % 3] : NULL;
    return e;
}

/* @record: @n zeroed bytes, which may be more or fewer than the struct has: what is set lies in all of them. */
static void put_kernel(uint8_t *record, size_t n, const struct records_event *e)
{
    CUpti_ActivityKernel10 k;
    memset(&k, 0x5a, sizeof k);
    k.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    k.registersPerThread = (uint16_t)e->registers;
    k.start = e->begin_ns;
    k.end = e->end_ns;
    k.deviceId = e->device;
    k.contextId = e->context;
    k.streamId = e->stream;
    k.gridX = (int32_t)e->grid[0], k.gridY = (int32_t)e->grid[1], k.gridZ = (int32_t)e->grid[2];
    k.blockX = (int32_t)e->block[0], k.blockY = (int32_t)e->block[1],
    k.blockZ = (int32_t)e->block[2];
    k.staticSharedMemory = (int32_t)e->static_shared;
    k.dynamicSharedMemory = (int32_t)e->dynamic_shared;
    k.correlationId = e->correlation;
    k.name = e->name;
    k.graphNodeId = e->node;
    k.graphId = e->graph;
    memcpy(record, &k, n < sizeof k ? n : sizeof k);
    if (n == LAYOUTS_WITH_SOURCE && e->node % 2) { /* then the node is that of the exec alone */
        uint64_t own = e->node + 1000;
        memcpy(record + offsetof(CUpti_ActivityKernel10, graphNodeId), &own, sizeof own);
        memcpy(record + LAYOUTS_SOURCE, &e->node, sizeof e->node);
    }
}

#define PUT_COPY(type, kind_of)                                                                    \
    {                                                                                              \
        type c;                                                                                    \
        memset(&c, 0x5a, sizeof c);                                                                \
        c.kind = kind_of;                                                                          \
        c.bytes = e->bytes, c.start = e->begin_ns, c.end = e->end_ns;                              \
        c.deviceId = e->device, c.contextId = e->context, c.streamId = e->stream;                  \
        c.correlationId = e->correlation, c.graphNodeId = e->node, c.graphId = e->graph;           \
        memcpy(record, &c, n < sizeof c ? n : sizeof c);                                           \
    }

static void put(uint8_t *record, size_t n, const struct records_event *e)
{
    switch (e->kind) {
    case LAYOUTS_KERNEL: put_kernel(record, n, e); break;
    case LAYOUTS_SET: PUT_COPY(CUpti_ActivityMemset4, CUPTI_ACTIVITY_KIND_MEMSET) break;
    case LAYOUTS_COPY: PUT_COPY(CUpti_ActivityMemcpy6, CUPTI_ACTIVITY_KIND_MEMCPY) break;
    default: PUT_COPY(CUpti_ActivityMemcpyPtoP4, CUPTI_ACTIVITY_KIND_MEMCPY2) break;
    }
    if (e->kind == LAYOUTS_COPY || e->kind == LAYOUTS_COPY_PEER)
        record[offsetof(CUpti_ActivityMemcpy6, copyKind)] = (uint8_t)e->how;
}

static size_t bytes_of(const struct version *v, uint32_t kind)
{
    switch (kind) {
    case LAYOUTS_KERNEL: return v->kernel;
    case LAYOUTS_COPY: return v->copy;
    case LAYOUTS_SET: return v->set;
    default: return v->peer;
    }
}

static uint8_t *buffer;
static size_t n_buffer, places[N];

static void make(const struct version *v, uint32_t n)
{
    n_buffer = 0;
    free(buffer);
    buffer = calloc(n, 256);
    for (uint32_t i = 0; i < n; i++) {
        struct records_event e = event_of(i);
        places[i] = n_buffer;
        put(buffer + n_buffer, bytes_of(v, e.kind), &e);
        n_buffer += bytes_of(v, e.kind);
    }
}

/* ------------------------------------------------------------------------- walkers */

static const struct version *walked;

static int next_by_sizes(uint8_t *all, size_t n, uint8_t **record)
{
    uint32_t kind;
    if (*record)
        memcpy(&kind, *record, sizeof kind);
    size_t at = *record ? (size_t)(*record - all) + bytes_of(walked, kind) : 0;
    if (at >= n)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    memcpy(&kind, all + at, sizeof kind);
    if (at + bytes_of(walked, kind) > n)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = all + at;
    return 0;
}

static CUptiResult (*real_next)(uint8_t *buffer, size_t n, CUpti_Activity **record);
static uint32_t real_version;

/* The layout that NVIDIA's library has by the headers. */
static const struct version *of_the_library(void)
{
    size_t row = 0;
    while (row + 1 < N_VERSIONS && versions[row + 1].version <= real_version)
        row++;
    return &versions[row];
}

static int next_by_nvidia(uint8_t *all, size_t n, uint8_t **record)
{
    CUpti_Activity *at = (CUpti_Activity *)(void *)*record;
    CUptiResult r = real_next(all, n, &at);
    *record = (uint8_t *)at;
    return (int)r;
}

/* ------------------------------------------------------------------------- what is read */

static uint32_t n_seen;

static void compare(void *ctx, const struct records_event *e)
{
    struct records_event want = event_of(n_seen++);
    const uint32_t *shape = e->grid, *wanted = want.grid;
    (void)ctx;
    ck_assert_uint_eq(e->kind, want.kind);
    ck_assert_uint_eq(e->correlation, want.correlation);
    ck_assert(e->begin_ns == want.begin_ns && e->end_ns == want.end_ns);
    ck_assert(e->device == want.device && e->context == want.context && e->stream == want.stream);
    ck_assert(e->graph == want.graph && e->node == want.node);
    for (int i = 0; i < 3; i++)
        ck_assert(shape[i] == wanted[i] && e->block[i] == want.block[i]);
    ck_assert(e->static_shared == want.static_shared && e->dynamic_shared == want.dynamic_shared);
    ck_assert_uint_eq(e->registers, want.registers);
    ck_assert(e->how == want.how && e->bytes == want.bytes);
    ck_assert_ptr_eq(e->name, want.name);
}

static struct records_walk walk(records_next *next, uint32_t version, size_t n_valid)
{
    struct records_walk w = { 0 };
    n_seen = 0;
    ck_assert_int_eq(records_walk(next, version, buffer, n_valid, &w, compare, NULL),
                     CUPTI_ERROR_MAX_LIMIT_REACHED);
    return w;
}

START_TEST(each_layout_is_read)
{
    walked = &versions[_i];
    make(walked, N);
    struct records_walk w = walk(next_by_sizes, walked->version, n_buffer);
    ck_assert_uint_eq(n_seen, N);
    ck_assert(w.n == N && !w.n_no_time && !w.n_unread && !w.n_strange);
}
END_TEST

START_TEST(nvidias_walker_finds_the_same)
{
    make(of_the_library(), N);
    struct records_walk w = walk(next_by_nvidia, real_version, n_buffer);
    ck_assert_uint_eq(n_seen, N);
    ck_assert(w.n == N && !w.n_no_time && !w.n_unread && !w.n_strange);
    /* and gives no record that is cut short */
    w = walk(next_by_nvidia, real_version, places[N - 1] + 8);
    ck_assert(w.n == N - 1 && !w.n_unread);
}
END_TEST

/* A record's place is the walker's word alone: the test's, which is NVIDIA's here, and the table's. */
START_TEST(places_are_the_walkers)
{
    make(of_the_library(), N);
    CUpti_Activity *at = NULL;
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(real_next(buffer, n_buffer, &at), 0);
        ck_assert_uint_eq((size_t)((uint8_t *)at - buffer), places[i]);
    }
    ck_assert_int_eq(real_next(buffer, n_buffer, &at), CUPTI_ERROR_MAX_LIMIT_REACHED);
}
END_TEST

START_TEST(another_layout_than_the_versions_is_noticed)
{
    walked = &versions[PINNED];
    make(walked, 200);
    struct records_walk w = walk(next_by_sizes, 26, n_buffer);
    ck_assert_uint_gt(w.n_strange, 100);
    ck_assert_uint_eq(n_seen, 200); /* the common beginning is read all the same */
    w = walk(next_by_sizes, 140000, n_buffer);
    ck_assert(n_seen == 200 &&
              !w.n_strange); /* and of a version that is not known nothing is expected */
    ck_assert_uint_eq(layouts_bytes(140000, LAYOUTS_KERNEL), 0);
    ck_assert_uint_eq(layouts_bytes(17, LAYOUTS_KERNEL), 0);
}
END_TEST

static int stops_at_the_third(uint8_t *all, size_t n, uint8_t **record)
{
    return *record == all + places[1] ? CUPTI_ERROR_INVALID_KIND : next_by_sizes(all, n, record);
}

START_TEST(a_walker_that_stops_within_is_noticed)
{
    struct records_walk w = { 0 };
    walked = &versions[PINNED];
    make(walked, 4);
    n_seen = 0;
    ck_assert_int_eq(
        records_walk(stops_at_the_third, walked->version, buffer, n_buffer, &w, compare, NULL),
        CUPTI_ERROR_INVALID_KIND);
    ck_assert(w.n == 2 && !w.n_strange && w.refused == CUPTI_ERROR_INVALID_KIND);
}
END_TEST

static void count(void *ctx, const struct records_event *e)
{
    ck_assert(e->begin_ns && e->begin_ns <= e->end_ns);
    ++*(uint32_t *)ctx;
}

START_TEST(times_that_cannot_be_are_counted_and_not_handed_on)
{
    const uint64_t times[][2] = { { 0, 5 }, { 5, 4 }, { 5, 5 }, { 0, 0 } };
    struct records_walk w = { 0 };
    uint32_t n = 0;
    walked = &versions[PINNED];
    make(walked, 4);
    for (int i = 0; i < 4; i++)
        memcpy(buffer + places[i] + 16, times[i], sizeof times[i]);
    records_walk(next_by_sizes, walked->version, buffer, n_buffer, &w, count, &n);
    ck_assert(w.n == 4 && w.n_no_time == 3 && n == 1);
}
END_TEST

START_TEST(kinds_that_are_not_read_are_counted)
{
    struct records_walk w = { 0 };
    uint32_t n = 0, environment = CUPTI_ACTIVITY_KIND_ENVIRONMENT;
    walked = &versions[PINNED];
    make(walked, 7);
    memcpy(buffer + places[6], &environment, sizeof environment);
    records_walk(next_by_sizes, walked->version, buffer, n_buffer, &w, count, &n);
    ck_assert(w.n == 7 && w.n_unread == 1 && n == 6);
}
END_TEST

/* ------------------------------------------------------------------------- another user's clock */

/* Five ticks a nanosecond. */
static uint64_t quick(void)
{
    return 5 * clock_mono_ns() + 12345;
}

static uint64_t still(void)
{
    return 7;
}

/* As on a machine that does something else after two calls of three. */
static uint64_t interrupted(void)
{
    static unsigned n;
    uint64_t ticks = quick();
    if (n++ % 3 < 2)
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
    return ticks;
}

START_TEST(times_of_another_clock_are_those_of_the_systems)
{
    struct other_clock c = { 0 };
    other_clock_look(&c, NULL);
    ck_assert(!other_clock_knows(&c));
    other_clock_look(&c, quick);
    ck_assert(!other_clock_knows(&c)); /* one pair is no line */
    nanosleep(&(struct timespec){ .tv_nsec = 110000000 }, NULL);
    other_clock_look(&c, quick);
    ck_assert(other_clock_knows(&c));
    for (int i = 0; i < 20; i++) {
        uint64_t before = clock_mono_ns(), ticks = quick(), after = clock_mono_ns();
        uint64_t mono = other_clock_mono(&c, ticks), slack = 100000; /* a busy machine's */
        ck_assert(mono + slack >= before && mono <= after + slack);
        ck_assert(other_clock_mono(&c, ticks - 5000000) + 1000000 <= mono + 1000);
    }
    other_clock_look(&c, still); /* another one: nothing is known of it, nor ever will be */
    ck_assert(!other_clock_knows(&c));
    nanosleep(&(struct timespec){ .tv_nsec = 110000000 }, NULL);
    other_clock_look(&c, still);
    ck_assert(!other_clock_knows(&c));
}
END_TEST

START_TEST(a_reading_that_was_interrupted_is_not_used)
{
    struct other_clock c = { 0 };
    other_clock_look(&c, interrupted);
    nanosleep(&(struct timespec){ .tv_nsec = 110000000 }, NULL);
    other_clock_look(&c, interrupted);
    ck_assert(other_clock_mono(&c, quick()) <= clock_mono_ns() + 1000000);
}
END_TEST

int main(void)
{
    const char *path = getenv("TEST_CUPTI");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    *(void **)&real_next = library ? dlsym(library, "cuptiActivityGetNextRecord") : NULL;
    CUptiResult (*version_of)(uint32_t * version);
    *(void **)&version_of = library ? dlsym(library, "cuptiGetVersion") : NULL;
    if (!version_of || version_of(&real_version))
        real_next = NULL;
    Suite *suite = suite_create("cupti_records");
    TCase *c = tcase_create("records");
    tcase_add_loop_test(c, each_layout_is_read, 0, (int)N_VERSIONS);
    tcase_add_test(c, another_layout_than_the_versions_is_noticed);
    tcase_add_test(c, times_that_cannot_be_are_counted_and_not_handed_on);
    tcase_add_test(c, kinds_that_are_not_read_are_counted);
    tcase_add_test(c, a_walker_that_stops_within_is_noticed);
    tcase_add_test(c, times_of_another_clock_are_those_of_the_systems);
    tcase_add_test(c, a_reading_that_was_interrupted_is_not_used);
    if (real_next) {
        tcase_add_test(c, nvidias_walker_finds_the_same);
        tcase_add_test(c, places_are_the_walkers);
    }
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (!failed && real_next)
        printf("records walked by NVIDIA's CUPTI of version %u\n", real_version);
    if (!failed && !real_next)
        printf("no libcupti at %s: NVIDIA's own walker was not asked\n",
               path ? path : "TEST_CUPTI");
    return failed ? EXIT_FAILURE : real_next ? EXIT_SUCCESS : 77;
}
