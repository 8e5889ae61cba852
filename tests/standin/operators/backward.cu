/* SPDX-License-Identifier: Apache-2.0 */
/* What a backward pass of a language model launches beyond elementwise kernels: gradients of softmax, the loss and its gradient, of embedding(). */
#include "strides.cuh"
#include "types.cuh"

/* @grad is already multiplied by @result where that is no logarithm: g - y * sum(g). The logarithm: g - exp(y) * sum(g). */
template <bool log_of, class To, class From>
__device__ void softmax_gradient(To *to, const From *grad, const From *result, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (float)grad[i];
    for (int i = 0; i < n; i++) {
        float g = grad[i], y = result[i];
        to[i] = To(g - (log_of ? expf(y) : y) * (float)sum);
    }
}

#define SOFTMAX_GRADIENT(name, log_of, From, To)                                                   \
    extern "C" __global__ void name##_##From##_##To(To *to, const From *grad, const From *result,  \
                                                    int n_rows, int step, int n, const bool *)     \
    {                                                                                              \
        for (i64 row = first_element(); row < n_rows; row += all_threads())                        \
            softmax_gradient<log_of>(to + row * step, grad + row * step, result + row * step, n);  \
    }
#define SOFTMAX_GRADIENTS(From, To)                                                                \
    SOFTMAX_GRADIENT(softmax_gradient, false, From, To)                                            \
    SOFTMAX_GRADIENT(log_softmax_gradient, true, From, To)
SOFTMAX_GRADIENTS(f32, f32)
SOFTMAX_GRADIENTS(bf16, bf16)
SOFTMAX_GRADIENTS(f32, bf16)

/* How much the loss of a row counts; @ignored classes count nothing. */
__device__ inline double weight_of(const float *weights, i64 target, i64 n_classes, i64 ignored)
{
    if (target == ignored)
        return 0;
    if (target < 0 || target >= n_classes)
        __trap();
    return weights ? weights[target] : 1;
}

extern "C" __global__ void loss_f32(float *loss, float *total, const float *rows,
                                    const i64 *targets, const float *weights, bool mean, i64 n,
                                    i64 n_classes_in_row, i64 n_classes, i64 ignored)
{
    if (threadIdx.x)
        return;
    double sum = 0, weight = 0;
    for (i64 row = 0; row < n; row++) {
        double w = weight_of(weights, targets[row], n_classes, ignored);
        if (w != 0)
            sum -= w * rows[row * n_classes_in_row + targets[row]];
        weight += w;
    }
    *total = (float)weight;
    *loss = (float)(mean ? sum / weight : sum);
}

/* The gradient is 0 already but at the targets. */
extern "C" __global__ void loss_gradient_f32(float *to, const float *grad, const i64 *targets,
                                             const float *weights, const float *total, bool mean,
                                             int n, int n_classes_in_row, i64 n_classes,
                                             i64 ignored)
{
    float one = -*grad / (mean ? *total : 1);
    for (int row = (int)first_element(); row < n; row += (int)all_threads()) {
        double w = weight_of(weights, targets[row], n_classes, ignored);
        if (w != 0)
            to[(i64)row * n_classes_in_row + targets[row]] = (float)w * one;
    }
}

/* A thread a column, so that rows of one token are added in their order. */
template <class T, class Index>
__device__ void embedding_gradient(const Index *tokens, const T *grad, T *to, int n, i64 width,
                                   int padding)
{
    for (i64 column = first_element(); column < width; column += all_threads())
        for (int row = 0; row < n; row++)
            if (tokens[row] != padding)
                to[tokens[row] * width + column] =
                    T((float)to[tokens[row] * width + column] + (float)grad[row * width + column]);
}

#define EMBEDDING_GRADIENT(T)                                                                      \
    extern "C" __global__ void embedding_gradient_##T(const i64 *tokens, const T *grad, T *to,     \
                                                      int n, i64 width, int padding)               \
    {                                                                                              \
        embedding_gradient(tokens, grad, to, n, width, padding);                                   \
    }
EMBEDDING_GRADIENT(f32)
EMBEDDING_GRADIENT(bf16)
