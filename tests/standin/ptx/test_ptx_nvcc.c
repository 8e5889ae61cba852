/* SPDX-License-Identifier: Apache-2.0 */
/* What nvcc makes of nvcc/kernels.cu, sm90.cu and pointers.cu, against the same computed here. */
#include "test_device.h"

#include <math.h>
#include <pthread.h>

enum { N = 300 }; /* not a multiple of anything */

static struct ptx_module *module, *module90, *module_pointers;
static uint64_t free_at = DEVICE_BASE + 65536;

static char *file_text(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", NVCC_FOLDER, name);
    FILE *f = fopen(path, "r");
    DEVICE_MUST(f, "%s cannot be opened", path);
    char *text = calloc(1, 1 << 18);
    DEVICE_MUST(text && fread(text, 1, (1 << 18) - 1, f) > 0, "%s cannot be read", path);
    fclose(f);
    return text;
}

static void write_word(void *context, uint64_t address, uint64_t value)
{
    (void)context;
    memcpy(device_at(address), &value, sizeof value);
}

static uint64_t take(size_t n)
{
    uint64_t at = free_at;
    free_at += (n + 255) & ~(size_t)255;
    memset(device_at(at), 0, n);
    return at;
}

static uint64_t put(const void *bytes, size_t n)
{
    uint64_t at = take(n);
    memcpy(device_at(at), bytes, n);
    return at;
}

static struct ptx_module *load(const char *name)
{
    char *text = file_text(name);
    struct ptx_module *m = device_load(text);
    free(text);
    for (size_t i = 0; i < ptx_module_n_globals(m); i++) {
        const struct ptx_global *g = ptx_module_global(m, i);
        ptx_module_bind(m, i, g->init ? put(g->init, g->size) : take(g->size));
    }
    ptx_module_init_addresses(m, write_word, NULL);
    return m;
}

static void run(const char *name, unsigned n_blocks, unsigned n_threads, unsigned dynamic,
                const void *params)
{
    struct ptx_grid grid = { .grid = { n_blocks, 1, 1 },
                             .block = { n_threads, 1, 1 },
                             .dynamic_shared = dynamic };
    const struct ptx_module *all[] = { module90, module_pointers }, *in = module;
    for (int m = 0; m < 2; m++)
        for (size_t i = 0; i < ptx_module_n_kernels(all[m]); i++)
            if (!strcmp(ptx_kernel_info(ptx_module_kernel(all[m], i))->name, name))
                in = all[m];
    ck_assert_int_eq(ptx_launch(device_kernel(in, name), &grid, params, NULL), PTX_OK);
}

static uint64_t random_bits(void)
{
    static uint64_t state = 88172645463325252ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static float random_float(float low, float high)
{
    return low + (high - low) * (float)(random_bits() >> 40) / 16777216.0f;
}

static float *random_floats(size_t n, float low, float high)
{
    static float x[16384];
    ck_assert_uint_le(n, 16384);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(low, high);
    return x;
}

#define ASSERT_NEAR(got, want, tolerance)                                                          \
    ck_assert_msg(fabs((double)(got) - (double)(want)) <=                                          \
                      (tolerance) * (fabs((double)(want)) + 1),                                    \
                  "%d: %.9g, expected %.9g", (int)i, (double)(got), (double)(want))

START_TEST(integers_of_64_bits)
{
    uint64_t in[N], got[N];
    int64_t a[N], b[N], q[N], r[N];
    for (int i = 0; i < N; i++) {
        in[i] = random_bits() % 100000 + 1;
        a[i] = (int64_t)random_bits() >> (i % 60);
        b[i] = ((int64_t)random_bits() >> (i % 50)) | 1;
    }
    struct {
        uint64_t in, out;
        int n;
    } p = { put(in, sizeof in), take(sizeof got), N };
    run("collatz", 3, 128, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < N; i++) {
        uint64_t x = in[i], steps = 0;
        for (; x != 1; steps++)
            x = x % 2 ? 3 * x + 1 : x / 2;
        ck_assert_uint_eq(got[i], steps * 1000003 / (in[i] % 7 + 1));
    }
    struct {
        uint64_t a, b, q, r;
        int n;
    } d = { put(a, sizeof a), put(b, sizeof b), take(sizeof q), take(sizeof r), N };
    run("divide", 3, 128, 0, &d);
    memcpy(q, device_at(d.q), sizeof q);
    memcpy(r, device_at(d.r), sizeof r);
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(q[i], a[i] / b[i]);
        ck_assert_int_eq(r[i], a[i] % b[i]);
    }
}
END_TEST

