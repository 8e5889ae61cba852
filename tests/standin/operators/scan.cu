/* SPDX-License-Identifier: Apache-2.0 */
/* cumsum() over the last dimension, over another one, or over a tensor of one line, which is cub's: a thread a line. */
#include "strides.cuh"
#include "types.cuh"

template <class M, class T>
__device__ void scan_line(T *to, const T *from, i64 n, i64 step, T begin)
{
    M sum = begin;
    for (i64 i = 0; i < n; i++)
        to[i * step] = T(sum += (M)from[i * step]);
}

template <class M, class T>
__device__ void scan_columns(T *to, const T *from, unsigned n_outer, unsigned n_inner, unsigned n,
                             T begin)
{
    for (i64 i = first_element(); i < (i64)n_outer * n_inner; i += all_threads()) {
        i64 at = i / n_inner * n_inner * n + i % n_inner;
        scan_line<M>(to + at, from + at, n, n_inner, begin);
    }
}

/* Tiles of a scan of cub's are prepared here: ours has none. */
extern "C" __global__ void begin_scan(void *, int)
{
}

#define SCAN(T, M)                                                                                 \
    extern "C" __global__ void scan_rows_##T(T *to, const T *from, unsigned n_rows, unsigned n,    \
                                             unsigned, T begin, char)                              \
    {                                                                                              \
        for (i64 row = first_element(); row < n_rows; row += all_threads())                        \
            scan_line<M>(to + row * n, from + row * n, n, 1, begin);                               \
    }                                                                                              \
    extern "C" __global__ void scan_columns_##T##_int(T *to, const T *from, unsigned n_outer,      \
                                                      unsigned n_inner, unsigned n, T begin, char) \
    {                                                                                              \
        scan_columns<M>(to, from, n_outer, n_inner, n, begin);                                     \
    }                                                                                              \
    extern "C" __global__ void scan_columns_##T##_long(                                            \
        T *to, const T *from, unsigned n_outer, unsigned n_inner, unsigned n, T begin, char)       \
    {                                                                                              \
        scan_columns<M>(to, from, n_outer, n_inner, n, begin);                                     \
    }

/* @Tiles: what cub knows of its tiles, a pointer for numbers that fit into a word with their state, else three. */
#define SCAN_ALL(T, M, Tiles)                                                                      \
    extern "C" __global__ void scan_all_##T(const T *from, T *to, Tiles, int, char, char,          \
                                            unsigned n)                                            \
    {                                                                                              \
        if (!first_element())                                                                      \
            scan_line<M>(to, from, n, 1, T(0));                                                    \
    }

struct three_pointers {
    void *at[3];
};

SCAN(f32, f64)
SCAN(bf16, f32)
SCAN(i64, i64)
SCAN(i32, i32)
SCAN_ALL(f32, f64, void *)
SCAN_ALL(bf16, f32, three_pointers)
SCAN_ALL(i64, i64, void *)
SCAN_ALL(i32, i32, void *)
