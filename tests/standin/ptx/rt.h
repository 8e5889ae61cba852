/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What translated kernels are compiled with: this text comes before each. Included by run.c as
 * well, for struct rt_env. No float operation here contracts (-ffp-contract=off).
 */
#ifndef STANDIN_PTX_RT_H
#define STANDIN_PTX_RT_H
#include <fenv.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef unsigned __int128 u128;
typedef __int128 s128;

/* Generic addresses of the spaces that have no memory of their own in the device's address range. */
#define SHARED_BASE 0x100000000000ull
#define LOCAL_BASE  0x110000000000ull
#define PARAM_BASE  0x120000000000ull
#define WINDOW      0x10000000000ull
#define GRID_BASE                                                                                  \
    0x140000000000ull /* the workspace of blocks that run together; functions have 0x13... (ir.h) */

struct thread_id;
/* A tex instruction: as many coordinates as it has dimensions, in float or as whole elements */
struct rt_sample {
    u64 handle;
    u32 n, whole;
    float at[3];
    s32 element[3];
};
struct rt_env {
    u64 device_base, device_size;
    s64 alias_delta;
    int (*host_ok)(u64 address, size_t n);
    void (*fault)(u64 address) __attribute__((noreturn));
    void (*trap)(void) __attribute__((noreturn));
    void (*pause)(void);
    int (*set_conditional)(u64 handle, u32 value);
    const u64 *globals; /* device addresses of module variables */
    const u8 *params;
    u64 n_params;
    u8 *shared; /* static, then dynamic */
    u64 n_shared, static_shared, dynamic_shared;
    u8 *frames; /* n_threads * frame size, zeroed for each block */
    u8 *local;  /* n_threads * local size */
    u32 grid[3], block[3];
    u32 block_at[3];
    int (*print)(const struct rt_env *E, const struct thread_id *T, u64 format, u64 args);
    void (*sample)(const struct rt_env *E, const struct thread_id *T, const struct rt_sample *s,
                   u32 out[4]);
    void *owner;   /* ptx_grid's */
    u8 *workspace; /* of blocks that run together, NULL: of one that runs alone */
    u64 n_workspace;
    void (*look)(void); /* before looking at what another block may change; NULL where none runs */
    void (*trigger)(void), (*depend)(void); /* griddepcontrol's two; NULL: nothing */
};

struct thread_id {
    u32 x, y, z, linear;
    u8 *local;
    u64 n_local;
    struct rt_async *async; /* rt_matrix.h */
};

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define INLINE      static inline __attribute__((always_inline, unused))
#define SLOW        static __attribute__((noinline, unused))

SLOW void *slow_address(const struct rt_env *E, const struct thread_id *T, u64 a, u64 n)
{
    if (a - E->device_base < E->device_size && n <= E->device_size - (a - E->device_base))
        return (void *)(uintptr_t)(a + (u64)E->alias_delta);
    if (a - SHARED_BASE < E->n_shared && n <= E->n_shared - (a - SHARED_BASE))
        return E->shared + (a - SHARED_BASE);
    if (a - LOCAL_BASE < T->n_local && n <= T->n_local - (a - LOCAL_BASE))
        return T->local + (a - LOCAL_BASE);
    if (a - PARAM_BASE < E->n_params && n <= E->n_params - (a - PARAM_BASE))
        return (void *)(uintptr_t)(E->params + (a - PARAM_BASE));
    if (a - GRID_BASE < E->n_workspace && n <= E->n_workspace - (a - GRID_BASE))
        return E->workspace + (a - GRID_BASE);
    if (!E->host_ok || !E->host_ok(a, n))
        E->fault(a);
    return (void *)(uintptr_t)a;
}

#ifndef RT_ENV_ONLY

