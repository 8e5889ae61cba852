/* SPDX-License-Identifier: Apache-2.0 */
/* CUfunction and CUkernel: which of them each call returns, and what each call says of the other. */
#include "facts.h"

#include <stdio.h>
#include <string.h>

struct handles {
    CUfunction function;  /* cuModuleGetFunction */
    CUkernel kernel;      /* cuLibraryGetKernel */
    CUfunction of_kernel; /* cuKernelGetFunction */
    CUlibrary library;
};

static CUresult get_handles(struct handles *h)
{
    PASS(kernel(&h->function, "poke"));
    PASS(CU(cuLibraryLoadData, &h->library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    PASS(CU(cuLibraryGetKernel, &h->kernel, h->library, "poke"));
    return CU(cuKernelGetFunction, &h->of_kernel, h->kernel);
}

static const char *name_of(const struct handles *h, const void *handle)
{
    if (!handle)
        return "NULL";
    if (handle == h->function)
        return "the module's CUfunction";
    if (handle == (const void *)h->kernel)
        return "the CUkernel";
    if (handle == h->of_kernel)
        return "cuKernelGetFunction's CUfunction";
    return "another handle";
}

static void tell_node(const struct handles *h, const char *what, CUgraphNode node,
                      const void *launched)
{
    CUDA_KERNEL_NODE_PARAMS_v2 k;
    char text[96];

    TRY(CU(cuGraphKernelNodeGetParams_v2, node, &k));
    says(what, "func: %s, kern: %s", name_of(h, k.func), name_of(h, k.kern));
    const void *told = k.func ? (const void *)k.func : (const void *)k.kern;
    snprintf(text, sizeof text, "%s: by the handle that was launched", what);
    says(text, told == launched ? "yes" : "no");
    snprintf(text, sizeof text, "%s: by a handle that the driver gave out", what);
    holds(text, told && strcmp(name_of(h, told), "another handle"));
    snprintf(text, sizeof text, "%s: parameters are given as", what);
    says(text, "%s%s", k.kernelParams ? "kernelParams " : "", k.extra ? "extra" : "");
}

static void tell_captured(const struct handles *h, const char *what, CUfunction launched)
{
    CUdeviceptr p = 256;
    uint32_t value = 1;
    void *params[] = { &p, &value };
    CUgraph graph;
    CUgraphNode node;
    CUstream stream;

    TRY(new_stream(&stream));
    TRY(CU(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    TRY(launch(launched, 1, 1, stream, params));
    TRY(CU(cuStreamEndCapture, stream, &graph));
    if (list_nodes(graph, &node, 1) != 1) {
        failed(CUDA_ERROR_UNKNOWN);
        return;
    }
    tell_node(h, what, node, launched);
}

void ask_captured_handles(void)
{
    struct handles h;
    CUdeviceptr p = 256;
    uint32_t value = 1;
    void *params[] = { &p, &value };
    CUgraph graph;
    CUgraphNode node;

    TRY(get_handles(&h));
    tell_captured(&h, "captured CUfunction", h.function);
    tell_captured(&h, "captured CUkernel, cast", (CUfunction)h.kernel);
    tell_captured(&h, "captured cuKernelGetFunction's", h.of_kernel);
    TRY(CU(cuGraphCreate, &graph, 0));
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(NULL, 1, 1, params);
    k.kern = h.kernel;
    TRY(CU(cuGraphAddKernelNode_v2, &node, graph, NULL, 0, &k));
    tell_node(&h, "added with kern", node, h.kernel);
    TRY(add_kernel(graph, &node, NULL, (CUfunction)h.kernel, params));
    tell_node(&h, "added with a CUkernel as func", node, h.kernel);
}

void ask_kernel_functions(void)
{
    struct handles h;
    CUfunction again, of_module;
    CUkernel kernel_again;
    CUmodule module;
    const char *name = NULL;

    TRY(get_handles(&h));
    TRY(CU(cuKernelGetFunction, &again, h.kernel));
    says("cuKernelGetFunction gives the same handle again", again == h.of_kernel ? "yes" : "no");
    TRY(CU(cuLibraryGetKernel, &kernel_again, h.library, "poke"));
    says("cuLibraryGetKernel gives the same handle again", kernel_again == h.kernel ? "yes" : "no");
    TRY(CU(cuLibraryGetModule, &module, h.library));
    TRY(CU(cuModuleGetFunction, &of_module, module, "poke"));
    says("the function of the library's module is cuKernelGetFunction's",
         of_module == h.of_kernel ? "yes" : "no");
    says("a CUkernel and its CUfunction are one address",
         (void *)h.kernel == (void *)h.of_kernel ? "yes" : "no");
    TRY(CU(cuKernelGetName, &name, h.kernel));
    holds("cuKernelGetName knows a CUkernel", name && !strcmp(name, "poke"));
    TRY(CU(cuFuncGetName, &name, h.function));
    holds("cuFuncGetName knows a CUfunction", name && !strcmp(name, "poke"));
    TRY(CU(cuFuncGetName, &name, h.of_kernel));
    holds("cuFuncGetName knows cuKernelGetFunction's", name && !strcmp(name, "poke"));
}

/* ------------------------------------------------------------------ parameters */

typedef CUresult info_call(const void *handle, size_t i, size_t *offset, size_t *size);

static CUresult function_info(const void *handle, size_t i, size_t *offset, size_t *size)
{
    return CU(cuFuncGetParamInfo, (CUfunction)handle, i, offset, size);
}

static CUresult kernel_info(const void *handle, size_t i, size_t *offset, size_t *size)
{
    return CU(cuKernelGetParamInfo, (CUkernel)handle, i, offset, size);
}

/* Return: true if the driver gives the layout of poke(u64, u32), and where it ends. */
static bool layout_is_told(const char *what, info_call *info, const void *handle)
{
    size_t offset[3] = { 99, 99, 99 }, size[3] = { 99, 99, 99 };
    char text[96];
    CUresult r[3];

    for (size_t i = 0; i < 3; i++)
        r[i] = info(handle, i, &offset[i], &size[i]);
    snprintf(text, sizeof text, "%s, its first parameter", what);
    result(text, r[0]);
    if (r[0] != CUDA_SUCCESS)
        return false;
    says(text, "offset %zu, size %zu; the second: %zu, %zu", offset[0], size[0], offset[1],
         size[1]);
    snprintf(text, sizeof text, "%s, after its last parameter", what);
    result(text, r[2]);
    return r[1] == CUDA_SUCCESS && !offset[0] && size[0] == 8 && offset[1] == 8 && size[1] == 4 &&
           r[2] == CUDA_ERROR_INVALID_VALUE;
}

static CUresult info_of_first(void *arg, unsigned i)
{
    size_t offset, size;
    (void)i;
    return driver.cuFuncGetParamInfo(arg, 0, &offset, &size);
}

void ask_parameter_info(void)
{
    struct handles h;
    CUfunction bulk;
    size_t offset, size;
    double ns;

    TRY(get_handles(&h));
    holds("cuFuncGetParamInfo gives a CUfunction's parameters, and ends with INVALID_VALUE",
          layout_is_told("cuFuncGetParamInfo", function_info, h.function));
    holds("cuKernelGetParamInfo gives a CUkernel's, and ends so",
          layout_is_told("cuKernelGetParamInfo", kernel_info, h.kernel));
    holds("cuFuncGetParamInfo gives those of cuKernelGetFunction's handle",
          layout_is_told("cuFuncGetParamInfo of a kernel's function", function_info, h.of_kernel));
    TRY(kernel(&bulk, "bulk"));
    TRY(CU(cuFuncGetParamInfo, bulk, 0, &offset, &size));
    holds("a parameter of 4088 bytes by value is reported as one", !offset && size == 4088);
    TRY(time_calls(&ns, rounds(200), 50, info_of_first, h.function));
    figure("cuFuncGetParamInfo", ns, "ns");
}

void ask_function_calls_on_kernels(void)
{
    struct handles h;
    const char *name = NULL;

    TRY(get_handles(&h));
    CUresult r = CU(cuFuncGetName, &name, (CUfunction)h.kernel);
    result("cuFuncGetName of a CUkernel", r);
    if (r == CUDA_SUCCESS)
        says("that name", "%s", name ? name : "NULL");
    says("its parameters",
         layout_is_told("cuFuncGetParamInfo of a CUkernel", function_info, h.kernel) ? "right"
                                                                                     : "not told");
}

void ask_kernel_calls_on_functions(void)
{
    struct handles h;
    const char *name = NULL;

    TRY(get_handles(&h));
    CUresult r = CU(cuKernelGetName, &name, (CUkernel)h.function);
    result("cuKernelGetName of a CUfunction", r);
    if (r == CUDA_SUCCESS)
        says("that name", "%s", name ? name : "NULL");
    says("its parameters",
         layout_is_told("cuKernelGetParamInfo of a CUfunction", kernel_info, h.function)
             ? "right"
             : "not told");
}
