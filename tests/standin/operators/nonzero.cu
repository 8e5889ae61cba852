/* SPDX-License-Identifier: Apache-2.0 */
/* What nonzero() and indexing by a mask launch: cub's sums and selections over flags, and PyTorch's own kernel that makes indices of places. */
#include "strides.cuh"
#include "types.cuh"

/* An iterator with a functor that holds nothing. */
template <class T> struct flags {
    const T *at;
    u64 none;
    __device__ bool is_set(u64 i) const
    {
        return (typename math_of<T>::type)at[i] != 0;
    }
};

__device__ inline bool is_first_thread()
{
    return !threadIdx.x && !blockIdx.x;
}

/* cub asks which code its own kernels are. */
extern "C" __global__ void empty()
{
}

/* The sum of all is the first block's, so the others' are 0. */
template <class T> __device__ void count(const flags<T> &given, int *to, u64 n)
{
    int sum = 0;
    for (u64 i = 0; i < n && !blockIdx.x; i++)
        sum += given.is_set(i);
    to[blockIdx.x] = sum;
}

extern "C" __global__ void sum_of_counts(const int *given, int *to, int n, char, int begin)
{
    if (!is_first_thread())
        return;
    for (int i = 0; i < n; i++)
        begin += given[i];
    *to = begin;
}

extern "C" __global__ void begin_selection(void *, int, int *n_selected)
{
    if (is_first_thread())
        *n_selected = 0;
}

template <class T>
__device__ void select(i64 first, const flags<T> &given, i64 *to, int *n_selected, int n)
{
    int found = 0;
    for (int i = 0; i < n; i++)
        if (given.is_set(i))
            to[found++] = first + i;
    *n_selected = found;
}

#define FLAGS(T)                                                                                   \
    extern "C" __global__ void count_##T(flags<T> given, int *to, u64 n, char, int begin)          \
    {                                                                                              \
        if (is_first_thread()) {                                                                   \
            count(given, to, n);                                                                   \
            *to += begin;                                                                          \
        }                                                                                          \
    }                                                                                              \
    extern "C" __global__ void count_by_block_##T(flags<T> given, int *to, u64 n)                  \
    {                                                                                              \
        if (!threadIdx.x)                                                                          \
            count(given, to, n);                                                                   \
    }                                                                                              \
    extern "C" __global__ void select_##T(i64 first, flags<T> given, i64 *to, int *n_selected,     \
                                          void *, char, char, int n)                               \
    {                                                                                              \
        if (is_first_thread())                                                                     \
            select(first, given, to, n_selected, n);                                               \
    }
FLAGS(bool)
FLAGS(f32)
FLAGS(bf16)
FLAGS(i64)
FLAGS(i32)

struct tensor_sizes {
    i64 at[16];
};

/* Places among all elements become indices, a row a dimension; rows after the last place are filled. */
extern "C" __global__ void indices_of_places(i64 *places, tensor_sizes sizes, int n_dims, i64 n,
                                             const i64 *n_found, i64 fill)
{
    for (i64 i = first_element(); i < n; i += all_threads()) {
        bool found = !n_found || i < *n_found;
        i64 place = places[i];
        for (int dim = n_dims - 1; dim >= 0; dim--) {
            places[i + dim * n] = found ? place % sizes.at[dim] : fill;
            place /= sizes.at[dim];
        }
    }
}