static float dispatched(int op, float v)
{
    switch (op) {
    case 0: return v + 1;
    case 1: return v * v;
    case 2: return -v;
    case 3: return sqrtf(v);
    case 4: return 1 / v;
    case 5: return fabsf(v) - 3;
    case 6: return fmaxf(v, 2.5f);
    case 7: return floorf(v);
    case 8: return rintf(v);
    case 9: return fmodf(v, 1.5f);
    default: return 0;
    }
}

START_TEST(switches_take_the_right_case)
{
    int op[N];
    float got[N], *x = random_floats(N, 0.1f, 9);
    for (int i = 0; i < N; i++)
        op[i] = i % 12 - (i % 12 == 11 ? 50 : 0);
    struct {
        uint64_t op, x;
        int n;
    } p = { put(op, sizeof op), put(x, sizeof got), N };
    run("dispatch", 5, 64, 0, &p);
    memcpy(got, device_at(p.x), sizeof got);
    for (int i = 0; i < N; i++)
        ASSERT_NEAR(got[i], dispatched(op[i], x[i]), 0);
}
END_TEST

/* 16-bit floats: mantissa bits, smallest exponent, bias; nothing here is shared with the translator */
struct small {
    int mantissa, lowest, bias;
};
static const struct small f16 = { 10, -14, 15 }, bf16 = { 7, -126, 127 };

static double small_value(struct small s, uint16_t bits)
{
    int e = (bits & 0x7fff) >> s.mantissa, m = bits & ((1 << s.mantissa) - 1);
    double v =
        e ? ldexp(m + (1 << s.mantissa), e - s.bias - s.mantissa) : ldexp(m, s.lowest - s.mantissa);
    return bits & 0x8000 ? -v : v;
}

static uint16_t small_bits(struct small s, double x)
{
    int sign = signbit(x) ? 0x8000 : 0, e = x != 0 ? ilogb(x) : s.lowest;
    e = e < s.lowest ? s.lowest : e;
    double q = rint(ldexp(fabs(x), s.mantissa - e));
    if (q >= ldexp(1, s.mantissa + 1)) {
        q /= 2;
        e++;
    }
    if (e > s.bias)
        return (uint16_t)(sign | ((2 * s.bias + 1) << s.mantissa));
    if (q < ldexp(1, s.mantissa))
        return (uint16_t)(sign | (int)q);
    return (uint16_t)(sign | (((e + s.bias) << s.mantissa) + (int)q - (1 << s.mantissa)));
}

static double rounded(struct small s, double x)
{
    return small_value(s, small_bits(s, x));
}

/* values whose sums and products are exact in a double */
static uint16_t random_small(struct small s)
{
    return small_bits(s, (double)random_float(-4, 4));
}

START_TEST(half_precision_rounds_once)
{
    uint16_t a[2 * N], b[2 * N], got[2 * N];
    for (int i = 0; i < 2 * N; i++) {
        a[i] = random_small(f16);
        b[i] = random_small(f16);
    }
    struct {
        uint64_t a, b, out;
        int n;
    } p = { put(a, sizeof a), put(b, sizeof b), take(sizeof got), 2 * N };
    run("half_math", 5, 128, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < 2 * N; i++) {
        double x = small_value(f16, a[i]), y = small_value(f16, b[i]);
        ck_assert_uint_eq(got[i], small_bits(f16, x * y + rounded(f16, y - rounded(f16, x * 0.5))));
    }
    p.n = N;
    run("half2_math", 5, 64, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < 2 * N; i++) {
        double x = small_value(f16, a[i]), y = small_value(f16, b[i]);
        ck_assert_uint_eq(got[i], small_bits(f16, x * y + rounded(f16, x + y)));
    }
}
END_TEST

