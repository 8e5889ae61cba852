/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_client.c - an engine in miniature, to be killed at any moment
 *
 * One forward is a launch of `first` and three of `block` (its layers), all into one buffer that is
 * used again and again. Every element says which launch wrote it: seed * 2^16 + row * 64 + column,
 * where the seed counts the launches of this process from 0. It knows nothing of DMI.
 *
 * loop_client FORWARDS [ROWS]   FORWARDS 0: until killed. Prints "ready" before the first launch.
 */
/* Declares the _v2 entries by name. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COLUMNS = 64, LAYERS = 3, MAX_ROWS = 1024 };

#define KERNEL(name)                                                                               \
    ".visible .entry " name "(.param .u64 " name "_out, .param .u32 " name "_rows, .param .u32 "  \
    name "_seed)\n"                                                                                \
    "{\n"                                                                                          \
    ".reg .b32 %r<8>;\n.reg .b64 %d<4>;\n"                                                         \
    "ld.param.u64 %d1, [" name "_out];\n"                                                          \
    "ld.param.u32 %r1, [" name "_seed];\n"                                                         \
    "mov.u32 %r2, %ctaid.x;\n"                                                                     \
    "mov.u32 %r3, %tid.x;\n"                                                                       \
    "shl.b32 %r4, %r2, 6;\n"                                                                       \
    "add.u32 %r4, %r4, %r3;\n"                                                                     \
    "shl.b32 %r5, %r1, 16;\n"                                                                      \
    "add.u32 %r5, %r5, %r4;\n"                                                                     \
    "mul.wide.u32 %d2, %r4, 4;\n"                                                                  \
    "add.u64 %d3, %d1, %d2;\n"                                                                     \
    "st.global.u32 [%d3], %r5;\n"                                                                  \
    "ret;\n"                                                                                       \
    "}\n"

static const char ptx[] = ".version 6.4\n.target sm_75\n.address_size 64\n" KERNEL("first") KERNEL("block");

static void *library;

static void *entry(const char *name)
{
    void *found = dlsym(library, name);

    if (!found) {
        fprintf(stderr, "loop_client: libcuda has no %s\n", name);
        exit(2);
    }
    return found;
}

#define CALL(name, ...)                                                                            \
    do {                                                                                           \
        static __typeof__(&name) fn_;                                                              \
        CUresult res_;                                                                             \
        if (!fn_)                                                                                  \
            *(void **)&fn_ = entry(#name);                                                         \
        res_ = fn_(__VA_ARGS__);                                                                   \
        if (res_ != CUDA_SUCCESS) {                                                                \
            fprintf(stderr, "loop_client: %s: error %d\n", #name, (int)res_);                      \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

static void launch(CUfunction function, CUdeviceptr out, uint32_t rows)
{
    static uint32_t seed;
    void *params[] = { &out, &rows, &seed };

    CALL(cuLaunchKernel, function, rows, 1u, 1u, (unsigned)COLUMNS, 1u, 1u, 0u, (CUstream)NULL, params,
         (void **)NULL);
    seed++;
}

int main(int argc, char **argv)
{
    long n_forwards = argc > 1 ? strtol(argv[1], NULL, 10) : 1;
    long rows = argc > 2 ? strtol(argv[2], NULL, 10) : 4;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction first, block;
    CUdeviceptr out;

    if (rows < 1 || rows > MAX_ROWS)
        return 2;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "loop_client: %s\n", dlerror());
        return 77;
    }
    CALL(cuInit, 0u);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuCtxCreate_v2, &context, 0u, device);
    CALL(cuModuleLoadData, &module, ptx);
    CALL(cuModuleGetFunction, &first, module, "first");
    CALL(cuModuleGetFunction, &block, module, "block");
    CALL(cuMemAlloc_v2, &out, (size_t)rows * COLUMNS * 4);
    if (write(1, "ready\n", 6) != 6)
        return 2;
    for (long i = 0; n_forwards == 0 || i < n_forwards; i++) {
        launch(first, out, (uint32_t)rows);
        for (int layer = 0; layer < LAYERS; layer++)
            launch(block, out, (uint32_t)rows);
        /* An engine reads a token back every step; without that the queue would grow for ever. */
        CALL(cuCtxSynchronize);
    }
    return 0;
}
