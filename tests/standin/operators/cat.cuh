/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cat.cuh - tensors of up to four dimensions, one after another along one of them
 */
#ifndef OPERATORS_CAT_CUH
#define OPERATORS_CAT_CUH

#include "strides.cuh"
#include "types.cuh"

struct cat_shape {
    unsigned sizes[4], steps[4];
};

/* @n inputs; shapes of those that are not contiguous. */
template <int n, int n_shapes> struct cat_inputs {
    const void *from[n];
    unsigned begin[n], size[n], n_elements[n]; /* along the dimension; in all */
    bool contiguous[n];
    cat_shape shapes[n_shapes];
};

/* Where element @i lies, in a tensor that has @size along @dim and otherwise the sizes of @shape. */
template <int n_dims>
__device__ unsigned cat_offset(const cat_shape &shape, const unsigned *steps, unsigned size,
                               int dim, unsigned i)
{
    unsigned offset = 0;
    for (int d = n_dims - 1; d >= 1; d--) {
        unsigned here = d == dim ? size : shape.sizes[d];
        offset += i % here * steps[d];
        i /= here;
    }
    return offset + i * steps[0];
}

template <class T, int n_dims, int n, int n_shapes>
__device__ void run_cat(T *to, const cat_inputs<n, n_shapes> &inputs, const cat_shape &shape,
                        int dim, unsigned step)
{
    unsigned which = blockIdx.y, size = inputs.size[which];
    const T *from = (const T *)inputs.from[which];
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < inputs.n_elements[which];
         i += gridDim.x * blockDim.x) {
        unsigned at =
            n_shapes == 1 || inputs.contiguous[which]
                ? i
                : cat_offset<n_dims>(shape, inputs.shapes[n_shapes == 1 ? 0 : which].steps, size,
                                     dim, i);
        to[inputs.begin[which] * step + cat_offset<n_dims>(shape, shape.steps, size, dim, i)] =
            from[at];
    }
}

/* Contiguous inputs by 16 bytes. The dimensions from @dim on are one, of @rest elements for each along @dim; sizes and steps of @shape are in 16 bytes. */
template <class T, int n_dims, int n, int n_shapes>
__device__ void run_cat_wide(u128 *to, const cat_inputs<n, n_shapes> &inputs,
                             const cat_shape &shape, int dim, unsigned rest)
{
    const unsigned each = sizeof(u128) / sizeof(T), which = blockIdx.y;
    unsigned size = inputs.size[which] * rest / each;
    const u128 *from = (const u128 *)inputs.from[which];
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < inputs.n_elements[which] / each;
         i += gridDim.x * blockDim.x)
        to[inputs.begin[which] * rest / each +
           cat_offset<n_dims>(shape, shape.steps, size, dim, i)] = from[i];
}

#endif
