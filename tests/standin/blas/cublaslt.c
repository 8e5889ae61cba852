/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cublaslt.c - the functions of libcublasLt.so.13 that PyTorch calls: products with a bias
 *
 * Source: cublasLt.h of CUDA 13.0. An attribute that is not known here is refused by its number.
 */
#include "blas.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DESC_POINTER_MODE = 2,
    DESC_TRANSA = 3,
    DESC_TRANSB = 4,
    DESC_EPILOGUE = 7,
    DESC_BIAS_POINTER = 8,
    DESC_SM_COUNT_TARGET = 15,
    DESC_BIAS_DATA_TYPE = 26
};
enum { EPILOGUE_DEFAULT = 1, EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4 };
enum { LAYOUT_BATCH_COUNT = 5, LAYOUT_BATCH_STRIDE = 6 };

/* Of 32 and 64 bytes at most, as the header's opaque structures. */
struct product {
    int compute, scale, epilogue, op_a, op_b, bias_type;
    const void *bias;
};

struct layout {
    int type, n_batch;
    uint64_t rows, columns;
    int64_t ld, batch;
};

struct answer {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

EXPORT size_t cublasLtGetVersion(void)
{
    return 130000;
}

EXPORT int cublasLtMatmulDescCreate(struct product **product, int compute, int scale)
{
    *product = calloc(1, sizeof **product);
    if (!*product)
        return BLAS_ALLOC_FAILED;
    **product = (struct product){
        .compute = compute, .scale = scale, .epilogue = EPILOGUE_DEFAULT, .bias_type = -1
    };
    return BLAS_SUCCESS;
}

EXPORT int cublasLtMatmulDescDestroy(struct product *product)
{
    free(product);
    return BLAS_SUCCESS;
}

static int take(void *to, size_t n, const void *from, size_t n_given)
{
    if (n != n_given)
        return BLAS_INVALID_VALUE;
    memcpy(to, from, n);
    return BLAS_SUCCESS;
}

static int lacks_attribute(const char *format, int attribute)
{
    static __thread char name[64];
    snprintf(name, sizeof name, format, attribute);
    char *kept = strdup(name); /* blas_lacks() keeps it */
    return kept ? blas_lacks(kept) : BLAS_NOT_SUPPORTED;
}

EXPORT int cublasLtMatmulDescSetAttribute(struct product *product, int attribute, const void *from,
                                          size_t n)
{
    int64_t unused;
    switch (attribute) {
    case DESC_TRANSA: return take(&product->op_a, sizeof product->op_a, from, n);
    case DESC_TRANSB: return take(&product->op_b, sizeof product->op_b, from, n);
    case DESC_EPILOGUE: return take(&product->epilogue, sizeof product->epilogue, from, n);
    case DESC_BIAS_POINTER: return take(&product->bias, sizeof product->bias, from, n);
    case DESC_BIAS_DATA_TYPE: return take(&product->bias_type, sizeof product->bias_type, from, n);
    case DESC_SM_COUNT_TARGET: return take(&unused, sizeof(int), from, n);
    default: return lacks_attribute("cublasLtMatmulDescSetAttribute of %d", attribute);
    }
}

EXPORT int cublasLtMatrixLayoutCreate(struct layout **layout, int type, uint64_t rows,
                                      uint64_t columns, int64_t ld)
{
    *layout = calloc(1, sizeof **layout);
    if (!*layout)
        return BLAS_ALLOC_FAILED;
    **layout =
        (struct layout){ .type = type, .n_batch = 1, .rows = rows, .columns = columns, .ld = ld };
    return BLAS_SUCCESS;
}

EXPORT int cublasLtMatrixLayoutDestroy(struct layout *layout)
{
    free(layout);
    return BLAS_SUCCESS;
}

EXPORT int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int attribute, const void *from,
                                            size_t n)
{
    switch (attribute) {
    case LAYOUT_BATCH_COUNT: return take(&layout->n_batch, sizeof layout->n_batch, from, n);
    case LAYOUT_BATCH_STRIDE: return take(&layout->batch, sizeof layout->batch, from, n);
    default: return lacks_attribute("cublasLtMatrixLayoutSetAttribute of %d", attribute);
    }
}

