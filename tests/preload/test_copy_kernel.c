/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/copy.cu, as nvcc made it, on whatever libcuda.so.1 the loader finds: what it gathers, what it
 * leaves alone, and that nobody who sees a descriptor's ready word sees less than all of the payload.
 * Usage: test_copy_kernel FILE.ptx. On the stand-in, DMI_STANDIN_PAUSE pauses it between its stores.
 */
#include "core/atomic.h"

#include <dmi/ring.h>

#include <check.h>
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOURCE_BYTES  (64u << 10)
#define PAYLOAD_BYTES (64u << 10)
#define GUARD         64u /* bytes before and after a record that must stay as they were */
#define THREADS       128u
#define N_SLOTS       4 /* of the descriptor ring */
#define SLOT          2 /* the one that is used */
#define MARK          5 /* the one that is used, among those of a state */
#define LIST_AT       5 /* where the list of rows lies among the lists */
#define RECORD        9 /* its number in the launch */
#define CHOICE        7 /* its number in the ticket */
#define MAX_LIST      64

static struct {
    __typeof__(cuInit) *Init;
    __typeof__(cuDeviceGet) *DeviceGet;
    __typeof__(cuCtxSynchronize) *CtxSynchronize;
    __typeof__(cuDevicePrimaryCtxRetain) *DevicePrimaryCtxRetain;
    __typeof__(cuCtxSetCurrent) *CtxSetCurrent;
    __typeof__(cuModuleLoadData) *ModuleLoadData;
    __typeof__(cuModuleGetFunction) *ModuleGetFunction;
    __typeof__(cuMemAlloc) *MemAlloc;
    __typeof__(cuMemHostAlloc) *MemHostAlloc;
    __typeof__(cuMemHostGetDevicePointer) *MemHostGetDevicePointer;
    __typeof__(cuMemcpyHtoD) *MemcpyHtoD;
    __typeof__(cuMemcpyDtoH) *MemcpyDtoH;
    __typeof__(cuLaunchKernel) *LaunchKernel;
} cu;

static const struct {
    const char *name;
    void *slot;
} symbols[] = {
    { "cuInit", &cu.Init },
    { "cuDeviceGet", &cu.DeviceGet },
    { "cuCtxSynchronize", &cu.CtxSynchronize },
    { "cuDevicePrimaryCtxRetain", &cu.DevicePrimaryCtxRetain },
    { "cuCtxSetCurrent", &cu.CtxSetCurrent },
    { "cuModuleLoadData", &cu.ModuleLoadData },
    { "cuModuleGetFunction", &cu.ModuleGetFunction },
    { "cuMemAlloc_v2", &cu.MemAlloc },
    { "cuMemHostAlloc", &cu.MemHostAlloc },
    { "cuMemHostGetDevicePointer_v2", &cu.MemHostGetDevicePointer },
    { "cuMemcpyHtoD_v2", &cu.MemcpyHtoD },
    { "cuMemcpyDtoH_v2", &cu.MemcpyDtoH },
    { "cuLaunchKernel", &cu.LaunchKernel },
};

static CUfunction copy_eager, copy_packed, copy_rows, copy_strided, copies_packed, alone_packed,
    alone_any, close_graph;
static unsigned char source[SOURCE_BYTES];
static CUdeviceptr source_device, payload_device, retired, state, marks, lists, slots_device;
static int64_t slots[MAX_LIST]; /* of rows, where they lie in slots */
/* pinned: what the host reads while the kernel runs */
static struct dmi_desc *desc;
static unsigned char *pinned;
static CUdeviceptr desc_device, pinned_device;

#define ok(call) ck_assert_int_eq((call), CUDA_SUCCESS)

