/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/copy.cu, as nvcc compiled it, on the libcuda.so.1 that the loader finds: what it gathers, what it
 * leaves alone, and that a reader who sees a descriptor's ready word sees the complete payload.
 * Usage: test_copy_kernel FILE.ptx. On the stand-in, DMI_STANDIN_PAUSE pauses it between its stores.
 */
#include "core/atomic.h"

#include <dmi/ring.h>

#include <check.h>
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOURCE_BYTES  (64u << 10)
#define PAYLOAD_BYTES (64u << 10)
#define GUARD         64u /* bytes before and after a record that must stay as they were */
#define THREADS       128u

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

static CUfunction kernel;
static unsigned char source[SOURCE_BYTES];
static CUdeviceptr source_device, payload_device, retired;
/* pinned: what the host reads while the kernel runs */
static struct dmi_desc *desc;
static unsigned char *pinned;
static CUdeviceptr desc_device, pinned_device;

#define ok(call) ck_assert_int_eq((call), CUDA_SUCCESS)

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t size_of(const struct dmi_gather *g)
{
    return (uint64_t)g->count[0] * g->count[1] * g->count[2] * g->count[3] * g->run_bytes;
}

/* The same by the definition in include/dmi/ring.h; @src: byte offset of g->src in source[]. */
static void gather_by_definition(const struct dmi_gather *g, uint64_t src, unsigned char *out)
{
    for (uint32_t a = 0; a < g->count[0]; a++)
        for (uint32_t b = 0; b < g->count[1]; b++)
            for (uint32_t c = 0; c < g->count[2]; c++)
                for (uint32_t d = 0; d < g->count[3]; d++) {
                    int64_t at =
                        a * g->stride[0] + b * g->stride[1] + c * g->stride[2] + d * g->stride[3];
                    memcpy(out, source + (int64_t)src + at, g->run_bytes);
                    out += g->run_bytes;
                }
}

static void launch(const struct dmi_copy *copy, unsigned blocks)
{
    struct dmi_copy parameter = *copy;
    void *params[] = { &parameter };
    ok(cu.LaunchKernel(kernel, blocks, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL));
}

