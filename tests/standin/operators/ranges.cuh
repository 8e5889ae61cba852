/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranges.cuh - elements by their place in a tensor
 */
#ifndef OPERATORS_RANGES_CUH
#define OPERATORS_RANGES_CUH

#include "strides.cuh"
#include "tensor_info.cuh"
#include "types.cuh"

template <class M> struct arithmetic {
    M first, step;
};

template <class M, class T, class N> __device__ void run_arange(N n, const arithmetic<M> &f, T *to)
{
    for (i64 i = first_element(); i < n; i += all_threads())
        to[i] = T(f.first + f.step * (M)i);
}

template <bool upper, class T, class Index>
__device__ void run_triangle(const tensor_info<T, Index> &to,
                             const tensor_info<const T, Index> &from, i64 k)
{
    i64 n = 1;
    for (int dim = 0; dim < to.n_dims; dim++)
        n *= to.sizes[dim];
    for (i64 i = first_element(); i < n; i += all_threads()) {
        i64 rest = i, to_at = 0, from_at = 0, place[2] = { 0, 0 }; /* column and row */
        for (int dim = to.n_dims - 1; dim >= 0; dim--) {
            i64 at = rest % to.sizes[dim];
            rest /= to.sizes[dim];
            to_at += at * to.steps[dim];
            from_at += at * from.steps[dim];
            if (dim >= to.n_dims - 2)
                place[to.n_dims - 1 - dim] = at;
        }
        bool kept = upper ? place[0] - place[1] >= k : place[0] - place[1] <= k;
        to.data[to_at] = kept ? from.data[from_at] : T(0);
    }
}

#endif
