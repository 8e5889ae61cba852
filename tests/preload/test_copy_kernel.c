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
#define LIST_AT       5 /* where the list of rows lies among the lists */
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

static CUfunction copy_eager, copy_graph;
static unsigned char source[SOURCE_BYTES];
static CUdeviceptr source_device, payload_device, retired, state, lists, slots_device;
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

static void launch(CUfunction kernel, void *parameter, unsigned blocks)
{
    void *params[] = { parameter };
    ok(cu.LaunchKernel(kernel, blocks, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL));
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

/* As copy number 3 of a graph, whose ticket dmi_open would have left where we write it. */
static void launch_graph(const struct dmi_gather *gather, const struct choice *choice,
                         const struct dmi_desc *record, unsigned blocks)
{
    struct dmi_ticket ticket = { .seq = record->ready, .n_actions = 4 };
    bool all = !choice->list && choice->n == gather->count[0];
    ticket.rows_of[3] = all ? DMI_ROWS_ALL : CHOICE;
    ticket.rows[CHOICE] =
        (struct dmi_rows){ choice->list ? LIST_AT : DMI_ROWS_FIRST, all ? 0 : choice->n };
    ticket.offset16[3] = (uint32_t)(record->payload / 16);
    ticket.slot[3] = SLOT;
    ok(cu.MemcpyHtoD(state, &ticket, sizeof ticket));
    struct dmi_graph_copy copy = {
        .gather = *gather,
        .state = state,
        .payload = payload_device,
        .desc = desc_device,
        .retired = retired,
        .lists = lists,
        .number = 3,
        .site = record->site,
        .n_rows = gather->count[0],
        .row_bytes = (uint32_t)(size_of(gather) / gather->count[0]),
    };
    launch(copy_graph, &copy, blocks);
}

/* What a copy has left: @expected in the payload ring, the record in its slot, its counter as it was. */
static void check_result(const struct dmi_desc *record, const unsigned char *expected)
{
    static unsigned char got[PAYLOAD_BYTES];
    uint32_t counters[N_SLOTS];
    ok(cu.CtxSynchronize());
    ok(cu.MemcpyDtoH(got, payload_device, sizeof got));
    ck_assert_int_eq(memcmp(got, expected, sizeof got), 0);
    ck_assert_int_eq(memcmp(&desc[SLOT], record, sizeof *record), 0);
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

/* Both copy kernels, against the definition. */
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
    uint32_t wild = is_wild(shape, choice) ? DMI_DESC_WILD_SLOT : 0;
    record.flags |= wild;
    check_result(&record, expected);

    record.occurrence = 0; /* the host knows a graph's occurrences */
    record.flags = wild;
    record.src = gather.src;
    clear(expected);
    gather_by_definition(shape, choice, src, expected + at);
    launch_graph(&gather, choice, &record, blocks);
    check_result(&record, expected);
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
    r = r ? r : cu.ModuleGetFunction(&copy_graph, module, "dmi_copy_graph");
    r = r ? r : cu.MemAlloc(&source_device, sizeof source);
    r = r ? r : cu.MemcpyHtoD(source_device, source, sizeof source);
    r = r ? r : cu.MemAlloc(&payload_device, PAYLOAD_BYTES);
    r = r ? r : cu.MemAlloc(&state, sizeof(struct dmi_ticket));
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
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK); /* a forked child has no CUDA */
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
