/* SPDX-License-Identifier: Apache-2.0 */
/* How edits find the cells of the bank that a row has, or is to have (<dmi/edit.h>). Both sides compile it, as edit_ops.h. */
#pragma once

#include "kernels/edit_ops.h"

#define NO_CELL 0xffffffffu

/* The entry of a cell. */
DMI_SHARED struct dmi_bank_entry *entry_at(const struct dmi_edit *e, dmi_u32 cell)
{
    return (struct dmi_bank_entry *)e->bank + cell;
}

/* Cells that a row of @n elements needs. */
DMI_SHARED dmi_u32 chunks_of(dmi_u32 n)
{
    return (n + DMI_BANK_CELL - 1) / DMI_BANK_CELL;
}

/* The first entry of the bucket that a chunk of a row has, as its first or second choice. */
DMI_SHARED dmi_u32 bucket_of(const struct dmi_edit *e, dmi_u64 key, dmi_u32 chunk, dmi_u32 choice)
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
BLOCK_FUNCTION void find_cells(const struct dmi_edit *e, dmi_u64 key, dmi_u32 about, bool ready,
                               dmi_u32 *cells)
{
    dmi_u32 n_chunks = chunks_of(e->row.n);
    meet();
    for_each (i, n_chunks)
        cells[i] = NO_CELL;
    meet();
    for_each (i, n_chunks * 2 * DMI_BANK_BUCKET) {
        dmi_u32 chunk = i / (2 * DMI_BANK_BUCKET), way = i % (2 * DMI_BANK_BUCKET);
        dmi_u32 cell = bucket_of(e, key, chunk, way / DMI_BANK_BUCKET) + way % DMI_BANK_BUCKET;
        const struct dmi_bank_entry *entry = entry_at(e, cell);
        if (saw(&entry->key) == key && saw(&entry->about) == (about | chunk) &&
            (!ready || saw(&entry->ready)))
            cells[chunk] = cell;
    }
    fence(); /* numbers are read after the mark of save_row() that they are there */
    meet();
}

/* Free cells of a bucket. */
DMI_SHARED dmi_u32 n_free(const struct dmi_edit *e, dmi_u32 bucket)
{
    dmi_u32 n = 0;
    for (dmi_u32 i = 0; i < DMI_BANK_BUCKET; i++)
        n += saw(&entry_at(e, bucket + i)->key) == 0;
    return n;
}

/* A free cell for a chunk, in the emptier of its buckets: so the bank fills up evenly. Return: NO_CELL: both are full. */
BLOCK_FUNCTION dmi_u32 claim_cell(const struct dmi_edit *e, dmi_u64 key, dmi_u32 about,
                                  dmi_u32 chunk)
{
    dmi_u32 first = bucket_of(e, key, chunk, 0), second = bucket_of(e, key, chunk, 1);
    bool swap = n_free(e, second) > n_free(e, first);
    for (dmi_u32 i = 0; i < 2 * DMI_BANK_BUCKET; i++) {
        dmi_u32 cell = ((i < DMI_BANK_BUCKET) != swap ? first : second) + i % DMI_BANK_BUCKET;
        if (claim(&entry_at(e, cell)->key, key)) {
            say(&entry_at(e, cell)->about, about);
            return cell;
        }
    }
    return NO_CELL;
}

/* The cell has no row any more. */
DMI_SHARED void free_cell(struct dmi_bank_entry *entry)
{
    say(&entry->ready, 0);
    say(&entry->about, 0);
    fence(); /* the thread that claims it finds it empty */
    say(&entry->key, 0);
}

/* Cells for all chunks of the row, which nobody takes for saved. Return: false: there is no room, and the row has none. */
BLOCK_FUNCTION bool claim_row(const struct dmi_edit *e, dmi_u64 key, dmi_u32 about, dmi_u32 *cells)
{
    bool good = true;
    dmi_u32 n = e->row.n;
    if (n > DMI_BANK_WIDEST || !e->bank)
        return false;
    find_cells(e, key, about, false, cells);
    for_each (i, chunks_of(n)) {
        if (cells[i] == NO_CELL)
            cells[i] = claim_cell(e, key, about | i, i);
        good = good && cells[i] != NO_CELL;
        if (cells[i] != NO_CELL)
            say(&entry_at(e, cells[i])->ready, 0);
    }
    fence();
    if (!any_of_block(!good))
        return true;
    for_each (i, chunks_of(n))
        if (cells[i] != NO_CELL)
            free_cell(entry_at(e, cells[i]));
    return false;
}

/* The cell that is @i-th of the bank forgets its row, if a donor that is dropped had it. */
DMI_SHARED void drop_cell(const struct dmi_bank_drop *d, dmi_u32 i)
{
    struct dmi_bank_entry *entry = (struct dmi_bank_entry *)d->bank + i;
    dmi_u32 donor = (dmi_u32)(saw(&entry->key) >> 32);
    if (donor >= d->first && donor <= d->last)
        free_cell(entry);
}