START_TEST(bfloat16_rounds_once)
{
    uint16_t a[2 * N], b[2 * N], got[2 * N];
    for (int i = 0; i < 2 * N; i++) {
        a[i] = random_small(bf16);
        b[i] = random_small(bf16);
    }
    struct {
        uint64_t a, b, out;
        int n;
    } p = { put(a, sizeof a), put(b, sizeof b), take(sizeof got), 2 * N };
    run("bf16_math", 5, 128, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < 2 * N; i++)
        ck_assert_uint_eq(
            got[i],
            small_bits(bf16,
                       (double)(float)(small_value(bf16, a[i]) * small_value(bf16, b[i]) + 1)));
    run("bf16_native", 5, 128, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < 2 * N; i++) {
        double x = small_value(bf16, a[i]), y = small_value(bf16, b[i]);
        double fma = rounded(bf16, x * y + rounded(bf16, y - x)), sum = rounded(bf16, x + y);
        ck_assert_uint_eq(got[i], small_bits(bf16, fmax(fma, -sum)));
    }
    p.n = N;
    run("bf162_native", 5, 64, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < 2 * N; i++) {
        double x = small_value(bf16, a[i]), y = small_value(bf16, b[i]);
        ck_assert_uint_eq(got[i], small_bits(bf16, x * y + fmin(x, y)));
    }
}
END_TEST

START_TEST(pairs_are_packed_and_warps_reduced)
{
    float *x = random_floats(2 * N, -70000, 70000);
    uint16_t b[2 * N], h[2 * N];
    uint32_t sum[N];
    struct {
        uint64_t x, b, h, sum;
        int n;
    } p = { put(x, 2 * N * 4), take(sizeof b), take(sizeof h), take(sizeof sum), N };
    run("pack", 3, 128, 0, &p);
    memcpy(b, device_at(p.b), sizeof b);
    memcpy(h, device_at(p.h), sizeof h);
    memcpy(sum, device_at(p.sum), sizeof sum);
    for (int i = 0; i < 2 * N; i++) {
        ck_assert_uint_eq(b[i], small_bits(bf16, (double)x[i]));
        ck_assert_uint_eq(h[i], small_bits(f16, (double)x[i]));
    }
    for (int i = 0; i < 288; i++)
        ck_assert_uint_eq(sum[i], (uint32_t)(32 * (i & ~31) + 496) ^ (uint32_t)(i | 31));
}
END_TEST

START_TEST(blocks_reduce)
{
    float *x = random_floats(10000, -1, 1), got = 0;
    double want = 0;
    for (int i = 0; i < 10000; i++)
        want += (double)x[i];
    struct {
        uint64_t x, out;
        int n;
    } p = { put(x, 40000), take(4), 10000 };
    run("block_sum", 7, 256, 0, &p);
    memcpy(&got, device_at(p.out), 4);
    int i = 0;
    ASSERT_NEAR(got, want, 1e-4);
}
END_TEST

START_TEST(norms_and_softmax)
{
    enum { ROWS = 5, WIDTH = 577 };
    static float got[ROWS * WIDTH], x[ROWS * WIDTH], w[WIDTH];
    memcpy(x, random_floats(ROWS * WIDTH, -5, 5), sizeof x);
    memcpy(w, random_floats(WIDTH, 0, 2), sizeof w);
    struct {
        uint64_t x, w, out;
        int width;
        float eps;
    } p = { put(x, sizeof x), put(w, sizeof w), take(sizeof got), WIDTH, 1e-5f };
    struct {
        uint64_t x, out;
        int width;
    } s = { p.x, take(sizeof got), WIDTH };
    run("rms_norm", ROWS, 192, 32 * 4, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int row = 0; row < ROWS; row++) {
        double squares = 0;
        for (int i = 0; i < WIDTH; i++)
            squares += (double)x[row * WIDTH + i] * (double)x[row * WIDTH + i];
        for (int i = 0; i < WIDTH; i++)
            ASSERT_NEAR(got[row * WIDTH + i],
                        (double)x[row * WIDTH + i] / sqrt(squares / WIDTH + 1e-5) * (double)w[i],
                        1e-5);
    }
    run("softmax", ROWS, 32, 0, &s);
    memcpy(got, device_at(s.out), sizeof got);
    for (int row = 0; row < ROWS; row++) {
        double total = 0;
        for (int i = 0; i < WIDTH; i++)
            total += exp((double)x[row * WIDTH + i]);
        for (int i = 0; i < WIDTH; i++)
            ASSERT_NEAR(got[row * WIDTH + i], exp((double)x[row * WIDTH + i]) / total, 1e-6);
    }
}
END_TEST

