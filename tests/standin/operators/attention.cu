/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fused attention, behind scaled_dot_product_attention(): "flash" and "memory efficient", forward and backward.
 *
 * A weight is computed anew wherever it is needed, and kept nowhere. Where all keys of a query are masked its row is 0, as on the CPU.
 * What is not computed here traps: dropout, windows, sequences of different lengths in one tensor.
 */
#include "strides.cuh"
#include "types.cuh"

#include <math.h>
#include <stddef.h>

/* The layout of PyTorch's AttentionKernel<...>::Params, as far as it is used. Strides are in elements. */
struct efficient {
    char *q, *k, *v, *bias;
    const int *first_queries, *first_keys, *keys_of;
    unsigned diagonal;
    char *o;
    float *partial, *logs;
    int window;
    float scale;
    int head, head_v, n_queries, n_keys, n_keys_of_all;
    u8 mask;
    int q_row, k_row, v_row, bias_row, o_row, q_head, k_head, v_head;
    i64 bias_head, q_batch, k_batch, v_batch, bias_batch;
    int n_batches, n_heads;
    bool drops;
};

/* Likewise of AttentionBackwardKernel<...>::Params. */
struct efficient_backward {
    char *q, *k, *v, *bias;
    float *logs;
    char *o, *to_o;
    float *delta;
    const int *first_queries, *first_keys;
    char *to_q, *to_k, *to_v, *to_bias;
    float *space[2];
    i64 not_used;
    int window;
    float scale;
    int head, head_v, n_queries, n_keys, n_heads;
    u8 mask;
    i64 q_row, k_row, v_row, bias_row, to_o_row, to_bias_row;
    signed char packed;
    u64 random[5];
    float dropped;
    i64 o_head;
    int q_head, k_head, v_head;
    i64 bias_head, o_batch, q_batch, k_batch, v_batch, bias_batch, logs_batch, logs_head,
        delta_batch, delta_head;
    int n_batches, n_parts;
    i64 to_o_batch, to_q_batch, to_k_batch, to_v_batch, to_bias_batch, to_o_head, to_q_head,
        to_k_head, to_v_head, to_bias_head;
};

/* Likewise of Flash_fwd_params. */
struct flash {
    char *q, *k, *v;
    i64 q_batch, k_batch, v_batch, q_row, k_row, v_row, q_head, k_head, v_head;
    int n_heads, n_heads_k, heads_a_key;
    char *o;
    float *partial;
    i64 o_batch, o_row, o_head;
    char *weights;
    float *logs, *partial_logs;
    int n_batches, n_queries, n_keys, n_new, head, rounded[3], rotary, n_all;
    float scale, scale_of_powers_of_two;
    const int *first_queries, *first_keys, *left_pads, *keys_of;
};

static_assert(offsetof(efficient, o) == 64 && offsetof(efficient, q_row) == 120 &&
                  offsetof(efficient, drops) == 200,
              "as it is");
static_assert(offsetof(efficient_backward, scale) == 140 &&
                  offsetof(efficient_backward, packed) == 216 &&
                  offsetof(efficient_backward, o_head) == 272 &&
                  offsetof(efficient_backward, to_bias_head) == 456,
              "as it is");
static_assert(offsetof(flash, logs) == 160 && offsetof(flash, scale) == 216 &&
                  offsetof(flash, keys_of) == 248,
              "as it is");

/* Likewise of Flash_bwd_params, which begins with that. `rounded` are numbers of queries and of keys, and sizes of a head, made whole. */
struct flash_backward {
    flash forward;
    char not_used[216];
    char *to_o, *to_q, *to_k, *to_v;
    float *sums, *sums_k, *sums_v;
    i64 to_o_batch, to_o_row, to_o_head, to_q_batch, to_k_batch, to_v_batch, to_q_row, to_k_row,
        to_v_row, to_q_head, to_k_head, to_v_head;
    float *deltas;
};

static_assert(offsetof(flash_backward, to_o) == 472 && offsetof(flash_backward, deltas) == 624,
              "as it is");

struct tensor {
    char *at;
    i64 batch, head, row;
};

template <class T> __device__ T *row_of(const tensor &t, int batch, int head, int row)
{
    return (T *)t.at + batch * t.batch + head * t.head + row * t.row;
}

enum { ALL = 1 << 30 };

struct attention {
    tensor q, k, v, o, bias;
    int n_batches, n_heads, heads_a_key, n_queries, n_keys, head, head_v;
    float scale;
    int reach; /* query i sees key j where j <= i + reach */
};

/* A row of queries or of keys. */
struct place {
    int batch, head, row;
    __device__ place(i64 i, int n_heads, int n_rows)
        : batch((int)(i / n_rows / n_heads)), head((int)(i / n_rows % n_heads)),
          row((int)(i % n_rows))
    {
    }
};