EXPORT int cublasLtMatmulPreferenceCreate(void **preference)
{
    *preference = malloc(1);
    return *preference ? BLAS_SUCCESS : BLAS_ALLOC_FAILED;
}

EXPORT int cublasLtMatmulPreferenceDestroy(void *preference)
{
    free(preference);
    return BLAS_SUCCESS;
}

/* Workspaces and alignments: the kernels need neither. */
EXPORT int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *from,
                                                size_t n)
{
    (void)attribute;
    (void)from;
    (void)n;
    return preference ? BLAS_SUCCESS : BLAS_INVALID_VALUE;
}

static int is_known(const struct product *product, const struct layout *a, const struct layout *b,
                    const struct layout *c, const struct layout *d)
{
    return a->type == b->type && c->type == d->type &&
           (product->bias_type < 0 || product->bias_type == d->type) &&
           !(product->epilogue & ~(EPILOGUE_DEFAULT | EPILOGUE_RELU | EPILOGUE_BIAS)) &&
           product->compute != 64 && product->compute != 65;
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, const struct product *product,
                                          const struct layout *a, const struct layout *b,
                                          const struct layout *c, const struct layout *d,
                                          void *preference, int n_wanted, struct answer *answers,
                                          int *n_answers)
{
    (void)handle;
    (void)preference;
    *n_answers = 0;
    if (!is_known(product, a, b, c, d))
        return blas_lacks("cublasLtMatmul of these types, or with this epilogue");
    if (n_wanted < 1)
        return BLAS_INVALID_VALUE;
    memset(answers, 0, sizeof *answers);
    *n_answers = 1;
    return BLAS_SUCCESS;
}

EXPORT int cublasLtMatmul(void *handle, const struct product *product, const void *alpha,
                          const void *a, const struct layout *a_layout, const void *b,
                          const struct layout *b_layout, const void *beta, const void *c,
                          const struct layout *c_layout, void *d, const struct layout *d_layout,
                          const void *algorithm, void *workspace, size_t n_workspace,
                          CUstream stream)
{
    int turned = product->op_a != BLAS_OP_N;
    (void)handle;
    (void)algorithm;
    (void)workspace;
    (void)n_workspace;
    if (blas_boot())
        return BLAS_NOT_INITIALIZED;
    if (!is_known(product, a_layout, b_layout, c_layout, d_layout))
        return blas_lacks("cublasLtMatmul of these types, or with this epilogue");
    struct blas_gemm gemm = {
        .a = a,
        .b = b,
        .c = c,
        .d = d,
        .bias = product->epilogue & EPILOGUE_BIAS ? product->bias : NULL,
        .in = (enum blas_type)a_layout->type,
        .out = (enum blas_type)d_layout->type,
        .n_batch = d_layout->n_batch,
        .stream = stream,
        .shape = { .m = (long long)d_layout->rows,
                   .n = (long long)d_layout->columns,
                   .k = (long long)(turned ? a_layout->rows : a_layout->columns),
                   .lda = a_layout->ld,
                   .ldb = b_layout->ld,
                   .ldc = c_layout->ld,
                   .ldd = d_layout->ld,
                   .a_batch = a_layout->batch,
                   .b_batch = b_layout->batch,
                   .c_batch = c_layout->batch,
                   .d_batch = d_layout->batch,
                   .a_turned = turned,
                   .b_turned = product->op_b != BLAS_OP_N,
                   .relu = !!(product->epilogue & EPILOGUE_RELU) },
    };
    blas_set_scales(&gemm.shape, alpha, beta, (enum blas_type)product->scale, 0);
    return blas_multiply(&gemm);
}