static uint64_t next(uint64_t *random)
{
    uint64_t z = *random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t size_of(const struct dmi_gather *g)
{
    return (uint64_t)g->count[0] * g->count[1] * g->count[2] * g->count[3] * g->run_bytes;
}

/* Which rows are taken: of @list, or the first @n. */
struct choice {
    const uint32_t *list;
    uint32_t n;
};

/* Where row @i lies, in bytes from the first. */
static int64_t row_at(const struct dmi_gather *g, int64_t i)
{
    return g->rows_inner ? i / g->rows_inner * g->stride_outer + i % g->rows_inner * g->stride[0]
                         : i * g->stride[0];
}

/* The slot of row *@i in its place. Return: false where there is none, and the row is zeros. */
static bool find_slot(const struct dmi_gather *g, int64_t *i)
{
    if (g->slot_bytes)
        *i = slots[*i];
    return !g->slot_bytes || (*i >= 0 && *i < g->n_slots);
}

/* Does a number of the list lie beyond the slots that there are? */
static bool is_wild(const struct dmi_gather *g, const struct choice *choice)
{
    bool wild = false;
    for (uint32_t i = 0; g->slot_bytes && i < choice->n; i++)
        wild = wild || slots[choice->list ? choice->list[i] : i] >= g->n_slots;
    return wild;
}

/* The same by the definition in include/dmi/ring.h; @src: byte offset of g->src in source[]. */
static void gather_by_definition(const struct dmi_gather *g, const struct choice *choice,
                                 uint64_t src, unsigned char *out)
{
    for (uint32_t i = 0; i < choice->n; i++)
        for (uint32_t b = 0; b < g->count[1]; b++)
            for (uint32_t c = 0; c < g->count[2]; c++)
                for (uint32_t d = 0; d < g->count[3]; d++) {
                    int64_t a = choice->list ? choice->list[i] : i;
                    bool there = find_slot(g, &a);
                    int64_t at =
                        row_at(g, a) + b * g->stride[1] + c * g->stride[2] + d * g->stride[3];
                    if (there)
                        memcpy(out, source + (int64_t)src + at, g->run_bytes);
                    else
                        memset(out, 0, g->run_bytes);
                    out += g->run_bytes;
                }
}

static void launch_several(CUfunction kernel, void *parameter, unsigned blocks, unsigned n)
{
    void *params[] = { parameter };
    ok(cu.LaunchKernel(kernel, blocks, n, 1, THREADS, 1, 1, 0, NULL, params, NULL));
}

static void launch(CUfunction kernel, void *parameter, unsigned blocks)
{
    launch_several(kernel, parameter, blocks, 1);
}

static void launch_eager(const struct dmi_gather *gather, const struct choice *choice,
                         const struct dmi_desc *record, unsigned blocks)
{
    struct dmi_copy copy = {
        .gather = *gather,
        .record = *record,
        .payload = payload_device,
        .desc = desc_device + SLOT * sizeof *desc,
        .retired = retired + SLOT * sizeof(uint32_t),
        .rows = choice->list ? lists + LIST_AT * sizeof(uint32_t) : 0,
    };
    launch(copy_eager, &copy, blocks);
}

/* How a graph's copies leave their marks. */
static struct dmi_copy_mark mark_left(void)
{
    struct dmi_copy_mark mark;
    ok(cu.MemcpyDtoH(&mark, marks + MARK * sizeof mark, sizeof mark));
    return mark;
}

/* The parameter of a copy of a graph that @mark is of. */
static struct dmi_graph_copy graph_copy(const struct dmi_gather *gather,
                                        const struct dmi_desc *record)
{
    return (struct dmi_graph_copy){
        .gather = *gather,
        .state = state,
        .mark = marks + MARK * sizeof(struct dmi_copy_mark),
        .lists = lists,
        .number = 3,
        .site = record->site,
        .n_rows = gather->count[0],
        .row_bytes = (uint32_t)(size_of(gather) / gather->count[0]),
        .inverse = gather->run_bytes >= 16 ? DMI_INVERSE(gather->run_bytes / 16) : 0,
    };
}

/* As the second of two copies that are alone in their graph, of which this launch wants not the first. */
static struct dmi_copies_alone alone_parameter(const struct dmi_gather *gather,
                                               const struct choice *choice,
                                               const struct dmi_desc *record)
{
    struct dmi_copies_alone alone = {
        .used = state,
        .retired = retired,
        .launch = { .seq = record->ready,
                    .payload = payload_device,
                    .desc = desc_device + SLOT * sizeof *desc,
                    .offset16 = { DMI_NOT_WANTED, (uint32_t)(record->payload / 16) },
                    .record = { 0, RECORD } },
    };
    alone.launch.rows[1] = (struct dmi_rows){ choice->list ? LIST_AT : DMI_ROWS_FIRST, choice->n };
    for (int i = 0; i < 2; i++)
        alone.copies.each[i] = graph_copy(gather, record);
    return alone;
}

/* As copy number 3 of a graph, whose ticket dmi_open would have left where we write it. */
static void launch_graph(CUfunction kernel, const struct dmi_gather *gather,
                         const struct choice *choice, const struct dmi_desc *record,
                         unsigned blocks)
{
    static const struct dmi_copy_mark none[MARK + 1];
    struct dmi_ticket ticket = { .seq = record->ready, .n_actions = 4, .payload = payload_device };
    bool all = !choice->list && choice->n == gather->count[0];
    ticket.rows_of[3] = all ? DMI_ROWS_ALL : CHOICE;
    ticket.rows[CHOICE] =
        (struct dmi_rows){ choice->list ? LIST_AT : DMI_ROWS_FIRST, all ? 0 : choice->n };
    ticket.offset16[3] = (uint32_t)(record->payload / 16);
    ok(cu.MemcpyHtoD(state, &ticket, sizeof ticket));
    ok(cu.MemcpyHtoD(marks, none, sizeof none));
    struct dmi_graph_copies first = { 0 }; /* of a kernel for several: the only one */
    first.each[0] = graph_copy(gather, record);
    launch(kernel, &first, blocks);
}

/* What a copy has left: @expected in the payload ring, the counters as they were. */
static void check_payload(const unsigned char *expected)
{
    static unsigned char got[PAYLOAD_BYTES];
    uint32_t counters[N_SLOTS];
    ok(cu.CtxSynchronize());
    ok(cu.MemcpyDtoH(got, payload_device, sizeof got));
    ck_assert_int_eq(memcmp(got, expected, sizeof got), 0);
    ok(cu.MemcpyDtoH(counters, retired, sizeof counters));
    for (int i = 0; i < N_SLOTS; i++)
        ck_assert_uint_eq(counters[i], 0);
}

static void clear(unsigned char *expected)
{
    memset(expected, 0xa5, PAYLOAD_BYTES);
    ok(cu.MemcpyHtoD(payload_device, expected, PAYLOAD_BYTES));
    memset(desc, 0, N_SLOTS * sizeof *desc);
}

/* Copies that are alone publish for the launch, once. */
static void check_alone(CUfunction kernel, const struct dmi_gather *gather,
                        const struct choice *choice, const struct dmi_desc *record, unsigned blocks,
                        unsigned char *expected)
{
    static const struct dmi_copy_mark none[MARK + 1];
    static const struct dmi_ticket fresh;
    static const struct dmi_close_desc nothing;
    uint64_t src = gather->src - source_device;
    struct dmi_close_desc wanted = { .ready = record->ready,
                                     .site = DMI_SITE_CLOSE,
                                     .sum = dmi_copy_sum(record->site, record->n_bytes),
                                     .ran = { 1u << RECORD },
                                     .wild = { is_wild(gather, choice) ? 1u << RECORD : 0 } };
    struct dmi_copies_alone alone = alone_parameter(gather, choice, record);
    ok(cu.MemcpyHtoD(state, &fresh, sizeof fresh));
    ok(cu.MemcpyHtoD(marks, none, sizeof none));
    clear(expected);
    gather_by_definition(gather, choice, src, expected + record->payload);
    launch_several(kernel, &alone, blocks, 2);
    check_payload(expected);
    ck_assert_int_eq(memcmp(&desc[SLOT], &wanted, sizeof wanted), 0);

    clear(expected); /* the same once more: it is used; and a launch that is to do nothing */
    for (int i = 0; i < 2; i++) {
        launch_several(kernel, &alone, blocks, 2);
        check_payload(expected);
        ck_assert_int_eq(memcmp(&desc[SLOT], &nothing, sizeof nothing), 0);
        alone.launch.seq = 0;
    }
}

static bool is_runs(const struct dmi_gather *g)
{
    return g->count[1] == 1 && g->count[2] == 1 && g->count[3] == 1 && !g->rows_inner &&
           !g->slot_bytes;
}

static bool is_packed(const struct dmi_gather *g)
{
    uint32_t units = g->run_bytes / 16;
    return is_runs(g) && g->access == 16 && units > 1 && units <= DMI_INVERSE_MAX_D;
}

/* Those of a graph that can gather @g; NULL where there are no more. */
static CUfunction graph_kernel(const struct dmi_gather *g, int i)
{
    bool packed = is_packed(g);
    CUfunction kernels[] = { copy_strided, is_runs(g) ? copy_rows : NULL,
                             packed ? copy_packed : NULL, packed ? copies_packed : NULL, NULL };
    return kernels[i];
}

/* All copy kernels, against the definition. */
static void check_choice(const struct dmi_gather *shape, const struct choice *choice, uint64_t src,
                         uint64_t seq, unsigned blocks)
{
    static unsigned char expected[PAYLOAD_BYTES];
    uint64_t n = size_of(shape) / shape->count[0] * choice->n, at = GUARD + seq % 8 * 16;
    ck_assert_uint_le(at + n + GUARD, PAYLOAD_BYTES);
    struct dmi_gather gather = *shape;
    gather.src = source_device + src;
    struct dmi_desc record = { .ready = seq,
                               .payload = at,
                               .n_bytes = n,
                               .site = 11,
                               .n_rows = choice->n,
                               .occurrence = 33,
                               .flags = 44,
                               .src = 55 };
    if (choice->list)
        ok(cu.MemcpyHtoD(lists + LIST_AT * sizeof(uint32_t), choice->list,
                         choice->n * sizeof(uint32_t)));
    clear(expected);
    gather_by_definition(shape, choice, src, expected + at);
    launch_eager(&gather, choice, &record, blocks);
    record.flags |= is_wild(shape, choice) ? DMI_DESC_WILD_SLOT : 0;
    check_payload(expected);
    ck_assert_int_eq(memcmp(&desc[SLOT], &record, sizeof record), 0);

    for (int i = 0; graph_kernel(&gather, i); i++) {
        clear(expected);
        gather_by_definition(shape, choice, src, expected + at);
        launch_graph(graph_kernel(&gather, i), &gather, choice, &record, blocks);
        check_payload(expected);
        struct dmi_copy_mark mark = mark_left();
        ck_assert_uint_eq(mark.seq, seq);
        ck_assert_uint_eq(mark.sum, dmi_copy_sum(11, n));
        ck_assert_uint_eq(mark.wild, is_wild(shape, choice) ? seq : 0);
    }
    record.flags = 0;
    check_alone(alone_any, &gather, choice, &record, blocks, expected);
    if (is_packed(&gather))
        check_alone(alone_packed, &gather, choice, &record, blocks, expected);
}

/* All rows, the first of them, and some by a list. */
static void check_gather(const struct dmi_gather *shape, uint64_t src, uint64_t seq,
                         unsigned blocks)
{
    uint32_t list[MAX_LIST], n_rows = shape->count[0], n = 0;
    uint64_t random = seq * 77 + blocks;
    for (uint32_t i = 0; i < n_rows && n < MAX_LIST; i++)
        if (next(&random) % 3)
            list[n++] = i;
    check_choice(shape, &(struct choice){ NULL, n_rows }, src, seq, blocks);
    if (n_rows > 1)
        check_choice(shape, &(struct choice){ NULL, 1 + n_rows / 2 }, src, seq, blocks);
    if (n)
        check_choice(shape, &(struct choice){ list, n }, src, seq, blocks);
}

START_TEST(each_shape_is_gathered_as_defined)
{
    static const struct {
        struct dmi_gather gather;
        uint64_t src;
    } rows[] = {
        { { .count = { 1, 1, 1, 1 }, .run_bytes = 1, .access = 1 }, 0 },
        { { .count = { 1, 1, 1, 1 }, .run_bytes = 2304, .access = 16 },
          0 }, /* a row of 576 floats */
        { { .count = { 16, 1, 1, 1 },
            .stride = { 2304, 0, 0, 0 },
            .run_bytes = 2304,
            .access = 16 },
          48 },
        { { .count = { 1, 1, 5, 9 },
            .stride = { 0, 0, 256, 8192 - 2048 },
            .run_bytes = 256,
            .access = 16 },
          0 }, /* [heads][rows] */
        { { .count = { 2, 3, 4, 5 },
            .stride = { 20000, 5000, 1000, 100 },
            .run_bytes = 36,
            .access = 4 },
          8 },
        { { .count = { 1, 1, 7, 3 }, .stride = { 0, 0, 6, 100 }, .run_bytes = 2, .access = 2 }, 2 },
        { { .count = { 1, 1, 3, 3 }, .stride = { 0, 0, 17, 5 }, .run_bytes = 3, .access = 1 }, 1 },
        { { .count = { 4, 1, 1, 1 }, .stride = { -64, 0, 0, 0 }, .run_bytes = 64, .access = 16 },
          1024 }, /* backwards */
        { { .count = { 8, 1, 1, 1 }, .stride = { 0, 0, 0, 0 }, .run_bytes = 8, .access = 8 },
          64 }, /* one, repeated */
        { { .count = { 15, 1, 1, 1 },
            .stride = { 64, 0, 0, 0 },
            .run_bytes = 64,
            .access = 16,
            .rows_inner = 5,
            .stride_outer = 1024 },
          0 }, /* [3][5], with a gap */
        { { .count = { 8, 1, 1, 3 },
            .stride = { 40, 0, 0, 400 },
            .run_bytes = 20,
            .access = 4,
            .rows_inner = 4,
            .stride_outer = 1200 },
          4 }, /* [2][3][4] of 20 bytes, rows of the first and the last */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (unsigned blocks = 1; blocks <= 8; blocks *= 2)
            check_gather(&rows[i].gather, rows[i].src, DMI_SEQ_FIRST + i, blocks);
}
END_TEST

/* Sizes around those where all threads have gone round once more, for each access, at an address that no wider one fits. */
START_TEST(packed_runs_of_each_access_and_size_are_gathered)
{
    for (uint32_t access = 1; access <= 16; access *= 2)
        for (unsigned blocks = 1; blocks <= 4; blocks++) {
            uint32_t around = blocks * THREADS;
            const uint32_t sizes[] = { 1,           2,          THREADS - 1, THREADS,
                                       THREADS + 1, around - 1, around + 1,  2 * around - 1,
                                       2 * around };
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                struct dmi_gather g = { .count = { 1, 1, 1, 1 },
                                        .stride = { 7, 7, 7, 7 }, /* of no meaning here */
                                        .run_bytes = sizes[i] * access,
                                        .access = access };
                check_gather(&g, 16 * i + access % 16, DMI_SEQ_FIRST + i, blocks);
            }
        }
}
END_TEST

/* Runs that are shorter and longer than what all threads move at once, and that it is a multiple of. */
START_TEST(runs_along_one_dimension_are_gathered)
{
    static const uint32_t units[] = { 1, 2, 3, 16, 63, 64, 100, 127, 128, 129, 192, 256, 300 };
    for (uint32_t access = 1; access <= 16; access *= 2)
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            for (int64_t gap = -1; gap <= 3; gap++) { /* -1: runs overlap */
                struct dmi_gather g = { .count = { 9, 1, 1, 1 },
                                        .stride = { (units[i] + gap) * access, 0, 0, 0 },
                                        .run_bytes = units[i] * access,
                                        .access = access };
                check_gather(&g, access % 16, DMI_SEQ_FIRST + i, (unsigned)(1 + i % 3));
            }
}
END_TEST

/* A shape with as many dimensions longer than 1 as @n_dims; *@reach: bytes from its first to the end of its last run. */
static struct dmi_gather random_shape(uint64_t *random, int n_dims, uint64_t *reach)
{
    uint32_t access = 1u << next(random) % 5;
    uint32_t longest = n_dims ? 12 : 3000; /* accesses a run */
    struct dmi_gather g = { .access = access,
                            .run_bytes = access * (uint32_t)(1 + next(random) % longest) };
    *reach = g.run_bytes;
    for (int dim = DMI_RING_DIMS - 1; dim >= 0; dim--) {
        bool used = dim ? dim > DMI_RING_DIMS - n_dims : n_dims > 0;
        uint32_t most = n_dims == 1 ? 40 : 6;
        g.count[dim] = used ? (uint32_t)(1 + next(random) % most) : 1;
        g.stride[dim] = (int64_t)(next(random) % 40) * access;
        *reach += (g.count[dim] - 1) * (uint64_t)g.stride[dim];
    }
    if (n_dims && next(random) % 3 == 0) {
        g.rows_inner = 1 + (uint32_t)(next(random) % g.count[0]);
        g.stride_outer = (int64_t)(next(random) % 200) * access;
        *reach += g.count[0] / g.rows_inner * (uint64_t)g.stride_outer;
    }
    return g;
}

START_TEST(random_shapes_are_gathered_as_defined)
{
    uint64_t random = 1;
    for (int i = 0; i < 400; i++) {
        uint64_t reach;
        struct dmi_gather g = random_shape(&random, i % (DMI_RING_DIMS + 1), &reach);
        uint64_t src = next(&random) % ((SOURCE_BYTES - reach) / g.access) * g.access;
        while (size_of(&g) > PAYLOAD_BYTES - 4 * GUARD - 128)
            g.count[0] = 1, g.run_bytes = g.access;
        check_gather(&g, src, DMI_SEQ_FIRST + (uint64_t)i, (unsigned)(1 + next(&random) % 6));
    }
}
END_TEST

/* As in a paged cache: rows anywhere, those of padding nowhere, and a number that is none. */
START_TEST(rows_lie_in_the_slots_that_a_list_names)
{
    uint64_t random = 3;
    for (int i = 0; i < 400; i++) {
        bool paged = i & 1, heads = i & 2, wide = i & 4;
        uint32_t access = 1u << next(&random) % 5;
        struct dmi_gather g = {
            .count = { (uint32_t)(1 + next(&random) % 12), heads ? 1 : 2, 1, 3 },
            .stride = { 40 * access, 9 * access, 0, 3 * access },
            .run_bytes = access * (uint32_t)(1 + next(&random) % 3),
            .access = access,
            .rows_inner = paged ? 4 : 0,
            .stride_outer = paged ? 200 * access : 0,
            .slot_bytes = wide ? 8 : 4,
            .slots = slots_device,
            .n_slots = 16,
        };
        int64_t worst = next(&random) % 4 ? 16 : INT64_C(1) << (wide ? 40 : 20);
        int32_t narrow[MAX_LIST];
        for (uint32_t k = 0; k < MAX_LIST; k++) {
            uint64_t dice = next(&random) % 40;
            narrow[k] = (int32_t)(slots[k] = dice < 5 ? -1 - (int64_t)dice : (int64_t)dice % 16);
        }
        if (next(&random) % 2) { /* the first that there is not, or one far away */
            uint32_t k = (uint32_t)(next(&random) % g.count[0]);
            narrow[k] = (int32_t)(slots[k] = worst);
        }
        ok(cu.MemcpyHtoD(slots_device, wide ? (void *)slots : narrow,
                         wide ? sizeof slots : sizeof narrow));
        check_gather(&g, access, DMI_SEQ_FIRST + (uint64_t)i, (unsigned)(1 + i % 4));
    }
}
END_TEST

/* Payload in pinned memory here, so that the host can look at the very moment of the publish. */
START_TEST(whoever_sees_the_descriptor_sees_the_payload)
{
    uint64_t random = 7;
    for (uint64_t seq = DMI_SEQ_FIRST; seq < 60; seq++) {
        uint32_t n_rows = (uint32_t)(1 + next(&random) % 8);
        struct dmi_copy copy = {
            .gather = { .src = source_device,
                        .count = { n_rows, 1, 1, 1 },
                        .stride = { 1024, 0, 0, 0 },
                        .run_bytes = 512,
                        .access = 16 },
            .record = { .ready = seq,
                        .n_bytes = n_rows * 512,
                        .site = (uint32_t)seq,
                        .n_rows = n_rows },
            .payload = pinned_device,
            .desc = desc_device,
            .retired = retired,
        };
        static unsigned char expected[PAYLOAD_BYTES], seen[PAYLOAD_BYTES];
        gather_by_definition(&copy.gather, &(struct choice){ NULL, n_rows }, 0, expected);
        memset(pinned, 0, PAYLOAD_BYTES);
        memset(desc, 0, sizeof *desc);
        launch(copy_eager, &copy, 1 + (unsigned)(seq % 5));
        while (atomic_load_acquire(&desc->ready) != seq) { /* of publish() in kernels/publish.cuh */
        }
        memcpy(seen, pinned, copy.record.n_bytes);
        struct dmi_desc record = *desc;
        ok(cu.CtxSynchronize());
        ck_assert_int_eq(memcmp(seen, expected, copy.record.n_bytes), 0);
        ck_assert_int_eq(memcmp(&record, &copy.record, sizeof record), 0);
    }
}
END_TEST

/* ------------------------------------------------------------------------- the end of a launch */

#define N_CLOSING 3

/* Action @i of the launches below: none, an edit's, or a copy; whether that ran, met a wild slot, or has an old mark. */
enum fate { UNWANTED, NO_RECORD, RAN, WILD, NOT_RUN, OLD, FATES };

/* The closing descriptors that the host finds behind slot @close. */
static void check_closing(uint32_t close, const struct dmi_close_desc *expected, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        ck_assert_int_eq(memcmp(&desc[(close + k) % N_SLOTS], &expected[k], sizeof expected[k]), 0);
}

START_TEST(what_ran_is_published_when_a_launch_is_over)
{
    static struct dmi_ticket tickets[2];
    static struct dmi_copy_mark all_marks[2 * DMI_TICKET_ACTIONS];
    uint64_t random = 5;
    for (uint64_t seq = DMI_SEQ_FIRST; seq < DMI_SEQ_FIRST + 40; seq++) {
        struct dmi_close_desc expected[N_CLOSING + 1] = { 0 };
        uint32_t n_records = 0, n_most = (uint32_t)(next(&random) % 500);
        uint32_t close_slot = (uint32_t)(next(&random) % N_SLOTS),
                 n_actions = 2 * DMI_TICKET_ACTIONS;
        for (uint32_t i = 0; i < n_actions; i++) {
            struct dmi_ticket *t = &tickets[i / DMI_TICKET_ACTIONS];
            uint32_t at = i % DMI_TICKET_ACTIONS, place = n_records;
            enum fate fate = next(&random) % FATES;
            if (fate >= RAN && n_records == n_most)
                fate = UNWANTED;
            all_marks[i] =
                (struct dmi_copy_mark){ .seq = fate == RAN || fate == WILD ? seq : seq - 1,
                                        .sum = (uint32_t)next(&random),
                                        .wild = (uint32_t)(fate == WILD ? seq : seq - 1) };
            t->offset16[at] = fate == UNWANTED    ? DMI_NOT_WANTED
                              : fate == NO_RECORD ? DMI_NO_PAYLOAD
                                                  : i;
            t->slot[at] = (unsigned short)(fate >= RAN ? place : next(&random));
            n_records += fate >= RAN;
            if (fate != RAN && fate != WILD)
                continue;
            struct dmi_close_desc *d = &expected[place / DMI_CLOSE_RECORDS];
            uint32_t bit = place % DMI_CLOSE_RECORDS;
            d->ran[bit / 32] |= 1u << bit % 32;
            d->wild[bit / 32] |= fate == WILD ? 1u << bit % 32 : 0;
            d->sum += all_marks[i].sum;
        }
        for (int i = 0; i < 2; i++) {
            tickets[i].seq = seq;
            tickets[i].n_actions = DMI_TICKET_ACTIONS;
            tickets[i].close_slot = n_records ? close_slot : DMI_NO_CLOSE;
            tickets[i].n_records = n_records;
        }
        uint32_t n_closing = (n_records + DMI_CLOSE_RECORDS - 1) / DMI_CLOSE_RECORDS;
        for (uint32_t k = 0; k < n_closing; k++) {
            expected[k].ready = seq;
            expected[k].site = DMI_SITE_CLOSE;
        }
        struct dmi_close close = {
            .state = state, .marks = marks, .desc = desc_device, .n_tickets = 2, .n_slots = N_SLOTS
        };
        ok(cu.MemcpyHtoD(state, tickets, sizeof tickets));
        ok(cu.MemcpyHtoD(marks, all_marks, sizeof all_marks));
        memset(desc, 0, N_SLOTS * sizeof *desc);
        launch(close_graph, &close, 1);
        ok(cu.CtxSynchronize());
        check_closing(close_slot, expected, N_SLOTS < N_CLOSING ? N_SLOTS : N_CLOSING);
        ok(cu.MemcpyDtoH(tickets, state, sizeof tickets));
        ck_assert_uint_eq(tickets[0].n_actions + tickets[1].n_actions, 0);
    }
}
END_TEST

/* ------------------------------------------------------------------------- the device */

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return NULL;
    char *text = calloc(1, 1 << 20);
    if (text && fread(text, 1, (1 << 20) - 1, file) == 0) {
        free(text);
        text = NULL;
    }
    fclose(file);
    return text;
}

