/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What host and device share of edits: tables, which say what each edit does at each place, and the parameter of the kernel.
 * Plain structs as in <dmi/ring.h>. Tables lie in one region of memory and hold offsets alone: a table is the same at
 * any address. Offsets count units of 16 bytes. What the operations compute: docs/edits.md.
 */
#ifndef DMI_EDIT_H
#define DMI_EDIT_H

#include <dmi/ring.h>

#define DMI_EDIT_ALIGN   16
#define DMI_EDIT_THREADS 256u /* of a block that does edits; the order of sums depends on it */

/* What is true of an operation. */
#define DMI_EDIT_TIMES     1u /* it has a coefficient, which a user may change while it is in force */
#define DMI_EDIT_IDLE_AT_0 2u /* with a coefficient of 0 it writes nothing */
#define DMI_EDIT_IDLE_AT_1 4u /* likewise of 1 */
#define DMI_EDIT_SUMS      8u /* it needs a sum over all that its edit takes of a row, or of a head */
#define DMI_EDIT_DIRECTION 16u  /* its vector is brought to length 1 */
#define DMI_EDIT_ADDS      32u  /* done to one summand it is done to the sum */
#define DMI_EDIT_ROWS      64u  /* its vector may have a row for each position */
#define DMI_EDIT_BANK      128u /* without a vector it takes a row of the bank */
#define DMI_EDIT_SAVES     256u /* it keeps the row in the bank, and writes nothing */
#define DMI_EDIT_TOGETHER                                                                          \
    512u /* those that follow one another in an edit see the row before the first, and are rounded once */

/*
 * The operations: what an operation does to x, a row or a head of it; c is its coefficient, v its vector, u that vector at length 1. This is
 * the one list of them. A row needs its case in kernels/edit_ops.h (what it computes) and in policy/edit_ops.c (how it is written), which do
 * not compile without, a row of the table of docs/edits.md, and its line in tests/preload/edits_reference.py.
 */
#define DMI_EDIT_OPS(OP)                                                                           \
    OP(ADD, add, DMI_EDIT_TIMES | DMI_EDIT_IDLE_AT_0 | DMI_EDIT_ADDS) /* x + c v */                \
    OP(SCALE, scale, DMI_EDIT_TIMES | DMI_EDIT_IDLE_AT_1)             /* c x */                    \
    OP(SET, set, 0)                                                   /* v, or the constant a */   \
    OP(ZERO, zero, 0)                                                 /* 0 */                      \
    OP(CLAMP, clamp, 0)                                               /* each element to [a, b] */ \
    OP(PROJECT_OUT, project_out,                                      /* x - c (x.u) u */          \
       DMI_EDIT_TIMES | DMI_EDIT_IDLE_AT_0 | DMI_EDIT_SUMS | DMI_EDIT_DIRECTION)                   \
    OP(ADJUST, adjust_rs, DMI_EDIT_SUMS) /* x + (a - x.v) v */                                     \
    OP(LIMIT, limit_along,               /* x + c (clamp(x.u, a, b) - x.u) u */                    \
       DMI_EDIT_TIMES | DMI_EDIT_IDLE_AT_0 | DMI_EDIT_SUMS | DMI_EDIT_DIRECTION)                   \
    OP(KEEP_NORM, keep_norm, DMI_EDIT_SUMS) /* x |x before the edit| / |x| */                      \
    OP(PATCH, patch,                        /* (1 - c) x + c v */                                  \
       DMI_EDIT_TIMES | DMI_EDIT_IDLE_AT_0 | DMI_EDIT_ROWS | DMI_EDIT_BANK)                        \
    OP(FEATURE, feature, /* x + (c - f) v, f = act(x.e + a): 0 unless it is above b */             \
       DMI_EDIT_SUMS | DMI_EDIT_TOGETHER)                                                          \
    OP(SAVE, save, DMI_EDIT_SAVES) /* x, and the bank keeps the row as it is before edits */

