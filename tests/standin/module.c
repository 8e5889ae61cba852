/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.c - modules, libraries, their kernels and what can be asked about them
 *
 * An image is the code compiled from one PTX text. A module is an image in a context, with device memory
 * for its variables; a library is an image that becomes a module in each context that uses it.
 */
#include "driver.h"
#include "fatbin.h"
#include "image.h"
#include "impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

struct library {
    struct object object;
    struct library *next;
    struct image *image; /* describes the kernels; the first context's module runs it */
    bool image_taken;
    char *text; /* for further contexts: variables are bound to one image */
    size_t n_text;
    struct kernel *kernels;
};

static struct library *libraries;

/* ---- JIT options: the log buffers are the ones that mean something here ---- */

struct jit_log {
    char *buffer;
    size_t size;
    void **size_out; /* the option's value becomes the number of bytes written */
};

static void jit_logs(unsigned n, CUjit_option *options, void **values, struct jit_log *error,
                     struct jit_log *info)
{
    memset(error, 0, sizeof(*error));
    memset(info, 0, sizeof(*info));
    for (unsigned i = 0; options && values && i < n; i++) {
        switch (options[i]) {
        case CU_JIT_ERROR_LOG_BUFFER: error->buffer = values[i]; break;
        case CU_JIT_INFO_LOG_BUFFER: info->buffer = values[i]; break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            error->size = (unsigned)(uintptr_t)values[i];
            error->size_out = &values[i];
            break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
            info->size = (unsigned)(uintptr_t)values[i];
            info->size_out = &values[i];
            break;
        default: break;
        }
    }
}

static void jit_log_write(struct jit_log *log, const char *text)
{
    size_t n = strlen(text);

    if (log->buffer && log->size) {
        if (n >= log->size)
            n = log->size - 1;
        memcpy(log->buffer, text, n);
        log->buffer[n] = 0;
    } else {
        n = 0;
    }
    if (log->size_out)
        *log->size_out = (void *)(uintptr_t)n;
}

