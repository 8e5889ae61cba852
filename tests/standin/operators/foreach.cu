/* SPDX-License-Identifier: Apache-2.0 */
/* Operators over lists of tensors, of which one launch takes several: _foreach_copy_(). */
#include "types.cuh"

/* The layout of at::native's TensorListMetadata for two lists: each block has a part of one tensor. */
struct tensor_lists {
    const void *data[2][64];
    i64 n_elements[64];
    u8 tensor_of[320];
    int part_of[320];
    int first_tensor;
};

enum { PART = 65536 }; /* elements */

template <class To, class From> __device__ void copy_lists(const tensor_lists &lists)
{
    int tensor = lists.tensor_of[blockIdx.x];
    i64 begin = (i64)lists.part_of[blockIdx.x] * PART, end = lists.n_elements[tensor];
    end = end < begin + PART ? end : begin + PART;
    for (i64 i = begin + threadIdx.x; i < end; i += blockDim.x)
        ((To *)lists.data[1][tensor])[i] =
            To((typename math_of<From>::type)((const From *)lists.data[0][tensor])[i]);
}

#define COPY(To, From)                                                                             \
    extern "C" __global__ void foreach_copy_##To##_##From(tensor_lists lists, char, char)          \
    {                                                                                              \
        copy_lists<To, From>(lists);                                                               \
    }
COPY(f32, f32)
COPY(bf16, bf16)
COPY(f16, f16)
COPY(i64, i64)
COPY(i32, i32)
COPY(bool, bool)
COPY(f32, bf16)
COPY(bf16, f32)