static const char *open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return "no libcuda.so.1";
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found)
            return symbols[i].name;
        memcpy(symbols[i].slot, &found, sizeof found);
    }
    return cu.Init(0) == CUDA_SUCCESS ? NULL : "cuInit finds no device";
}

static int set_up(const char *ptx_path)
{
    static const uint32_t zeros[N_SLOTS];
    CUdevice device;
    CUcontext context;
    CUmodule module;
    char *ptx = read_text(ptx_path);
    if (!ptx) {
        fprintf(stderr, "%s cannot be read\n", ptx_path);
        return -1;
    }
    uint64_t random = 3;
    for (size_t i = 0; i < sizeof source; i++)
        source[i] =
            (unsigned char)(next(&random) | 1); /* never 0, so that what was not copied shows */
    CUresult r = cu.DeviceGet(&device, 0);
    r = r ? r : cu.DevicePrimaryCtxRetain(&context, device);
    r = r ? r : cu.CtxSetCurrent(context);
    r = r ? r : cu.ModuleLoadData(&module, ptx);
    r = r ? r : cu.ModuleGetFunction(&copy_eager, module, "dmi_copy_eager");
    r = r ? r : cu.ModuleGetFunction(&copy_packed, module, "dmi_copy_graph_packed");
    r = r ? r : cu.ModuleGetFunction(&copy_rows, module, "dmi_copy_graph_rows");
    r = r ? r : cu.ModuleGetFunction(&copy_strided, module, "dmi_copies_graph_any");
    r = r ? r : cu.ModuleGetFunction(&copies_packed, module, "dmi_copies_graph_packed");
    r = r ? r : cu.ModuleGetFunction(&alone_packed, module, "dmi_copies_alone_packed");
    r = r ? r : cu.ModuleGetFunction(&alone_any, module, "dmi_copies_alone_any");
    r = r ? r : cu.ModuleGetFunction(&close_graph, module, "dmi_close");
    r = r ? r : cu.MemAlloc(&source_device, sizeof source);
    r = r ? r : cu.MemcpyHtoD(source_device, source, sizeof source);
    r = r ? r : cu.MemAlloc(&payload_device, PAYLOAD_BYTES);
    r = r ? r : cu.MemAlloc(&state, 2 * sizeof(struct dmi_ticket));
    r = r ? r : cu.MemAlloc(&marks, 2 * DMI_TICKET_ACTIONS * sizeof(struct dmi_copy_mark));
    r = r ? r : cu.MemAlloc(&lists, (LIST_AT + MAX_LIST) * sizeof(uint32_t));
    r = r ? r : cu.MemAlloc(&slots_device, sizeof slots);
    r = r ? r : cu.MemAlloc(&retired, sizeof zeros);
    r = r ? r : cu.MemcpyHtoD(retired, zeros, sizeof zeros);
    r = r ? r : cu.MemHostAlloc((void **)&pinned, PAYLOAD_BYTES, CU_MEMHOSTALLOC_DEVICEMAP);
    r = r ? r : cu.MemHostGetDevicePointer(&pinned_device, pinned, 0);
    r = r ? r : cu.MemHostAlloc((void **)&desc, 4096, CU_MEMHOSTALLOC_DEVICEMAP);
    r = r ? r : cu.MemHostGetDevicePointer(&desc_device, desc, 0);
    free(ptx);
    if (r)
        fprintf(stderr, "the device cannot be prepared: error %d\n", (int)r);
    return (int)r;
}

int main(int argc, char **argv)
{
    const char *lacking = open_driver();
    if (lacking || argc != 2) {
        printf("skipped: %s\n", lacking ? lacking : "expected the path of dmi_kernels.ptx");
        return 77;
    }
    if (set_up(argv[1]))
        return EXIT_FAILURE;
    Suite *suite = suite_create("copy kernel");
    TCase *tests = tcase_create("copy kernel");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, each_shape_is_gathered_as_defined);
    tcase_add_test(tests, packed_runs_of_each_access_and_size_are_gathered);
    tcase_add_test(tests, runs_along_one_dimension_are_gathered);
    tcase_add_test(tests, random_shapes_are_gathered_as_defined);
    tcase_add_test(tests, rows_lie_in_the_slots_that_a_list_names);
    tcase_add_test(tests, whoever_sees_the_descriptor_sees_the_payload);
    tcase_add_test(tests, what_ran_is_published_when_a_launch_is_over);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK); /* a forked child has no CUDA */
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