#define DMI_EDIT_OP(NAME, word, traits) DMI_EDIT_##NAME,
enum dmi_edit_kind { DMI_EDIT_OPS(DMI_EDIT_OP) DMI_EDIT_KINDS };
#undef DMI_EDIT_OP

/* Of a kind that is none: nothing. Pure. */
DMI_SHARED dmi_u32 dmi_edit_traits(dmi_u32 kind)
{
    switch (kind) {
#define DMI_EDIT_OP(NAME, word, traits)                                                            \
    case DMI_EDIT_##NAME: return traits;
        DMI_EDIT_OPS(DMI_EDIT_OP)
#undef DMI_EDIT_OP
    default: return 0;
    }
}

#define DMI_EDIT_MAX_OPS 16u /* of one edit */

struct dmi_edit_op {
    dmi_u32 kind;
    dmi_u32 vector;   /* offset of its numbers, f32; 0: it has none */
    dmi_u32 n_vector; /* of them, in a row */
    float a, b;
    dmi_u32 n_rows;  /* with DMI_EDIT_ROWS: rows of the vector, of which a program says one */
    dmi_u32 encoder; /* of DMI_EDIT_FEATURE: offset of e, as long as the vector */
    dmi_u32 reserved;
};

/* One edit at one place in one layer. */
struct dmi_edit_part {
    dmi_u32 edit;     /* its number in the table; parts of a place ascend by it */
    dmi_u32 first_op; /* among the table's */
    dmi_u32 n_ops;
    dmi_u32 width;   /* elements that its vectors are for; 0: any */
    dmi_u32 columns; /* offset of a list of u32: the columns, or heads, that it takes, ascending */
    dmi_u32 n_columns; /* 0: all */
    dmi_u32 of_heads;  /* 1: the list names heads */
    dmi_u32 sums;      /* 1: one of its operations has DMI_EDIT_SUMS */
    dmi_u32 pass;      /* DMI_EDIT_PASS() in which it is done; 0: in each */
};

/* The parts of a place in a layer. */
struct dmi_edit_parts {
    dmi_u32 first, n;
};

/* The head of a table. Its arrays follow in any order. */
struct dmi_edit_table {
    dmi_u32 n_places;
    dmi_u32 n_layers; /* entries a place: n_layers + 2, see DMI_EDIT_ENTRY() */
    dmi_u32 entries;  /* offset of struct dmi_edit_parts[n_places][n_layers + 2] */
    dmi_u32 parts;    /* offset of struct dmi_edit_part[] */
    dmi_u32 ops;      /* offset of struct dmi_edit_op[] */
    dmi_u32 reserved[3];
};

/* How often its layer ran before in the forward, as launches and parts name it: from 1; 0 is a pass that is not known. Of later ones than edits name: the last number. */
#define DMI_EDIT_MAX_PASS 61 /* that edits name */
#define DMI_EDIT_PASS(n)  ((dmi_u32)((n) > DMI_EDIT_MAX_PASS ? DMI_EDIT_MAX_PASS + 1 : (n)) + 1)

/* Layer (-1: none) and pass as a launch names them, in 16 bits. */
#define DMI_EDIT_AT(layer, pass) ((dmi_u32)((layer) + 1) | (dmi_u32)(pass) << 10)

/* Is the part done at a launch that is DMI_EDIT_AT()? */
#define DMI_EDIT_IN_PASS(part, at) (!(part)->pass || (part)->pass == (at) >> 10)

/* Which entry of a table a place has at DMI_EDIT_AT(): no layer, the layers that the table names, or a layer beyond these. */
#define DMI_EDIT_ENTRY(table, place, at)                                                           \
    ((place) * ((table)->n_layers + 2) +                                                           \
     (((at)&1023u) > (table)->n_layers ? (table)->n_layers + 1 : ((at)&1023u)))

