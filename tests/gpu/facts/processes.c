/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a process, its children, and a context in which a kernel has failed. */
#include "facts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------ the end */

static CUdeviceptr last_words;
static CUstream last_stream;

static CUresult read_word(uint32_t *got)
{
    PASS(CU(cuMemcpyDtoHAsync_v2, got, last_words, 4, last_stream));
    return CU(cuStreamSynchronize, last_stream);
}

static void last_flush(void)
{
    uint32_t got = 0;
    CUresult r = read_word(&got);
    result("a copy in a handler that was registered once the context was there", r);
    holds("such a handler still has a driver", r == CUDA_SUCCESS && got == 5);
}

static bool asked_at_exit;

__attribute__((destructor)) static void after_the_handlers(void)
{
    uint32_t got = 0;
    if (asked_at_exit)
        result("a copy in a destructor, after all handlers", read_word(&got));
}

void ask_exit_order(void)
{
    uint32_t value = 5;
    void *params[] = { &last_words, &value };
    CUfunction poke;

    TRY(device_memory(&last_words, 64));
    TRY(new_stream(&last_stream));
    TRY(kernel(&poke, "poke"));
    TRY(launch(poke, 1, 1, last_stream, params));
    asked_at_exit = !atexit(last_flush);
    exit(0);
}

/* ------------------------------------------------------------------ children */

void ask_forked_child(void)
{
    CUdeviceptr p;
    CUcontext context;
    int n;

    TRY(device_memory(&p, 64));
    pid_t pid = fork();
    if (pid == 0) {
        alarm(5);
        result("cuInit in a child", CU(cuInit, 0));
        result("cuDeviceGetCount in it", CU(cuDeviceGetCount, &n));
        result("cuCtxGetCurrent in it", CU(cuCtxGetCurrent, &context));
        result("cuMemAlloc in it", CU(cuMemAlloc_v2, &p, 64));
        _exit(0);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return;
    says("the child", WIFSIGNALED(status) ? "was killed by signal %d" : "ended with status %d",
         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    TRY(CU(cuCtxSynchronize));
    holds("the parent goes on", CU(cuMemsetD8_v2, p, 0, 64) == CUDA_SUCCESS);
}

/* ------------------------------------------------------------------ a failed kernel */

void ask_sticky_error(void)
{
    CUdeviceptr bad = 64, p, pinned_device;
    uint32_t value = 1, *pinned, got;
    void *params[] = { &bad, &value };
    CUfunction poke;
    CUstream stream, ours;
    CUcontext context;
    CUmodule module;

    TRY(device_memory(&p, 64));
    TRY(pinned_memory(&pinned, &pinned_device, 4096));
    TRY(new_stream(&stream));
    TRY(new_stream(&ours));
    TRY(CU(cuModuleLoadData, &module, kernels_ptx));
    TRY(kernel(&poke, "poke"));
    TRY(launch(poke, 1, 1, stream, params));
    CUresult r = CU(cuStreamSynchronize, stream);
    result("waiting for a kernel that wrote to address 64", r);
    holds("that is an error", r != CUDA_SUCCESS);
    result("cuMemcpyDtoHAsync on another stream then", CU(cuMemcpyDtoHAsync_v2, &got, p, 4, ours));
    result("waiting for that stream", CU(cuStreamSynchronize, ours));
    result("cuLaunchKernel", launch(poke, 1, 1, stream, params));
    result("cuMemGetAddressRange", CU(cuMemGetAddressRange_v2, &bad, &(size_t){ 0 }, p));
    result("cuCtxGetCurrent", CU(cuCtxGetCurrent, &context));
    result("cuMemFree", CU(cuMemFree_v2, p));
    pinned[0] = 3; /* that it does not fault is the answer */
    holds("the host can still use pinned memory", ((volatile uint32_t *)pinned)[0] == 3);
}
