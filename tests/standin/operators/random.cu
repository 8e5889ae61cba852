/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers as PyTorch makes them of cuRAND's generator Philox4x32-10, by seed, thread and offset; what a program asserts on the device. */
#include "strides.cuh"
#include "types.cuh"

/* The layout of at::PhiloxCudaState. In a graph both lie in memory that is filled before a replay. */
struct philox_state {
    union {
        u64 value;
        i64 *at;
    } seed, offset;
    u64 more;
    bool captured;
};

struct four {
    unsigned at[4];
};

/* Source: Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (2011), figure 2 and table 2. */
__device__ inline four philox(u64 seed, u64 thread, u64 offset)
{
    unsigned key0 = (unsigned)seed, key1 = (unsigned)(seed >> 32);
    four c = { { (unsigned)(offset / 4), (unsigned)(offset / 4 >> 32), (unsigned)thread,
                 (unsigned)(thread >> 32) } };
    for (int round = 0; round < 10; round++) {
        u64 low = (u64)0xD2511F53 * c.at[0], high = (u64)0xCD9E8D57 * c.at[2];
        c = { { (unsigned)(high >> 32) ^ c.at[1] ^ key0, (unsigned)high,
                (unsigned)(low >> 32) ^ c.at[3] ^ key1, (unsigned)low } };
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
    return c;
}

/*
 * What a thread draws of four words at a time, as cuRAND makes it of them.
 * Source: the toolkit's headers of cuRAND for uniform and normal numbers: intervals are (0, 1]; Box and Muller, sine first.
 */
struct four_uniform {
    typedef float drawn;
    enum { n = 4 };
    __device__ static float of(unsigned bits)
    {
        return bits * 2.3283064365386963e-10f + 1.1641532182693481e-10f;
    }
    __device__ static float get(const four &words, int k)
    {
        return of(words.at[k]);
    }
};

struct four_normal {
    typedef float drawn;
    enum { n = 4 };
    __device__ static float get(const four &words, int k)
    {
        float length = sqrtf(-2 * logf(four_uniform::of(words.at[k & ~1])));
        float angle = words.at[k | 1] * 1.4629180792671596e-9f + 7.314590396335798e-10f;
        return length * (k & 1 ? cosf(angle) : sinf(angle));
    }
};

__device__ inline double two_words(const four &words, int k)
{
    return (double)((u64)words.at[2 * k] ^ (u64)words.at[2 * k + 1] << 21);
}

struct two_uniform {
    typedef double drawn;
    enum { n = 2 };
    __device__ static double get(const four &words, int k)
    {
        return two_words(words, k) * 0x1p-53 + 0x1p-54;
    }
};

struct two_normal {
    typedef double drawn;
    enum { n = 2 };
    __device__ static double get(const four &words, int k)
    {
        double length = sqrt(-2 * log(two_uniform::get(words, 0)));
        double halves = two_words(words, 1) * 0x1p-52 + 0x1p-53;
        return length * (k ? cospi(halves) : sinpi(halves));
    }
};

struct four_words {
    typedef unsigned drawn;
    enum { n = 4 };
    __device__ static unsigned get(const four &words, int k)
    {
        return words.at[k];
    }
};

struct two_long_words {
    typedef u64 drawn;
    enum { n = 2 };
    __device__ static u64 get(const four &words, int k)
    {
        return (u64)words.at[2 * k] << 32 | words.at[2 * k + 1];
    }
};

/* An element of a number that was drawn. */

/* In [low, high): a number that comes out as @high is @low. */
template <class T> struct uniform {
    typename math_of<T>::type range;
    T low, high;
    template <class D> __device__ T from(D drawn) const
    {
        typedef typename math_of<T>::type M;
        T x = T((M)drawn * range + (M)low);
        return (M)x == (M)high ? low : x;
    }
};

template <class T> struct normal {
    typename math_of<T>::type mean, deviation;
    template <class D> __device__ T from(D drawn) const
    {
        return T((typename math_of<T>::type)drawn * deviation + mean);
    }
};

template <class T> struct exponential {
    typename math_of<T>::type rate;
    template <class D> __device__ T from(D drawn) const
    {
        D nearly = sizeof(D) == 8 ? (D)1.1102230246251565e-16 : (D)5.9604644775390625e-08;
        D log_of = drawn >= 1 - nearly ? -nearly : log(drawn);
        return T((typename math_of<T>::type)(-1 / (D)rate * log_of));
    }
};

template <class T> struct bernoulli {
    double p;
    template <class D> __device__ T from(D drawn) const
    {
        return T((float)(drawn < p));
    }
};

template <class T> struct whole {
    u64 range;
    i64 least;
    template <class D> __device__ T from(D drawn) const
    {
        return T((typename math_of<T>::type)((i64)(drawn % range) + least));
    }
};

/* Where elements go that are a step apart, and others. */
template <class F> struct stepped {
    char *to;
    int step;
    F make;
    __device__ char *at(i64 i) const
    {
        return to + i * step;
    }
};

template <class F> struct scattered {
    strides<1> shape;
    char *to;
    F make;
    __device__ char *at(i64 i) const
    {
        unsigned offset;
        shape.get((unsigned)i, &offset);
        return to + offset;
    }
};

/* Each thread takes what four words make, a grid apart. */
template <class T, class Drawn, class Work>
__device__ void fill(i64 n, const philox_state &state, const Work &work)
{
    u64 seed = state.captured ? (u64)*state.seed.at : state.seed.value,
        offset = state.captured ? (u64)*state.offset.at + state.more : state.offset.value;
    i64 thread = first_element(), threads = all_threads();
    for (i64 begin = thread; begin < n; begin += Drawn::n * threads, offset += 4) {
        four words = philox(seed, (u64)thread, offset);
        for (int k = 0; k < Drawn::n && begin + k * threads < n; k++)
            *(T *)work.at(begin + k * threads) = work.make.from(Drawn::get(words, k));
    }
}

/* The one of one byte is a functor without fields, which draws. */
#define FILL(name, T, Drawn)                                                                       \
    extern "C" __global__ void name##_##T(i64 n, philox_state state, char, stepped<name<T>> work)  \
    {                                                                                              \
        fill<T, Drawn>(n, state, work);                                                            \
    }                                                                                              \
    extern "C" __global__ void name##_scattered_##T(i64 n, philox_state state, char,               \
                                                    scattered<name<T>> work)                       \
    {                                                                                              \
        fill<T, Drawn>(n, state, work);                                                            \
    }
#define FILLS(T, Uniform, Normal)                                                                  \
    FILL(uniform, T, Uniform)                                                                      \
    FILL(normal, T, Normal) FILL(exponential, T, Uniform) FILL(bernoulli, T, Uniform)
FILLS(f32, four_uniform, four_normal)
FILLS(bf16, four_uniform, four_normal)
FILLS(f16, four_uniform, four_normal)
FILLS(f64, two_uniform, two_normal)
FILL(whole, f32, four_words)
FILL(whole, bf16, four_words)
FILL(whole, f16, four_words)
FILL(whole, i64, four_words)
FILL(whole, i32, four_words)
FILL(whole, i16, four_words)
FILL(whole, i8, four_words)
FILL(whole, u8, four_words)
FILL(whole, bool, four_words)
template <class T> using whole_far = whole<T>;
FILL(whole_far, i64, two_long_words)

struct message {
    char text[256];
};

extern "C" __global__ void assert_bool(const bool *holds, message)
{
    if (!*holds)
        __trap();
}
