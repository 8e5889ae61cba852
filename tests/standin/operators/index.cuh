/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.cuh - rows and elements that a tensor of indices names
 *
 * Elements are moved as they are, so a type is its size. What a lambda holds stands in the order of its first use there.
 * An index outside of its dimension traps, as PyTorch's assertions do.
 */
#ifndef OPERATORS_INDEX_CUH
#define OPERATORS_INDEX_CUH

#include "strides.cuh"
#include "tensor_info.cuh"
#include "types.cuh"

__device__ inline i64 checked(i64 index, i64 size)
{
    if (index < -size || index >= size)
        __trap();
    return index < 0 ? index + size : index;
}

/* x[i, j, ...] with tensors of indices, read or written. */
struct indexed {
    strides<3> shape;
    char *to;
    char *from;
    int n_indices;
    char *indices[25];
    i64 sizes[25], steps[25];
};

template <class T, bool puts> __device__ void run_indexed(i64 n, const indexed &work)
{
    for (i64 i = first_element(); i < n; i += all_threads()) {
        unsigned offsets[3];
        work.shape.get((unsigned)i, offsets);
        i64 at = 0;
        for (int k = 0; k < work.n_indices; k++)
            at += checked(*(const i64 *)(work.indices[k] + offsets[2]), work.sizes[k]) *
                  work.steps[k];
        *(T *)(work.to + offsets[0] + (puts ? at : 0)) =
            *(const T *)(work.from + offsets[1] + (puts ? 0 : at));
    }
}

/* index_copy_(): the step is in elements. */
struct index_copied {
    strides<3> shape;
    char *to, *indices, *from;
    i64 size, step;
};

template <class T> __device__ void run_index_copied(i64 n, const index_copied &work)
{
    for (i64 i = first_element(); i < n; i += all_threads()) {
        unsigned offsets[3];
        work.shape.get((unsigned)i, offsets);
        i64 at = *(const i64 *)(work.indices + offsets[1]);
        if (at < 0 || at >= work.size)
            __trap();
        ((T *)(work.to + offsets[0]))[at * work.step] = *(const T *)(work.from + offsets[2]);
    }
}

/* gather() and scatter_(). */
struct scattered {
    strides<3> shape;
    char *indices;
    i64 size;
    char none;
    char *to;
    i64 step, n;
    char *from;
};

template <class T, class Index, bool scatters>
__device__ void run_scattered(int n, const scattered &work)
{
    for (i64 i = first_element(); i < n; i += all_threads()) {
        unsigned offsets[3];
        work.shape.get((unsigned)i, offsets);
        i64 at = *(const Index *)(work.indices + offsets[2]);
        if (at < 0 || at >= work.size)
            __trap();
        ((T *)(work.to + offsets[0]))[scatters ? at * work.step : 0] =
            ((const T *)(work.from + offsets[1]))[scatters ? 0 : at * work.step];
    }
}

/* scatter_() of one value. */
template <class T> struct scatter_filled {
    strides<2> shape;
    char *indices;
    i64 size;
    char none;
    char *to;
    i64 step, n;
    T value;
};

template <class T, class Index>
__device__ void run_scatter_filled(int n, const scatter_filled<T> &work)
{
    for (i64 i = first_element(); i < n; i += all_threads()) {
        unsigned offsets[2];
        work.shape.get((unsigned)i, offsets);
        i64 at = *(const Index *)(work.indices + offsets[1]);
        if (at < 0 || at >= work.size)
            __trap();
        ((T *)(work.to + offsets[0]))[at * work.step] = work.value;
    }
}

/* Rows of bytes. */
template <class Index>
__device__ void run_gather_rows(char *to, const char *from, const Index *indices, int n,
                                i64 n_bytes, i64 size, i64 step, i64 to_step, bool below_zero)
{
    for (i64 i = first_element(); i < n * n_bytes; i += all_threads()) {
        i64 row = i / n_bytes, byte = i % n_bytes, at = indices[row];
        if (at < 0 && !below_zero)
            __trap();
        to[row * to_step + byte] = from[checked(at, size) * step + byte];
    }
}

/* Selection of rows where they are not of 16 bytes: @indices has one dimension, @inner elements lie at each index. */
template <class T, class Index>
__device__ void run_index_select(const tensor_info<T, unsigned> &to,
                                 const tensor_info<const T, unsigned> &from,
                                 const tensor_info<const Index, unsigned> &indices, int to_dim,
                                 int from_dim, unsigned inner, i64 size)
{
    unsigned n = 1;
    for (int dim = 0; dim < indices.n_dims; dim++)
        n *= indices.sizes[dim];
    for (i64 i = first_element(); i < (i64)n * inner; i += all_threads()) {
        unsigned which = (unsigned)(i / inner), element = (unsigned)(i % inner);
        i64 at = indices.data[info_offset(indices, which)];
        if (at < 0 || at >= size)
            __trap();
        to.data[which * to.steps[to_dim] + info_offset(to, element)] =
            from.data[at * from.steps[from_dim] + info_offset(from, element)];
    }
}

/* index_add_(), laid out as a selection of rows. A thread has an element of all rows, so that rows of one index are added in their order. */
template <class T>
__device__ void run_index_add(const tensor_info<T, unsigned> &to,
                              const tensor_info<const T, unsigned> &from,
                              const tensor_info<const i64, unsigned> &indices, int to_dim,
                              int from_dim, unsigned inner, i64 size, T alpha)
{
    typedef typename math_of<T>::type M;
    unsigned n = 1;
    for (int dim = 0; dim < indices.n_dims; dim++)
        n *= indices.sizes[dim];
    for (i64 element = first_element(); element < inner; element += all_threads())
        for (unsigned which = 0; which < n; which++) {
            i64 at = indices.data[info_offset(indices, which)];
            if (at < 0 || at >= size)
                __trap();
            T *sum = to.data + at * to.steps[to_dim] + info_offset(to, (unsigned)element);
            T more = T(
                (M)from.data[which * from.steps[from_dim] + info_offset(from, (unsigned)element)] *
                (M)alpha);
            *sum = T((M)*sum + (M)more);
        }
}

#endif
