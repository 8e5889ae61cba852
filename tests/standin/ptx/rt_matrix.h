/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices and asynchronous copies, for translated kernels: follows rt.h. Layouts of fragments are those of the PTX
 * ISA, "Matrix multiply-accumulate operation using mma instruction" and "ldmatrix".
 */
#ifndef RT_ENV_ONLY
/* clang-format off */

/* ---- matrices: all 32 lanes bring words, the first to go on computes for all ---- */
enum { MMA_A = 0, MMA_B = 4, MMA_C = 6, WIDE_WORDS = 10 };
enum { MMA_F16, MMA_BF16, MMA_TF32 };
/* Words that a lane brings, and in which it finds what it takes: right after its struct rt_frame */
struct rt_wide {
    u32 word[WIDE_WORDS];
};
typedef float v8f __attribute__((vector_size(32)));
INLINE u32 *wide_words(const struct rt_block *b, u32 linear)
{
    return (void *)((u8 *)frame_at(b, linear) + sizeof(struct rt_frame));
}
INLINE float mma_value(u32 word, u32 half, int type)
{
    if (type == MMA_TF32) return f32b(word & 0xffffe000u);
    return type == MMA_F16 ? h2f((u16)(word >> 16 * half)) : bf2f((u16)(word >> 16 * half));
}
/* Register @r of a lane's A or B is @r >> 1 steps of four words further in depth; in A the odd ones are 8 rows down. */
SLOW void mma_gather(const struct rt_block *blk, u32 first, int type, u32 n_a, float a[16][16], float b[16][8])
{
    u32 per = type == MMA_TF32 ? 1 : 2, n_b = n_a / 2;
    for (u32 l = 0; l < 32; l++) {
        const u32 *w = wide_words(blk, first + l);
        u32 row = l >> 2, at = (l & 3) * per;
        for (u32 r = 0; r < n_a; r++)
            for (u32 h = 0; h < per; h++)
                a[row + (r & 1) * 8][at + h + (r >> 1) * 4 * per] = mma_value(w[MMA_A + r], h, type);
        for (u32 r = 0; r < n_b; r++)
            for (u32 h = 0; h < per; h++)
                b[at + h + r * 4 * per][row] = mma_value(w[MMA_B + r], h, type);
    }
}
/* The 16 x 8 sums: as C comes, and as D goes. */
SLOW void mma_sums(const struct rt_block *blk, u32 first, int half, int store, v8f d[16])
{
    for (u32 l = 0; l < 32; l++) {
        u32 *w = wide_words(blk, first + l) + MMA_C;
        for (u32 i = 0; i < 4; i++) {
            u32 row = (l >> 2) + (i >> 1) * 8, column = (l & 3) * 2 + (i & 1), bits = 16 * (i & 1);
            if (!store)
                d[row][column] = half ? h2f((u16)(w[i >> 1] >> bits)) : f32b(w[i]);
            else if (!half)
                w[i] = b32f(cn(d[row][column]));
            else
                w[i >> 1] = (w[i >> 1] & ~(0xffffu << bits)) | (u32)f2h(d[row][column]) << bits;
        }
    }
}
/* D of this lane. Products are exact in a float; sums are rounded to float one after another, to f16 at the end. */
SLOW const u32 *warp_mma(const struct rt_env *E, const struct rt_block *blk, u32 linear, int type, u32 n_a, int half)
{
    if (frame_at(blk, linear)->group != ~0u) E->trap(); /* the whole warp must come */
    if (!(linear & 31)) {
        float a[16][16], b[16][8];
        v8f d[16];
        u32 depth = n_a * (type == MMA_TF32 ? 2 : 4);
        mma_gather(blk, linear, type, n_a, a, b);
        mma_sums(blk, linear, half, 0, d);
        for (u32 k = 0; k < depth; k++) {
            v8f row;
            memcpy(&row, b[k], sizeof row);
            for (u32 r = 0; r < 16; r++) d[r] += a[r][k] * row;
        }
        mma_sums(blk, linear, half, 1, d);
    }
    return wide_words(blk, linear) + MMA_C;
}
/* One 8 x 8 matrix of 16-bit values, rows at the addresses that lanes @from.. bring, to word @to of each lane */
SLOW void ldmatrix_one(const struct rt_env *E, const struct rt_block *blk, u32 first, u32 from, u32 to, int trans)
{
    u16 m[8][8];
    for (u32 r = 0; r < 8; r++) {
        u64 a = peer(blk, first, from + r);
        if (a >= E->n_shared || 16 > E->n_shared - a || a & 15) E->fault(SHARED_BASE + a);
        memcpy(m[r], E->shared + a, 16);
    }
    for (u32 l = 0; l < 32; l++) {
        u32 i = l >> 2, j = (l & 3) * 2;
        u32 low = trans ? m[j][i] : m[i][j], high = trans ? m[j + 1][i] : m[i][j + 1];
        wide_words(blk, first + l)[to] = low | high << 16;
    }
}
SLOW const u32 *warp_ldmatrix(const struct rt_env *E, const struct rt_block *blk, u32 linear, u32 n, int trans)
{
    if (frame_at(blk, linear)->group != ~0u) E->trap();
    for (u32 k = 0; !(linear & 31) && k < n; k++) ldmatrix_one(E, blk, linear, 8 * k, k, trans);
    return wide_words(blk, linear);
}

/* ---- cp.async: happens as late as it may, so that who does not wait for it sees what was there before ---- */
enum { ASYNC_MAX = 32 };
struct rt_async {
    u32 n, first, group; /* a ring; the group that is being filled */
    struct { u8 *to; const u8 *from; u32 size, take, group; } copy[ASYNC_MAX];
};
INLINE void async_oldest(struct rt_async *a)
{
    u8 bytes[16] = {0};
    memcpy(bytes, a->copy[a->first].from, a->copy[a->first].take);
    memcpy(a->copy[a->first].to, bytes, a->copy[a->first].size);
    a->first = (a->first + 1) % ASYNC_MAX;
    a->n--;
}
SLOW void async_copy(struct rt_async *a, void *to, const void *from, u32 size, u32 take)
{
    if (a->n == ASYNC_MAX) async_oldest(a);
    u32 at = (a->first + a->n++) % ASYNC_MAX;
    a->copy[at].to = to;
    a->copy[at].from = from;
    a->copy[at].size = size;
    a->copy[at].take = take;
    a->copy[at].group = a->group;
}
/* Until @left committed groups, at most, are under way */
SLOW void async_wait(struct rt_async *a, u32 left)
{
    while (a->n && a->copy[a->first].group + left < a->group) async_oldest(a);
}
SLOW void async_wait_all(struct rt_async *a)
{
    while (a->n) async_oldest(a);
}
/* clang-format on */
#endif
