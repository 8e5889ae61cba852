/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the serving engine, for one element type: the file that includes this one defines SERVE_NAME(x) and,
 * for bfloat16, SERVE_BF16. All arithmetic is in float; what is stored is rounded once.
 *
 * Each row of a result depends on that row of the inputs alone, and every sum is taken in an order that the row's own
 * shape gives. So a row's bits are the same in any batch, in any bucket, and for any number of rows a thread.
 */
#ifndef SERVE_KERNELS_CUH
#define SERVE_KERNELS_CUH

constexpr int HEAD = 64;
constexpr int LANES = 32; /* threads of a block that reduces */

#ifdef SERVE_BF16
typedef unsigned short elem;
typedef uint2 elem4;
static __device__ float widen(elem x)
{
    return __uint_as_float((unsigned)x << 16);
}
static __device__ elem narrow(float x)
{
    unsigned bits =
        __float_as_uint(x); /* to nearest, ties to even; no NaN is rounded to infinity */
    unsigned kept = (x != x) ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
    return (elem)(kept >> 16);
}
static __device__ float4 widen4(elem4 x)
{
    return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u),
                       __uint_as_float(x.y << 16), __uint_as_float(x.y & 0xffff0000u));
}
static __device__ elem4 narrow4(float4 x)
{
    return make_uint2((unsigned)narrow(x.x) | (unsigned)narrow(x.y) << 16,
                      (unsigned)narrow(x.z) | (unsigned)narrow(x.w) << 16);
}
#else
typedef float elem;
typedef float4 elem4;
static __device__ float widen(elem x)
{
    return x;
}
static __device__ elem narrow(float x)
{
    return x;
}
static __device__ float4 widen4(elem4 x)
{
    return x;
}
static __device__ elem4 narrow4(float4 x)
{
    return x;
}
#endif

/*
 * An option for debugging: instead of columns lo to hi-1 of a row, store who the row belongs to: rows[2*row] is the
 * request's number, rows[2*row+1] the token's position. Digits of 128, so that bfloat16 holds them exactly.
 */
struct mark {
    const int *rows; /* NULL: store the values */
    int lo, hi;
};

static __device__ float marked(const mark &m, int row, int column, float value)
{
    if (!m.rows || column < m.lo || column >= m.hi)
        return value;
    int digit = (column - m.lo) & 3;
    int number = m.rows[2 * row + (digit >> 1)];
    return (float)((digit & 1) ? number / 128 : number % 128);
}

/* ---- matrix products: out[n_rows][n_out] = x[n_rows][n_in] w, of which w holds four columns after another: [n_out/4][n_in][4] */

#define AHEAD (2048 / sizeof(elem)) /* what this thread and the next ones will read */

template <int R>
static __device__ void gemm(elem *out, const elem *x, const elem *w, int n_rows, int n_in,
                            int n_out, const mark &m)
{
    /* blocks that follow one another read the same weights, which lie in a cache then */
    int column = 4 * (blockIdx.y * blockDim.x + threadIdx.x), first = blockIdx.x * R;
    if (column >= n_out)
        return;
    float4 sum[R];
    const elem *in[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        sum[r] = make_float4(0, 0, 0, 0);
        in[r] = x + (long long)min(first + r, n_rows - 1) * n_in;
    }
    const elem *weight = w + (long long)column * n_in;
    for (int k = 0; k < n_in; k += 4) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(weight + 4 * k + AHEAD));
        float4 b[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            b[i] = widen4(*(const elem4 *)(weight + 4 * (k + i)));
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 a = widen4(*(const elem4 *)(in[r] + k));
            float each[4] = { a.x, a.y, a.z, a.w };
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[r].x = fmaf(each[i], b[i].x, sum[r].x);
                sum[r].y = fmaf(each[i], b[i].y, sum[r].y);
                sum[r].z = fmaf(each[i], b[i].z, sum[r].z);
                sum[r].w = fmaf(each[i], b[i].w, sum[r].w);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        int row = first + r;
        if (row < n_rows)
            *(elem4 *)(out + (long long)row * n_out + column) = narrow4(make_float4(
                marked(m, row, column, sum[r].x), marked(m, row, column + 1, sum[r].y),
                marked(m, row, column + 2, sum[r].z), marked(m, row, column + 3, sum[r].w)));
    }
}