template <class T, class U> __device__ double dot(const T *a, const U *b, int n)
{
    double sum = 0;
#pragma unroll 1
    for (int i = 0; i < n; i++)
        sum += (double)(float)a[i] * (float)b[i];
    return sum;
}

template <class T> __device__ float score(const attention &a, int batch, int head, int i, int j)
{
    if (j > i + a.reach)
        return -INFINITY;
    float s = (float)(dot(row_of<T>(a.q, batch, head, i),
                          row_of<T>(a.k, batch, head / a.heads_a_key, j), a.head) *
                      a.scale);
    return a.bias.at ? s + (float)row_of<T>(a.bias, batch, head, i)[j] : s;
}

enum { PART = 64 }; /* columns of a row that a thread computes at a time */

/* Part of a row that is a sum of rows with weights. Loops stay loops: unrolled ones make the module ten times as long. */
struct columns {
    double sums[PART];
    int n;

    __device__ columns(int left) : n(min((int)PART, left))
    {
#pragma unroll 1
        for (int c = 0; c < n; c++)
            sums[c] = 0;
    }
    template <class T> __device__ void add(double weight, const T *row)
    {
#pragma unroll 1
        for (int c = 0; c < n; c++)
            sums[c] += weight * (float)row[c];
    }
    template <class T> __device__ void put(T *to, double scale) const
    {
#pragma unroll 1
        for (int c = 0; c < n; c++)
            to[c] = T((float)(sums[c] * scale));
    }
};

/* The row of queries at @p; the logarithm of the sum of its weights. */
template <class T> __device__ float forward(const attention &a, const place &p)
{
    float most = -INFINITY;
    double all = 0;
    for (int j = 0; j < a.n_keys; j++)
        most = fmaxf(most, score<T>(a, p.batch, p.head, p.row, j));
    for (int j = 0; j < a.n_keys && most > -INFINITY; j++)
        all += expf(score<T>(a, p.batch, p.head, p.row, j) - most);
    T *to = row_of<T>(a.o, p.batch, p.head, p.row);
    for (int begin = 0; begin < a.head_v; begin += PART) {
        columns part(a.head_v - begin);
        for (int j = 0; j < a.n_keys && all > 0; j++)
            part.add(expf(score<T>(a, p.batch, p.head, p.row, j) - most) / all,
                     row_of<T>(a.v, p.batch, p.head / a.heads_a_key, j) + begin);
        part.put(to + begin, 1);
    }
    return all > 0 ? most + logf((float)all) : INFINITY;
}

__device__ inline int reach_of(int mask, int n_queries, int n_keys)
{
    if (mask > 2)
        __trap();
    return mask == 0 ? ALL : mask == 1 ? 0 : n_keys - n_queries;
}

template <class T> __device__ void efficient_forward(const efficient &p)
{
    if (p.first_queries || p.first_keys || p.keys_of || p.window || p.drops)
        __trap();
    attention a = { { p.q, p.q_batch, p.q_head, p.q_row },
                    { p.k, p.k_batch, p.k_head, p.k_row },
                    { p.v, p.v_batch, p.v_head, p.v_row },
                    { p.o, (i64)p.n_queries * p.o_row, p.head_v, p.o_row },
                    { p.bias, p.bias_batch, p.bias_head, p.bias_row },
                    p.n_batches,
                    p.n_heads,
                    1,
                    p.n_queries,
                    p.n_keys,
                    p.head,
                    p.head_v,
                    p.scale,
                    reach_of(p.mask, p.n_queries, p.n_keys) };
    int logs_row = (p.n_queries + 31) / 32 * 32;
    for (i64 i = first_element(); i < (i64)a.n_batches * a.n_heads * logs_row; i += all_threads()) {
        place at(i, a.n_heads, logs_row);
        float log_of = at.row < a.n_queries ? forward<T>(a, at) : INFINITY;
        if (p.logs)
            p.logs[i] = log_of;
    }
}

