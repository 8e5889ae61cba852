/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers: modules and libraries, and their functions, which mean something to the spec by their names. Loading waits
 * for the device: what is loaded is looked through then, and if the spec names something of it the context gets its
 * ring (lifecycle_waited()), so that no lookup and no launch has to.
 */
#include "preload/capture/regions.h"
#include "preload/function/contents.h"
#include "preload/function/functions.h"
#include "preload/hook/wrapper.h"
#include "preload/trace/lanes.h"
#include "preload/trace/named.h"

#include <string.h>

static void note_function(const void *handle, enum func_type type, const char *name,
                          const void *owner)
{
    if (handle)
        functions_add(session.spec, handle, type, name, owner);
}

NOTED(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name),
      (function, module, name),
      function ? note_function(*function, FUNC_FUNCTION, name, module) : (void)0)

EXPORT CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CUresult r = REAL(cuLibraryGetKernel)(kernel, library, name);
    if (kernel)
        AFTER_SUCCESS(r, note_function(*kernel, FUNC_KERNEL, name, library));
    if (kernel && r == CUDA_SUCCESS)
        named_note(*kernel, name);
    return r;
}

/* The driver fills as many as there are, whatever was asked for: the rest is whatever lay there. */
static void note_listed(const void *handles, unsigned n, enum func_type type, const void *owner)
{
    unsigned there = contents_count(owner, type);
    for (unsigned i = 0; i < n && i < there; i++) {
        const void *handle;
        memcpy(&handle, (const char *)handles + i * sizeof handle, sizeof handle);
        note_function(handle, type, NULL, owner);
    }
}

/* A trace is to begin steps at kernels by their names, with a spec or without one. */
static void name_listed(const CUkernel *kernels, unsigned n, CUlibrary library)
{
    unsigned there = contents_count(library, FUNC_KERNEL);
    for (unsigned i = 0; i < n && i < there; i++)
        named_note(kernels[i], NULL);
}

EXPORT CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel *kernels, unsigned n, CUlibrary library)
{
    CUresult r = REAL(cuLibraryEnumerateKernels)(kernels, n, library);
    if (kernels)
        AFTER_SUCCESS(r, note_listed(kernels, n, FUNC_KERNEL, library));
    if (kernels && r == CUDA_SUCCESS && named_source() == DMI_STEP_NAMED_KERNEL)
        name_listed(kernels, n, library);
    return r;
}

EXPORT CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CUresult r = REAL(cuKernelGetFunction)(function, kernel);
    if (function && r == CUDA_SUCCESS && *function)
        AFTER_SUCCESS(r, functions_add_of_kernel(session.spec, *function, kernel));
    return r;
}

NOTED(cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library),
      module ? functions_note_module(*module, library) : (void)0)
NOTED(cuModuleEnumerateFunctions, (CUfunction * functions, unsigned n, CUmodule module),
      (functions, n, module),
      functions ? note_listed(functions, n, FUNC_FUNCTION, module) : (void)0)

/* ------------------------------------------------------------------------- loading */

/* While the application still has the image. */
static void note_module(CUmodule module, const void *image)
{
    functions_note_module(module, NULL);
    layouts_note(session.spec, module, false, image);
    contents_of(module, FUNC_FUNCTION);
}

static void note_module_file(CUmodule module, const char *path)
{
    functions_note_module(module, NULL);
    layouts_note_file(session.spec, module, false, path);
    contents_of(module, FUNC_FUNCTION);
}

static void note_library(CUlibrary library, const void *image)
{
    layouts_note(session.spec, library, true, image);
    contents_of(library, FUNC_KERNEL);
}

static void note_library_file(CUlibrary library, const char *path)
{
    layouts_note_file(session.spec, library, true, path);
    contents_of(library, FUNC_KERNEL);
}

#define LOADS(name, declare, pass, note)                                                           \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        uint64_t begin_ns = stall_begins();                                                        \
        CUresult r = real pass;                                                                    \
        stall_ends(begin_ns, true, #name);                                                         \
        AFTER_SUCCESS(r, note);                                                                    \
        lifecycle_waited(r);                                                                       \
        return r;                                                                                  \
    }
LOADS(cuModuleLoad, (CUmodule * module, const char *path), (module, path),
      note_module_file(*module, path))
LOADS(cuModuleLoadData, (CUmodule * module, const void *image), (module, image),
      note_module(*module, image))
LOADS(cuModuleLoadDataEx,
      (CUmodule * module, const void *image, unsigned n, CUjit_option *options, void **values),
      (module, image, n, options, values), note_module(*module, image))
LOADS(cuModuleLoadFatBinary, (CUmodule * module, const void *image), (module, image),
      note_module(*module, image))
LOADS(cuLibraryLoadData,
      (CUlibrary * library, const void *image, CUjit_option *jit, void **jit_values, unsigned n_jit,
       CUlibraryOption *options, void **values, unsigned n),
      (library, image, jit, jit_values, n_jit, options, values, n), note_library(*library, image))
LOADS(cuLibraryLoadFromFile,
      (CUlibrary * library, const char *path, CUjit_option *jit, void **jit_values, unsigned n_jit,
       CUlibraryOption *options, void **values, unsigned n),
      (library, path, jit, jit_values, n_jit, options, values, n),
      note_library_file(*library, path))

/* ------------------------------------------------------------------------- ends */

/* Before the driver's call: once it returns, another thread may be given the same handles. */
static void forget_functions(const void *owner)
{
    struct session_call call;
    if (session_does(SESSION_TRACE))
        named_forget();
    lanes_forget();
    if (!session_armed())
        return;
    if (session_enter(&call))
        functions_drop_owner(owner);
    session_leave(&call);
}

EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule module)
{
    __typeof__(cuModuleUnload) *real = REAL(cuModuleUnload);
    forget_functions(module);
    CUresult r = real(module);
    AFTER_SUCCESS(r, regions_unsure()); /* its variables end */
    return r;
}

EXPORT CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    __typeof__(cuLibraryUnload) *real = REAL(cuLibraryUnload);
    forget_functions(library);
    CUresult r = real(library);
    AFTER_SUCCESS(r, regions_unsure()); /* the same */
    return r;
}
