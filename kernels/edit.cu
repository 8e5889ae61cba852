/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The edit kernel: what edits do to the rows that they choose. A block has a row. While one edit is done, an element is read and
 * written by one thread alone; the block waits before the next edit, which may deal the elements out to other threads. Rows that
 * no edit chooses are neither read nor written.
 *
 * The operations of an edit follow one another on each element without memory in between, as the results of those before are
 * computed again where a sum needs them: so wide rows need no room. A result is rounded to the tensor's type after each operation
 * that PyTorch would round after; products and sums are not contracted.
 */
#include "kernels/gather.cuh"
#include "kernels/ticket.cuh"

#include <dmi/edit.h>

#define THREADS 256u /* of a block; the order of sums depends on it */

/* ------------------------------------------------------------------------- values */

static __device__ __forceinline__ float bf16_value(unsigned short bits)
{
    return __uint_as_float((dmi_u32)bits << 16);
}

/* To the nearest, of two the even one. */
static __device__ __forceinline__ unsigned short bf16_bits(float v)
{
    dmi_u32 u = __float_as_uint(v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0;
    return (unsigned short)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static __device__ __forceinline__ float f16_value(unsigned short bits)
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
}

static __device__ __forceinline__ unsigned short f16_bits(float v)
{
    unsigned short bits;
    if ((__float_as_uint(v) & 0x7fffffffu) > 0x7f800000u)
        return 0x7e00;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}

static __device__ __forceinline__ float load(dmi_u32 dtype, const char *at)
{
    if (dtype == DMI_EDIT_F32)
        return *(const float *)at;
    unsigned short bits = *(const unsigned short *)at;
    return dtype == DMI_EDIT_BF16 ? bf16_value(bits) : f16_value(bits);
}

static __device__ __forceinline__ void store(dmi_u32 dtype, char *at, float v)
{
    if (dtype == DMI_EDIT_F32)
        *(float *)at = v;
    else
        *(unsigned short *)at = dtype == DMI_EDIT_BF16 ? bf16_bits(v) : f16_bits(v);
}

/* As it would be after a store. */
static __device__ __forceinline__ float stored(dmi_u32 dtype, float v)
{
    if (dtype == DMI_EDIT_F32)
        return v;
    return dtype == DMI_EDIT_BF16 ? bf16_value(bf16_bits(v)) : f16_value(f16_bits(v));
}

/* ------------------------------------------------------------------------- elements of a row */

#define NO_CELL 0xffffffffu

/* One row, or a head of it, under one edit. */
struct stretch {
    const struct dmi_edit *e;
    const struct dmi_edit_part *part;
    const struct dmi_edit_op *ops;
    const float *coefficients;
    dmi_u32 vector_row;   /* of vectors that have several */
    const dmi_u32 *cells; /* of a row of the bank, one a chunk */
    const char *region;
    struct dmi_edit_fit fit; /* of the row that is here */
    const dmi_u32 *columns;  /* NULL: all */
    dmi_u32 n;               /* elements that the edit takes */
    dmi_u32 width;           /* elements of the row or head */
    dmi_u32 first;           /* element of the row with which it begins */
    dmi_i64 row;             /* where the row lies, in bytes from the first */
};

/* Which element of the row or head the @i-th is that the edit takes. */
static __device__ __forceinline__ dmi_u32 column_of(const struct stretch *s, dmi_u32 i)
{
    return s->columns ? s->columns[i] - s->fit.offset : i;
}

/* Where it lies, in bytes from the tensor's first. */
static __device__ __forceinline__ dmi_i64 place_of(const struct stretch *s, dmi_u32 column)
{
    const struct dmi_gather *g = &s->e->gather;
    dmi_u32 size = s->e->dtype == DMI_EDIT_F32 ? 4 : 2;
    dmi_u32 a_run = g->run_bytes / size, element = s->first + column;
    dmi_u32 run = element / a_run;
    dmi_i64 at = s->row + (dmi_i64)(element - run * a_run) * size;
    if (!run)
        return at;
    at += run % g->count[3] * g->stride[3];
    run /= g->count[3];
    at += run % g->count[2] * g->stride[2];
    run /= g->count[2];
    return at + run * g->stride[1];
}

/* The value that edits work on. With a second tensor it is the sum, which no memory holds. */
static __device__ __forceinline__ float value_at(const struct stretch *s, dmi_i64 at)
{
    const struct dmi_edit *e = s->e;
    float x = load(e->dtype, (const char *)e->gather.src + at);
    if (e->scale != 1.0f)
        x = __fdiv_rn(x, e->scale);
    return e->plus ? __fadd_rn(x, load(e->dtype, (const char *)e->plus + at)) : x;
}

/* A result as the tensor can hold it; sums with a second tensor are rounded once, at the end. */
static __device__ __forceinline__ float rounded(const struct stretch *s, float v)
{
    const struct dmi_edit *e = s->e;
    if (e->plus || e->dtype == DMI_EDIT_F32)
        return v;
    if (e->scale == 1.0f)
        return stored(e->dtype, v);
    return __fdiv_rn(stored(e->dtype, __fmul_rn(v, e->scale)), e->scale);
}

static __device__ __forceinline__ void put(const struct stretch *s, dmi_i64 at, float v)
{
    const struct dmi_edit *e = s->e;
    if (e->plus)
        v = __fsub_rn(v, load(e->dtype, (const char *)e->plus + at));
    store(e->dtype, (char *)e->gather.src + at, e->scale == 1.0f ? v : __fmul_rn(v, e->scale));
}

/* ------------------------------------------------------------------------- the bank */

static __device__ __forceinline__ struct dmi_bank_entry *entry_at(const struct dmi_edit *e,
                                                                  dmi_u32 cell)
{
    return (struct dmi_bank_entry *)e->bank + cell;
}

static __device__ __forceinline__ float *numbers_of(const struct dmi_edit *e, dmi_u32 cell)
{
    return (float *)(e->bank + (dmi_u64)e->n_cells * sizeof(struct dmi_bank_entry) +
                     (dmi_u64)cell * DMI_BANK_CELL_BYTES);
}

static __device__ __forceinline__ dmi_u32 chunks_of(dmi_u32 n)
{
    return (n + DMI_BANK_CELL - 1) / DMI_BANK_CELL;
}

/* The first entry of the bucket that a chunk of a row has, as its first or second choice. */
static __device__ __forceinline__ dmi_u32 bucket_of(const struct dmi_edit *e, dmi_u64 key,
                                                    dmi_u32 chunk, dmi_u32 choice)
{
    dmi_u64 h = key + (dmi_u64)(2 * chunk + choice + 1) * 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ h >> 27) * 0x94d049bb133111ebull;
    return (dmi_u32)((h ^ h >> 31) % (e->n_cells / DMI_BANK_BUCKET)) * DMI_BANK_BUCKET;
}

