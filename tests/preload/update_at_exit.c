/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update_at_exit - a thread updates a graph exec, each time with a kernel that was no site there before, while the
 * main thread leaves the process: update_at_exit FILE.ptx KERNELS
 *
 * FILE.ptx holds kernels k0, k1, ... without parameters that the spec's sites match. So the library has something new
 * to report at every update, also during its last flush. Prints "left" before it leaves.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define UPDATES_FIRST 5 /* before the process leaves */

/* clang-format off */
#define CALLS(X) \
    X(cuInit) X(cuDeviceGet) X(cuCtxCreate_v2) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
    X(cuModuleLoad) X(cuModuleGetFunction) X(cuGraphCreate) X(cuGraphAddKernelNode_v2) \
    X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphExecUpdate_v2)
/* clang-format on */

static struct driver {
#define CALL(name) __typeof__(name) *name;
    CALLS(CALL)
#undef CALL
} driver;

static struct world {
    CUcontext context;
    CUfunction *functions;
    int n;
    CUgraphExec exec;
    int n_updates; /* atomic */
} world;

/* After the driver's own exit handler its calls fail: whoever meets that has done its part. */
static void need(CUresult r, const char *what)
{
    if (r == CUDA_SUCCESS)
        return;
    while (r == CUDA_ERROR_DEINITIALIZED)
        pause();
    fprintf(stderr, "%s: error %d\n", what, (int)r);
    _Exit(2);
}

#define DO(name, ...) need(driver.name(__VA_ARGS__), #name)

static void load_driver(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
#define LOAD(name) driver.name = (__typeof__(driver.name))dlsym(lib, #name);
    CALLS(LOAD)
#undef LOAD
}

static CUgraph graph_of(CUfunction function)
{
    CUgraph graph;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS_v2 params = { .func = function,
                                          .gridDimX = 1,
                                          .gridDimY = 1,
                                          .gridDimZ = 1,
                                          .blockDimX = 1,
                                          .blockDimY = 1,
                                          .blockDimZ = 1 };
    DO(cuGraphCreate, &graph, 0);
    DO(cuGraphAddKernelNode_v2, &node, graph, NULL, 0, &params);
    return graph;
}

static void *update_main(void *arg)
{
    (void)arg;
    DO(cuCtxSetCurrent, world.context);
    for (int i = 1; i < world.n; i++) {
        CUgraphExecUpdateResultInfo info;
        struct timespec nap = { .tv_nsec = 2000000 };
        DO(cuGraphExecUpdate_v2, world.exec, graph_of(world.functions[i]), &info);
        __atomic_add_fetch(&world.n_updates, 1, __ATOMIC_RELEASE);
        nanosleep(&nap, NULL);
    }
    return NULL;
}

static void load_kernels(const char *path, int n)
{
    CUmodule module;
    world.n = n;
    world.functions = calloc((size_t)n, sizeof *world.functions);
    DO(cuModuleLoad, &module, path);
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "k%d", i);
        DO(cuModuleGetFunction, &world.functions[i], module, name);
    }
}

/* Registered first, so it runs after the library's last flush: the thread goes on for a while. */
static void linger(void)
{
    struct timespec nap = { .tv_nsec = 300000000 };
    nanosleep(&nap, NULL);
}

int main(int argc, char **argv)
{
    CUdevice device;
    pthread_t thread;
    if (argc != 3 || atexit(linger))
        return 2;
    load_driver();
    DO(cuInit, 0);
    DO(cuDeviceGet, &device, 0);
    DO(cuCtxCreate_v2, &world.context, 0, device);
    load_kernels(argv[1], atoi(argv[2]));
    DO(cuGraphInstantiateWithFlags, &world.exec, graph_of(world.functions[0]), 0);
    DO(cuGraphLaunch, world.exec, NULL);
    DO(cuCtxSynchronize);
    if (pthread_create(&thread, NULL, update_main, NULL))
        return 2;
    while (__atomic_load_n(&world.n_updates, __ATOMIC_ACQUIRE) < UPDATES_FIRST) {
        struct timespec nap = { .tv_nsec = 100000 };
        nanosleep(&nap, NULL);
    }
    puts("left");
    return 0; /* the thread goes on until the process is gone */
}