START_TEST(atomics_count_all)
{
    enum { M = 5000 };
    static uint8_t x[M];
    uint32_t bins[16], want[16] = { 0 }, most[16] = { 0 };
    uint64_t total, want_total = 0;
    double sum;
    for (int i = 0; i < M; i++)
        x[i] = (uint8_t)random_bits();
    for (int block = 0; block * 256 < M; block++) {
        memset(want, 0, sizeof want);
        for (int i = block * 256; i < M && i < block * 256 + 256; i++) {
            want[x[i] & 15]++;
            want_total += x[i];
        }
        for (int k = 0; k < 16; k++)
            most[k] = want[k] > most[k] ? want[k] : most[k];
    }
    struct {
        uint64_t x, bins, total, sum;
        int n;
    } p = { put(x, sizeof x), take(sizeof bins), take(8), take(8), M };
    run("histogram", (M + 255) / 256, 256, 0, &p);
    memcpy(bins, device_at(p.bins), sizeof bins);
    memcpy(&total, device_at(p.total), 8);
    memcpy(&sum, device_at(p.sum), 8);
    ck_assert_uint_eq(total, want_total);
    ck_assert(sum == (double)want_total * 0.5);
    for (int k = 0; k < 16; k++)
        ck_assert_uint_eq(bins[k], most[k]);
}
END_TEST

START_TEST(called_functions_and_local_arrays)
{
    struct point {
        float x, y;
        int index[3];
    } origin = { 1, 2, { 100, 200, 300 } };
    int order[8] = { 3, 1, 4, 0, 7, 6, 2, 5 };
    float got[N];
    struct {
        uint64_t order, out;
        struct point origin;
        int n;
    } p = { put(order, sizeof order), take(sizeof got), origin, N };
    run("locals", 3, 128, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int t = 0; t < N; t++) {
        float c[8], v = 0;
        struct point q = origin;
        int i = t;
        for (int k = 0; k < 8; k++)
            c[order[k]] = (float)(k + t);
        for (int k = 0; k < t; k++) {
            float x = q.x;
            q.x = -q.y;
            q.y = x;
            q.index[k % 3] += k;
        }
        for (int k = 7; k >= 0; k--)
            v = v * 0.5f + c[k];
        ASSERT_NEAR(got[t], v + q.x + 10 * q.y + (float)q.index[t % 3], 1e-6);
    }
}
END_TEST

START_TEST(module_variables_hold_values_and_pointers)
{
    static const char *const names[] = { "first", "second" };
    static const float table[] = { 1, 2, 4, 8 };
    int which[N];
    float got[N];
    for (int i = 0; i < N; i++)
        which[i] = (int)(random_bits() & 3);
    struct {
        uint64_t which, out;
        int n;
    } p = { put(which, sizeof which), take(sizeof got), N };
    run("variables", 3, 128, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < N; i++)
        ASSERT_NEAR(got[i], table[which[i]] + (float)names[which[i] & 1][which[i]], 0);
}
END_TEST