/*
 * Where the chunks of a row lie; NO_CELL: nowhere. @about: DMI_BANK_ABOUT() of its first one. @ready: only what was saved to its end. The whole
 * block calls it.
 */
static __device__ void find_cells(const struct dmi_edit *e, dmi_u64 key, dmi_u32 about, bool ready,
                                  dmi_u32 *cells)
{
    dmi_u32 n_chunks = chunks_of(e->row.n);
    __syncthreads();
    for (dmi_u32 i = threadIdx.x; i < n_chunks; i += THREADS)
        cells[i] = NO_CELL;
    __syncthreads();
    for (dmi_u32 i = threadIdx.x; i < n_chunks * 2 * DMI_BANK_BUCKET; i += THREADS) {
        dmi_u32 chunk = i / (2 * DMI_BANK_BUCKET), way = i % (2 * DMI_BANK_BUCKET);
        dmi_u32 cell = bucket_of(e, key, chunk, way / DMI_BANK_BUCKET) + way % DMI_BANK_BUCKET;
        const volatile struct dmi_bank_entry *entry = entry_at(e, cell);
        if (entry->key == key && entry->about == (about | chunk) && (!ready || entry->ready))
            cells[chunk] = cell;
    }
    __threadfence(); /* numbers are read after the mark of save_row() that they are there */
    __syncthreads();
}

