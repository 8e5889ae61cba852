/* SPDX-License-Identifier: Apache-2.0 */
/* Sorts of a dimension, and its largest or smallest elements: a thread a line. NaN is the largest number. */
#include "strides.cuh"
#include "tensor_info.cuh"
#include "types.cuh"

/* Whether @a comes before @b. */
template <class T> __device__ bool is_before(T a, T b, bool descending)
{
    typename math_of<T>::type first = descending ? a : b, second = descending ? b : a;
    if (first != first)
        return second == second;
    return first > second;
}

/* Stable. @values: what stands at the same places as @keys, and moves with them. */
template <class T>
__device__ void sort_lines(const tensor_info<T, unsigned> &keys, unsigned n_lines, unsigned n,
                           unsigned key_step, const tensor_info<i64, unsigned> &values,
                           unsigned value_step, bool descending)
{
    for (i64 line = first_element(); line < n_lines; line += all_threads()) {
        T *key = keys.data + info_offset(keys, (unsigned)line);
        i64 *value = values.data + info_offset(values, (unsigned)line);
        for (unsigned i = 1; i < n; i++) {
            T moved = key[i * key_step];
            i64 with = value[i * value_step];
            unsigned at = i;
            for (; at && is_before(moved, key[(at - 1) * key_step], descending); at--) {
                key[at * key_step] = key[(at - 1) * key_step];
                value[at * value_step] = value[(at - 1) * value_step];
            }
            key[at * key_step] = moved;
            value[at * value_step] = with;
        }
    }
}

/* The first @k elements in order, with their places; of equal ones those that stand first. A block a line. */
template <class T>
__device__ void take_first(const tensor_info<const T, unsigned> &from, unsigned n, unsigned k,
                           bool largest, unsigned line, unsigned step,
                           const tensor_info<T, unsigned> &to, unsigned to_step,
                           const tensor_info<i64, unsigned> &places, unsigned place_step)
{
    const T *element = from.data + info_offset(from, line);
    T *taken = to.data + info_offset(to, line);
    i64 *place = places.data + info_offset(places, line);
    for (unsigned got = 0; got < k; got++) {
        i64 best = -1;
        for (unsigned i = 0; i < n; i++) {
            bool left = !got || is_before(taken[(got - 1) * to_step], element[i * step], largest) ||
                        (!is_before(element[i * step], taken[(got - 1) * to_step], largest) &&
                         i > place[(got - 1) * place_step]);
            if (left && (best < 0 || is_before(element[i * step], element[best * step], largest)))
                best = i;
        }
        taken[got * to_step] = element[best * step];
        place[got * place_step] = best;
    }
}

/* By PyTorch's radix sort, whose last parameter is the order, and by its bitonic one, whose comparator is a type. */
#define SORT_BY(name, T, Last, descending)                                                         \
    extern "C" __global__ void name##_##T(                                                         \
        tensor_info<T, unsigned> keys, unsigned n_lines, unsigned n, unsigned key_step,            \
        tensor_info<i64, unsigned> values, unsigned value_step, Last last)                         \
    {                                                                                              \
        sort_lines(keys, n_lines, n, key_step, values, value_step, descending);                    \
    }
#define SORT(T)                                                                                    \
    SORT_BY(sort, T, bool, last)                                                                   \
    SORT_BY(sort_down, T, char, true)                                                              \
    SORT_BY(sort_up, T, char, false)                                                               \
    extern "C" __global__ void top_##T(                                                            \
        tensor_info<const T, unsigned> from, unsigned n, unsigned k, bool largest,                 \
        unsigned n_lines, unsigned step, tensor_info<T, unsigned> to, unsigned to_step,            \
        tensor_info<i64, unsigned> places, unsigned place_step, T *)                               \
    {                                                                                              \
        unsigned line = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);            \
        if (line < n_lines && !threadIdx.x)                                                        \
            take_first(from, n, k, largest, line, step, to, to_step, places, place_step);          \
    }

SORT(f32)
SORT(bf16)
SORT(i64)
SORT(i32)