START_TEST(numbers_are_converted)
{
    double x[N];
    int32_t i32[N];
    uint32_t u32[N];
    int64_t i64[N];
    uint8_t u8[N];
    float f32[N];
    for (int i = 0; i < N; i++)
        x[i] = ldexp((double)(int64_t)random_bits(), -64 + i % 32);
    struct {
        uint64_t x, i32, u32, i64, u8, f32;
        int n;
    } p = { put(x, sizeof x),
            take(sizeof i32),
            take(sizeof u32),
            take(sizeof i64),
            take(sizeof u8),
            take(sizeof f32),
            N };
    run("conversions", 3, 128, 0, &p);
    memcpy(i32, device_at(p.i32), sizeof i32);
    memcpy(u32, device_at(p.u32), sizeof u32);
    memcpy(i64, device_at(p.i64), sizeof i64);
    memcpy(u8, device_at(p.u8), sizeof u8);
    memcpy(f32, device_at(p.f32), sizeof f32);
    for (int i = 0; i < N; i++) {
        double r = rint(x[i]);
        ck_assert_int_eq(i32[i], (int32_t)x[i]);
        ck_assert_uint_eq(u32[i], r < 0 ? 0 : (uint32_t)r);
        ck_assert_int_eq(i64[i], (int64_t)r);
        ck_assert_uint_eq(u8[i], (uint8_t)(int32_t)x[i]);
        ASSERT_NEAR(f32[i], x[i] + trunc(x[i]), 1e-6);
    }
}
END_TEST

static uint32_t bits_of(uint32_t v)
{
    uint32_t reversed = 0, permuted, w = ~v;
    for (int k = 0; k < 32; k++)
        reversed |= (v >> k & 1) << (31 - k);
    permuted = (v & 255) | (w & 255) << 8 | (v >> 8 & 255) << 16 | (w >> 8 & 255) << 24;
    uint32_t sum = (uint32_t)__builtin_popcount(v) + ((uint32_t)(v ? __builtin_clz(v) : 32) << 6) +
                   ((uint32_t)__builtin_ffs((int)v) << 12);
    uint32_t hi = (uint32_t)((int64_t)(int32_t)v * 77777 >> 32),
             uhi = (uint32_t)((uint64_t)v * v >> 32);
    uint32_t shift = v & 31, funnel = shift ? (v >> 3) << shift | v >> (32 - shift) : v >> 3;
    int64_t sad = (int64_t)(int32_t)v - 5;
    return sum ^ reversed ^ permuted ^ funnel ^ hi ^ uhi ^ (uint32_t)((sad < 0 ? -sad : sad) + 6) ^
           (uint32_t)((uint64_t)v * v >> 13);
}

START_TEST(bits_are_moved)
{
    uint32_t x[N], got[N];
    for (int i = 0; i < N; i++)
        x[i] = (uint32_t)random_bits() >> (i % 33 & 31);
    x[0] = 0;
    struct {
        uint64_t x, out;
        int n;
    } p = { put(x, sizeof x), take(sizeof got), N };
    run("bits", 3, 128, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < N; i++)
        ck_assert_msg(got[i] == bits_of(x[i]), "%x: %x, expected %x", x[i], got[i], bits_of(x[i]));
}
END_TEST

START_TEST(expansions_of_transcendentals)
{
    float *x = random_floats(N, -3, 3), got[N];
    struct {
        uint64_t x, out;
        int n;
    } p = { put(x, sizeof got), take(sizeof got), N };
    run("transcendental", 3, 128, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < N; i++) {
        double v = (double)x[i], phase = (double)(x[i] * 100);
        ASSERT_NEAR(got[i],
                    exp(v) + log(fabs(v) + 1) + sin(phase) + pow(fabs(v), 1.3) + erf(v) + tanh(v),
                    2e-6);
    }
}
END_TEST