/* A name of its own for each use, and for each number of rows a thread: the engine takes what fits the batch. */
#define GEMM(use, R)                                                                               \
    extern "C" __global__ void SERVE_NAME(gemm_##use##_r##R)(                                      \
        elem * out, const elem *x, const elem *w, int n_rows, int n_in, int n_out, mark m)         \
    {                                                                                              \
        gemm<R>(out, x, w, n_rows, n_in, n_out, m);                                                \
    }
/* Q, K and V side by side in one buffer. */
#define GEMM_QKV(R)                                                                                \
    extern "C" __global__ void SERVE_NAME(gemm_qkv_r##R)(elem * out, const elem *x, const elem *w, \
                                                         int n_rows, int n_in, int q_width,        \
                                                         int kv_width, mark m)                     \
    {                                                                                              \
        gemm<R>(out, x, w, n_rows, n_in, q_width + 2 * kv_width, m);                               \
    }
#define GEMMS(R) GEMM_QKV(R) GEMM(o, R) GEMM(gate_up, R) GEMM(down, R) GEMM(logits, R)
GEMMS(1)
GEMMS(4)

/* ---- rows */

extern "C" __global__ void SERVE_NAME(embed)(elem *out, const elem *table, const int *ids,
                                             int n_rows, int width, mark m)
{
    int row = blockIdx.x;
    const elem *in = table + (long long)ids[row] * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        out[(long long)row * width + i] = narrow(marked(m, row, i, widen(in[i])));
}

/* rows[i] of @in, of a model's last tokens. */
extern "C" __global__ void SERVE_NAME(gather_last)(elem *out, const elem *in, const int *rows,
                                                   int n_out, int width)
{
    const elem *row = in + (long long)rows[blockIdx.x] * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        out[(long long)blockIdx.x * width + i] = row[i];
}

static __device__ float sum_of_lanes(float x, float *shared)
{
    shared[threadIdx.x] = x;
    __syncthreads();
    for (int n = LANES / 2; n; n /= 2) {
        if (threadIdx.x < n)
            shared[threadIdx.x] += shared[threadIdx.x + n];
        __syncthreads();
    }
    float sum = shared[0];
    __syncthreads();
    return sum;
}

static __device__ float max_of_lanes(float x, float *shared)
{
    shared[threadIdx.x] = x;
    __syncthreads();
    for (int n = LANES / 2; n; n /= 2) {
        if (threadIdx.x < n)
            shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + n]);
        __syncthreads();
    }
    float most = shared[0];
    __syncthreads();
    return most;
}

/* @resid += @x where there is an @x, then RMSNorm of it with @weight. Marks: column 0 the residual, 1 the norm. */
static __device__ void norm(elem *out, elem *resid, const elem *x, const elem *weight, int width,
                            float eps, const mark &m)
{
    __shared__ float shared[LANES];
    int row = blockIdx.x;
    bool mark_resid = m.rows && m.lo == 0, mark_out = m.rows && m.lo == 1;
    mark all = { m.rows, 0, width }, none = { nullptr, 0, 0 };
    resid += (long long)row * width;
    out += (long long)row * width;
    float squares = 0;
    for (int i = threadIdx.x; i < width; i += LANES) {
        float value = widen(resid[i]);
        if (x) {
            value = widen(narrow(marked(mark_resid ? all : none, row, i,
                                        value + widen(x[(long long)row * width + i]))));
            resid[i] = narrow(value);
        }
        squares = fmaf(value, value, squares);
    }
    float scale = rsqrtf(sum_of_lanes(squares, shared) / width + eps);
    for (int i = threadIdx.x; i < width; i += LANES)
        out[i] = narrow(
            marked(mark_out ? all : none, row, i, widen(resid[i]) * scale * widen(weight[i])));
}