static __device__ __forceinline__ dmi_u32 n_free(const struct dmi_edit *e, dmi_u32 bucket)
{
    dmi_u32 n = 0;
    for (dmi_u32 i = 0; i < DMI_BANK_BUCKET; i++)
        n += entry_at(e, bucket + i)->key == 0;
    return n;
}

/* A free cell for a chunk, in the emptier of its buckets: so the bank fills up evenly. Return: NO_CELL: both are full. */
static __device__ dmi_u32 claim_cell(const struct dmi_edit *e, dmi_u64 key, dmi_u32 about,
                                     dmi_u32 chunk)
{
    dmi_u32 first = bucket_of(e, key, chunk, 0), second = bucket_of(e, key, chunk, 1);
    bool swap = n_free(e, second) > n_free(e, first);
    for (dmi_u32 i = 0; i < 2 * DMI_BANK_BUCKET; i++) {
        dmi_u32 cell = ((i < DMI_BANK_BUCKET) != swap ? first : second) + i % DMI_BANK_BUCKET;
        if (atomicCAS(&entry_at(e, cell)->key, 0ull, key) == 0ull) {
            entry_at(e, cell)->about = about;
            return cell;
        }
    }
    return NO_CELL;
}

static __device__ __forceinline__ void free_cell(struct dmi_bank_entry *entry)
{
    entry->ready = 0;
    entry->about = 0;
    __threadfence(); /* the thread that claims it finds it empty */
    *(volatile dmi_u64 *)&entry->key = 0;
}

/* Cells for all chunks of the row, which nobody takes for saved. Return: false: there is no room, and the row has none. */
static __device__ bool claim_row(const struct dmi_edit *e, dmi_u64 key, dmi_u32 about,
                                 dmi_u32 *cells)
{
    bool good = true;
    dmi_u32 n = e->row.n;
    if (n > DMI_BANK_WIDEST || !e->bank)
        return false;
    find_cells(e, key, about, false, cells);
    for (dmi_u32 i = threadIdx.x; i < chunks_of(n); i += THREADS) {
        if (cells[i] == NO_CELL)
            cells[i] = claim_cell(e, key, about | i, i);
        good = good && cells[i] != NO_CELL;
        if (cells[i] != NO_CELL)
            entry_at(e, cells[i])->ready = 0;
    }
    __threadfence();
    if (!__syncthreads_or(!good))
        return true;
    for (dmi_u32 i = threadIdx.x; i < chunks_of(n); i += THREADS)
        if (cells[i] != NO_CELL)
            free_cell(entry_at(e, cells[i]));
    return false;
}

/* ------------------------------------------------------------------------- operations */

/*
 * The number of a vector for the @i-th element that the edit takes: vectors are as long as the row on all ranks, or as what the edit takes of it
 * or of a head. Rows of the bank are as long as what is here.
 */
static __device__ __forceinline__ float number_at(const struct stretch *s,
                                                  const struct dmi_edit_op *op, dmi_u32 vector,
                                                  dmi_u32 i)
{
    const float *v = (const float *)(s->region + (dmi_u64)vector * DMI_EDIT_ALIGN);
    if (!vector) {
        dmi_u32 element = s->first + column_of(s, i);
        return numbers_of(s->e, s->cells[element / DMI_BANK_CELL])[element % DMI_BANK_CELL];
    }
    if (op->n_rows > 1)
        v += (dmi_u64)s->vector_row * op->n_vector;
    if (op->n_vector == s->fit.whole)
        return v[s->fit.offset + s->first + column_of(s, i)];
    return v[s->columns ? s->fit.first + i : i];
}

