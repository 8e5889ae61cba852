/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elementwise.cuh - one functor over all elements, in the layouts in which PyTorch passes operands
 *
 * A functor is a struct with the fields of the one that it stands for, the type `out` of its result, the number `n` of its
 * inputs, and `from(load)`, which computes one element of what load.get<T>(input) gives. Tensor 0 is the output.
 * Every kernel takes any grid and any block: PyTorch's choice of elements a thread is not known here.
 */
#ifndef OPERATORS_ELEMENTWISE_CUH
#define OPERATORS_ELEMENTWISE_CUH

#include "strides.cuh"
#include "types.cuh"

template <int n> struct pointers {
    char *at[n];
};

template <int n> struct load_cast {
    signed char types[n];
    unsigned sizes[n];
};

/* All tensors are dense. */
template <int n> struct dense {
    const pointers<n + 1> &data;
    i64 i;
    template <class T> __device__ T get(int input) const
    {
        return ((const T *)data.at[input + 1])[i];
    }
};

/* So they are, of types that are known at the launch. */
template <int n> struct dense_cast {
    const pointers<n + 1> &data;
    const load_cast<n> &types;
    i64 i;
    template <class T> __device__ T get(int input) const
    {
        return fetch<T>(types.types[input], data.at[input + 1] + i * types.sizes[input]);
    }
};

template <int n> struct strided {
    const pointers<n + 1> &data;
    unsigned offsets[n + 1];
    template <class T> __device__ T get(int input) const
    {
        return *(const T *)(data.at[input + 1] + offsets[input + 1]);
    }
};

template <int n> struct strided_cast {
    const pointers<n + 1> &data;
    const signed char *types;
    unsigned offsets[n + 1];
    template <class T> __device__ T get(int input) const
    {
        return fetch<T>(types[input + 1], data.at[input + 1] + offsets[input + 1]);
    }
};

/* What a lambda holds by which PyTorch reaches strided tensors. */
template <class F> struct strided_work {
    strides<F::n + 1> shape;
    pointers<F::n + 1> data;
    F f;
};

template <class F> struct strided_cast_work {
    strides<F::n + 1> shape;
    pointers<F::n + 1> data;
    F f;
    signed char types[F::n + 1];
};

template <class F> __device__ void run_dense(int n, const F &f, const pointers<F::n + 1> &data)
{
    for (i64 i = first_element(); i < n; i += all_threads()) {
        dense<F::n> load = { data, i };
        ((typename F::out *)data.at[0])[i] = f.from(load);
    }
}

template <class F>
__device__ void run_dense_cast(int n, const F &f, const pointers<F::n + 1> &data,
                               const load_cast<F::n> &types, const load_cast<1> &to)
{
    for (i64 i = first_element(); i < n; i += all_threads()) {
        dense_cast<F::n> load = { data, types, i };
        store<typename F::out>(to.types[0], data.at[0] + i * to.sizes[0], f.from(load));
    }
}

template <class F> __device__ void run_strided(int n, const strided_work<F> &work)
{
    for (i64 i = first_element(); i < n; i += all_threads()) {
        strided<F::n> load = { work.data };
        work.shape.get((unsigned)i, load.offsets);
        *(typename F::out *)(work.data.at[0] + load.offsets[0]) = work.f.from(load);
    }
}

template <class F> __device__ void run_strided_cast(int n, const strided_cast_work<F> &work)
{
    for (i64 i = first_element(); i < n; i += all_threads()) {
        strided_cast<F::n> load = { work.data, work.types };
        work.shape.get((unsigned)i, load.offsets);
        store<typename F::out>(work.types[0], work.data.at[0] + load.offsets[0], work.f.from(load));
    }
}

#define ENTRY extern "C" __global__ void

#define DENSE(F)                                                                                   \
    ENTRY F##_dense(int n, F f, pointers<F::n + 1> data)                                           \
    {                                                                                              \
        run_dense(n, f, data);                                                                     \
    }
#define STRIDED(F)                                                                                 \
    ENTRY F##_strided(int n, strided_work<F> work)                                                 \
    {                                                                                              \
        run_strided(n, work);                                                                      \
    }
/* The two of one byte are calculators of offsets without fields. */
#define DENSE_CAST(F)                                                                              \
    ENTRY F##_dense_cast(int n, F f, pointers<F::n + 1> data, char, char, load_cast<F::n> types,   \
                         load_cast<1> to)                                                          \
    {                                                                                              \
        run_dense_cast(n, f, data, types, to);                                                     \
    }
#define STRIDED_CAST(F)                                                                            \
    ENTRY F##_strided_cast(int n, strided_cast_work<F> work)                                       \
    {                                                                                              \
        run_strided_cast(n, work);                                                                 \
    }

#endif
