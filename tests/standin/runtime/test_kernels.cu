// SPDX-License-Identifier: Apache-2.0
//
// Kernels of test_runtime.c, and launches of them as nvcc generates these. It is compiled twice: for the legacy default stream, and with
// PER_THREAD for the default stream of each thread.
#ifdef PER_THREAD
#define NAMED(name) name##_per_thread
#else
#define NAMED(name) name
#endif

static __device__ int counter = 5;
static __constant__ int step;

static __global__ void add(int *to, int n, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        to[i] += value;
}

static __global__ void count(int *to)
{
    *to = counter += step;
}

static __global__ void shared_bytes(int *to)
{
    extern __shared__ int room[];

    room[threadIdx.x] = threadIdx.x;
    __syncthreads();
    to[threadIdx.x] = room[blockDim.x - 1 - threadIdx.x];
}

extern "C" void NAMED(launch_add)(int *to, int n, int value, cudaStream_t stream)
{
    add<<<(n + 31) / 32, 32, 0, stream>>>(to, n, value);
}

extern "C" const void *NAMED(add_function)(void)
{
    return (const void *)add;
}

extern "C" void NAMED(launch_count)(int *to)
{
    count<<<1, 1>>>(to);
}

extern "C" const void *NAMED(shared_function)(void)
{
    return (const void *)shared_bytes;
}

extern "C" const void *NAMED(step_variable)(void)
{
    return (const void *)&step;
}

extern "C" const void *NAMED(counter_variable)(void)
{
    return (const void *)&counter;
}
