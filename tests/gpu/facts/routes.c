/* SPDX-License-Identifier: Apache-2.0 */
/* From a library to a function, as the runtimes go; handles that come back; handles given to the wrong call. */
#include "facts.h"

#include <stdio.h>
#include <string.h>

static CUresult new_library(CUlibrary *library)
{
    return CU(cuLibraryLoadData, library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0);
}

/* Does @function write @value at @p? */
static CUresult writes(bool *yes, CUfunction function, CUdeviceptr p, uint32_t value)
{
    void *params[] = { &p, &value };
    CUstream stream;
    uint32_t got = 0;

    PASS(new_stream(&stream));
    PASS(launch(function, 1, 1, stream, params));
    PASS(CU(cuStreamSynchronize, stream));
    PASS(CU(cuMemcpyDtoH_v2, &got, p, 4));
    *yes = got == value;
    return CUDA_SUCCESS;
}

void ask_library_routes(void)
{
    CUlibrary library, owner = NULL;
    CUkernel kernel_13;
    CUmodule module, again, of_function;
    CUfunction function_12, function_13;
    CUdeviceptr p;
    bool yes;

    TRY(device_memory(&p, 64));
    TRY(new_library(&library));
    TRY(CU(cuLibraryGetKernel, &kernel_13, library, "poke"));
    TRY(writes(&yes, (CUfunction)kernel_13, p, 13));
    holds("runtime 13: a CUkernel can be launched as it is", yes);
    TRY(CU(cuLibraryGetModule, &module, library));
    TRY(CU(cuLibraryGetModule, &again, library));
    says("cuLibraryGetModule gives the same module again", module == again ? "yes" : "no");
    TRY(CU(cuModuleGetFunction, &function_12, module, "poke"));
    TRY(writes(&yes, function_12, p, 12));
    holds("runtime 12: a function of the library's module can be launched", yes);
    TRY(CU(cuKernelGetFunction, &function_13, kernel_13));
    says("both runtimes end with one function", function_12 == function_13 ? "yes" : "no");
    CUresult r = CU(cuFuncGetModule, &of_function, function_12);
    result("cuFuncGetModule of it", r);
    if (r == CUDA_SUCCESS)
        says("that is the library's module", of_function == module ? "yes" : "no");
    r = CU(cuKernelGetLibrary, &owner, kernel_13);
    result("cuKernelGetLibrary", r);
    if (r == CUDA_SUCCESS)
        holds("that is the library", owner == library);
    result("unloading the library's module", CU(cuModuleUnload, module));
}

#define ROOM 64

/* How many of the first @n are kernels that have a name. */
static unsigned named(const CUkernel *kernels, unsigned n)
{
    const char *name;
    unsigned found = 0;

    for (unsigned i = 0; i < n; i++)
        found += CU(cuKernelGetName, &name, kernels[i]) == CUDA_SUCCESS && name && *name;
    return found;
}

void ask_library_kernels(void)
{
    CUlibrary library;
    CUkernel kernels[ROOM], untouched;
    CUmodule module;
    CUfunction functions[ROOM];
    unsigned n = 0;

    TRY(new_library(&library));
    TRY(CU(cuLibraryGetKernelCount, &n, library));
    holds("cuLibraryGetKernelCount knows how many there are", n > 8 && n < ROOM);
    memset(kernels, 0xa5, sizeof kernels);
    memset(&untouched, 0xa5, sizeof untouched);
    TRY(CU(cuLibraryEnumerateKernels, kernels, ROOM, library));
    holds("of a list of more, as many as the count says are kernels",
          n < ROOM && named(kernels, n) == n);
    says("after those it", "%s",
         kernels[ROOM - 1] == untouched ? "leaves what was there"
         : !kernels[ROOM - 1]           ? "writes NULL"
                                        : "writes something else");
    TRY(CU(cuLibraryGetModule, &module, library));
    unsigned n_functions = 0;
    CUresult r = CU(cuModuleGetFunctionCount, &n_functions, module);
    result("cuModuleGetFunctionCount of its module", r);
    if (r == CUDA_SUCCESS)
        says("that is the count of kernels", n_functions == n ? "yes" : "no");
    result("cuModuleEnumerateFunctions of more than there are",
           CU(cuModuleEnumerateFunctions, functions, ROOM, module));
}

/* Before there is any context: the library may ask as soon as a name is looked up. */
void ask_kernel_info_early(void)
{
    CUlibrary library;
    CUkernel k;
    CUfunction function;
    size_t offset = 99, size = 99;
    const char *name = NULL;

    result("cuLibraryLoadData without a context", new_library(&library));
    TRY(CU(cuLibraryGetKernel, &k, library, "poke"));
    result("cuKernelGetName", CU(cuKernelGetName, &name, k));
    result("cuKernelGetParamInfo", CU(cuKernelGetParamInfo, k, 0, &offset, &size));
    result("cuKernelGetFunction", CU(cuKernelGetFunction, &function, k));
    TRY(driver_setup());
    CUresult r = CU(cuKernelGetParamInfo, k, 0, &offset, &size);
    result("cuKernelGetParamInfo once there is a context", r);
    holds("then it knows the parameter", r == CUDA_SUCCESS && !offset && size == 8);
}

