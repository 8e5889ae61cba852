/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of known parameters, for test_image.c, which says where each must lie. */
struct three {
    int a, b, c;
};
struct alignas(16) wide {
    float4 a;
    int b;
};
struct odd {
    unsigned char x[3];
};
struct huge {
    unsigned char x[5000];
};
struct empty {};

template <typename T> __global__ void named(T *p, int n, three s, double d)
{
    p[0] = (T)(n + s.b + d);
}
template __global__ void named<float>(float *, int, three, double);

extern "C" __global__ void none(void)
{
}

extern "C" __global__ void mixed(char c, short s, char e, const void *__restrict__ p, odd o, wide w,
                                 empty nothing, int *q)
{
    (void)nothing;
    *q = c + s + e + o.x[2] + w.b + ((const char *)p)[0];
}

extern "C" __global__ void constant(const __grid_constant__ wide w, int *p)
{
    *p = w.b;
}

/* over the 4 KiB that older drivers take: described by another attribute */
extern "C" __global__ void large(int *p, huge h, int n)
{
    *p = h.x[n];
}

/* more parameters than a spec can name */
#define FOUR(x)    char x##0, char x##1, char x##2, char x##3
#define SIXTEEN(x) FOUR(x##0), FOUR(x##1), FOUR(x##2), FOUR(x##3)
#define SIXTY(x)   SIXTEEN(x##0), SIXTEEN(x##1), SIXTEEN(x##2), SIXTEEN(x##3)
extern "C" __global__ void many(SIXTY(a), SIXTY(b), SIXTY(c), SIXTY(d), int *p)
{
    *p = a000 + d333;
}