START_TEST(warps_vote_and_blocks_count)
{
    int x[N];
    uint32_t got[N];
    for (int i = 0; i < N; i++)
        x[i] = (int)(random_bits() % 97);
    struct {
        uint64_t x, out;
        int n;
    } p = { put(x, sizeof x), take(sizeof got), N };
    run("warp_votes", 3, 128, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < N; i++) {
        int warp = i & ~31, block = i & ~127, is50 = 0, below = 0;
        uint32_t odd = 0, any = 0, same = 0, want;
        for (int k = 0; k < 32; k++) {
            int v = warp + k < N ? x[warp + k] : 0;
            odd |= (uint32_t)(v & 1) << k;
            any |= v > 90;
            same |= (uint32_t)(v % 3 == x[i] % 3) << k;
        }
        for (int k = 0; k < 128; k++) {
            int v = block + k < N ? x[block + k] : 0;
            is50 |= v == 50;
            below += v < 10;
        }
        want = (x[i] & 1 ? odd ^ odd << 1 : odd) ^ any << 3 ^ 1u << 5 ^ same ^
               (uint32_t)(is50 + below * 2 + 4096);
        ck_assert_msg(got[i] == want, "%d: %x, expected %x", i, got[i], want);
    }
}
END_TEST

START_TEST(called_functions_may_wait)
{
    float *x = random_floats(256, -1, 1), got;
    double want = 0;
    for (int k = 0; k < 256; k++)
        want += 3 * (double)x[k];
    struct {
        uint64_t x, out;
    } p = { put(x, 1024), take(4) };
    run("called_sum", 1, 256, 0, &p);
    memcpy(&got, device_at(p.out), 4);
    int i = 0;
    ASSERT_NEAR(got, want, 1e-5);
}
END_TEST

START_TEST(pointers_say_which_function)
{
    float *x = random_floats(64, -1, 1), got[64];
    int which[64];
    for (int i = 0; i < 64; i++)
        which[i] = (int)(random_bits() % 2);
    struct {
        uint64_t which, x, out;
    } p = { put(which, sizeof which), put(x, sizeof got), take(sizeof got) };
    run("by_lane", 1, 64, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < 64; i++)
        ASSERT_NEAR(got[i], which[i] ? x[i] * 2 - (x[i] + 3) : x[i] + 2 - x[i] * 3, 1e-6);
    run("shapes", 1, 64, 0, &p);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < 64; i++)
        ASSERT_NEAR(got[i], which[i] ? x[i] * x[i] / 2 + 3 : x[i] * x[i] + 4, 1e-6);
    struct {
        int which;
        uint64_t x, out;
    } w = { 2, p.x, p.out };
    run("by_warp", 1, 64, 0, &w);
    memcpy(got, device_at(p.out), sizeof got);
    for (int i = 0; i < 64; i++)
        ASSERT_NEAR(got[i], x[i ^ 1] + 2, 1e-6);
}
END_TEST

static void *load_a_file(void *name)
{
    return load(name);
}

int main(void)
{
    pthread_t other;
    void *loaded;
    device_fresh_cache();
    device_init();
    module = load("kernels.ptx");
    DEVICE_MUST(!pthread_create(&other, NULL, load_a_file, "sm90.ptx"), "no thread");
    pthread_join(other, &loaded);
    module90 = loaded;
    module_pointers = load("pointers.ptx");
    Suite *s = suite_create("ptx_nvcc");
    TCase *t = tcase_create("nvcc");
    tcase_add_test(t, integers_of_64_bits);
    tcase_add_test(t, switches_take_the_right_case);
    tcase_add_test(t, half_precision_rounds_once);
    tcase_add_test(t, bfloat16_rounds_once);
    tcase_add_test(t, pairs_are_packed_and_warps_reduced);
    tcase_add_test(t, blocks_reduce);
    tcase_add_test(t, norms_and_softmax);
    tcase_add_test(t, atomics_count_all);
    tcase_add_test(t, called_functions_and_local_arrays);
    tcase_add_test(t, module_variables_hold_values_and_pointers);
    tcase_add_test(t, numbers_are_converted);
    tcase_add_test(t, bits_are_moved);
    tcase_add_test(t, expansions_of_transcendentals);
    tcase_add_test(t, warps_vote_and_blocks_count);
    tcase_add_test(t, called_functions_may_wait);
    tcase_add_test(t, pointers_say_which_function);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    ptx_module_free(module);
    ptx_module_free(module90);
    ptx_module_free(module_pointers);
    device_remove_cache();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