/* ------------------------------------------------------------------ handles that come back */

typedef CUresult make_fn(void **first, void **second);

static CUresult make_module(void **module, void **function)
{
    PASS(CU(cuModuleLoadData, (CUmodule *)module, kernels_ptx));
    PASS(CU(cuModuleGetFunction, (CUfunction *)function, *module, "poke"));
    return CU(cuModuleUnload, *module);
}

static CUresult make_library(void **library, void **kernel_handle)
{
    PASS(new_library((CUlibrary *)library));
    PASS(CU(cuLibraryGetKernel, (CUkernel *)kernel_handle, *library, "poke"));
    return CU(cuLibraryUnload, *library);
}

static CUresult make_graph(void **graph, void **exec)
{
    CUfunction empty;
    CUgraphNode node;

    PASS(kernel(&empty, "empty"));
    PASS(CU(cuGraphCreate, (CUgraph *)graph, 0));
    PASS(add_kernel(*graph, &node, NULL, empty, NULL));
    PASS(new_exec((CUgraphExec *)exec, *graph));
    PASS(CU(cuGraphExecDestroy, *exec));
    return CU(cuGraphDestroy, *graph);
}

static CUresult make_stream(void **stream, void **event)
{
    PASS(new_stream((CUstream *)stream));
    PASS(CU(cuEventCreate, (CUevent *)event, CU_EVENT_DISABLE_TIMING));
    PASS(CU(cuEventDestroy_v2, *event));
    return CU(cuStreamDestroy_v2, *stream);
}

static CUresult make_context(void **context, void **unused)
{
    *unused = NULL;
    PASS(CU(cuCtxCreate_v2, (CUcontext *)context, 0, driver.device));
    PASS(CU(cuCtxDestroy_v2, *context));
    return CU(cuCtxSetCurrent, driver.context);
}

void ask_handle_reuse(void)
{
    static const struct {
        const char *first, *second;
        make_fn *make;
    } kinds[] = {
        { "a module", "its function", make_module }, { "a library", "its kernel", make_library },
        { "a graph", "its exec", make_graph },       { "a stream", "an event", make_stream },
        { "a context", NULL, make_context },
    };

    for (size_t i = 0; i < LENGTH(kinds); i++) {
        void *handles[9][2];
        unsigned same[2] = { 0, 0 };
        for (int n = 0; n < 9; n++) {
            TRY(kinds[i].make(&handles[n][0], &handles[n][1]));
            for (int which = 0; n && which < 2; which++)
                same[which] += handles[n][which] == handles[n - 1][which];
        }
        says(kinds[i].first, "%u of 8 times the handle of the one before", same[0]);
        if (kinds[i].second)
            says(kinds[i].second, "%u of 8 times the handle of the one before", same[1]);
    }
}

/* ------------------------------------------------------------------ the wrong handle: a crash is an answer */

void ask_crossed_function_as_kernel(void)
{
    CUfunction function, of_it;

    TRY(kernel(&function, "poke"));
    result("cuKernelGetFunction of a CUfunction",
           CU(cuKernelGetFunction, &of_it, (CUkernel)function));
}

void ask_crossed_module_as_library(void)
{
    CUmodule module;
    CUkernel k;

    TRY(CU(cuModuleLoadData, &module, kernels_ptx));
    result("cuLibraryGetKernel of a CUmodule",
           CU(cuLibraryGetKernel, &k, (CUlibrary)module, "poke"));
}

void ask_crossed_kernel_attribute(void)
{
    CUlibrary library;
    CUkernel k;
    int value = 0;

    TRY(new_library(&library));
    TRY(CU(cuLibraryGetKernel, &k, library, "poke"));
    result("cuFuncGetAttribute of a CUkernel",
           CU(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_NUM_REGS, (CUfunction)k));
}

void ask_crossed_destroyed_exec(void)
{
    void *graph, *exec;

    TRY(make_graph(&graph, &exec));
    result("cuGraphLaunch of a destroyed exec", CU(cuGraphLaunch, exec, NULL));
}

void ask_crossed_unloaded_function(void)
{
    void *module, *function;
    CUdeviceptr p;
    bool yes;

    TRY(device_memory(&p, 64));
    TRY(make_module(&module, &function));
    result("cuLaunchKernel of a function whose module is unloaded", writes(&yes, function, p, 1));
}
