/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tex: CUDA C++ Programming Guide, "Texture Fetching": nearest element or linear filtering, with fractions of 8 bits, and
 * what lies outside is the edge, the border, a repetition or a reflection.
 */
#include "texture.h"

#include "ptx.h"

#include <math.h>
#include <string.h>

const struct ptx_texture *(*ptx_texture_find)(uint64_t handle);

struct reading {
    const struct rt_env *E;
    const struct thread_id *T;
    const struct ptx_texture *t;
};

/* The element that stands for @i of @n, or -1 for the border. */
static long long within(const struct ptx_texture *t, unsigned dim, long long i)
{
    long long n = (long long)t->extent[dim];

    if (i >= 0 && i < n)
        return i;
    if (t->mode[dim] == PTX_BORDER)
        return -1;
    if (t->mode[dim] == PTX_CLAMP || !t->normalized_coordinates)
        return i < 0 ? 0 : n - 1;
    i = (i % (2 * n) + 2 * n) % (2 * n);
    if (t->mode[dim] == PTX_WRAP)
        return i % n;
    return i < n ? i : 2 * n - 1 - i;
}

static u32 channel_bits(const struct ptx_texture *t, const u8 *from)
{
    u32 bits = 0;

    memcpy(&bits, from, t->channel_bytes);
    if (t->channel == PTX_SIGNED && t->channel_bytes < 4) {
        unsigned shift = 32 - 8 * t->channel_bytes;
        bits = (u32)((s32)(bits << shift) >> shift);
    }
    return bits;
}

/* By hand: not every compiler of ours has the type. */
static float half_float(u32 bits)
{
    u32 exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent == 31  ? (fraction ? NAN : INFINITY)
                  : exponent == 0 ? ldexpf((float)fraction, -24)
                                  : ldexpf((float)(fraction + 1024), (int)exponent - 25);
    return bits & 0x8000 ? -value : value;
}

static u32 float_bits(float f)
{
    u32 bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* The bits of a channel as the instruction gives them */
static u32 given(const struct ptx_texture *t, u32 bits)
{
    unsigned n_bits = 8 * t->channel_bytes - (t->channel == PTX_SIGNED);
    float most = (float)((1ull << n_bits) - 1);

    if (t->channel == PTX_FLOATING)
        return t->channel_bytes == 2 ? float_bits(half_float(bits)) : bits;
    if (!t->as_fraction || t->channel_bytes == 4)
        return bits;
    return float_bits(t->channel == PTX_SIGNED ? fmaxf((float)(s32)bits / most, -1.0f)
                                               : (float)bits / most);
}

static void element(const struct reading *r, const long long at[3], u32 out[4])
{
    const struct ptx_texture *t = r->t;
    long long i[3];

    memset(out, 0, 4 * sizeof *out);
    for (unsigned d = 0; d < 3; d++) {
        i[d] = within(t, d, at[d]);
        if (i[d] < 0) {
            for (unsigned c = 0; c < 4; c++)
                out[c] = float_bits(t->border[c]);
            return;
        }
    }
    size_t n = t->n_channels * t->channel_bytes;
    const u8 *from = slow_address(
        r->E, r->T, t->address + (u64)i[2] * t->slice + (u64)i[1] * t->pitch + (u64)i[0] * n, n);
    for (unsigned c = 0; c < t->n_channels; c++)
        out[c] = given(t, channel_bits(t, from + c * t->channel_bytes));
}

/* The up to eight elements around a point, each by its share */
static void filtered(const struct reading *r, const double at[3], unsigned n, u32 out[4])
{
    double low[3] = { 0 }, share[3] = { 0 }, sum[4] = { 0 };

    for (unsigned d = 0; d < n; d++) {
        low[d] = floor(at[d] - 0.5);
        share[d] = nearbyint((at[d] - 0.5 - low[d]) * 256) / 256;
    }
    for (unsigned corner = 0; corner < 1u << n; corner++) {
        long long i[3] = { 0 };
        u32 bits[4];
        double weight = 1;
        for (unsigned d = 0; d < n; d++) {
            bool upper = corner >> d & 1;
            i[d] = (long long)low[d] + upper;
            weight *= upper ? share[d] : 1 - share[d];
        }
        if (weight == 0)
            continue;
        element(r, i, bits);
        for (unsigned c = 0; c < 4; c++) {
            float v;
            memcpy(&v, &bits[c], sizeof v);
            sum[c] += weight * (double)v;
        }
    }
    for (unsigned c = 0; c < 4; c++)
        out[c] = float_bits((float)sum[c]);
}

/* Far outside every mode but wrapping gives the edge; so long long holds what is left. */
static double bounded(double x)
{
    return x != x ? 0 : fmin(fmax(x, -1e15), 1e15);
}

void texture_sample(const struct rt_env *E, const struct thread_id *T, const struct rt_sample *s,
                    u32 out[4])
{
    struct reading r = { .E = E, .T = T };
    double at[3] = { 0 };
    long long i[3] = { 0 };

    r.t = ptx_texture_find ? ptx_texture_find(s->handle) : NULL;
    if (!r.t)
        E->fault(s->handle);
    for (unsigned d = 0; d < s->n; d++) {
        double scale = r.t->normalized_coordinates ? (double)r.t->extent[d] : 1;
        at[d] = bounded((double)s->at[d] * scale);
        i[d] = s->whole ? s->element[d] : (long long)floor(at[d]);
    }
    if (r.t->linear_filter && !s->whole)
        filtered(&r, at, s->n, out);
    else
        element(&r, i, out);
}
