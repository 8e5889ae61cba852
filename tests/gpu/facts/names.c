/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver says of a kernel's name: by each handle, before and after its first launch. Asked lazily and eagerly. */
#include "facts.h"

#include <stdio.h>
#include <string.h>

static void tell_name(const char *what, CUresult r, const char *name, const char *right)
{
    if (r == CUDA_SUCCESS)
        says(what, !name ? "NULL" : !strcmp(name, right) ? "its name" : "another: %.80s", name);
    else
        result(what, r);
}

static void tell_function(const char *whose, CUfunction function, const char *right)
{
    const char *name = NULL;
    CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_MAX;
    char what[96];

    CUresult r = CU(cuFuncGetName, &name, function);
    snprintf(what, sizeof what, "cuFuncGetName of %s", whose);
    tell_name(what, r, name, right);
    r = CU(cuFuncIsLoaded, &state, function);
    snprintf(what, sizeof what, "%s is loaded", whose);
    if (r == CUDA_SUCCESS)
        says(what, state == CU_FUNCTION_LOADING_STATE_LOADED ? "yes" : "no");
    else
        result(what, r);
}

static void ask_listed(CUmodule module)
{
    CUfunction functions[64];
    const char *name;
    unsigned n = 0, named = 0;

    TRY(CU(cuModuleGetFunctionCount, &n, module));
    n = n < LENGTH(functions) ? n : LENGTH(functions);
    TRY(CU(cuModuleEnumerateFunctions, functions, n, module));
    for (unsigned i = 0; i < n; i++) {
        name = NULL;
        named += CU(cuFuncGetName, &name, functions[i]) == CUDA_SUCCESS && name && *name;
    }
    says("functions of cuModuleEnumerateFunctions that have a name", "%u of %u", named, n);
}

void ask_function_names(void)
{
    CUmoduleLoadingMode mode = 0;
    CUmodule module;
    CUlibrary library;
    CUkernel k;
    CUfunction function, of_kernel;
    CUstream stream;
    const char *name = NULL;

    TRY(CU(cuModuleGetLoadingMode, &mode));
    says("modules are loaded", mode == CU_MODULE_EAGER_LOADING ? "eagerly" : "lazily");
    TRY(new_stream(&stream));
    TRY(CU(cuModuleLoadData, &module, kernels_ptx));
    ask_listed(module);
    TRY(CU(cuModuleGetFunction, &function, module, "lazy_1"));
    tell_function("a module's function", function, "lazy_1");
    TRY(launch(function, 1, 1, stream, NULL));
    TRY(CU(cuStreamSynchronize, stream));
    tell_function("the launched function", function, "lazy_1");
    TRY(CU(cuLibraryLoadData, &library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    TRY(CU(cuLibraryGetKernel, &k, library, "lazy_2"));
    CUresult r = CU(cuKernelGetName, &name, k);
    tell_name("cuKernelGetName of a library's kernel", r, name, "lazy_2");
    TRY(CU(cuKernelGetFunction, &of_kernel, k));
    tell_function("a kernel's function", of_kernel, "lazy_2");
    TRY(launch(of_kernel, 1, 1, stream, NULL));
    TRY(CU(cuStreamSynchronize, stream));
    tell_function("a kernel's launched function", of_kernel, "lazy_2");
}
