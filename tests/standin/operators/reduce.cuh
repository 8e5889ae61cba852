/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.cuh - reductions in the layout of at::native's ReduceOp; one thread an output
 *
 * The configuration says how PyTorch divides an output among threads and blocks. That is not followed: a thread folds all
 * inputs of its output, in their order. Sums of floats are kept in double, so they are nearer to the exact value than a GPU's.
 */
#ifndef OPERATORS_REDUCE_CUH
#define OPERATORS_REDUCE_CUH

#include "strides.cuh"
#include "types.cuh"

struct reduce_config {
    int element_size, n_inputs, n_outputs, step_input, step_output, blocks_per_output,
        input_mult[3], output_mult[2], block_width, block_height, n_threads;
    bool vectorized;
    int output_vector;
};

/* @Op has the fields of PyTorch's operation, `ident` the type of its neutral element. */
template <class Op> struct reduce_work {
    Op op;
    typename Op::ident ident;
    reduce_config config;
    strides<1> input;
    strides<2> output;
    const char *from;
    char *to[2];
    void *partial, *shared;
    int *semaphores;
    i64 base;
    bool accumulate, final_output;
    int n_outputs;
};

/* Sums go on in it. */
template <class T> struct wide_of {
    typedef T type;
};
template <> struct wide_of<float> {
    typedef double type;
};

/* What operations that add have in common. It is empty, so that their fields begin where PyTorch's do. */
template <class In, class M> struct adding {
    typedef M ident;
    typedef In in;
    typedef typename wide_of<M>::type wide;
    struct state {
        wide sum;
    };
    __device__ static state begin()
    {
        return { 0 };
    }
    __device__ static void fold(state &s, In value, i64)
    {
        s.sum += (M)value;
    }
};

template <class In, class Out, class M, class L> struct sum_op : adding<In, M> {
    L combine;
    __device__ void end(const typename adding<In, M>::state &s, char *const to[2], unsigned offset,
                        int) const
    {
        *(Out *)(to[0] + offset) = Out((M)s.sum);
    }
};

template <class In, class Out, class M> struct mean_op : adding<In, M> {
    M factor;
    __device__ void end(const typename adding<In, M>::state &s, char *const to[2], unsigned offset,
                        int) const
    {
        *(Out *)(to[0] + offset) = Out((M)s.sum * factor);
    }
};

template <class In, class Out, class M> struct norm_two_op : adding<In, M> {
    typedef typename adding<In, M>::state state;
    char none;
    __device__ static void fold(state &s, In value, i64)
    {
        s.sum += (typename adding<In, M>::wide)(M)value * (M)value;
    }
    __device__ void end(const state &s, char *const to[2], unsigned offset, int) const
    {
        *(Out *)(to[0] + offset) = Out((M)sqrt(s.sum));
    }
};

static_assert(sizeof(sum_op<int, int, long long, char>) == 1 &&
                  sizeof(mean_op<float, float, float>) == sizeof(float),
              "as PyTorch's");

template <class In, bool all> struct logic_op {
    char combine;
    typedef In ident;
    typedef In in;
    typedef bool state;
    __device__ static state begin()
    {
        return all;
    }
    __device__ static void fold(state &s, In value, i64)
    {
        bool is = (typename math_of<In>::type)value != 0;
        s = all ? s && is : s || is;
    }
    __device__ void end(const state &s, char *const to[2], unsigned offset, int) const
    {
        *(bool *)(to[0] + offset) = s;
    }
};

/* The largest or smallest, NaN before all others, the first of equal ones. @Index is the type in PyTorch's pair. */
template <class In, class Value, class Index, bool largest, bool values, bool indices>
struct extreme_op {
    char none;
    struct pair_ident {
        Value value;
        Index index;
    };
    template <class V, bool pair> struct ident_of {
        typedef pair_ident type;
    };
    template <class V> struct ident_of<V, false> {
        typedef V type;
    };
    typedef typename ident_of<Value, indices>::type ident;
    typedef In in;
    typedef typename math_of<In>::type M;
    struct state {
        M value;
        i64 index;
    };
    __device__ static state begin()
    {
        return { M(), -1 };
    }
    __device__ static void fold(state &s, In element, i64 at)
    {
        M value = element;
        bool nan = value != value, had_nan = s.value != s.value;
        if (s.index < 0 || (!had_nan && (nan || (largest ? value > s.value : value < s.value))))
            s = { value, at };
    }
    __device__ void end(const state &s, char *const to[2], unsigned offset, int n_outputs) const
    {
        if (values)
            *(In *)(to[0] + offset) = In(s.value);
        if (indices && !values)
            *(i64 *)(to[0] + offset) = s.index;
        if (indices && values) /* PyTorch scales the offset by the sizes of elements */
            *(i64 *)(to[1] + offset / sizeof(In) * sizeof(i64)) = s.index;
        (void)n_outputs;
    }
};

template <class In, class Out> struct variance_op {
    float correction;
    bool root;
    struct ident {
        float mean, m2;
        int n;
        float nf;
    };
    typedef In in;
    struct state {
        double mean, m2;
        i64 n;
    };
    __device__ static state begin()
    {
        return { 0, 0, 0 };
    }
    __device__ static void fold(state &s, In value, i64)
    {
        double delta = (double)(float)value - s.mean;
        s.n++;
        s.mean += delta / s.n;
        s.m2 += delta * ((double)(float)value - s.mean);
    }
    __device__ void end(const state &s, char *const to[2], unsigned offset, int n_outputs) const
    {
        double rest = s.n - (double)correction, variance = s.m2 / (rest > 0 ? rest : 0);
        *(Out *)(to[0] + offset) = Out((float)(root ? sqrt(variance) : variance));
        if (n_outputs > 1)
            *(Out *)(to[1] + offset) = Out((float)s.mean);
    }
};

template <class Op> __device__ void run_reduce(const reduce_work<Op> &work)
{
    /* PyTorch divides what 32 bits do not index into launches that go on with each other's results. */
    if (work.accumulate || !work.final_output)
        __trap();
    for (i64 output = first_element(); output < work.config.n_outputs; output += all_threads()) {
        unsigned offsets[2], at[1];
        work.output.get((unsigned)output, offsets);
        typename Op::state state = Op::begin();
        for (unsigned i = 0; i < (unsigned)work.config.n_inputs; i++) {
            work.input.get(i, at);
            Op::fold(state, *(const typename Op::in *)(work.from + offsets[1] + at[0]),
                     work.base + i);
        }
        work.op.end(state, work.to, offsets[0], work.n_outputs);
    }
}

#define REDUCE(name, ...)                                                                          \
    extern "C" __global__ void name(reduce_work<__VA_ARGS__> work)                                 \
    {                                                                                              \
        run_reduce(work);                                                                          \
    }

#endif