/* clang-format off */
/* ---- bits ---- */
INLINE float f32b(u32 b) { float f; memcpy(&f, &b, 4); return f; }
INLINE u32 b32f(float f) { u32 b; memcpy(&b, &f, 4); return b; }
INLINE double f64b(u64 b) { double f; memcpy(&f, &b, 8); return f; }
INLINE u64 b64f(double f) { u64 b; memcpy(&b, &f, 8); return b; }
INLINE float h2f(u16 b) { _Float16 h; memcpy(&h, &b, 2); return (float)h; }
INLINE u16 f2h(float f) { if (unlikely(f != f)) return 0x7fff; _Float16 h = (_Float16)f; u16 b; memcpy(&b, &h, 2); return b; }
INLINE u16 d2h(double f) { if (unlikely(f != f)) return 0x7fff; _Float16 h = (_Float16)f; u16 b; memcpy(&b, &h, 2); return b; }
INLINE float bf2f(u16 b) { return f32b((u32)b << 16); }
INLINE u16 f2bf(float f)
{
    u32 b = b32f(f);
    if (unlikely(f != f)) return 0x7fff;
    return (u16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
INLINE u16 f2bf_rz(float f) { return f != f ? 0x7fff : (u16)(b32f(f) >> 16); }

/* Nearest double to nearest float would round twice: the float's last bit says that something was cut. */
INLINE u16 d2bf(double d)
{
    float f = (float)d;
    u32 b = b32f(f);
    if (f - f == 0 && (double)f != d) {
        if (fabs((double)f) > fabs(d)) b--;
        b |= 1;
    }
    return f2bf(f32b(b));
}
/* 64-bit integers as doubles of which no bit is lost to a first rounding */
INLINE double sticky_u64(u64 v) { return v >> 53 ? (double)(v >> 11 << 11 | (u64)((v & 2047) != 0) << 11) : (double)v; }
INLINE double sticky_s64(s64 v) { return v < 0 ? -sticky_u64(0 - (u64)v) : sticky_u64((u64)v); }
/* a * b + c of values with few bits: exact product, then a sum whose last bit says that something was cut */
INLINE double fma_odd(double a, double b, double c)
{
    double p = a * b, s = p + c, t = s - p, err = (p - (s - t)) + (c - t);
    u64 u = b64f(s);
    if (err != 0 && err == err && !(u & 1) && s - s == 0) u += (err > 0) == (s > 0) ? 1 : -1;
    return f64b(u);
}
/* The f16 next to the nearest one, where the direction asks for it */
SLOW u16 d2h_to(int mode, double d)
{
    u16 h = d2h(d);
    double v = (double)h2f(h);
    if (d != d || v == d || d - d != 0) return h;
    int up = mode == FE_UPWARD || (mode == FE_TOWARDZERO && d < 0);
    if (up ? v < d : v > d) h = (u16)((h & 0x7fff) == 0 ? (up ? 1 : 0x8001) : (h & 0x8000) == (up ? 0 : 0x8000) ? h + 1 : h - 1);
    return h;
}

INLINE u16 hftz(u16 h) { return h & 0x7c00 ? h : h & 0x8000; }
INLINE u16 f2h_rz(float f) { return d2h_to(FE_TOWARDZERO, f); }

/* NaN results are the canonical one (PTX ISA, "Floating-Point": payloads are not preserved) */
INLINE float cn(float f) { return likely(f == f) ? f : f32b(0x7fffffff); }
INLINE double cnd(double f) { return likely(f == f) ? f : f64b(0x7fffffffffffffffull); }
INLINE float ftz(float f) { return fabsf(f) < 0x1p-126f ? copysignf(0.0f, f) : f; }
INLINE u16 ftzh(u16 b) { return b & 0x7c00 ? b : (u16)(b & 0x8000); }
INLINE float sat(float f) { return f > 0.0f ? (f < 1.0f ? f : 1.0f) : 0.0f; }
INLINE double satd(double f) { return f > 0.0 ? (f < 1.0 ? f : 1.0) : 0.0; }

/* The float whose last 13 bits are 0: 0 ties away from zero, 1 ties to even, 2 towards zero */
INLINE u32 f2tf(float f, int mode)
{
    u32 b = b32f(f), more = mode == 0 ? 0x1000 : mode == 1 ? 0xfff + (b >> 13 & 1) : 0;
    if (unlikely(f != f)) return 0x7fffffff;
    return f - f == 0 ? (b + more) & 0xffffe000u : b;
}

/* ---- directed rounding ---- */
#define ROUNDED(name, T, expr)                                                                     \
    SLOW T name(int mode, T a, T b, T c)                                                           \
    {                                                                                              \
        volatile T x = a, y = b, z = c, r;                                                         \
        int old = fegetround();                                                                    \
        (void)y; (void)z;                                                                          \
        fesetround(mode);                                                                          \
        r = expr;                                                                                  \
        fesetround(old);                                                                           \
        return r;                                                                                  \
    }
ROUNDED(rnd_add_f32, float, x + y)
ROUNDED(rnd_sub_f32, float, x - y)
ROUNDED(rnd_mul_f32, float, x *y)
ROUNDED(rnd_div_f32, float, x / y)
ROUNDED(rnd_fma_f32, float, fmaf(x, y, z))
ROUNDED(rnd_sqrt_f32, float, sqrtf(x))
ROUNDED(rnd_add_f64, double, x + y)
ROUNDED(rnd_sub_f64, double, x - y)
ROUNDED(rnd_mul_f64, double, x *y)
ROUNDED(rnd_div_f64, double, x / y)
ROUNDED(rnd_fma_f64, double, fma(x, y, z))
ROUNDED(rnd_sqrt_f64, double, sqrt(x))
SLOW float rnd_f64_f32(int mode, double a)
{
    volatile double x = a;
    volatile float r;
    int old = fegetround();
    fesetround(mode);
    r = (float)x;
    fesetround(old);
    return r;
}
#define ROUNDED_INT(name, T, I)                                                                    \
    SLOW T name(int mode, I a)                                                                     \
    {                                                                                              \
        volatile I x = a;                                                                          \
        volatile T r;                                                                              \
        int old = fegetround();                                                                    \
        fesetround(mode);                                                                          \
        r = (T)x;                                                                                  \
        fesetround(old);                                                                           \
        return r;                                                                                  \
    }
ROUNDED_INT(rnd_s64_f32, float, s64)
ROUNDED_INT(rnd_u64_f32, float, u64)
ROUNDED_INT(rnd_s64_f64, double, s64)
ROUNDED_INT(rnd_u64_f64, double, u64)

/* ---- minima: a NaN loses, unless .NaN; -0 < +0 ---- */
#define MINMAX(T, sfx, bits, canon)                                                                \
    INLINE T min_##sfx(T a, T b)                                                                   \
    {                                                                                              \
        if (unlikely(a != a)) return b != b ? canon : b;                                           \
        if (unlikely(b != b)) return a;                                                            \
        return a < b ? a : b < a ? b : signbit(a) ? a : b;                                         \
    }                                                                                              \
    INLINE T max_##sfx(T a, T b)                                                                   \
    {                                                                                              \
        if (unlikely(a != a)) return b != b ? canon : b;                                           \
        if (unlikely(b != b)) return a;                                                            \
        return a > b ? a : b > a ? b : signbit(a) ? b : a;                                         \
    }                                                                                              \
    INLINE T minnan_##sfx(T a, T b) { return a != a || b != b ? canon : min_##sfx(a, b); }         \
    INLINE T maxnan_##sfx(T a, T b) { return a != a || b != b ? canon : max_##sfx(a, b); }
MINMAX(float, f32, u32, f32b(0x7fffffff))
MINMAX(double, f64, u64, f64b(0x7fffffffffffffffull))

/*
 * ---- conversions to integers: saturate; the caller says what NaN is ----
 * The barrier keeps them conversions: under -fno-trapping-math gcc 12 makes trunc() of (float)(int)x, and -0.3 a -0.
 */
#define TO_INT(I, name, lo, hi, lod, hid)                                                          \
    INLINE I f64_to_##name(double f, I nan)                                                        \
    {                                                                                              \
        if (unlikely(f != f)) return nan;                                                          \
        I i = f <= lod ? lo : f >= hid ? hi : (I)f;                                                \
        __asm__("" : "+r"(i));                                                                     \
        return i;                                                                                  \
    }
TO_INT(s8, s8, INT8_MIN, INT8_MAX, -128.0, 127.0)
TO_INT(s16, s16, INT16_MIN, INT16_MAX, -32768.0, 32767.0)
TO_INT(s32, s32, INT32_MIN, INT32_MAX, -0x1p31, 2147483647.0)
TO_INT(s64, s64, INT64_MIN, INT64_MAX, -0x1p63, 0x1p63)
TO_INT(u8, u8, 0, UINT8_MAX, 0.0, 255.0)
TO_INT(u16, u16, 0, UINT16_MAX, 0.0, 65535.0)
TO_INT(u32, u32, 0, UINT32_MAX, 0.0, 4294967295.0)
TO_INT(u64, u64, 0, UINT64_MAX, 0.0, 0x1p64)

/* ---- integers ---- */
#define DIVREM(U, S, n, MIN)                                                                       \
    INLINE U div_u##n(U a, U b) { return likely(b) ? (U)(a / b) : (U)-1; }                         \
    INLINE U rem_u##n(U a, U b) { return likely(b) ? (U)(a % b) : (U)-1; }                             \
    INLINE S div_s##n(S a, S b)                                                                    \
    {                                                                                              \
        return unlikely(!b) ? (S)-1 : unlikely(b == -1) ? (S)(0 - (U)a) : (S)(a / b);              \
    }                                                                                              \
    INLINE S rem_s##n(S a, S b) { return unlikely(!b) ? (S)-1 : unlikely(b == -1) ? 0 : (S)(a % b); }  \
    INLINE U shl_b##n(U a, u32 b) { return b < n ? (U)(a << b) : 0; }                              \
    INLINE U shr_u##n(U a, u32 b) { return b < n ? (U)(a >> b) : 0; }                              \
    INLINE S shr_s##n(S a, u32 b) { return (S)(a >> (b < n ? b : n - 1)); }                        \
    INLINE U abs_s##n(S a) { return (U)(a < 0 ? 0 - (U)a : (U)a); }                                \
    INLINE U sad_u##n(U a, U b, U c) { return (U)(c + (a > b ? a - b : b - a)); }                  \
    INLINE U sad_s##n(S a, S b, U c) { return (U)(c + (a > b ? (U)a - (U)b : (U)b - (U)a)); }
DIVREM(u16, s16, 16, INT16_MIN)
DIVREM(u32, s32, 32, INT32_MIN)
DIVREM(u64, s64, 64, INT64_MIN)
INLINE s32 clamp_s32(s64 v) { return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (s32)v; }
INLINE u32 popc32(u32 a) { return (u32)__builtin_popcount(a); }
INLINE u32 popc64(u64 a) { return (u32)__builtin_popcountll(a); }
INLINE u32 clz32(u32 a) { return a ? (u32)__builtin_clz(a) : 32; }
INLINE u32 clz64(u64 a) { return a ? (u32)__builtin_clzll(a) : 64; }
INLINE u32 brev32(u32 a)
{
    a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
    a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
    a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(a);
}
INLINE u64 brev64(u64 a) { return (u64)brev32((u32)a) << 32 | brev32((u32)(a >> 32)); }
INLINE u32 bfind(u64 a, int n, int shiftamt)
{
    if (!a) return (u32)-1;
    u32 at = 63 - (u32)__builtin_clzll(a);
    return shiftamt ? (u32)n - 1 - at : at;
}
INLINE u64 bfe_u(u64 a, u32 pos, u32 len, u32 n)
{
    pos &= 0xff; len &= 0xff;
    if (!len || pos >= n) return 0;
    u64 r = a >> pos;
    if (len > n - pos) len = n - pos;
    return len >= 64 ? r : r & ((1ull << len) - 1);
}
INLINE u64 bfe_s(u64 a, u32 pos, u32 len, u32 n)
{
    pos &= 0xff; len &= 0xff;
    if (!len) return 0;
    u64 top = (u64)pos + len - 1 < n - 1 ? (u64)pos + len - 1 : n - 1;
    u64 sign = a >> top & 1;
    u64 r = bfe_u(a, pos, len, n);
    u32 have = pos >= n ? 0 : (len > n - pos ? n - pos : len);
    if (sign && have < 64) r |= ~0ull << have;
    return r;
}
INLINE u64 bfi(u64 a, u64 b, u32 pos, u32 len, u32 n)
{
    pos &= 0xff; len &= 0xff;
    if (pos >= n || !len) return b;
    if (len > n - pos) len = n - pos;
    u64 mask = (len >= 64 ? ~0ull : (1ull << len) - 1) << pos;
    return (b & ~mask) | (a << pos & mask);
}
INLINE u32 bmsk(u32 a, u32 b, int wrap)
{
    if (wrap) { a &= 31; b &= 31; }
    if (a >= 32 || !b) return 0;
    if (b > 32 - a) b = 32 - a;
    return (b >= 32 ? ~0u : (1u << b) - 1) << a;
}
SLOW u32 prmt(u32 a, u32 b, u32 c, int mode)
{
    u64 src = (u64)b << 32 | a;
    u32 r = 0;
    for (u32 i = 0; i < 4; i++) {
        u32 sel = c >> (4 * i) & 15, k = c & 3;
        switch (mode) {
        case 1: sel = (k + i) & 7; break;               /* f4e */
        case 2: sel = (k - i) & 7; break;               /* b4e */
        case 3: sel = k; break;                         /* rc8 */
        case 4: sel = i > k ? i : k; break;             /* ecl */
        case 5: sel = i < k ? i : k; break;             /* ecr */
        case 6: sel = (k & 1) * 2 + (i & 1); break;     /* rc16 */
        default: break;
        }
        u32 byte = (u32)(src >> (8 * (sel & 7))) & 255;
        if (mode == 0 && sel & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << (8 * i);
    }
    return r;
}
INLINE u32 lop3(u32 a, u32 b, u32 c, u32 lut)
{
    u32 r = 0;
    if (lut & 1) r |= ~a & ~b & ~c;
    if (lut & 2) r |= ~a & ~b & c;
    if (lut & 4) r |= ~a & b & ~c;
    if (lut & 8) r |= ~a & b & c;
    if (lut & 16) r |= a & ~b & ~c;
    if (lut & 32) r |= a & ~b & c;
    if (lut & 64) r |= a & b & ~c;
    if (lut & 128) r |= a & b & c;
    return r;
}
INLINE u32 shf_l(u32 a, u32 b, u32 c, int wrap)
{
    c = wrap ? c & 31 : c > 32 ? 32 : c;
    return c == 0 ? b : c == 32 ? a : b << c | a >> (32 - c);
}
INLINE u32 shf_r(u32 a, u32 b, u32 c, int wrap)
{
    c = wrap ? c & 31 : c > 32 ? 32 : c;
    return c == 0 ? a : c == 32 ? b : b << (32 - c) | a >> c;
}
SLOW u32 dp4a(u32 a, u32 b, u32 c, int sa, int sb)
{
    for (int i = 0; i < 4; i++) {
        s32 x = sa ? (s8)(a >> 8 * i) : (s32)(a >> 8 * i & 255);
        s32 y = sb ? (s8)(b >> 8 * i) : (s32)(b >> 8 * i & 255);
        c += (u32)(x * y);
    }
    return c;
}
SLOW u32 dp2a(u32 a, u32 b, u32 c, int sa, int sb, int hi)
{
    for (int i = 0; i < 2; i++) {
        s32 x = sa ? (s16)(a >> 16 * i) : (s32)(a >> 16 * i & 65535);
        u32 byte = b >> (8 * (i + 2 * hi)) & 255;
        s32 y = sb ? (s8)byte : (s32)byte;
        c += (u32)(x * y);
    }
    return c;
}

/* ---- memory ---- */
/* DB, DN, DD: device window and delta, in locals of the kernel so that no store reloads them */
#define AT_GLOBAL(a, n)                                                                            \
    ({                                                                                             \
        u64 _a = (a);                                                                              \
        if (unlikely(_a & ((n) - 1)))                                                              \
            E->fault(_a);                                                                          \
        likely(_a - DB < DN) ? (void *)(uintptr_t)(_a + DD) : slow_address(E, T, _a, n);           \
    })
#define AT_GENERIC AT_GLOBAL
/* of device memory; what lies elsewhere is not fetched, and nothing is at fault */
#define PREFETCH(a)                                                                                \
    do {                                                                                           \
        u64 _a = (a);                                                                              \
        if (likely(_a - DB < DN))                                                                  \
            __builtin_prefetch((void *)(uintptr_t)(_a + DD));                                      \
    } while (0)
#define AT_SHARED(a, n)                                                                            \
    ({                                                                                             \
        u64 _a = (a);                                                                              \
        if (unlikely(_a >= SN || (n) > SN - _a || (_a & ((n) - 1))))                               \
            E->fault(SHARED_BASE + _a);                                                            \
        (void *)(SB + _a);                                                                         \
    })
#define AT_LOCAL(a, n)                                                                             \
    ({                                                                                             \
        u64 _a = (a);                                                                              \
        if (unlikely(_a >= T->n_local || (n) > T->n_local - _a || (_a & ((n) - 1))))                                   \
            E->fault(LOCAL_BASE + _a);                                                             \
        (void *)(T->local + _a);                                                                   \
    })
#define AT_PARAM(a, n)                                                                             \
    ({                                                                                             \
        u64 _a = (a);                                                                              \
        if (unlikely(_a - PARAM_BASE >= E->n_params || (n) > E->n_params - (_a - PARAM_BASE)))     \
            E->fault(_a);                                                                          \
        (void *)(uintptr_t)(E->params + (_a - PARAM_BASE));                                        \
    })
#define LD(type, p, i) (((const type *)(p))[i])
#define ST(type, p, i, v) (((type *)(p))[i] = (v))
#define PAUSE() (E->pause ? E->pause() : (void)0)
#define LOOK()  (unlikely(E->look != NULL) ? E->look() : (void)0)
#define GRID(what) (unlikely(E->what != NULL) ? E->what() : (void)0)

/* ---- atomics ---- */
#define RMW(name, T, expr)                                                                         \
    INLINE T atom_##name(void *at, T b, T c, int order)                                            \
    {                                                                                              \
        T *p = at, old = __atomic_load_n(p, __ATOMIC_RELAXED), new;                                \
        (void)c;                                                                                   \
        do                                                                                         \
            new = (T)(expr);                                                                       \
        while (!__atomic_compare_exchange_n(p, &old, new, 0, order, __ATOMIC_RELAXED));            \
        return old;                                                                                \
    }
#define INT_ATOMICS(U, S, n)                                                                       \
    INLINE U atom_add_b##n(void *p, U b, U c, int o) { (void)c; return __atomic_fetch_add((U *)p, b, o); } \
    INLINE U atom_and_b##n(void *p, U b, U c, int o) { (void)c; return __atomic_fetch_and((U *)p, b, o); } \
    INLINE U atom_or_b##n(void *p, U b, U c, int o) { (void)c; return __atomic_fetch_or((U *)p, b, o); }   \
    INLINE U atom_xor_b##n(void *p, U b, U c, int o) { (void)c; return __atomic_fetch_xor((U *)p, b, o); } \
    INLINE U atom_exch_b##n(void *p, U b, U c, int o) { (void)c; return __atomic_exchange_n((U *)p, b, o); } \
    INLINE U atom_cas_b##n(void *p, U b, U c, int o)                                               \
    {                                                                                              \
        __atomic_compare_exchange_n((U *)p, &b, c, 0, o, o == __ATOMIC_RELAXED || o == __ATOMIC_RELEASE ? __ATOMIC_RELAXED : __ATOMIC_ACQUIRE); \
        return b;                                                                                  \
    }                                                                                              \
    RMW(min_u##n, U, old < b ? old : b)                                                            \
    RMW(max_u##n, U, old > b ? old : b)                                                            \
    RMW(min_s##n, U, (S)old < (S)b ? old : b)                                                      \
    RMW(max_s##n, U, (S)old > (S)b ? old : b)                                                      \
    RMW(inc_b##n, U, old >= b ? 0 : old + 1)                                                       \
    RMW(dec_b##n, U, !old || old > b ? b : old - 1)
INT_ATOMICS(u16, s16, 16)
INT_ATOMICS(u32, s32, 32)
INT_ATOMICS(u64, s64, 64)
RMW(add_f32, u32, b32f(cn(f32b(old) + f32b(b))))
RMW(add_f64, u64, b64f(cnd(f64b(old) + f64b(b))))
RMW(add_f16, u16, f2h(h2f(old) + h2f(b)))
RMW(add_bf16, u16, f2bf(bf2f(old) + bf2f(b)))
RMW(add_f16x2, u32, (u32)f2h(h2f((u16)old) + h2f((u16)b)) | (u32)f2h(h2f((u16)(old >> 16)) + h2f((u16)(b >> 16))) << 16)
RMW(add_bf16x2, u32, (u32)f2bf(bf2f((u16)old) + bf2f((u16)b)) | (u32)f2bf(bf2f((u16)(old >> 16)) + bf2f((u16)(b >> 16))) << 16)

/* ---- threads that wait for each other ---- */
enum { WAIT_NONE, WAIT_BARRIER, WAIT_WARP, WAIT_ACTIVE, WAIT_SLEEP, WAIT_DONE };
enum { CLUSTER_BARRIER = 16, N_BARRIERS };
/* Each thread's frame begins so; its saved registers follow. */
struct rt_frame {
    u32 pc;       /* where it goes on: number of the wait */
    u8 wait;      /* for what */
    u8 barrier;   /* WAIT_BARRIER: which */
    u16 expected; /* WAIT_BARRIER: how many threads it takes, 0: all of the block that have not ended */
    u32 mask;     /* WAIT_WARP: lanes that must come, but those that have ended */
    u32 group;    /* lanes that came */
    u64 brings;   /* value for the others; WAIT_SLEEP: until when */
    u64 brought;  /* the same while the others may read it; for barriers threads << 32 | how many brought 1 */
};
struct rt_block {
    u8 *frames;
    u64 stride;
    u32 n;
    u32 arrived[N_BARRIERS]; /* by bar.arrive */
};
INLINE struct rt_frame *frame_at(const struct rt_block *b, u32 t)
{
    return (void *)(b->frames + t * b->stride);
}
SLOW void release(const struct rt_block *b, u32 first, u32 lanes)
{
    for (u32 left = lanes; left; left &= left - 1) {
        struct rt_frame *f = frame_at(b, first + (u32)__builtin_ctz(left));
        f->wait = WAIT_NONE;
        f->group = lanes;
        f->brought = f->brings;
    }
}
/* Lanes of a warp meet when all that are named in the mask have come, with the same mask. */
SLOW int meet_masked(const struct rt_block *b, u32 first, u32 n_lanes)
{
    int moved = 0;
    for (u32 l = 0; l < n_lanes; l++) {
        const struct rt_frame *f = frame_at(b, first + l);
        if (f->wait != WAIT_WARP) continue;
        u32 group = 1u << l, missing = 0;
        for (u32 k = 0; k < n_lanes; k++) {
            const struct rt_frame *peer = frame_at(b, first + k);
            if (!(f->mask >> k & 1) || peer->wait == WAIT_DONE) continue;
            if (peer->wait == WAIT_WARP && peer->mask == f->mask) group |= 1u << k;
            else missing = 1;
        }
        if (missing) continue;
        release(b, first, group);
        moved = 1;
    }
    return moved;
}
/* activemask and the operations without a mask: the lanes at the same instruction once all others wait. */
SLOW int meet_active(const struct rt_block *b, u32 first, u32 n_lanes)
{
    int moved = 0;
    for (u32 l = 0; l < n_lanes; l++) {
        const struct rt_frame *f = frame_at(b, first + l);
        u32 group = 0;
        if (f->wait != WAIT_ACTIVE) continue;
        for (u32 k = l; k < n_lanes; k++) {
            const struct rt_frame *peer = frame_at(b, first + k);
            if (peer->wait == WAIT_ACTIVE && peer->pc == f->pc) group |= 1u << k;
        }
        release(b, first, group);
        moved = 1;
    }
    return moved;
}
SLOW int meet_barrier(struct rt_block *b, u32 id, u32 alive)
{
    u32 waiting = 0, expected = 0, ones = 0;
    for (u32 t = 0; t < b->n; t++) {
        const struct rt_frame *f = frame_at(b, t);
        if (f->wait != WAIT_BARRIER || f->barrier != id) continue;
        waiting++;
        ones += f->brings != 0;
        if (f->expected > expected) expected = f->expected;
    }
    if (!waiting || waiting + b->arrived[id] < (expected ? expected : alive)) return 0;
    b->arrived[id] = 0;
    for (u32 t = 0; t < b->n; t++) {
        struct rt_frame *f = frame_at(b, t);
        if (f->wait != WAIT_BARRIER || f->barrier != id) continue;
        f->wait = WAIT_NONE;
        f->brought = (u64)waiting << 32 | ones;
    }
    return 1;
}
SLOW u64 now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (u64)ts.tv_sec * 1000000000u + (u64)ts.tv_nsec;
}
/* PTX ISA, nanosleep: a millisecond at most; what is asked for lies within what may be slept */
INLINE u64 sleep_end(u32 ns) { return now_ns() + (ns > 1000000 ? 1000000 : ns); }
/* All sleep at once. Where no other thread can go on, so does the worker, until the first wakes. */
SLOW int wake(const struct rt_block *b, int others_go_on)
{
    u64 first = ~0ull, now = now_ns();
    int moved = 0;
    for (u32 t = 0; t < b->n; t++) {
        const struct rt_frame *f = frame_at(b, t);
        if (f->wait == WAIT_SLEEP && f->brings < first) first = f->brings;
    }
    if (first > now && !others_go_on) {
        struct timespec until = {.tv_sec = (time_t)(first / 1000000000u), .tv_nsec = (long)(first % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) ;
        now = now_ns();
    }
    for (u32 t = 0; t < b->n; t++) {
        struct rt_frame *f = frame_at(b, t);
        if (f->wait != WAIT_SLEEP || f->brings > now) continue;
        f->wait = WAIT_NONE;
        moved = 1;
    }
    return moved;
}
/* Between two passes over the threads: which may go on? 0: all have ended; 1: go on; 2: none ever will. */
SLOW int schedule(struct rt_block *b)
{
    u32 count[WAIT_DONE + 1] = {0}, barriers = 0;
    int moved = 0, rested = 0;
    for (u32 t = 0; t < b->n; t++) {
        const struct rt_frame *f = frame_at(b, t);
        count[f->wait]++;
        if (f->wait == WAIT_BARRIER) barriers |= 1u << f->barrier;
    }
    if (count[WAIT_DONE] == b->n) return 0;
    for (u32 first = 0; count[WAIT_WARP] && first < b->n; first += 32)
        moved |= meet_masked(b, first, b->n - first < 32 ? b->n - first : 32);
    for (u32 id = 0; id < N_BARRIERS; id++)
        if (barriers >> id & 1) moved |= meet_barrier(b, id, b->n - count[WAIT_DONE]);
    if (count[WAIT_SLEEP]) moved |= wake(b, moved || count[WAIT_ACTIVE]);
    for (u32 first = 0; !moved && count[WAIT_ACTIVE] && first < b->n; first += 32)
        rested |= meet_active(b, first, b->n - first < 32 ? b->n - first : 32);
    return moved || rested ? 1 : 2;
}
/* What lane @l of this thread's warp brought; only for lanes of its group */
INLINE u64 peer(const struct rt_block *b, u32 linear, u32 l)
{
    return frame_at(b, (linear & ~31u) + l)->brought;
}
/* 0 up, 1 down, 2 bfly, 3 idx; a lane that did not come gives the thread's own value */
SLOW u32 warp_shfl(const struct rt_block *blk, u32 linear, u32 mode, u32 a, u32 b, u32 c, u32 *ok)
{
    u32 lane = linear & 31, bval = b & 31, cval = c & 31, segmask = c >> 8 & 31;
    u32 max = (lane & segmask) | (cval & ~segmask), min = lane & segmask, j;
    switch (mode) {
    case 0: j = lane - bval; *ok = (s32)j >= (s32)max; break;
    case 1: j = lane + bval; *ok = j <= max; break;
    case 2: j = lane ^ bval; *ok = j <= max; break;
    default: j = min | (bval & ~segmask); *ok = j <= max; break;
    }
    if (!*ok || !(frame_at(blk, linear)->group >> j & 1)) return a;
    return (u32)peer(blk, linear, j);
}
/* 0 any, 1 all, 2 uni, 3 ballot */
SLOW u32 warp_vote(const struct rt_block *b, u32 linear, int mode)
{
    u32 group = frame_at(b, linear)->group, ballot = 0;
    for (u32 l = 0; l < 32; l++)
        if (group >> l & 1) ballot |= (u32)(peer(b, linear, l) & 1) << l;
    return mode == 0 ? ballot != 0 : mode == 1 ? ballot == group : mode == 2 ? !ballot || ballot == group : ballot;
}
SLOW u32 warp_match(const struct rt_block *b, u32 linear, u64 v, int all, u32 *p)
{
    u32 group = frame_at(b, linear)->group, same = 0;
    for (u32 l = 0; l < 32; l++)
        if (group >> l & 1) same |= (u32)(peer(b, linear, l) == v) << l;
    *p = same == group;
    return !all ? same : *p ? group : 0;
}
/* 0 add, 1 min u, 2 max u, 3 min s, 4 max s, 5 and, 6 or, 7 xor */
SLOW u32 warp_redux(const struct rt_block *b, u32 linear, int op)
{
    u32 group = frame_at(b, linear)->group, first = (u32)__builtin_ctz(group), r = (u32)peer(b, linear, first);
    for (u32 l = first + 1; l < 32; l++) {
        if (!(group >> l & 1)) continue;
        u32 v = (u32)peer(b, linear, l);
        switch (op) {
        case 0: r += v; break;
        case 1: r = r < v ? r : v; break;
        case 2: r = r > v ? r : v; break;
        case 3: r = (s32)r < (s32)v ? r : v; break;
        case 4: r = (s32)r > (s32)v ? r : v; break;
        case 5: r &= v; break;
        case 6: r |= v; break;
        default: r ^= v; break;
        }
    }
    return r;
}
/* clang-format on */
#endif
#endif
