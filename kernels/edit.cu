/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The edit kernel: what edits do to the rows that they choose. A block has a row. While one edit is done, an element is read and
 * written by one thread alone; the block waits before the next edit, which may deal the elements out to other threads. Rows that
 * no edit chooses are neither read nor written.
 */
#include "kernels/edit_ops.cuh"
#include "kernels/ticket.cuh"

/* ------------------------------------------------------------------------- the bank */

static __device__ __forceinline__ struct dmi_bank_entry *entry_at(const struct dmi_edit *e,
                                                                  dmi_u32 cell)
{
    return (struct dmi_bank_entry *)e->bank + cell;
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
        takes = takes || (dmi_edit_traits(s->ops[k].kind) & DMI_EDIT_BANK && !s->ops[k].vector);
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
static __device__ const dmi_u32 *edit_by(const struct dmi_edit *e, dmi_u32 at, bool saves,
                                         dmi_i64 row, const dmi_u32 *program)
{
    const char *region = (const char *)e->region;
    const struct dmi_edit_table *t =
        (const struct dmi_edit_table *)(region + (dmi_u64)program[0] * DMI_EDIT_ALIGN);
    const char *base = (const char *)t;
    const struct dmi_edit_parts *parts =
        (const struct dmi_edit_parts *)(base + (dmi_u64)t->entries * DMI_EDIT_ALIGN) +
        DMI_EDIT_ENTRY(t, e->place, at);
    const struct dmi_edit_part *p =
        (const struct dmi_edit_part *)(base + (dmi_u64)t->parts * DMI_EDIT_ALIGN) + parts->first;
    const struct dmi_edit_part *end = p + parts->n;
    const struct dmi_edit_op *ops =
        (const struct dmi_edit_op *)(base + (dmi_u64)t->ops * DMI_EDIT_ALIGN);
    const dmi_u32 *entry = program + 2;
    for (dmi_u32 i = 0; i < program[1]; i++) {
        while (p < end && p->edit < (entry[0] & 0xffffu))
            p++;
        if (p < end && p->edit == (entry[0] & 0xffffu) && DMI_EDIT_IN_PASS(p, at) &&
            saves == !!(dmi_edit_traits(ops[p->first_op].kind) & DMI_EDIT_SAVES)) {
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
                do_part(&s, saves, entry[1], DMI_BANK_KEY(entry[3], at & 1023u, entry[2]));
        }
        entry += DMI_EDIT_BEFORE_OPS + (entry[0] >> 16);
    }
    return entry;
}

static __device__ void edit_rows(const struct dmi_edit *e, dmi_u32 at, bool saves,
                                 const dmi_u32 *words, dmi_u32 n_rows)
{
    bool every = words[0] == DMI_EDIT_EVERY;
    for (dmi_u32 i = blockIdx.x; i < n_rows; i += gridDim.x) {
        dmi_u32 row = every ? i : words[2 * i];
        dmi_u32 program = every ? words[1] : words[2 * i + 1];
        struct choice choice = { nullptr, n_rows };
        dmi_i64 lies = row_at(&e->gather, &choice, row, nullptr);
        for (const dmi_u32 *section = words + program; lies != NOWHERE && *section;)
            section = edit_by(e, at, saves, lies, section);
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
