/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that take something of each kind of the device: ptxas says how much, and dmi-sites has to find the same in the cubin. */
__constant__ float table[37];

extern "C" __global__ void plain(float *p)
{
    p[threadIdx.x] += 1;
}

/* shared and constant memory */
extern "C" __global__ void shared(float *p, int n)
{
    __shared__ float rows[300];
    rows[threadIdx.x] = p[threadIdx.x] * table[n];
    __syncthreads();
    p[threadIdx.x] = rows[n];
}

/* local memory: an array that is indexed by what the kernel is given */
extern "C" __global__ void local(int *p, int n, int m)
{
    int held[64];
    for (int i = 0; i < 64; i++)
        held[i] = p[i] * n;
    for (int i = 0; i < n; i++)
        held[(i * m) & 63] += held[(i + m) & 63];
    p[n] = held[m & 63];
}

/* many registers */
extern "C" __global__ void wide(float *p, int n)
{
    float held[48];
#pragma unroll
    for (int i = 0; i < 48; i++)
        held[i] = p[i * n];
#pragma unroll
    for (int i = 0; i < 48; i++)
        p[i * n + 1] = held[i] * held[(i * 5 + 7) % 48] + held[47 - i];
}
