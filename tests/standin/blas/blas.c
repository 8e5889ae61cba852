/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blas.c - kernels of the doubles of libcublas and libcublasLt, and their launch
 */
#include "blas.h"

#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const char blas_ptx[] __attribute__((visibility("hidden")));

static struct {
    pthread_once_t once;
    CUlibrary library;
    PFN_cuLibraryLoadData_v12000 load;
    PFN_cuLibraryGetKernel_v12000 get_kernel;
    PFN_cuLaunchKernelEx_v11060 launch;
    PFN_cuThreadExchangeStreamCaptureMode_v10010 exchange;
} blas = { .once = PTHREAD_ONCE_INIT };

static void resolve(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    PFN_cuGetProcAddress_v12000 find =
        driver ? (PFN_cuGetProcAddress_v12000)dlsym(driver, "cuGetProcAddress_v2") : NULL;
    if (!find)
        return;
    const struct {
        const char *name;
        void *to;
        int version;
    } wanted[] = { { "cuLibraryLoadData", &blas.load, 12000 },
                   { "cuLibraryGetKernel", &blas.get_kernel, 12000 },
                   { "cuLaunchKernelEx", &blas.launch, 11060 },
                   { "cuThreadExchangeStreamCaptureMode", &blas.exchange, 10010 } };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (find(wanted[i].name, wanted[i].to, wanted[i].version, CU_GET_PROC_ADDRESS_DEFAULT,
                 NULL))
            return;
    if (blas.load(&blas.library, blas_ptx, NULL, NULL, 0, NULL, NULL, 0))
        blas.library = NULL;
}

enum blas_status blas_boot(void)
{
    pthread_once(&blas.once, resolve);
    return blas.library ? BLAS_SUCCESS : BLAS_NOT_INITIALIZED;
}

static const char *kernel_name(enum blas_type in, enum blas_type out)
{
    static const struct {
        enum blas_type in, out;
        const char *name;
    } kernels[] = {
        { BLAS_R_32F, BLAS_R_32F, "standin_gemm_f32" },
        { BLAS_R_64F, BLAS_R_64F, "standin_gemm_f64" },
        { BLAS_R_16BF, BLAS_R_16BF, "standin_gemm_bf16" },
        { BLAS_R_16F, BLAS_R_16F, "standin_gemm_f16" },
        { BLAS_R_16BF, BLAS_R_32F, "standin_gemm_bf16_f32" },
        { BLAS_R_16F, BLAS_R_32F, "standin_gemm_f16_f32" },
    };
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].in == in && kernels[i].out == out)
            return kernels[i].name;
    return NULL;
}

static CUresult launch(CUkernel kernel, const struct blas_gemm *gemm)
{
    enum { THREADS = 128 };
    const void *arguments[] = { &gemm->a, &gemm->b, &gemm->c, &gemm->d, &gemm->bias, &gemm->shape };
    CUlaunchConfig config = {
        .gridDimX = (unsigned)((gemm->shape.m * gemm->shape.n + THREADS - 1) / THREADS),
        .gridDimY = 1,
        .gridDimZ = (unsigned)gemm->n_batch,
        .blockDimX = THREADS,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = gemm->stream,
    };
    return blas.launch(&config, (CUfunction)kernel, (void **)arguments, NULL);
}

enum blas_status blas_multiply(const struct blas_gemm *gemm)
{
    const char *name = kernel_name(gemm->in, gemm->out);
    if (!name)
        return BLAS_NOT_SUPPORTED;
    if (!gemm->shape.m || !gemm->shape.n || !gemm->n_batch)
        return BLAS_SUCCESS;
    CUkernel kernel = NULL;
    if (blas.get_kernel(&kernel, blas.library, name))
        return BLAS_EXECUTION_FAILED;
    /* The first launch loads the kernel into the context, which a capture forbids otherwise. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    blas.exchange(&mode);
    CUresult result = launch(kernel, gemm);
    blas.exchange(&mode);
    return result ? BLAS_EXECUTION_FAILED : BLAS_SUCCESS;
}

void blas_set_scales(struct gemm_shape *shape, const void *alpha, const void *beta,
                     enum blas_type type, int on_device)
{
    shape->scales_on_device = on_device;
    if (on_device) {
        shape->alpha_at = (unsigned long long)alpha;
        shape->beta_at = (unsigned long long)beta;
    } else if (type == BLAS_R_64F) {
        shape->alpha = *(const double *)alpha;
        shape->beta = *(const double *)beta;
    } else {
        shape->alpha = *(const float *)alpha;
        shape->beta = *(const float *)beta;
    }
}

static int is_new(const char *name)
{
    static const char *told[256];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    size_t i = 0;
    pthread_mutex_lock(&lock);
    while (i < 256 && told[i] && strcmp(told[i], name))
        i++;
    int is = i < 256 && !told[i];
    if (is)
        told[i] = name;
    pthread_mutex_unlock(&lock);
    return is;
}

int blas_lacks(const char *function)
{
    const char *path = getenv("DMI_STANDIN_MISSING");
    if (is_new(function)) {
        fprintf(stderr, "DMI's double of cuBLAS has no %s: CUBLAS_STATUS_NOT_SUPPORTED\n",
                function);
        int fd = path && *path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
        if (fd >= 0) {
            dprintf(fd, "%s\n", function);
            close(fd);
        }
    }
    return BLAS_NOT_SUPPORTED;
}
