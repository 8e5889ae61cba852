/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers as cuRAND's generator Philox4x32-10 gives them, by seed, thread and offset; what a program asserts on the device. */
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

/* In (0, 1]. */
__device__ inline float uniform_of(unsigned bits)
{
    return bits * 2.3283064365386963e-10f + 1.1641532182693481e-10f;
}

struct exponential {
    float *to;
    double rate;
    __device__ void put(i64 i, float uniform) const
    {
        float log_of =
            uniform >= 1 - 5.9604644775390625e-08f ? -5.9604644775390625e-08f : logf(uniform);
        to[i] = -1 / (float)rate * log_of;
    }
};

/* Each thread takes four numbers at a time, a grid apart. */
extern "C" __global__ void exponential_f32(i64 n, philox_state state, char, exponential work)
{
    u64 seed = state.captured ? (u64)*state.seed.at : state.seed.value,
        offset = state.captured ? (u64)*state.offset.at + state.more : state.offset.value;
    i64 thread = first_element(), threads = all_threads();
    for (i64 begin = thread; begin < n; begin += 4 * threads, offset += 4) {
        four drawn = philox(seed, (u64)thread, offset);
        for (int k = 0; k < 4 && begin + k * threads < n; k++)
            work.put(begin + k * threads, uniform_of(drawn.at[k]));
    }
}

struct message {
    char text[256];
};

extern "C" __global__ void assert_bool(const bool *holds, message)
{
    if (!*holds)
        __trap();
}
