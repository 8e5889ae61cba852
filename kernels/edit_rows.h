/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What edits do to the rows that they choose: done by a block on the device, which has a row at a time, or by a thread on the host, which has all.
 * While one edit is done, an element is read and written by one thread alone; the block meets before the next edit, which may deal the elements
 * out to other threads. Rows that no edit chooses are neither read nor written.
 */
#pragma once

#include "kernels/edit_bank.h"

/* ------------------------------------------------------------------------- one edit of a row, or of a head of it */

/* The sum of @partial, in an order that is always the same. The whole block calls it. */
BLOCK_FUNCTION float sum_of_all(float *partial)
{
    for (dmi_u32 half = DMI_EDIT_THREADS / 2; half; half /= 2) {
        meet();
        for_each (t, half)
            partial[t] = add_rn(partial[t], partial[t + half]);
    }
    meet();
    return partial[0];
}

/* What every DMI_EDIT_THREADS-th element from number @t on adds to the sum of operation @k, and to that of squares before the edit. */
DMI_SHARED void add_share(const struct edited_row *s, dmi_u32 k, const float *steps, dmi_u32 t,
                          float *share, float *squares)
{
    dmi_u32 n_before =
        k; /* operations that see the same row are all read before the first is written */
    while (n_before && is_followed(s, n_before - 1))
        n_before--;
    *share = *squares = 0.0f;
    for (dmi_u32 i = t; i < s->n; i += DMI_EDIT_THREADS) {
        float x = value_at(s, place_of(s, column_of(s, i)));
        float y = after(s, n_before, steps, i, x);
        *share = add_rn(*share, mul_rn(y, factor_of(s, &s->ops[k], i, y)));
        *squares = add_rn(*squares, mul_rn(x, x));
    }
}

/* What operation number @k needs to know of the whole row or head. */
BLOCK_FUNCTION float find_step(const struct edited_row *s, dmi_u32 k, const float *steps)
{
    BLOCK_MEMORY float shares[DMI_EDIT_THREADS], squares[DMI_EDIT_THREADS];
    const struct dmi_edit_op *op = &s->ops[k];
    meet();
    for_each (t, DMI_EDIT_THREADS)
        add_share(s, k, steps, t, &shares[t], &squares[t]);
    float sum = sum_of_all(shares);
    float before = op->kind == DMI_EDIT_KEEP_NORM ? sum_of_all(squares) : 0.0f;
    return step_of(op, s->coefficients[k], sum, before);
}

/* Return: has this thread stored something that is not finite? */
BLOCK_FUNCTION bool edit_stretch(struct edited_row *s)
{
    float steps[DMI_EDIT_MAX_OPS];
    dmi_u32 n = 0; /* elements to write: none where all operations are idle */
    bool wild = false;
    s->idle = 0;
    for (dmi_u32 k = 0; k < s->part->n_ops; k++) {
        bool idle = is_idle(&s->ops[k], s->coefficients[k]);
        bool sums = dmi_edit_traits(s->ops[k].kind) & DMI_EDIT_SUMS;
        s->idle |= (dmi_u32)idle << k;
        steps[k] = sums && !idle ? find_step(s, k, steps) : 0.0f;
        n = idle ? n : s->n;
    }
    for_each (i, n) {
        dmi_i64 at = place_of(s, column_of(s, i));
        put(s, at, after(s, s->part->n_ops, steps, i, value_at(s, at)));
        float left = load(s->e->dtype, (const char *)s->e->gather.src + at);
        wild = wild || (bits_of(left) & 0x7f800000u) == 0x7f800000u;
    }
    return wild;
}

/* ------------------------------------------------------------------------- the edits of a row */