static __device__ __forceinline__ float number_of(const struct stretch *s,
                                                  const struct dmi_edit_op *op, dmi_u32 i)
{
    return number_at(s, op, op->vector, i);
}

/* Does the operation leave everything as it is? Then nothing is written for it, not even what x + 0 would change. */
static __device__ __forceinline__ bool is_idle(const struct dmi_edit_op *op, float c)
{
    bool adds = op->kind == DMI_EDIT_ADD || op->kind == DMI_EDIT_PROJECT_OUT ||
                op->kind == DMI_EDIT_LIMIT || op->kind == DMI_EDIT_PATCH;
    return (adds && c == 0.0f) || (op->kind == DMI_EDIT_SCALE && c == 1.0f);
}

/* NaN stays NaN. */
static __device__ __forceinline__ float clamped(float x, float low, float high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* How far along its vector the operation moves a row whose sum is @sum. */
static __device__ __forceinline__ float step_of(const struct dmi_edit_op *op, float c, float sum)
{
    if (op->kind == DMI_EDIT_PROJECT_OUT)
        return -__fmul_rn(c, sum);
    if (op->kind == DMI_EDIT_ADJUST)
        return __fsub_rn(op->a, sum);
    if (op->kind == DMI_EDIT_FEATURE) {
        float f = __fadd_rn(sum, op->a);
        return __fsub_rn(c, f > op->b ? f : 0.0f);
    }
    return __fmul_rn(c, __fsub_rn(clamped(sum, op->a, op->b), sum));
}

/* One operation on the @i-th element. @step: of one with a sum, which is known by now. */
static __device__ __forceinline__ float applied(const struct stretch *s,
                                                const struct dmi_edit_op *op, float c, float step,
                                                dmi_u32 i, float x)
{
    switch (op->kind) {
    case DMI_EDIT_ADD: {
        float v = rounded(s, number_of(s, op, i));
        return rounded(s, __fadd_rn(x, rounded(s, __fmul_rn(v, c))));
    }
    case DMI_EDIT_PATCH: {
        float v = rounded(s, number_of(s, op, i));
        if (c == 1.0f) /* x may be an infinity */
            return v;
        return rounded(s, __fadd_rn(rounded(s, __fmul_rn(x, __fsub_rn(1.0f, c))),
                                    rounded(s, __fmul_rn(v, c))));
    }
    case DMI_EDIT_SCALE: return rounded(s, __fmul_rn(x, c));
    case DMI_EDIT_SET: return rounded(s, op->vector ? number_of(s, op, i) : op->a);
    case DMI_EDIT_ZERO: return 0.0f;
    case DMI_EDIT_CLAMP: return clamped(x, rounded(s, op->a), rounded(s, op->b));
    case DMI_EDIT_KEEP_NORM: return rounded(s, __fmul_rn(x, step));
    case DMI_EDIT_FEATURE: /* x + 0 would change -0.0 */
        return step == 0.0f ? x : __fadd_rn(x, __fmul_rn(step, number_of(s, op, i)));
    default: return rounded(s, __fadd_rn(x, __fmul_rn(step, number_of(s, op, i))));
    }
}

/* The first @n operations on the @i-th element. @steps: of those with sums. */
static __device__ __forceinline__ float after(const struct stretch *s, dmi_u32 n,
                                              const float *steps, dmi_u32 i, float x)
{
    bool loose = false; /* features that follow one another are rounded together */
    for (dmi_u32 k = 0; k < n; k++) {
        bool feature = s->ops[k].kind == DMI_EDIT_FEATURE;
        if (!is_idle(&s->ops[k], s->coefficients[k]))
            x = applied(s, &s->ops[k], s->coefficients[k], steps[k], i, x);
        loose = loose || (feature && steps[k] != 0.0f);
        if (!loose || (feature && k + 1 < n && s->ops[k + 1].kind == DMI_EDIT_FEATURE))
            continue;
        x = rounded(s, x);
        loose = false;
    }
    return x;
}

/* The sum over all threads, in an order that is always the same. */
static __device__ float sum_of_all(float mine)
{
    __shared__ float partial[THREADS];
    __syncthreads();
    partial[threadIdx.x] = mine;
    for (dmi_u32 half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            partial[threadIdx.x] = __fadd_rn(partial[threadIdx.x], partial[threadIdx.x + half]);
    }
    __syncthreads();
    return partial[0];
}

/* What operation number @k needs to know of the whole row or head. */
static __device__ float find_step(const struct stretch *s, dmi_u32 k, const float *steps)
{
    const struct dmi_edit_op *op = &s->ops[k];
    dmi_u32 n_before = k; /* features of one dictionary are all read before the first is written */
    while (op->kind == DMI_EDIT_FEATURE && n_before && s->ops[n_before - 1].kind == op->kind)
        n_before--;
    float sum = 0.0f, before = 0.0f;
    for (dmi_u32 i = threadIdx.x; i < s->n; i += THREADS) {
        float x = value_at(s, place_of(s, column_of(s, i)));
        float y = after(s, n_before, steps, i, x);
        float other = op->kind == DMI_EDIT_KEEP_NORM ? y
                      : op->kind == DMI_EDIT_FEATURE ? number_at(s, op, op->encoder, i)
                                                     : number_of(s, op, i);
        sum = __fadd_rn(sum, __fmul_rn(y, other));
        before = __fadd_rn(before, __fmul_rn(x, x));
    }
    sum = sum_of_all(sum);
    if (op->kind != DMI_EDIT_KEEP_NORM)
        return step_of(op, s->coefficients[k], sum);
    before = sum_of_all(before);
    return sum > 0.0f ? __fsqrt_rn(__fdiv_rn(before, sum)) : 1.0f;
}

/* Return: has this thread stored something that is not finite? */
static __device__ bool edit_stretch(const struct stretch *s)
{
    float steps[DMI_EDIT_MAX_OPS];
    bool any = false, wild = false;
    for (dmi_u32 k = 0; k < s->part->n_ops; k++) {
        bool idle = is_idle(&s->ops[k], s->coefficients[k]);
        steps[k] = DMI_EDIT_SUMS(s->ops[k].kind) && !idle ? find_step(s, k, steps) : 0.0f;
        any = any || !idle;
    }
    for (dmi_u32 i = threadIdx.x; any && i < s->n; i += THREADS) {
        dmi_i64 at = place_of(s, column_of(s, i));
        put(s, at, after(s, s->part->n_ops, steps, i, value_at(s, at)));
        float stored = load(s->e->dtype, (const char *)s->e->gather.src + at);
        wild = wild || (__float_as_uint(stored) & 0x7f800000u) == 0x7f800000u;
    }
    return wild;
}

/* ------------------------------------------------------------------------- edits of a row */

/* The part on a whole row, or on the heads that it takes. Return: as edit_stretch(). */
static __device__ bool edit_row(struct stretch *s)
{
    const struct dmi_edit *e = s->e;
    const struct dmi_edit_part *p = s->part;
    const dmi_u32 *list = (const dmi_u32 *)(s->region + (dmi_u64)p->columns * DMI_EDIT_ALIGN);
    dmi_u32 n = !s->fit.by_head ? 1 : p->of_heads ? s->fit.n_named : e->row.n / e->row.head;
    s->width = s->fit.by_head ? e->row.head : e->row.n;
    s->columns = p->n_columns && !p->of_heads ? list + s->fit.first : nullptr;
    s->n = s->columns ? s->fit.n_named : s->width;
    bool wild = false;
    for (dmi_u32 i = 0; i < n; i++) {
        s->first = p->of_heads ? list[s->fit.first + i] * s->width - s->fit.offset : i * s->width;
        wild = edit_stretch(s) || wild;
    }
    return wild;
}

/* What the bank notes of the row's first chunk. */
static __device__ __forceinline__ dmi_u32 about_of(const struct stretch *s)
{
    return DMI_BANK_ABOUT(s->e->row.n, s->fit.whole != s->e->row.n, 0);
}

/* The row as it is goes into the bank. Return: is there room? */
static __device__ bool save_row(struct stretch *s, dmi_u64 key, dmi_u32 *cells)
{
    const struct dmi_edit *e = s->e;
    if (!claim_row(e, key, about_of(s), cells))
        return false;
    for (dmi_u32 i = threadIdx.x; i < e->row.n; i += THREADS)
        numbers_of(e, cells[i / DMI_BANK_CELL])[i % DMI_BANK_CELL] = value_at(s, place_of(s, i));
    __threadfence(); /* numbers before the mark that they are there, which find_cells() reads */
    __syncthreads();
    for (dmi_u32 i = threadIdx.x; i < chunks_of(e->row.n); i += THREADS)
        *(volatile dmi_u32 *)&entry_at(e, cells[i])->ready = 1;
    return true;
}

/* Is the row of the bank there that the part takes, if it takes one? */
static __device__ bool find_source(struct stretch *s, dmi_u64 key, dmi_u32 *cells)
{
    bool takes = false, good = true;
    for (dmi_u32 k = 0; k < s->part->n_ops; k++)
        takes = takes || (s->ops[k].kind == DMI_EDIT_PATCH && !s->ops[k].vector);
    if (!takes)
        return true;
    s->cells = cells;
    if (s->e->row.n > DMI_BANK_WIDEST || !s->e->bank)
        return false;
    find_cells(s->e, key, about_of(s), true, cells);
    for (dmi_u32 i = threadIdx.x; i < chunks_of(s->e->row.n); i += THREADS)
        good = good && cells[i] != NO_CELL;
    return !__syncthreads_or(!good);
}

/* One part on the row. Counts what became of it: @counter. The whole block calls it. */
static __device__ void do_part(struct stretch *s, bool saves, dmi_u32 counter, dmi_u64 key)
{
    __shared__ dmi_u32 cells[DMI_BANK_WIDEST / DMI_BANK_CELL];
    const struct dmi_edit *e = s->e;
    dmi_u64 *counters = (dmi_u64 *)e->counters;
    bool good = saves ? save_row(s, key, cells) : find_source(s, key, cells);
    /* the next edit may take the same elements with other threads */
    bool wild = __syncthreads_or(good && !saves && edit_row(s));
    if (threadIdx.x)
        return;
    atomicAdd(counters + (good ? 0 : 2 * e->n_counters) + counter, 1ull);
    if (wild)
        atomicAdd(counters + e->n_counters + counter, 1ull);
}

static __device__ __forceinline__ struct dmi_edit_fit fit_of(const struct dmi_edit *e,
                                                             const struct dmi_edit_part *p,
                                                             const char *base, const dmi_u32 *entry)
{
    const dmi_u32 *list = (const dmi_u32 *)(base + (dmi_u64)p->columns * DMI_EDIT_ALIGN);
    struct dmi_edit_cut cut = { entry[DMI_EDIT_CUT], entry[DMI_EDIT_CUT + 1],
                                entry[DMI_EDIT_CUT + 2] };
    return dmi_edit_fit(p, list, e->row, cut);
}

/*
 * The edits that a section of the program has, in their order; of those that the place has, each is looked for once. Those that save
 * rows and the others have launches of their own. Return: what follows the section.
 */
static __device__ const dmi_u32 *edit_by(const struct dmi_edit *e, dmi_u32 place, bool saves,
                                         dmi_i64 row, const dmi_u32 *program)
{
    const char *region = (const char *)e->region;
    const struct dmi_edit_table *t =
        (const struct dmi_edit_table *)(region + (dmi_u64)program[0] * DMI_EDIT_ALIGN);
    const char *base = (const char *)t;
    const struct dmi_edit_parts *parts =
        (const struct dmi_edit_parts *)(base + (dmi_u64)t->entries * DMI_EDIT_ALIGN) +
        DMI_EDIT_ENTRY(t, place);
    const struct dmi_edit_part *p =
        (const struct dmi_edit_part *)(base + (dmi_u64)t->parts * DMI_EDIT_ALIGN) + parts->first;
    const struct dmi_edit_part *end = p + parts->n;
    const struct dmi_edit_op *ops =
        (const struct dmi_edit_op *)(base + (dmi_u64)t->ops * DMI_EDIT_ALIGN);
    const dmi_u32 *entry = program + 2;
    for (dmi_u32 i = 0; i < program[1]; i++) {
        while (p < end && p->edit < (entry[0] & 0xffffu))
            p++;
        if (p < end && p->edit == (entry[0] & 0xffffu) &&
            (ops[p->first_op].kind == DMI_EDIT_SAVE) == saves) {
            struct stretch s = {};
            s.e = e;
            s.part = p;
            s.ops = ops + p->first_op;
            s.vector_row = entry[2];
            s.coefficients = (const float *)(entry + DMI_EDIT_BEFORE_OPS);
            s.region = base;
            s.row = row;
            s.fit = fit_of(e, p, base, entry);
            if (s.fit.fits == DMI_EDIT_FITS)
                do_part(&s, saves, entry[1], DMI_BANK_KEY(entry[3], place & 1023u, entry[2]));
        }
        entry += DMI_EDIT_BEFORE_OPS + (entry[0] >> 16);
    }
    return entry;
}

static __device__ void edit_rows(const struct dmi_edit *e, dmi_u32 place, bool saves,
                                 const dmi_u32 *words, dmi_u32 n_rows)
{
    bool every = words[0] == DMI_EDIT_EVERY;
    for (dmi_u32 i = blockIdx.x; i < n_rows; i += gridDim.x) {
        dmi_u32 row = every ? i : words[2 * i];
        dmi_u32 program = every ? words[1] : words[2 * i + 1];
        struct choice choice = { nullptr, n_rows };
        dmi_i64 at = row_at(&e->gather, &choice, row, nullptr);
        for (const dmi_u32 *section = words + program; at != NOWHERE && *section;)
            section = edit_by(e, place, saves, at, section);
    }
}

/* Grid: any number of blocks of THREADS. */
extern "C" __global__ void dmi_edit_eager(const __grid_constant__ struct dmi_edit e)
{
    edit_rows(&e, e.at, false, (const dmi_u32 *)e.rows, e.n_rows);
}

extern "C" __global__ void dmi_save_eager(const __grid_constant__ struct dmi_edit e)
{
    edit_rows(&e, e.at, true, (const dmi_u32 *)e.rows, e.n_rows);
}

/* The same in a graph, as the ticket says. */
static __device__ __forceinline__ void edit_by_ticket(const struct dmi_edit *e, bool saves)
{
    const struct dmi_ticket *state = (const struct dmi_ticket *)e->state;
    if (!is_wanted(state, e->number))
        return;
    struct choice choice = choice_of(state, e->number, e->lists, e->n_rows);
    edit_rows(e, state->slot[e->number], saves, choice.list, choice.n_rows);
}

extern "C" __global__ void dmi_edit_graph(const __grid_constant__ struct dmi_edit e)
{
    edit_by_ticket(&e, false);
}

extern "C" __global__ void dmi_save_graph(const __grid_constant__ struct dmi_edit e)
{
    edit_by_ticket(&e, true);
}

/* Forgets rows of donors that nobody takes any more. Any grid. */
extern "C" __global__ void dmi_bank_drop(const __grid_constant__ struct dmi_bank_drop d)
{
    struct dmi_bank_entry *entries = (struct dmi_bank_entry *)d.bank;
    for (dmi_u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < d.n_cells;
         i += gridDim.x * blockDim.x) {
        dmi_u32 donor = (dmi_u32)(entries[i].key >> 32);
        if (donor >= d.first && donor <= d.last)
            free_cell(&entries[i]);
    }
}