/*
 * Which rows are written, and by what: u32 words. A pair for each row: its number, ascending, and where its program begins, in
 * words from the first pair. Where the first word is DMI_EDIT_EVERY, the second says the program of every row. A program is a
 * sequence of sections, then 0. A section is the offset of its table, a number of edits, and for each: DMI_EDIT_HEAD(), the
 * number of its counter, the row of its vectors that have several or of the bank, the donor whose rows of the bank it takes or keeps,
 * the words of a struct dmi_edit_cut, and a coefficient (f32) for each of its operations. Edits of a section ascend by number.
 */
#define DMI_EDIT_EVERY             0xffffffffu
#define DMI_EDIT_HEAD(edit, n_ops) ((dmi_u32)(edit) | (dmi_u32)(n_ops) << 16)
#define DMI_EDIT_CUT               4u /* the word of an edit with which its cut begins */
#define DMI_EDIT_BEFORE_OPS        7u /* words of an edit before its coefficients */

/* Which part of a row a rank has, where ranks divide rows: @own units from unit @first on, of @all units. Undivided: 0, 1, 1. */
struct dmi_edit_cut {
    dmi_u32 first, own, all;
};

/* The part of a row that is here. */
struct dmi_edit_shape {
    dmi_u32 n;     /* elements */
    dmi_u32 head;  /* elements a head; @n where the tensor has no dimension of heads */
    dmi_u32 heads; /* 0: it has no such dimension */
};

#define DMI_EDIT_FITS      0u
#define DMI_EDIT_FITS_NOT  1u /* vectors, columns or heads do not suit the row */
#define DMI_EDIT_DIVIDED   2u /* a sum would run over elements that other ranks have */
#define DMI_EDIT_ELSEWHERE 3u /* other ranks have all columns or heads that the edit names */

/* How an edit takes the part of a row that is here. */
struct dmi_edit_fit {
    dmi_u32 fits;           /* DMI_EDIT_FITS, ... */
    dmi_u32 whole;          /* elements of the row, with those that other ranks have */
    dmi_u32 offset;         /* of these, how many come before the first one here */
    dmi_u32 by_head;        /* 1: each head is taken by itself */
    dmi_u32 first, n_named; /* of the list of columns or heads: those that are here */
};

