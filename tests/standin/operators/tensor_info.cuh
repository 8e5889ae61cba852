/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_info.cuh - a tensor as PyTorch passes it to kernels that are not elementwise
 */
#ifndef OPERATORS_TENSOR_INFO_CUH
#define OPERATORS_TENSOR_INFO_CUH

/* The layout of at::cuda::detail's TensorInfo. */
template <class T, class Index> struct tensor_info {
    T *data;
    Index sizes[25], steps[25];
    int n_dims;
};

/* Where element @i lies. */
template <class T, class Index>
__device__ Index info_offset(const tensor_info<T, Index> &info, Index i)
{
    Index offset = 0;
    for (int dim = info.n_dims - 1; dim > 0; dim--) {
        offset += i % info.sizes[dim] * info.steps[dim];
        i /= info.sizes[dim];
    }
    return offset + i * info.steps[0];
}

#endif
