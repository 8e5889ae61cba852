/* SPDX-License-Identifier: Apache-2.0 */
/* Indexing: x[i], x[i] = y, embedding(), index_copy_(), gather(), scatter_(). */
#include "index.cuh"

#define SIZES(EACH) EACH(1, u8) EACH(2, i16) EACH(4, i32) EACH(8, i64) EACH(16, u128)

#define INDEXED(size, T)                                                                           \
    extern "C" __global__ void index_##size(i64 n, indexed work)                                   \
    {                                                                                              \
        run_indexed<T, false>(n, work);                                                            \
    }                                                                                              \
    extern "C" __global__ void index_put_##size(i64 n, indexed work)                               \
    {                                                                                              \
        run_indexed<T, true>(n, work);                                                             \
    }                                                                                              \
    extern "C" __global__ void index_copy_##size(i64 n, index_copied work)                         \
    {                                                                                              \
        run_index_copied<T>(n, work);                                                              \
    }
SIZES(INDEXED)

#define SCATTERED(size, T)                                                                         \
    extern "C" __global__ void gather_##size(int n, scattered work)                                \
    {                                                                                              \
        run_scattered<T, i64, false>(n, work);                                                     \
    }                                                                                              \
    extern "C" __global__ void gather_int_##size(int n, scattered work)                            \
    {                                                                                              \
        run_scattered<T, i32, false>(n, work);                                                     \
    }                                                                                              \
    extern "C" __global__ void scatter_##size(int n, scattered work)                               \
    {                                                                                              \
        run_scattered<T, i64, true>(n, work);                                                      \
    }                                                                                              \
    extern "C" __global__ void scatter_fill_##size(int n, scatter_filled<T> work)                  \
    {                                                                                              \
        run_scatter_filled<T, i64>(n, work);                                                       \
    }
SIZES(SCATTERED)

#define GATHER_ROWS(name, Index)                                                                   \
    extern "C" __global__ void gather_rows_##name(char *to, char *from, Index *indices, int n,     \
                                                  i64 n_bytes, i64 size, i64 step, i64 to_step,    \
                                                  bool below_zero)                                 \
    {                                                                                              \
        run_gather_rows(to, from, indices, n, n_bytes, size, step, to_step, below_zero);           \
    }
GATHER_ROWS(long, i64)
GATHER_ROWS(int, int)

#define INDEX_SELECT(name, T, Index)                                                               \
    extern "C" __global__ void index_select_##name(                                                \
        tensor_info<T, unsigned> to, tensor_info<const T, unsigned> from,                          \
        tensor_info<const Index, unsigned> indices, int to_dim, int from_dim, unsigned inner,      \
        i64 n)                                                                                     \
    {                                                                                              \
        run_index_select(to, from, indices, to_dim, from_dim, inner, n);                           \
    }
INDEX_SELECT(f32_long, f32, i64)
INDEX_SELECT(bf16_long, bf16, i64)
INDEX_SELECT(i64_long, i64, i64)
INDEX_SELECT(bool_long, bool, i64)
INDEX_SELECT(u8_long, u8, i64)
INDEX_SELECT(f32_int, f32, i32)
INDEX_SELECT(bf16_int, bf16, i32)
INDEX_SELECT(i64_int, i64, i32)
INDEX_SELECT(bool_int, bool, i32)
INDEX_SELECT(u8_int, u8, i32)

#define INDEX_ADD(T)                                                                               \
    extern "C" __global__ void index_add_##T(                                                      \
        tensor_info<T, unsigned> to, tensor_info<const T, unsigned> from,                          \
        tensor_info<const i64, unsigned> indices, int to_dim, int from_dim, unsigned inner,        \
        i64 size, i64, const void *, T alpha)                                                      \
    {                                                                                              \
        run_index_add(to, from, indices, to_dim, from_dim, inner, size, alpha);                    \
    }                                                                                              \
    extern "C" __global__ void index_add_many_##T(                                                 \
        tensor_info<T, unsigned> to, tensor_info<const T, unsigned> from,                          \
        tensor_info<const i64, unsigned> indices, int to_dim, int from_dim, unsigned,              \
        unsigned inner, i64 size, i64, const void *, T alpha)                                      \
    {                                                                                              \
        run_index_add(to, from, indices, to_dim, from_dim, inner, size, alpha);                    \
    }
INDEX_ADD(f32)
INDEX_ADD(bf16)
