/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/function/layouts.h"

#include "core/any.h"
#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/grow.h"
#include "core/locked.h"
#include "preload/base/driver.h"
#include "preload/base/handles.h"
#include "preload/base/stream.h"
#include "preload/function/naming.h"
#include "preload/image/image.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------------- the driver */

static bool fails; /* layouts_driver_fails() */

static CUresult ask_one(const void *handle, enum func_type type, size_t i, size_t *offset,
                        size_t *size)
{
    if (type == FUNC_KERNEL)
        return driver_table.cuKernelGetParamInfo
                   ? driver_table.cuKernelGetParamInfo((CUkernel)handle, i, offset, size)
                   : CUDA_ERROR_NOT_SUPPORTED;
    return driver_table.cuFuncGetParamInfo
               ? driver_table.cuFuncGetParamInfo((CUfunction)handle, i, offset, size)
               : CUDA_ERROR_NOT_SUPPORTED;
}

struct params_layout *layouts_ask(const void *handle, enum func_type type)
{
    struct param_place at[LAYOUT_MAX_PARAMS];
    uint32_t n = 0;
    CUresult r = CUDA_SUCCESS;
    struct stream_relaxed relaxed = stream_relax();
    while (n < LAYOUT_MAX_PARAMS && r == CUDA_SUCCESS) {
        size_t offset = 0, size = 0;
        r = ask_one(handle, type, n, &offset, &size);
        if (r == CUDA_SUCCESS)
            at[n++] = (struct param_place){ (uint32_t)offset, (uint32_t)size };
    }
    stream_unrelax(&relaxed);
    /* the call ends the list with INVALID_VALUE; any other error means that it does not work */
    return r == CUDA_SUCCESS || r == CUDA_ERROR_INVALID_VALUE ? layout_new(at, n) : NULL;
}

void layouts_driver_fails(void)
{
    atomic_store_relaxed(&fails, true);
}

static bool driver_tells(void)
{
    return driver_table.cuFuncGetParamInfo && driver_table.cuKernelGetParamInfo &&
           !atomic_load_relaxed(&fails);
}

/* ------------------------------------------------------------------------- images */

struct noted_kernel {
    char *name;
    struct params_layout *layout; /* NULL: the image contradicts itself */
};

/* Of one module or library. Changed before it is in the table only; read under the lock. */
struct noted_image {
    const struct spec *spec;
    uint32_t n;
    struct noted_kernel *kernels;
};

static struct handles table = HANDLES_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void noted_free(struct noted_image *noted)
{
    for (uint32_t i = 0; noted && i < noted->n; i++) {
        free(noted->kernels[i].name);
        free(noted->kernels[i].layout);
    }
    if (noted)
        free(noted->kernels);
    free(noted);
}

static bool may_match(const struct spec *spec, const char *name)
{
    struct spec_match match;
    return naming_match(spec, name, &match);
}

static struct noted_kernel *kernel_of(const struct noted_image *noted, const char *name)
{
    return FIRST(i, noted->n, !strcmp(noted->kernels[i].name, name), &noted->kernels[i], NULL);
}

static void add(struct noted_image *noted, const char *name, const struct param_place *at,
                uint32_t n)
{
    if (ONE_MORE(noted->kernels, noted->n))
        return;
    struct noted_kernel kernel = { strdup(name), layout_new(at, n) };
    if (kernel.name && kernel.layout) {
        noted->kernels[noted->n++] = kernel;
        return;
    }
    free(kernel.name);
    free(kernel.layout);
}

/*
 * A fatbin names a kernel once for each device that it has code for. They agree, as CUDA's programming guide demands
 * ("__CUDA_ARCH__ Macro"); if they do not, nobody can tell which one runs.
 */
static void note_kernel(void *ctx, const char *name, size_t n_name, const struct param_place *at,
                        uint32_t n)
{
    struct noted_image *noted = ctx;
    _cleanup_(freep) char *own = strndup(name, n_name);
    if (!own)
        return;
    struct noted_kernel *known = kernel_of(noted, own);
    if (!known && may_match(noted->spec, own)) {
        add(noted, own, at, n);
    } else if (known && known->layout &&
               (known->layout->n != n || memcmp(known->layout->at, at, n * sizeof *at))) {
        free(known->layout);
        known->layout = NULL;
    }
}

static void keep(const void *owner, struct noted_image *noted)
{
    struct noted_image *before = LOCKED(&lock, handles_set(&table, owner, noted));
    noted_free(before); /* @noted itself where the table is full: then its kernels are refused */
}

/* Compute capability of the current context's device times ten; 0: not known. */
static uint32_t current_arch(void)
{
    CUdevice device;
    int major = 0, minor = 0;
    if (driver_table.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
        driver_table.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                          device) != CUDA_SUCCESS ||
        driver_table.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                          device) != CUDA_SUCCESS)
        return 0;
    return (uint32_t)(major * 10 + minor);
}

/* @n_image: SIZE_MAX: unknown. */
static void note(const struct spec *spec, const void *owner, bool library, const void *image,
                 size_t n_image)
{
    struct noted_image *noted = calloc(1, sizeof *noted);
    if (!noted)
        return;
    noted->spec = spec;
    struct layout_sink sink = { note_kernel, noted };
    uint32_t arch = library ? 0 : current_arch();
    /* what cannot be read leaves kernels out, and a site that needs one of them says so */
    if (n_image == SIZE_MAX)
        image_read_loaded(image, arch, &sink);
    else
        image_read(image, n_image, arch, &sink);
    keep(owner, noted);
}

void layouts_note(const struct spec *spec, const void *owner, bool library, const void *image)
{
    layouts_drop(owner);
    if (image && !driver_tells())
        note(spec, owner, library, image, SIZE_MAX);
}

/* The file's bytes. Return: NULL if it cannot be read; free() it. */
static void *read_file(const char *path, size_t *n)
{
    struct stat st;
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > (off_t)IMAGE_MAX_BYTES)
        return NULL;
    _cleanup_(freep) char *bytes = malloc((size_t)st.st_size + 1);
    ssize_t got = 1;
    for (*n = 0; bytes && got > 0 && *n<(size_t)st.st_size; *n += got> 0 ? (size_t)got : 0)
        got = read(fd, bytes + *n, (size_t)st.st_size - *n);
    return steal_ptr(bytes);
}

void layouts_note_file(const struct spec *spec, const void *owner, bool library, const char *path)
{
    size_t n = 0;
    layouts_drop(owner);
    if (!path || driver_tells())
        return;
    _cleanup_(freep) void *image = read_file(path, &n);
    if (image)
        note(spec, owner, library, image, n);
}

struct params_layout *layouts_find(const void *owner, const char *name)
{
    struct params_layout *copy = NULL;
    if (!owner)
        return NULL;
    pthread_mutex_lock(&lock);
    const struct noted_image *noted = handles_find(&table, owner);
    const struct noted_kernel *kernel = noted ? kernel_of(noted, name) : NULL;
    if (kernel && kernel->layout)
        copy = layout_new(kernel->layout->at, kernel->layout->n);
    pthread_mutex_unlock(&lock);
    return copy;
}

bool layouts_has(const void *owner)
{
    pthread_mutex_lock(&lock);
    const struct noted_image *noted = handles_find(&table, owner);
    bool any = noted && noted->n;
    pthread_mutex_unlock(&lock);
    return any;
}

void layouts_drop(const void *owner)
{
    if (handles_find(&table, owner))
        keep(owner, NULL);
}

void layouts_reset(void)
{
    /* as functions_reset() */
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    table = fresh;
    lock = unlocked;
}