extern "C" __global__ void SERVE_NAME(norm_first)(elem *out, elem *resid, const elem *weight,
                                                  int n_rows, int width, float eps, mark m)
{
    norm(out, resid, nullptr, weight, width, eps, m);
}

/* One kernel for each place where a residual is added to and normalised: after attention, after the MLP, at the end. */
#define ADD_NORM(place)                                                                            \
    extern "C" __global__ void SERVE_NAME(add_norm_##place)(                                       \
        elem * out, elem * resid, const elem *x, const elem *weight, int n_rows, int width,        \
        float eps, mark m)                                                                         \
    {                                                                                              \
        norm(out, resid, x, weight, width, eps, m);                                                \
    }
ADD_NORM(attn)
ADD_NORM(mlp)
ADD_NORM(final)

/* mlp_post = silu(gate) * up, of [gate, up] side by side */
extern "C" __global__ void SERVE_NAME(silu_mul)(elem *out, const elem *gate_up, int n_rows,
                                                int width, mark m)
{
    const elem *gate = gate_up + 2 * (long long)blockIdx.x * width, *up = gate + width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float g = widen(gate[i]);
        out[(long long)blockIdx.x * width + i] =
            narrow(marked(m, blockIdx.x, i, g / (1 + expf(-g)) * widen(up[i])));
    }
}

/* ---- attention */

/* Rotate halves of the heads of Q and K; @turns: [position][cos, sin][32]. Marks: column 0 Q, 1 K. */
extern "C" __global__ void SERVE_NAME(rope)(elem *q_rot, elem *k_rot, const elem *qkv,
                                            const int *positions, const float *turns, int n_rows,
                                            int q_width, int kv_width, mark m)
{
    int row = blockIdx.x, at = blockIdx.y * HEAD, i = threadIdx.x;
    bool is_q = at < q_width;
    const elem *in = qkv + (long long)row * (q_width + 2 * kv_width) + at;
    elem *out = is_q ? q_rot + (long long)row * q_width + at
                     : k_rot + (long long)row * kv_width + at - q_width;
    const float *turn = turns + (long long)positions[row] * HEAD;
    float cosine = turn[i], sine = turn[i + HEAD / 2], a = widen(in[i]),
          b = widen(in[i + HEAD / 2]);
    mark all = { m.rows && m.lo == (is_q ? 0 : 1) ? m.rows : nullptr, 0, HEAD };
    out[i] = narrow(marked(all, row, i, a * cosine - b * sine));
    out[i + HEAD / 2] = narrow(marked(all, row, i + HEAD / 2, b * cosine + a * sine));
}

/* K after RoPE, and V out of the merged buffer, into the slots of the paged cache: [slot][kv_width]. */
extern "C" __global__ void SERVE_NAME(kv_write)(elem *k_cache, elem *v_cache, const elem *k_rot,
                                                const elem *qkv, const int *slots, int n_rows,
                                                int q_width, int kv_width)
{
    long long row = blockIdx.x, slot = slots[row];
    const elem *v = qkv + row * (q_width + 2 * kv_width) + q_width + kv_width;
    for (int i = threadIdx.x; i < kv_width; i += blockDim.x) {
        k_cache[slot * kv_width + i] = k_rot[row * kv_width + i];
        v_cache[slot * kv_width + i] = v[i];
    }
}