/* How many entries of an ascending list are below @end. */
DMI_SHARED dmi_u32 dmi_edit_below(const dmi_u32 *list, dmi_u32 n, dmi_u32 end)
{
    dmi_u32 low = 0;
    while (low < n) {
        dmi_u32 middle = low + (n - low) / 2;
        if (list[middle] < end)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

/* @list: the part's columns or heads, by their numbers in the whole row. The host counts by it what the kernel does by it. Pure. */
DMI_SHARED struct dmi_edit_fit dmi_edit_fit(const struct dmi_edit_part *p, const dmi_u32 *list,
                                            struct dmi_edit_shape row, struct dmi_edit_cut cut)
{
    struct dmi_edit_fit f = { DMI_EDIT_FITS_NOT, row.n, 0, 0, 0, p->n_columns };
    dmi_u32 divided = cut.own != cut.all;
    if (divided) {
        dmi_u64 whole = (dmi_u64)(row.n / cut.own) * cut.all;
        if ((row.heads ? row.heads : row.n) % cut.own || whole > 0xffffffffu)
            return f;
        f.whole = (dmi_u32)whole;
        f.offset = row.n / cut.own * cut.first;
    }
    f.by_head =
        p->of_heads || (!p->n_columns && p->width && p->width != f.whole && p->width == row.head);
    dmi_u32 unit = p->of_heads ? row.head : 1;
    if (p->n_columns && list[p->n_columns - 1] >= f.whole / unit)
        return f;
    if (p->width && p->width != f.whole &&
        p->width != (p->n_columns && !p->of_heads ? p->n_columns : row.head))
        return f;
    if (divided && f.by_head && !row.heads)
        return f;
    f.fits = divided && p->sums && !f.by_head ? DMI_EDIT_DIVIDED : DMI_EDIT_FITS;
    if (!divided || !p->n_columns)
        return f;
    f.first = dmi_edit_below(list, p->n_columns, f.offset / unit);
    f.n_named = dmi_edit_below(list, p->n_columns, (f.offset + row.n) / unit) - f.first;
    if (!f.n_named && f.fits == DMI_EDIT_FITS)
        f.fits = DMI_EDIT_ELSEWHERE;
    return f;
}

/*
 * The bank: rows that operations with DMI_EDIT_SAVES keep, as true values in f32, in cells of DMI_BANK_CELL elements. A region of device memory has
 * an entry for each cell, then the cells. The entry of a chunk of a row lies in one of two buckets, which key and chunk choose.
 */
#define DMI_BANK_CELL   256u
#define DMI_BANK_BUCKET 8u     /* entries */
#define DMI_BANK_WIDEST 65536u /* elements of a row */

/* A donor (from 1), the layer as in DMI_EDIT_AT(), and the row. */
#define DMI_BANK_KEY(donor, layer, row)                                                            \
    ((dmi_u64)(donor) << 32 | (dmi_u64)(layer) << 22 | ((dmi_u64)(row)&0x3fffffu))

/* Which chunk of a row of @n elements a cell has. @divided: 1 where other ranks have the rest of the row: it is no whole row then. */
#define DMI_BANK_ABOUT(n, divided, chunk)                                                          \
    ((dmi_u32)(divided) << 31 | (dmi_u32)(n) << 8 | (dmi_u32)(chunk))

struct dmi_bank_entry {
    dmi_u64 key;   /* DMI_BANK_KEY(); 0: the cell is free */
    dmi_u32 about; /* DMI_BANK_ABOUT() */
    dmi_u32 ready; /* 1: its numbers are there */
};

#define DMI_BANK_CELL_BYTES (DMI_BANK_CELL * 4u)

/* The parameter of dmi_bank_drop: rows of donors from the first to the last number are forgotten. */
struct dmi_bank_drop {
    dmi_u64 bank;
    dmi_u32 n_cells;
    dmi_u32 first, last;
    dmi_u32 reserved;
};

/* The parameter of dmi_edit_eager and dmi_edit_graph. */
struct dmi_edit {
    struct dmi_gather gather; /* src is written, too */
    dmi_u64 plus; /* address of the second tensor, in which elements lie as in the first; 0: none */
    dmi_u64 region; /* of tables */
    dmi_u64
        counters; /* address of n_counters u64: rows that were written; as many: with what is not finite; as many: which the bank could not keep, or has not */
    dmi_u64 rows; /* eagerly: address of the words */
    dmi_u64 state, lists; /* in a graph: the ticket, and the context's lists */
    dmi_u32 n_rows;       /* eagerly: pairs, or all rows of the tensor */
    dmi_u32 at;           /* eagerly: DMI_EDIT_AT(); in a graph the ticket's slot says it */
    dmi_u32 number;       /* in a graph: in the ticket */
    dmi_u32 dtype;        /* DMI_DTYPE_F32, DMI_DTYPE_F16 or DMI_DTYPE_BF16 */
    struct dmi_edit_shape row;
    float scale;     /* stored value = true value * scale */
    dmi_u64 bank;    /* address; 0: there is none */
    dmi_u32 n_cells; /* of it, a multiple of DMI_BANK_BUCKET */
    dmi_u32 n_counters;
    dmi_u32 place; /* its number */
    dmi_u32 reserved;
};

#ifndef __CUDACC__
static_assert(sizeof(struct dmi_edit_op) == 32 && sizeof(struct dmi_edit_part) == 36 &&
                  sizeof(struct dmi_edit_table) == 32 && sizeof(struct dmi_edit_cut) == 12,
              "shared with device code");
static_assert(sizeof(struct dmi_edit) == 200 && sizeof(struct dmi_bank_entry) == 16 &&
                  sizeof(struct dmi_bank_drop) == 24,
              "shared with device code");
#endif

#endif