static void check_gather(const struct dmi_gather *shape, uint64_t src, uint64_t seq,
                         unsigned blocks)
{
    static unsigned char expected[PAYLOAD_BYTES], got[PAYLOAD_BYTES];
    uint64_t n = size_of(shape), at = GUARD + seq % 8 * 16;
    ck_assert_uint_le(at + n + GUARD, PAYLOAD_BYTES);
    memset(expected, 0xa5, sizeof expected);
    ok(cu.MemcpyHtoD(payload_device, expected, sizeof expected));
    gather_by_definition(shape, src, expected + at);

    struct dmi_copy copy = {
        .gather = *shape,
        .record = { .ready = seq,
                    .payload = at,
                    .n_bytes = n,
                    .site = 11,
                    .n_rows = 22,
                    .occurrence = 33,
                    .flags = 44,
                    .src = 55 },
        .payload = payload_device,
        .desc = desc_device,
        .retired = retired,
    };
    copy.gather.src = source_device + src;
    memset(desc, 0, sizeof *desc);
    launch(&copy, blocks);
    ok(cu.CtxSynchronize());
    ok(cu.MemcpyDtoH(got, payload_device, sizeof got));
    ck_assert_int_eq(memcmp(got, expected, sizeof got), 0);
    ck_assert_int_eq(memcmp(desc, &copy.record, sizeof *desc), 0);
    uint32_t count = 99;
    ok(cu.MemcpyDtoH(&count, retired, sizeof count));
    ck_assert_uint_eq(count, 0);
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
        { { .count = { 1, 1, 1, 16 },
            .stride = { 0, 0, 0, 2304 },
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
        { { .count = { 1, 1, 1, 4 }, .stride = { 0, 0, 0, -64 }, .run_bytes = 64, .access = 16 },
          1024 }, /* backwards */
        { { .count = { 1, 1, 1, 8 }, .stride = { 0, 0, 0, 0 }, .run_bytes = 8, .access = 8 },
          64 }, /* one, repeated */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (unsigned blocks = 1; blocks <= 8; blocks *= 2)
            check_gather(&rows[i].gather, rows[i].src, DMI_SEQ_FIRST + i, blocks);
}
END_TEST

START_TEST(random_shapes_are_gathered_as_defined)
{
    uint64_t state = 1;
    for (int i = 0; i < 150; i++) {
        uint32_t access = 1u << next(&state) % 5;
        struct dmi_gather g = { .access = access,
                                .run_bytes = access * (uint32_t)(1 + next(&state) % 12) };
        uint64_t reach = g.run_bytes;
        for (int dim = 0; dim < DMI_RING_DIMS; dim++) {
            g.count[dim] = (uint32_t)(1 + next(&state) % 6);
            g.stride[dim] = (int64_t)(next(&state) % 40) * access;
            reach += (g.count[dim] - 1) * (uint64_t)g.stride[dim];
        }
        uint64_t src = next(&state) % ((SOURCE_BYTES - reach) / access) * access;
        while (size_of(&g) > PAYLOAD_BYTES - 4 * GUARD - 128)
            g.count[0] = 1, g.run_bytes = access;
        check_gather(&g, src, DMI_SEQ_FIRST + (uint64_t)i, (unsigned)(1 + next(&state) % 6));
    }
}
END_TEST

/* Payload in pinned memory here, so that the host can look at the very moment of the publish. */
START_TEST(whoever_sees_the_descriptor_sees_the_payload)
{
    uint64_t state = 7;
    for (uint64_t seq = DMI_SEQ_FIRST; seq < 60; seq++) {
        uint32_t n_rows = (uint32_t)(1 + next(&state) % 8);
        struct dmi_copy copy = {
            .gather = { .src = source_device,
                        .count = { 1, 1, 1, n_rows },
                        .stride = { 0, 0, 0, 1024 },
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
        gather_by_definition(&copy.gather, 0, expected);
        memset(pinned, 0, PAYLOAD_BYTES);
        memset(desc, 0, sizeof *desc);
        launch(&copy, 1 + (unsigned)(seq % 5));
        while (atomic_load_acquire(&desc->ready) != seq) { /* of publish() in copy.cu */
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
    CUdevice device;
    CUcontext context;
    CUmodule module;
    char *ptx = read_text(ptx_path);
    if (!ptx) {
        fprintf(stderr, "%s cannot be read\n", ptx_path);
        return -1;
    }
    uint64_t state = 3;
    for (size_t i = 0; i < sizeof source; i++)
        source[i] =
            (unsigned char)(next(&state) | 1); /* never 0, so that what was not copied shows */
    CUresult r = cu.DeviceGet(&device, 0);
    r = r ? r : cu.DevicePrimaryCtxRetain(&context, device);
    r = r ? r : cu.CtxSetCurrent(context);
    r = r ? r : cu.ModuleLoadData(&module, ptx);
    r = r ? r : cu.ModuleGetFunction(&kernel, module, "dmi_copy_eager");
    r = r ? r : cu.MemAlloc(&source_device, sizeof source);
    r = r ? r : cu.MemcpyHtoD(source_device, source, sizeof source);
    r = r ? r : cu.MemAlloc(&payload_device, PAYLOAD_BYTES);
    r = r ? r : cu.MemAlloc(&retired, sizeof(uint32_t));
    r = r ? r : cu.MemcpyHtoD(retired, &(uint32_t){ 0 }, sizeof(uint32_t));
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
    tcase_add_test(tests, random_shapes_are_gathered_as_defined);
    tcase_add_test(tests, whoever_sees_the_descriptor_sees_the_payload);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK); /* a forked child has no CUDA */
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