/* The lock is not held: compiling takes seconds, and other threads may use the driver meanwhile. */
static CUresult image_make(const void *data, unsigned n_options, CUjit_option *options,
                           void **values, struct image **image, const char **text_out,
                           size_t *n_text_out)
{
    struct jit_log error, info;
    const char *text = NULL;
    size_t n_text = 0;
    char message[1024] = "";
    CUresult res;

    if (!data || (n_options && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    jit_logs(n_options, options, values, &error, &info);
    res = fatbin_find_ptx(data, driver.config.sm, ptx_newest(driver_version), &text, &n_text);
    if (res == CUDA_SUCCESS)
        res = image_load(text, n_text, image, message, sizeof(message));
    else if (res == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
        snprintf(message, sizeof(message), "PTX newer than %d.%d, which this driver reads up to",
                 ptx_newest(driver_version) / 10, ptx_newest(driver_version) % 10);
    if (text_out) {
        *text_out = text;
        *n_text_out = n_text;
    }
    jit_log_write(&error, message);
    jit_log_write(&info, "");
    if (res != CUDA_SUCCESS && *message) {
        for (char *c = message; *c; c++) {
            if (*c == '"' || *c == '\\' || *c < ' ' || *c > '~') /* the log is JSON */
                *c = '\'';
        }
        log_detail("\"message\":\"%s\"", message);
    }
    return res;
}

/* ---- modules ---- */

static CUresult module_new(struct context *ctx, struct image *image, struct library *library,
                           struct module **out)
{
    struct module *module = object_new(OBJECT_MODULE, sizeof(*module));
    size_t n_globals = image_globals_size(image);
    CUresult res = CUDA_SUCCESS;

    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (n_globals) {
        res = memory_alloc(ctx->device, ctx, n_globals, ALLOC_GLOBAL, &module->globals);
        if (res == CUDA_SUCCESS)
            image_globals_bind(image, module->globals);
    }
    if (res != CUDA_SUCCESS) {
        object_free(module);
        return res;
    }
    module->ctx = ctx;
    module->image = image_ref(image);
    module->library = library;
    module->next = ctx->modules;
    ctx->modules = module;
    *out = module;
    return CUDA_SUCCESS;
}

static CUresult module_load(struct context *ctx, struct image *image, struct library *library,
                            struct module **out)
{
    LOADING(ctx);
    CUresult res = load_result(loading_);

    return res != CUDA_SUCCESS ? res : module_new(ctx, image, library, out);
}

/* The context has drained: none of its kernels are queued. */
void module_destroy(struct module *module)
{
    struct module **link = &module->ctx->modules;

    while (*link && *link != module)
        link = &(*link)->next;
    if (*link)
        *link = module->next;
    while (module->functions) {
        struct function *function = module->functions;

        module->functions = function->next;
        free(function->set_params);
        object_free(function);
    }
    if (module->globals)
        memory_free(module->globals);
    image_unref(module->image);
    object_free(module);
}

static CUresult load(CUmodule *out, const void *data, unsigned n_options, CUjit_option *options,
                     void **values)
{
    struct context *ctx;
    struct image *image;
    struct module *module;
    CUresult res;

    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    {
        DRIVER_LOCKED;

        res = context_current(&ctx);
        if (res == CUDA_SUCCESS)
            res = capture_unsafe();
    }
    if (res == CUDA_SUCCESS)
        res = image_make(data, n_options, options, values, &image, NULL, NULL);
    if (res != CUDA_SUCCESS)
        return res;
    {
        DRIVER_LOCKED;

        res = context_current(&ctx);
        if (res == CUDA_SUCCESS)
            res = module_load(ctx, image, NULL, &module);
        image_unref(image);
    }
    if (res == CUDA_SUCCESS)
        *out = (CUmodule)module;
    return res;
}

CUresult impl_cuModuleLoadData(CUmodule *module, const void *image)
{
    return load(module, image, 0, NULL, NULL);
}

CUresult impl_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                                 CUjit_option *options, void **optionValues)
{
    return load(module, image, numOptions, options, optionValues);
}

CUresult impl_cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    return load(module, fatCubin, 0, NULL, NULL);
}

/* A complete file, followed by zeros that end a text and stop a scan. */
static CUresult file_read(const char *fname, char **out)
{
    struct stat st;
    char *data = NULL;
    size_t n = 0;
    int fd = open(fname, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return CUDA_ERROR_FILE_NOT_FOUND;
    if (fstat(fd, &st) == 0)
        data = calloc(1, (size_t)st.st_size + 16);
    while (data && n < (size_t)st.st_size) {
        ssize_t got = read(fd, data + n, (size_t)st.st_size - n);

        if (got <= 0)
            break;
        n += (size_t)got;
    }
    close(fd);
    *out = data;
    return data ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult impl_cuModuleLoad(CUmodule *module, const char *fname)
{
    char *data;
    CUresult res;

    if (!module || !fname)
        return CUDA_ERROR_INVALID_VALUE;
    res = file_read(fname, &data);
    if (res != CUDA_SUCCESS)
        return res;
    res = load(module, data, 0, NULL, NULL);
    free(data);
    return res;
}

CUresult impl_cuModuleUnload(CUmodule hmod)
{
    struct module *module = (struct module *)hmod;
    CUresult res;
    DRIVER_LOCKED;

    if (!object_is(module, OBJECT_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    if (module->library)
        return CUDA_ERROR_NOT_PERMITTED;
    res = module->ctx->sticky;
    if (res == CUDA_SUCCESS)
        res = capture_unsafe();
    if (res != CUDA_SUCCESS)
        return res;
    LOADING(module->ctx);
    context_drain(module->ctx);
    module_destroy(module);
    return CUDA_SUCCESS;
}

CUresult impl_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = driver.config.lazy ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

static struct function *module_function(struct module *module, unsigned index)
{
    struct function *function;

    for (function = module->functions; function; function = function->next) {
        if (function->index == index)
            return function;
    }
    function = object_new(OBJECT_FUNCTION, sizeof(*function));
    if (!function)
        return NULL;
    function->module = module;
    function->index = index;
    function->info = image_kernel(module->image, index);
    function->name = function->info->name;
    function->loaded = !driver.config.lazy;
    function->next = module->functions;
    function->attributes[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
    module->functions = function;
    return function;
}

static CUresult find_kernel(struct image *image, const char *name, unsigned *index)
{
    for (unsigned i = 0; i < image_n_kernels(image); i++) {
        if (strcmp(image_kernel(image, i)->name, name) == 0) {
            *index = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult impl_cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    struct module *module = (struct module *)hmod;
    struct function *function;
    unsigned index;
    CUresult res;
    DRIVER_LOCKED;

    if (!hfunc || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(module, OBJECT_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    if (module->ctx->sticky != CUDA_SUCCESS)
        return module->ctx->sticky;
    res = find_kernel(module->image, name, &index);
    if (res != CUDA_SUCCESS)
        return res;
    function = module_function(module, index);
    if (!function)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *hfunc = (CUfunction)function;
    log_detail("\"kernel\":\"%.200s\",\"function\":%llu", name,
               (unsigned long long)(uintptr_t)function);
    return CUDA_SUCCESS;
}

CUresult impl_cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
    DRIVER_LOCKED;

    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(mod, OBJECT_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    *count = image_n_kernels(((struct module *)mod)->image);
    return CUDA_SUCCESS;
}

CUresult impl_cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions,
                                         CUmodule mod)
{
    struct module *module = (struct module *)mod;
    DRIVER_LOCKED;

    if (!functions)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(module, OBJECT_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < numFunctions && i < image_n_kernels(module->image); i++)
        functions[i] = (CUfunction)module_function(module, i);
    handles_poison(functions, image_n_kernels(module->image), numFunctions);
    return CUDA_SUCCESS;
}

static CUresult global(struct module *module, CUdeviceptr *dptr, size_t *bytes, const char *name)
{
    size_t offset, size;

    if (!image_global(module->image, name, &offset, &size))
        return CUDA_ERROR_NOT_FOUND;
    if (dptr)
        *dptr = module->globals + offset;
    if (bytes)
        *bytes = size;
    return CUDA_SUCCESS;
}

CUresult impl_cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod,
                                   const char *name)
{
    DRIVER_LOCKED;

    if (!name || (!dptr && !bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(hmod, OBJECT_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    return global((struct module *)hmod, dptr, bytes, name);
}

/* ---- libraries ---- */

static CUresult library_load(CUlibrary *out, const void *code, unsigned n_options,
                             CUjit_option *options, void **values)
{
    struct library *library;
    struct image *image;
    const char *text;
    size_t n_text;
    CUresult res;

    if (!out || !code)
        return CUDA_ERROR_INVALID_VALUE;
    res = image_make(code, n_options, options, values, &image, &text, &n_text);
    if (res != CUDA_SUCCESS)
        return res;
    DRIVER_LOCKED;
    library = object_new(OBJECT_LIBRARY, sizeof(*library));
    if (!library) {
        image_unref(image);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    library->image = image;
    library->text = strndup(text, n_text);
    library->n_text = n_text;
    library->next = libraries;
    libraries = library;
    *out = (CUlibrary)library;
    return CUDA_SUCCESS;
}

CUresult impl_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                void **jitOptionsValues, unsigned int numJitOptions,
                                CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                unsigned int numLibraryOptions)
{
    if (numLibraryOptions && (!libraryOptions || !libraryOptionValues))
        return CUDA_ERROR_INVALID_VALUE;
    return library_load(library, code, numJitOptions, jitOptions, jitOptionsValues);
}

CUresult impl_cuLibraryLoadFromFile(CUlibrary *library, const char *fileName,
                                    CUjit_option *jitOptions, void **jitOptionsValues,
                                    unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                                    void **libraryOptionValues, unsigned int numLibraryOptions)
{
    char *data;
    CUresult res;

    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    if (!library || !fileName)
        return CUDA_ERROR_INVALID_VALUE;
    res = file_read(fileName, &data);
    if (res != CUDA_SUCCESS)
        return res;
    res = library_load(library, data, numJitOptions, jitOptions, jitOptionsValues);
    free(data);
    return res;
}

CUresult impl_cuLibraryUnload(CUlibrary handle)
{
    struct library *library = (struct library *)handle;
    struct library **link = &libraries;
    DRIVER_LOCKED;

    if (!object_is(library, OBJECT_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    for (struct context *ctx = driver.contexts; ctx; ctx = ctx->next) {
        struct module *module = ctx->modules;

        context_drain(ctx);
        while (module) {
            struct module *next = module->next;

            if (module->library == library)
                module_destroy(module);
            module = next;
        }
    }
    while (*link && *link != library)
        link = &(*link)->next;
    if (*link)
        *link = library->next;
    while (library->kernels) {
        struct kernel *kernel = library->kernels;

        library->kernels = kernel->next;
        object_free(kernel);
    }
    image_unref(library->image);
    free(library->text);
    object_free(library);
    return CUDA_SUCCESS;
}

static struct module *module_of(const struct library *library, const struct context *ctx)
{
    struct module *module = ctx->modules;

    while (module && module->library != library)
        module = module->next;
    return module;
}

static CUresult library_load_into(struct library *library, struct context *ctx,
                                  struct module **module)
{
    struct image *image;
    CUresult res;
    LOADING(ctx);

    res = load_result(loading_);
    if (res != CUDA_SUCCESS)
        return res;
    *module = module_of(library, ctx);
    if (*module) /* by another thread, for whose lock this one waited */
        return CUDA_SUCCESS;
    if (!library->image_taken || !image_globals_size(library->image)) {
        library->image_taken = true;
        return module_load(ctx, library->image, library, module);
    }
    if (!library->text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    res = image_load(library->text, library->n_text, &image, NULL, 0);
    if (res != CUDA_SUCCESS)
        return res;
    res = module_load(ctx, image, library, module);
    image_unref(image);
    return res;
}

static CUresult library_module(struct library *library, struct context *ctx, struct module **module)
{
    ctx = context_base(ctx);
    *module = module_of(library, ctx);
    return *module ? CUDA_SUCCESS : library_load_into(library, ctx, module);
}

CUresult impl_cuLibraryGetModule(CUmodule *pMod, CUlibrary handle)
{
    struct context *ctx;
    struct module *module;
    CUresult res;
    DRIVER_LOCKED;

    if (!pMod)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(handle, OBJECT_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = library_module((struct library *)handle, ctx, &module);
    if (res == CUDA_SUCCESS)
        *pMod = (CUmodule)module;
    return res;
}

static struct kernel *library_kernel(struct library *library, unsigned index)
{
    struct kernel *kernel;

    for (kernel = library->kernels; kernel; kernel = kernel->next) {
        if (kernel->index == index)
            return kernel;
    }
    kernel = object_new(OBJECT_KERNEL, sizeof(*kernel));
    if (!kernel)
        return NULL;
    kernel->library = library;
    kernel->index = index;
    kernel->info = image_kernel(library->image, index);
    kernel->attributes[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
    kernel->next = library->kernels;
    library->kernels = kernel;
    return kernel;
}

CUresult impl_cuLibraryGetKernel(CUkernel *pKernel, CUlibrary handle, const char *name)
{
    struct kernel *kernel;
    unsigned index;
    CUresult res;
    DRIVER_LOCKED;

    if (!pKernel || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(handle, OBJECT_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    res = find_kernel(((struct library *)handle)->image, name, &index);
    if (res != CUDA_SUCCESS)
        return res;
    kernel = library_kernel((struct library *)handle, index);
    if (!kernel)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pKernel = (CUkernel)kernel;
    return CUDA_SUCCESS;
}

CUresult impl_cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
    DRIVER_LOCKED;

    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(lib, OBJECT_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    *count = image_n_kernels(((struct library *)lib)->image);
    return CUDA_SUCCESS;
}

CUresult impl_cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    struct library *library = (struct library *)lib;
    DRIVER_LOCKED;

    if (!kernels)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(library, OBJECT_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < numKernels && i < image_n_kernels(library->image); i++)
        kernels[i] = (CUkernel)library_kernel(library, i);
    handles_poison(kernels, image_n_kernels(library->image), numKernels);
    return CUDA_SUCCESS;
}

CUresult impl_cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary handle,
                                 const char *name)
{
    struct context *ctx;
    struct module *module;
    CUresult res;
    DRIVER_LOCKED;

    if (!name || (!dptr && !bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(handle, OBJECT_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = library_module((struct library *)handle, ctx, &module);
    return res != CUDA_SUCCESS ? res : global(module, dptr, bytes, name);
}

/* ---- functions and kernels: one answers for the other where the driver allows it ---- */

static CUresult kernel_function(struct kernel *kernel, struct context *ctx,
                                struct function **function)
{
    struct module *module;
    CUresult res = library_module(kernel->library, ctx, &module);

    if (res != CUDA_SUCCESS)
        return res;
    *function = module_function(module, kernel->index);
    if (!*function)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!(*function)->kernel) {
        (*function)->kernel = kernel;
        (*function)->max_dynamic_shared =
            kernel->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
    }
    return CUDA_SUCCESS;
}

/* A module's functions run in the context that it was loaded in, a library's in its green ones too. */
static bool runs_in(const struct module *module, struct context *ctx)
{
    if (module->ctx == ctx)
        return true;
    return (module->library || driver.config.green_functions) && module->ctx == context_base(ctx);
}

CUresult function_resolve(CUfunction handle, struct context *ctx, struct function **function)
{
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (object_live(handle, OBJECT_KERNEL)) {
        CUresult res = kernel_function((struct kernel *)handle, ctx, function);

        if (res == CUDA_SUCCESS)
            res = function_load(*function);
        if (res == CUDA_SUCCESS) {
            int dynamic = ((struct kernel *)handle)
                              ->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];

            if (dynamic > (*function)->max_dynamic_shared)
                (*function)->max_dynamic_shared = dynamic;
        }
        return res;
    }
    if (!object_is(handle, OBJECT_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *function = (struct function *)handle;
    return runs_in((*function)->module, ctx) ? function_load(*function) : CUDA_ERROR_INVALID_HANDLE;
}

/* For the calls that take functions only, though a CUkernel can be launched as one. */
static CUresult function_only(CUfunction handle, struct function **function)
{
    struct context *ctx;
    CUresult res = context_current(&ctx);

    if (res != CUDA_SUCCESS)
        return res;
    return object_is(handle, OBJECT_FUNCTION) ? function_resolve(handle, ctx, function)
                                              : CUDA_ERROR_INVALID_HANDLE;
}

CUresult impl_cuKernelGetFunction(CUfunction *pFunc, CUkernel handle)
{
    struct context *ctx;
    struct function *function;
    CUresult res;
    DRIVER_LOCKED;

    if (!pFunc)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(handle, OBJECT_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = kernel_function((struct kernel *)handle, ctx, &function);
    if (res == CUDA_SUCCESS)
        *pFunc = (CUfunction)function;
    return res;
}

CUresult impl_cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    if (!pLib)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(kernel, OBJECT_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    *pLib = (CUlibrary)((struct kernel *)kernel)->library;
    return CUDA_SUCCESS;
}

CUresult impl_cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    if (!hmod)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(hfunc, OBJECT_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *hmod = (CUmodule)((struct function *)hfunc)->module;
    return CUDA_SUCCESS;
}

CUresult impl_cuFuncGetName(const char **name, CUfunction hfunc)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(hfunc, OBJECT_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *name = ((struct function *)hfunc)->name;
    return CUDA_SUCCESS;
}

CUresult impl_cuKernelGetName(const char **name, CUkernel hfunc)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(hfunc, OBJECT_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    *name = ((struct kernel *)hfunc)->info->name;
    return CUDA_SUCCESS;
}

static CUresult param_info(const struct kernel_info *info, size_t index, size_t *offset,
                           size_t *size)
{
    if (!offset || index >= info->n_params)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = info->params[index].offset;
    if (size)
        *size = info->params[index].size;
    return CUDA_SUCCESS;
}

CUresult impl_cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset,
                                 size_t *paramSize)
{
    CUresult res;
    DRIVER_LOCKED;

    if (!object_is(func, OBJECT_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    res = function_load((struct function *)func);
    if (res != CUDA_SUCCESS)
        return res;
    return param_info(((struct function *)func)->info, paramIndex, paramOffset, paramSize);
}

/* As reported of drivers: to be asked about its parameters, a kernel is loaded. It takes a context. */
static CUresult kernel_load(struct kernel *kernel)
{
    struct context *ctx;
    struct function *function;
    CUresult res;

    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = kernel_function(kernel, ctx, &function);
    return res != CUDA_SUCCESS ? res : function_load(function);
}

CUresult impl_cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                                   size_t *paramSize)
{
    CUresult res;
    DRIVER_LOCKED;

    if (!object_is(kernel, OBJECT_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    res = kernel_load((struct kernel *)kernel);
    if (res != CUDA_SUCCESS)
        return res;
    return param_info(((struct kernel *)kernel)->info, paramIndex, paramOffset, paramSize);
}

CUresult impl_cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(function, OBJECT_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *state = ((struct function *)function)->loaded ? CU_FUNCTION_LOADING_STATE_LOADED
                                                   : CU_FUNCTION_LOADING_STATE_UNLOADED;
    return CUDA_SUCCESS;
}

CUresult impl_cuFuncLoad(CUfunction function)
{
    DRIVER_LOCKED;

    return object_is(function, OBJECT_FUNCTION) ? function_load((struct function *)function)
                                                : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult attribute_get(const struct kernel_info *info, const int *set,
                              CUfunction_attribute attrib, int *pi)
{
    if (!pi || attrib < 0 || attrib >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attrib) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *pi = info->max_threads ? info->max_threads : 1024;
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *pi = (int)info->static_shared; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *pi = (int)info->local_bytes; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *pi = info->registers ? info->registers : 16; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *pi = driver.config.sm; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *pi = set[attrib] ? set[attrib] : 49152 - (int)info->static_shared;
        break;
    default: *pi = set[attrib]; break;
    }
    return CUDA_SUCCESS;
}

static CUresult attribute_set(const struct kernel_info *info, int *set, CUfunction_attribute attrib,
                              int value)
{
    switch (attrib) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value + (int)info->static_shared > 166912)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    set[attrib] = value;
    return CUDA_SUCCESS;
}

CUresult impl_cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    struct function *function;
    CUresult res;
    DRIVER_LOCKED;

    /* The driver knows a kernel here, and dereferences what else it is given. */
    if (object_live(hfunc, OBJECT_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    res = function_only(hfunc, &function);
    return res != CUDA_SUCCESS ? res
                               : attribute_get(function->info, function->attributes, attrib, pi);
}

CUresult impl_cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    struct function *function;
    CUresult res;
    DRIVER_LOCKED;

    res = function_only(hfunc, &function);
    if (res == CUDA_SUCCESS)
        res = attribute_set(function->info, function->attributes, attrib, value);
    if (res == CUDA_SUCCESS && attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        function->max_dynamic_shared = value;
    return res;
}

CUresult impl_cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    (void)config;
    return object_is(hfunc, OBJECT_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult impl_cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config)
{
    (void)config;
    return object_is(hfunc, OBJECT_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult impl_cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel,
                                   CUdevice dev)
{
    DRIVER_LOCKED;

    if (dev < 0 || dev >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!object_is(kernel, OBJECT_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    return attribute_get(((struct kernel *)kernel)->info, ((struct kernel *)kernel)->attributes,
                         attrib, pi);
}

CUresult impl_cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                                   CUdevice dev)
{
    DRIVER_LOCKED;

    if (dev < 0 || dev >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!object_is(kernel, OBJECT_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    return attribute_set(((struct kernel *)kernel)->info, ((struct kernel *)kernel)->attributes,
                         attrib, val);
}

CUresult impl_cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    (void)config;
    (void)dev;
    return object_is(kernel, OBJECT_KERNEL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- occupancy: threads, blocks and shared memory of a multiprocessor; registers are not modelled ---- */

int function_occupancy(const struct function *function, int block, size_t dynamic)
{
    size_t shared = function->info->static_shared + dynamic + 1024;
    int by_threads = 2048 / ((block + 31) / 32 * 32);
    int by_shared = (int)(167936 / shared);
    int n = by_threads < by_shared ? by_threads : by_shared;

    return n > 32 ? 32 : n;
}

CUresult impl_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
                                                                   int blockSize,
                                                                   size_t dynamicSMemSize,
                                                                   unsigned int flags)
{
    struct function *function;
    struct context *ctx;
    CUresult res;
    DRIVER_LOCKED;

    (void)flags;
    if (!numBlocks || blockSize <= 0 || blockSize > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = function_resolve(func, ctx, &function);
    if (res == CUDA_SUCCESS)
        *numBlocks = function_occupancy(function, blockSize, dynamicSMemSize);
    return res;
}

CUresult impl_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func,
                                                          int blockSize, size_t dynamicSMemSize)
{
    return impl_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
                                                                     dynamicSMemSize, 0);
}

CUresult impl_cuOccupancyMaxPotentialBlockSizeWithFlags(
    int *minGridSize, int *blockSize, CUfunction func,
    CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit,
    unsigned int flags)
{
    struct function *function;
    struct context *ctx;
    int limit, best = 0;
    CUresult res;

    (void)flags;
    if (!minGridSize || !blockSize)
        return CUDA_ERROR_INVALID_VALUE;
    {
        DRIVER_LOCKED;

        res = context_current(&ctx);
        if (res == CUDA_SUCCESS)
            res = function_resolve(func, ctx, &function);
        if (res != CUDA_SUCCESS)
            return res;
        limit = function->info->max_threads ? function->info->max_threads : 1024;
    }
    if (blockSizeLimit > 0 && blockSizeLimit < limit)
        limit = blockSizeLimit;
    for (int block = limit; block > 0; block -= 32) {
        size_t dynamic =
            blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(block) : dynamicSMemSize;
        int n = function_occupancy(function, block, dynamic);

        if (n * block > best) {
            best = n * block;
            *blockSize = block;
            *minGridSize = n * MULTIPROCESSORS;
        }
    }
    return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                               CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                               size_t dynamicSMemSize, int blockSizeLimit)
{
    return impl_cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func,
                                                          blockSizeToDynamicSMemSize,
                                                          dynamicSMemSize, blockSizeLimit, 0);
}

CUresult impl_cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func,
                                                      int numBlocks, int blockSize)
{
    struct function *function;
    struct context *ctx;
    size_t room, fixed, most;
    CUresult res;
    DRIVER_LOCKED;

    (void)blockSize;
    if (!dynamicSmemSize || numBlocks <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res == CUDA_SUCCESS)
        res = function_resolve(func, ctx, &function);
    if (res != CUDA_SUCCESS)
        return res;
    fixed = 1024 + function->info->static_shared;
    room = 167936 / (size_t)numBlocks;
    room = room > fixed ? room - fixed : 0;
    /* No more than a block may have, which is what was allowed by cuFuncSetAttribute(). */
    most = function->max_dynamic_shared ? (size_t)function->max_dynamic_shared
                                        : 49152 - function->info->static_shared;
    *dynamicSmemSize = room < most ? room : most;
    return CUDA_SUCCESS;
}
