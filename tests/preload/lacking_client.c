/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lacking_client PTX: eager launches, a captured graph and its launches, by functions that are looked up by name. It goes without what the
 * driver has not, and says what memory holds.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *library;

#define CALL(name, ...)                                                                            \
    do {                                                                                           \
        __typeof__(name) *fn_ = (__typeof__(name) *)dlsym(library, #name);                         \
        CUresult r_ = fn_ ? fn_(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND;                               \
        if (r_ != CUDA_SUCCESS)                                                                    \
            printf("%s: %d\n", #name, (int)r_);                                                    \
    } while (0)

static void graph(CUstream s, CUfunction f, void **params)
{
    CUgraph g = NULL;
    CUgraphExec x = NULL;
    CALL(cuStreamBeginCapture_v2, s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CALL(cuLaunchKernel, f, 1, 1, 1, 64, 1, 1, 0, s, params, NULL);
    CALL(cuStreamEndCapture, s, &g);
    if (!g)
        return;
    CALL(cuGraphInstantiateWithFlags, &x, g, 0);
    for (int i = 0; x && i < 3; i++)
        CALL(cuGraphLaunch, x, s);
    CALL(cuStreamSynchronize, s);
    if (x)
        CALL(cuGraphExecDestroy, x);
    CALL(cuGraphDestroy, g);
}

int main(int argc, char **argv)
{
    static char ptx[1 << 14];
    FILE *in = argc > 1 ? fopen(argv[1], "r") : NULL;
    if (!in || !fread(ptx, 1, sizeof ptx - 1, in) || !(library = dlopen("libcuda.so.1", RTLD_NOW)))
        return 2;
    CUcontext context = NULL;
    CUmodule module = NULL;
    CUfunction f = NULL;
    CUstream s = NULL;
    CUdeviceptr p = 0;
    unsigned n = 64, seed = 1, words[64] = { 0 };
    unsigned long long count = 0;
    void *params[] = { &p, &n, &seed, &count };
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, ptx);
    if (module)
        CALL(cuModuleGetFunction, &f, module, "block");
    CALL(cuMemAlloc_v2, &p, 4096);
    CALL(cuStreamCreate, &s, CU_STREAM_NON_BLOCKING);
    for (; f && p && s && seed < 5; seed++)
        CALL(cuLaunchKernel, f, 1, 1, 1, 64, 1, 1, 0, s, params, NULL);
    if (f && p && s)
        graph(s, f, params);
    if (p) {
        CALL(cuCtxSynchronize);
        CALL(cuMemcpyDtoH_v2, words, p, sizeof words);
    }
    printf("%x %x\n", words[0], words[63]);
    return fclose(in) != 0;
}