/* Gradients of queries, keys and values by the gradient of what came out, @to_o. @deltas: products of rows of it and of what came out, or NULL: they are computed here. */
template <class T> struct gradients {
    attention a;
    tensor to_o, to_q, to_k, to_v, to_bias;
    const float *logs, *deltas;
    i64 logs_batch, logs_head, deltas_batch, deltas_head;

    __device__ double weight(int batch, int head, int i, int j) const
    {
        float s = score<T>(a, batch, head, i, j);
        return s == -INFINITY ? 0 : expf(s - logs[batch * logs_batch + head * logs_head + i]);
    }
    __device__ double delta(int batch, int head, int i) const
    {
        return deltas
                   ? deltas[batch * deltas_batch + head * deltas_head + i]
                   : dot(row_of<T>(to_o, batch, head, i), row_of<T>(a.o, batch, head, i), a.head_v);
    }
    /* How the result changes with the score whose weight is @weight. @delta is of row i. */
    __device__ double gradient(double weight, double delta, int batch, int head, int i, int j) const
    {
        return weight * (dot(row_of<T>(to_o, batch, head, i),
                             row_of<T>(a.v, batch, head / a.heads_a_key, j), a.head_v) -
                         delta);
    }
    template <class To> __device__ void row_of_query(const place &at, To *to) const
    {
        double off = delta(at.batch, at.head, at.row);
        for (int begin = 0; begin < a.head; begin += PART) {
            columns part(a.head - begin);
            for (int j = 0; j < a.n_keys; j++) {
                double g = gradient(weight(at.batch, at.head, at.row, j), off, at.batch, at.head,
                                    at.row, j);
                part.add(g, row_of<T>(a.k, at.batch, at.head / a.heads_a_key, j) + begin);
                if (to_bias.at && !begin)
                    row_of<T>(to_bias, at.batch, at.head, at.row)[j] = T((float)g);
            }
            part.put(to + begin, a.scale);
        }
    }
    __device__ void row_of_key(const place &at, T *to) const
    {
        for (int begin = 0; begin < a.head; begin += PART) {
            columns part(a.head - begin);
            for (int i = 0; i < a.n_queries; i++)
                part.add(gradient(weight(at.batch, at.head, i, at.row), delta(at.batch, at.head, i),
                                  at.batch, at.head, i, at.row),
                         row_of<T>(a.q, at.batch, at.head, i) + begin);
            part.put(to + begin, a.scale);
        }
    }
    __device__ void row_of_value(const place &at, T *to) const
    {
        for (int begin = 0; begin < a.head_v; begin += PART) {
            columns part(a.head_v - begin);
            for (int i = 0; i < a.n_queries; i++)
                part.add(weight(at.batch, at.head, i, at.row),
                         row_of<T>(to_o, at.batch, at.head, i) + begin);
            part.put(to + begin, 1);
        }
    }
    /* All rows. @To: what rows of the queries' gradients hold. */
    template <class To> __device__ void run() const
    {
        i64 heads = (i64)a.n_batches * a.n_heads, queries = heads * a.n_queries,
            keys = heads * a.n_keys;
        for (i64 i = first_element(); i < queries + keys; i += all_threads()) {
            if (i < queries) {
                place at(i, a.n_heads, a.n_queries);
                row_of_query(at, row_of<To>(to_q, at.batch, at.head, at.row));
            } else {
                place at(i - queries, a.n_heads, a.n_keys);
                row_of_key(at, row_of<T>(to_k, at.batch, at.head, at.row));
                row_of_value(at, row_of<T>(to_v, at.batch, at.head, at.row));
            }
        }
    }
};

template <class T> __device__ void efficient_backward_of(const efficient_backward &p)
{
    if (p.first_queries || p.first_keys || p.window || p.packed != 1)
        __trap();
    i64 row = (i64)p.head * p.n_heads, row_v = (i64)p.head_v * p.n_heads;
    gradients<T> work = { { { p.q, p.q_batch, p.q_head, p.q_row },
                            { p.k, p.k_batch, p.k_head, p.k_row },
                            { p.v, p.v_batch, p.v_head, p.v_row },
                            { p.o, p.o_batch, p.o_head, row_v },
                            { p.bias, p.bias_batch, p.bias_head, p.bias_row },
                            p.n_batches,
                            p.n_heads,
                            1,
                            p.n_queries,
                            p.n_keys,
                            p.head,
                            p.head_v,
                            p.scale,
                            reach_of(p.mask, p.n_queries, p.n_keys) },
                          { p.to_o, p.to_o_batch, p.to_o_head, p.to_o_row },
                          { p.to_q, p.to_q_batch, p.to_q_head, row },
                          { p.to_k, p.to_k_batch, p.to_k_head, row },
                          { p.to_v, p.to_v_batch, p.to_v_head, row_v },
                          { p.to_bias, p.to_bias_batch, p.to_bias_head, p.to_bias_row },
                          p.logs,
                          nullptr,
                          p.logs_batch,
                          p.logs_head,
                          0,
                          0 };
    work.template run<T>();
}

__device__ inline attention of_flash(const flash &p, bool causal)
{
    if (p.first_queries || p.first_keys || p.left_pads || p.keys_of || p.weights)
        __trap();
    return { { p.q, p.q_batch, p.q_head, p.q_row },
             { p.k, p.k_batch, p.k_head, p.k_row },
             { p.v, p.v_batch, p.v_head, p.v_row },
             { p.o, p.o_batch, p.o_head, p.o_row },
             {},
             p.n_batches,
             p.n_heads,
             p.heads_a_key,
             p.n_queries,
             p.n_keys,
             p.head,
             p.head,
             p.scale,
             reach_of(causal ? 2 : 0, p.n_queries, p.n_keys) };
}