static __device__ float dot_head(const elem *a, const elem *b)
{
    float sum = 0;
    for (int i = 0; i < HEAD; i += 4) {
        float4 x = widen4(*(const elem4 *)(a + i)), y = widen4(*(const elem4 *)(b + i));
        sum = fmaf(x.x, y.x, sum);
        sum = fmaf(x.y, y.y, sum);
        sum = fmaf(x.z, y.z, sum);
        sum = fmaf(x.w, y.w, sum);
    }
    return sum;
}

/*
 * One block for a row and a query head: positions 0 to positions[row] of the row's request, whose blocks of @block_size
 * slots @tables[of_request[row]] lists. Dynamic shared memory holds a float for each position.
 */
extern "C" __global__ void SERVE_NAME(attention)(elem *z, const elem *q_rot, const elem *k_cache,
                                                 const elem *v_cache, const int *tables,
                                                 const int *of_request, const int *positions,
                                                 int n_rows, int q_width, int kv_width,
                                                 int block_size, int table_width, mark m)
{
    extern __shared__ float weights[];
    __shared__ float shared[LANES];
    int row = blockIdx.x, head = blockIdx.y, n = positions[row] + 1;
    int kv_head = head / (q_width / kv_width);
    const elem *q = q_rot + (long long)row * q_width + head * HEAD;
    const int *table = tables + (long long)of_request[row] * table_width;
    float most = -INFINITY;
    for (int t = threadIdx.x; t < n; t += LANES) {
        long long slot = (long long)table[t / block_size] * block_size + t % block_size;
        weights[t] = dot_head(q, k_cache + slot * kv_width + kv_head * HEAD) * 0.125f;
        most = fmaxf(most, weights[t]);
    }
    most = max_of_lanes(most, shared);
    float sum = 0;
    for (int t = threadIdx.x; t < n; t += LANES) {
        weights[t] = expf(weights[t] - most);
        sum += weights[t];
    }
    sum = sum_of_lanes(sum, shared);
    int column = 4 * threadIdx.x;
    if (column >= HEAD)
        return;
    float4 mixed = make_float4(0, 0, 0, 0);
    for (int t = 0; t < n; t++) {
        long long slot = (long long)table[t / block_size] * block_size + t % block_size;
        float4 v = widen4(*(const elem4 *)(v_cache + slot * kv_width + kv_head * HEAD + column));
        mixed.x = fmaf(weights[t], v.x, mixed.x);
        mixed.y = fmaf(weights[t], v.y, mixed.y);
        mixed.z = fmaf(weights[t], v.z, mixed.z);
        mixed.w = fmaf(weights[t], v.w, mixed.w);
    }
    column += head * HEAD;
    *(elem4 *)(z + (long long)row * q_width + column) = narrow4(make_float4(
        marked(m, row, column, mixed.x / sum), marked(m, row, column + 1, mixed.y / sum),
        marked(m, row, column + 2, mixed.z / sum), marked(m, row, column + 3, mixed.w / sum)));
}

/* ---- greedy sampling */

struct best {
    float value;
    int at;
};

static __device__ bool better(best a, best b)
{
    return a.value > b.value || (a.value == b.value && a.at < b.at);
}

/* The most likely token of each row; of equal ones the first. @width: of the vocabulary, or this rank's part of it. */
extern "C" __global__ void SERVE_NAME(argmax)(best *out, const elem *logits, int n_rows, int width)
{
    __shared__ best shared[LANES];
    const elem *row = logits + (long long)blockIdx.x * width;
    best mine = { -INFINITY, width };
    for (int i = threadIdx.x; i < width; i += LANES) {
        best other = { widen(row[i]), i };
        if (better(other, mine))
            mine = other;
    }
    shared[threadIdx.x] = mine;
    __syncthreads();
    for (int n = LANES / 2; n; n /= 2) {
        if (threadIdx.x < n && better(shared[threadIdx.x + n], shared[threadIdx.x]))
            shared[threadIdx.x] = shared[threadIdx.x + n];
        __syncthreads();
    }
    if (!threadIdx.x)
        out[blockIdx.x] = shared[0];
}
#endif
