/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What host and device share of edits: tables, which say what each edit does at each place, and the parameter of the kernel.
 * Plain structs as in <dmi/ring.h>. Tables lie in one region of device memory and hold offsets alone: a table is the same at
 * any address. Offsets count units of 16 bytes. What the operations compute: docs/edits.md.
 */
#ifndef DMI_EDIT_H
#define DMI_EDIT_H

#include <dmi/ring.h>

#define DMI_EDIT_ALIGN 16

/* What an operation does to x, a row or a head of it; c is its coefficient, v its vector, u that vector at length 1. */
#define DMI_EDIT_ADD         0u  /* x + c v */
#define DMI_EDIT_SCALE       1u  /* c x */
#define DMI_EDIT_SET         2u  /* v, or the constant a */
#define DMI_EDIT_ZERO        3u  /* 0 */
#define DMI_EDIT_CLAMP       4u  /* each element to [a, b] */
#define DMI_EDIT_PROJECT_OUT 5u  /* x - c (x.u) u */
#define DMI_EDIT_ADJUST      6u  /* x + (a - x.v) v */
#define DMI_EDIT_LIMIT       7u  /* x + c (clamp(x.u, a, b) - x.u) u */
#define DMI_EDIT_KEEP_NORM   8u  /* x |x before the edit| / |x| */
#define DMI_EDIT_PATCH       9u  /* (1 - c) x + c v; without a vector: v is a row of the bank */
#define DMI_EDIT_FEATURE     10u /* x + (c - f) v, f = act(x.e + a): 0 unless it is above b */
#define DMI_EDIT_SAVE        11u /* x, and the bank keeps the row as it is before edits */
#define DMI_EDIT_KINDS       12u

#define DMI_EDIT_MAX_OPS 16u /* of one edit */

struct dmi_edit_op {
    dmi_u32 kind;
    dmi_u32 vector;   /* offset of its numbers, f32; 0: it has none */
    dmi_u32 n_vector; /* of them, in a row */
    float a, b;
    dmi_u32 n_rows;  /* of DMI_EDIT_PATCH: rows of the vector, of which a program says one */
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
    dmi_u32 reserved;
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

/* Place and layer (-1: none) as a launch names them, in 16 bits. */
#define DMI_EDIT_AT(place, layer) ((dmi_u32)(place) << 10 | (dmi_u32)((layer) + 1))

/* Which entry of a table DMI_EDIT_AT() is: no layer, the layers that the table names, or a layer beyond these. */
#define DMI_EDIT_ENTRY(table, at)                                                                  \
    (((at) >> 10) * ((table)->n_layers + 2) +                                                      \
     (((at)&1023u) > (table)->n_layers ? (table)->n_layers + 1 : ((at)&1023u)))

/*
 * Which rows are written, and by what: u32 words. A pair for each row: its number, ascending, and where its program begins, in
 * words from the first pair. Where the first word is DMI_EDIT_EVERY, the second says the program of every row. A program is a
 * sequence of sections, then 0. A section is the offset of its table, a number of edits, and for each: DMI_EDIT_HEAD(), the
 * number of its counter, the row of its vectors that have several or of the bank, the donor whose rows of the bank it takes or keeps,
 * and a coefficient (f32) for each of its operations. Edits of a section ascend by number.
 */
#define DMI_EDIT_EVERY             0xffffffffu
#define DMI_EDIT_HEAD(edit, n_ops) ((dmi_u32)(edit) | (dmi_u32)(n_ops) << 16)
#define DMI_EDIT_BEFORE_OPS        4u /* words of an edit before its coefficients */

/*
 * The bank: rows that DMI_EDIT_SAVE keeps, as true values in f32, in cells of DMI_BANK_CELL elements. A region of device memory has
 * an entry for each cell, then the cells. The entry of a chunk of a row lies in one of two buckets, which key and chunk choose.
 */
#define DMI_BANK_CELL   256u
#define DMI_BANK_BUCKET 8u     /* entries */
#define DMI_BANK_WIDEST 65536u /* elements of a row */

/* A donor (from 1), the layer as in DMI_EDIT_AT(), and the row. */
#define DMI_BANK_KEY(donor, layer, row)                                                            \
    ((dmi_u64)(donor) << 32 | (dmi_u64)(layer) << 22 | ((dmi_u64)(row)&0x3fffffu))

struct dmi_bank_entry {
    dmi_u64 key;   /* DMI_BANK_KEY(); 0: the cell is free */
    dmi_u32 about; /* elements of the row << 8 | which chunk of it the cell has */
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

#define DMI_EDIT_F32  0u
#define DMI_EDIT_F16  1u
#define DMI_EDIT_BF16 2u

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
    dmi_u32 dtype;        /* DMI_EDIT_F32, ... */
    dmi_u32 n;            /* elements a row */
    dmi_u32 head;         /* elements a head, or @n */
    float scale;          /* stored value = true value * scale */
    dmi_u32 n_counters;
    dmi_u64 bank;    /* address; 0: there is none */
    dmi_u32 n_cells; /* of it, a multiple of DMI_BANK_BUCKET */
    dmi_u32 reserved;
};

#ifndef __CUDACC__
static_assert(sizeof(struct dmi_edit_op) == 32 && sizeof(struct dmi_edit_part) == 32 &&
                  sizeof(struct dmi_edit_table) == 32,
              "shared with device code");
static_assert(sizeof(struct dmi_edit) == 192 && sizeof(struct dmi_bank_entry) == 16 &&
                  sizeof(struct dmi_bank_drop) == 24,
              "shared with device code");
#endif

#endif