template <class T> __device__ void flash_forward(const flash &p, bool causal)
{
    attention a = of_flash(p, causal);
    for (i64 i = first_element(); i < (i64)a.n_batches * a.n_heads * a.n_queries;
         i += all_threads())
        p.logs[i] = forward<T>(a, place(i, a.n_heads, a.n_queries));
}

/* Gradients of queries are summed in float and in the last of three kernels become elements. A head of keys has a gradient for each head of queries. */
__device__ inline tensor sums_of(const flash_backward &p)
{
    i64 row = (i64)p.forward.n_heads * p.forward.rounded[2];
    return { (char *)p.sums, p.forward.rounded[0] * row, p.forward.rounded[2], row };
}

template <class T> __device__ void flash_deltas(const flash_backward &p)
{
    const flash &f = p.forward;
    tensor o = { f.o, f.o_batch, f.o_head, f.o_row },
           to_o = { p.to_o, p.to_o_batch, p.to_o_head, p.to_o_row };
    for (i64 i = first_element(); i < (i64)f.n_batches * f.n_heads * f.n_queries;
         i += all_threads()) {
        place at(i, f.n_heads, f.n_queries);
        p.deltas[((i64)at.batch * f.n_heads + at.head) * f.rounded[0] + at.row] =
            (float)dot(row_of<T>(to_o, at.batch, at.head, at.row),
                       row_of<T>(o, at.batch, at.head, at.row), f.head);
    }
}

template <class T> __device__ void flash_gradients(const flash_backward &p, bool causal)
{
    const flash &f = p.forward;
    gradients<T> work = { of_flash(f, causal),
                          { p.to_o, p.to_o_batch, p.to_o_head, p.to_o_row },
                          sums_of(p),
                          { p.to_k, p.to_k_batch, p.to_k_head, p.to_k_row },
                          { p.to_v, p.to_v_batch, p.to_v_head, p.to_v_row },
                          {},
                          f.logs,
                          p.deltas,
                          (i64)f.n_heads * f.n_queries,
                          f.n_queries,
                          (i64)f.n_heads * f.rounded[0],
                          f.rounded[0] };
    work.template run<float>();
}

template <class T> __device__ void flash_convert(const flash_backward &p)
{
    const flash &f = p.forward;
    tensor sums = sums_of(p), to_q = { p.to_q, p.to_q_batch, p.to_q_head, p.to_q_row };
    for (i64 i = first_element(); i < (i64)f.n_batches * f.n_heads * f.n_queries;
         i += all_threads()) {
        place at(i, f.n_heads, f.n_queries);
        for (int c = 0; c < f.head; c++)
            row_of<T>(to_q, at.batch, at.head, at.row)[c] =
                T(row_of<float>(sums, at.batch, at.head, at.row)[c]);
    }
}

#define EFFICIENT(T)                                                                               \
    extern "C" __global__ void attention_##T(efficient p)                                          \
    {                                                                                              \
        efficient_forward<T>(p);                                                                   \
    }                                                                                              \
    extern "C" __global__ void attention_gradient_##T(efficient_backward p)                        \
    {                                                                                              \
        efficient_backward_of<T>(p);                                                               \
    }
EFFICIENT(f32)
EFFICIENT(bf16)
EFFICIENT(f16)

#define FLASH_BACKWARD(T)                                                                          \
    extern "C" __global__ void attention_flash_deltas_##T(flash_backward p)                        \
    {                                                                                              \
        flash_deltas<T>(p);                                                                        \
    }                                                                                              \
    extern "C" __global__ void attention_flash_gradient_##T(flash_backward p)                      \
    {                                                                                              \
        flash_gradients<T>(p, false);                                                              \
    }                                                                                              \
    extern "C" __global__ void attention_flash_gradient_causal_##T(flash_backward p)               \
    {                                                                                              \
        flash_gradients<T>(p, true);                                                               \
    }                                                                                              \
    extern "C" __global__ void attention_flash_convert_##T(flash_backward p, int)                  \
    {                                                                                              \
        flash_convert<T>(p);                                                                       \
    }
FLASH_BACKWARD(bf16)
FLASH_BACKWARD(f16)

#define FLASH(T)                                                                                   \
    extern "C" __global__ void attention_flash_##T(flash p)                                        \
    {                                                                                              \
        flash_forward<T>(p, false);                                                                \
    }                                                                                              \
    extern "C" __global__ void attention_flash_causal_##T(flash p)                                 \
    {                                                                                              \
        flash_forward<T>(p, true);                                                                 \
    }
FLASH(bf16)
FLASH(f16)