/* The part on a whole row, or on the heads that it takes. Return: as edit_stretch(). */
BLOCK_FUNCTION bool edit_row(struct edited_row *s)
{
    const struct dmi_edit *e = s->e;
    const struct dmi_edit_part *p = s->part;
    const dmi_u32 *list = (const dmi_u32 *)(s->region + (dmi_u64)p->columns * DMI_EDIT_ALIGN);
    dmi_u32 n = !s->fit.by_head ? 1 : p->of_heads ? s->fit.n_named : e->row.n / e->row.head;
    s->width = s->fit.by_head ? e->row.head : e->row.n;
    s->columns = p->n_columns && !p->of_heads ? list + s->fit.first : NULL;
    s->n = s->columns ? s->fit.n_named : s->width;
    bool wild = false;
    for (dmi_u32 i = 0; i < n; i++) {
        s->first = p->of_heads ? list[s->fit.first + i] * s->width - s->fit.offset : i * s->width;
        wild = edit_stretch(s) || wild;
    }
    return wild;
}

/* What the bank notes of the row's first chunk. */
DMI_SHARED dmi_u32 about_of(const struct edited_row *s)
{
    return DMI_BANK_ABOUT(s->e->row.n, s->fit.whole != s->e->row.n, 0);
}

/* The row as it is goes into the bank. Return: is there room? */
BLOCK_FUNCTION bool save_row(struct edited_row *s, dmi_u64 key, dmi_u32 *cells)
{
    const struct dmi_edit *e = s->e;
    if (!claim_row(e, key, about_of(s), cells))
        return false;
    for_each (i, e->row.n)
        numbers_of(e, cells[i / DMI_BANK_CELL])[i % DMI_BANK_CELL] = value_at(s, place_of(s, i));
    fence(); /* numbers before the mark that they are there, which find_cells() reads */
    meet();
    for_each (i, chunks_of(e->row.n))
        say(&entry_at(e, cells[i])->ready, 1);
    return true;
}

/* Is the row of the bank there that the part takes, if it takes one? */
BLOCK_FUNCTION bool find_source(struct edited_row *s, dmi_u64 key, dmi_u32 *cells)
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
    for_each (i, chunks_of(s->e->row.n))
        good = good && cells[i] != NO_CELL;
    return !any_of_block(!good);
}

/* One part on the row. Counts what became of it: @counter. The whole block calls it. */
BLOCK_FUNCTION void do_part(struct edited_row *s, bool saves, dmi_u32 counter, dmi_u64 key)
{
    BLOCK_MEMORY dmi_u32 cells[DMI_BANK_WIDEST / DMI_BANK_CELL];
    const struct dmi_edit *e = s->e;
    dmi_u64 *counters = (dmi_u64 *)e->counters;
    bool good = saves ? save_row(s, key, cells) : find_source(s, key, cells);
    /* the next edit may take the same elements with other threads */
    bool wild = any_of_block(good && !saves && edit_row(s));
    if (!speaks_for_block())
        return;
    count_one(counters + (good ? 0 : 2 * e->n_counters) + counter);
    if (wild)
        count_one(counters + e->n_counters + counter);
}

/* How the part takes the row, of which a program's @entry says what is here. */
DMI_SHARED struct dmi_edit_fit fit_of(const struct dmi_edit *e, const struct dmi_edit_part *p,
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
BLOCK_FUNCTION const dmi_u32 *edit_by(const struct dmi_edit *e, dmi_u32 at, bool saves, dmi_i64 row,
                                      const dmi_u32 *program)
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
            struct edited_row s = { 0 };
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

/* All rows that the @words of struct dmi_edit choose of @n_rows. The whole block calls it. */
BLOCK_FUNCTION void edit_rows(const struct dmi_edit *e, dmi_u32 at, bool saves,
                              const dmi_u32 *words, dmi_u32 n_rows)
{
    bool every = words[0] == DMI_EDIT_EVERY;
    for_each_row(i, n_rows)
    {
        dmi_u32 row = every ? i : words[2 * i];
        dmi_u32 program = every ? words[1] : words[2 * i + 1];
        dmi_i64 lies = row_lies(&e->gather, row);
        for (const dmi_u32 *section = words + program; lies != NOWHERE && *section;)
            section = edit_by(e, at, saves, lies, section);
    }
}
