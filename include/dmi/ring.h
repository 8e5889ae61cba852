/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What host and device share: descriptors, and the parameter of the copy kernel. Plain structs of
 * fixed widths that gcc, clang and nvcc lay out alike. Addresses are device addresses.
 *
 * A record's way: the host reserves a descriptor slot and payload bytes and launches the copy with
 * both; the copy gathers the tensor into the payload ring and then publishes the descriptor, whose
 * ready word becomes the launch sequence. In a graph a copy leaves a mark in device memory instead, and
 * dmi_close publishes for all copies of the launch. Protocol: kernels/ring.h. Reason: docs/architecture.md.
 */
#ifndef DMI_RING_H
#define DMI_RING_H

#ifdef __CUDACC__
typedef unsigned long long dmi_u64;
typedef long long dmi_i64;
typedef unsigned int dmi_u32;
#define DMI_SHARED static __device__ __forceinline__ /* a function that both sides compile */
#else
#include <assert.h>
#include <stdint.h>
#define DMI_SHARED static inline
typedef uint64_t dmi_u64;
typedef int64_t dmi_i64;
typedef uint32_t dmi_u32;
#endif

#define DMI_RING_DIMS       4
#define DMI_COPY_THREADS    256 /* of a block of a copy */
#define DMI_COPY_MAX_BLOCKS 1024
#define DMI_CLOSE_THREADS   256 /* dmi_close is one block of so many */
#define DMI_DESC_WILD_SLOT  1u  /* a slot was beyond n_slots: its row was not read */
#define DMI_SEQ_FIRST       2   /* launch sequences start here: a ready word is never 0 or 1 */

/* 64 bytes, one slot of the descriptor ring in pinned host memory. */
struct dmi_desc {
    dmi_u64 ready; /* launch number of the record that stands here; written last, st.release.sys */
    dmi_u64 payload; /* byte offset in the payload ring */
    dmi_u64 n_bytes;
    dmi_u32 site;
    dmi_u32 n_rows;
    dmi_u32 occurrence;
    dmi_u32 flags; /* DMI_DESC_* */
    dmi_u64 src;   /* address that was read */
    dmi_u64 reserved[2];
};

/*
 * A strided gather: for every i0 < count[0], i1 < count[1], ... in that nesting, run_bytes bytes at src + i0 * stride[0]
 * + i1 * stride[1] + ... are appended to the destination. Dimension 0 is the rows. If a launch keeps some of them, i0
 * runs over those. Unused dimensions have count 1. If two dimensions are the rows, row i0 lies at i0 / rows_inner *
 * stride_outer + i0 % rows_inner * stride[0]. If a list in device memory has the slot of a paged cache for each row,
 * slots[i0] takes the place of i0. A slot below 0 belongs to no row, and the row is zeros.
 */
struct dmi_gather {
    dmi_u64 src;
    dmi_i64 stride[DMI_RING_DIMS]; /* bytes */
    dmi_u32 count[DMI_RING_DIMS];
    dmi_u32 run_bytes;
    dmi_u32 access;       /* bytes an access moves, 1 to 16; divides src, strides and run_bytes */
    dmi_i64 stride_outer; /* bytes from one value of the first row dimension to the next */
    dmi_u32 rows_inner;   /* rows of the second one; 0: rows lie along one dimension */
    dmi_u32 slot_bytes;   /* 4 or 8: slots are i32 or i64; 0: there is no such list */
    dmi_u64 slots;        /* address of the list */
    dmi_u32 n_slots;      /* those that may be read */
    dmi_u32 reserved;     /* 0 */
};

/* The parameter of dmi_copy_eager: the copy of one eager launch. */
struct dmi_copy {
    struct dmi_gather gather;
    struct dmi_desc record; /* what to publish; record.ready is the launch sequence */
    dmi_u64 payload;        /* address of the payload ring */
    dmi_u64 desc;           /* address of the descriptor slot */
    dmi_u64 retired;        /* address of a u32: blocks that are done; 0 before and after */
    dmi_u64
        rows; /* address of record.n_rows u32: which rows to keep; 0: the first ones, in order */
};

/* What stands for the site in the descriptors in which dmi_close tells of a launch of a graph: they are all that the launch has in the ring. */
#define DMI_SITE_CLOSE    0xffffffffu
#define DMI_CLOSE_RECORDS 192 /* of the launch, that one of them tells of */
#define DMI_CLOSE_WORDS   (DMI_CLOSE_RECORDS / 32)

/* One of them, in the place of a struct dmi_desc. */
struct dmi_close_desc {
    dmi_u64 ready;
    dmi_u32 site; /* DMI_SITE_CLOSE */
    dmi_u32 sum;  /* of dmi_copy_sum() of the records that ran */
    dmi_u32 ran[DMI_CLOSE_WORDS], wild[DMI_CLOSE_WORDS]; /* a bit a record, in their order */
};

/* What a copy in a graph leaves in the exec's state: that it ran, in which launch, and what it wrote. */
struct dmi_copy_mark {
    dmi_u64 seq;
    dmi_u32 sum;
    dmi_u32 wild; /* low half of seq: it met a slot that there is not */
};

/* What one record adds to its launch's sum. The drain compares what dmi_close summed with its own sum: they differ where device and host differ over what was copied. */
DMI_SHARED dmi_u32 dmi_copy_sum(dmi_u32 site, dmi_u64 n_bytes)
{
    return (site + 1) * 2654435761u + (dmi_u32)(n_bytes ^ n_bytes >> 32);
}

/* A launch without records has no such descriptor. */
#define DMI_NO_CLOSE 0xffffffffu
/* Actions that one ticket is for: it fits 4 KiB of parameters. An exec with more has several tickets. */
#define DMI_TICKET_ACTIONS 560
#define DMI_NOT_WANTED     0xffffffffu
#define DMI_NO_PAYLOAD     0xfffffffeu /* wanted, and publishes no record */
/* Choices of rows that the actions of one ticket may have between them. */
#define DMI_TICKET_ROWS 16
#define DMI_ROWS_FIRST  0xffffffffu /* no list: the first ones, in order */
#define DMI_ROWS_ALL    255         /* no choice: all that the action's tensor has */

/* Which rows of a tensor a launch keeps. */
struct dmi_rows {
    dmi_u32 at; /* index of the first of n_rows u32 in the context's row lists, or DMI_ROWS_FIRST */
    dmi_u32 n_rows;
};

/*
 * A ticket of one launch of a graph exec: a parameter of dmi_open, which leaves it in the exec's own
 * state, where the actions find it. n_actions 0 is the empty ticket: no action does anything. An exec has as
 * many as its actions need, one after the other in its state; all are empty or none is.
 */
struct dmi_ticket {
    dmi_u64 seq;
    dmi_u32 n_actions;
    dmi_u32 close_slot; /* position of the launch's first closing descriptor, or DMI_NO_CLOSE */
    dmi_u32 n_records;  /* of the launch */
    dmi_u32 reserved;
    dmi_u64 payload; /* address of its first byte in the ring */
    struct dmi_rows rows[DMI_TICKET_ROWS];
    dmi_u32 offset16
        [DMI_TICKET_ACTIONS]; /* from @payload on, in units of 16 bytes, DMI_NO_PAYLOAD or DMI_NOT_WANTED */
    unsigned short slot[DMI_TICKET_ACTIONS];   /* of a copy: number of its record in the launch */
    unsigned char rows_of[DMI_TICKET_ACTIONS]; /* index in rows, or DMI_ROWS_ALL */
};

struct dmi_open {
    dmi_u64 state; /* address of the struct dmi_ticket in the exec's state */
    struct dmi_ticket ticket;
};

/* A launch that does what the last one with a ticket did: what the ticket in the exec's state says holds, but for this. The parameter of dmi_reopen. */
struct dmi_reopen {
    dmi_u64 state;
    dmi_u64 seq;
    dmi_u64 payload;
    dmi_u32 n_actions;
    dmi_u32 close_slot;
};

/*
 * (n * DMI_INVERSE(d)) >> 32 is n / d for 2 <= d <= DMI_INVERSE_MAX_D and n <= DMI_COPY_MAX_BLOCKS * DMI_COPY_THREADS. DMI_INVERSE(d) is less than 1 above
 * 2^32 / d, so the product is less than n above n * 2^32 / d, and n is at most 2^32 / d.
 */
#define DMI_INVERSE(d)    (0xffffffffu / (d) + 1)
#define DMI_INVERSE_MAX_D 16384

/* A copy within a graph: which of the ticket's places is its own, and what it reads. */
struct dmi_graph_copy {
    struct dmi_gather gather;
    dmi_u64 state;
    dmi_u64 mark;   /* address of its struct dmi_copy_mark */
    dmi_u64 lists;  /* address of the context's row lists */
    dmi_u32 number; /* in the ticket at @state */
    dmi_u32 site;
    dmi_u32 n_rows; /* of all of the tensor */
    dmi_u32 row_bytes;
    dmi_u32 inverse; /* of dmi_copy_graph_packed: DMI_INVERSE(row_bytes / 16) */
    dmi_u32 reserved;
};

#define DMI_COPIES 16
/* Copies of one place in a graph, which one node makes: the block's y is the number of its own. */
struct dmi_graph_copies {
    struct dmi_graph_copy each[DMI_COPIES];
};

/* What one launch says to the copies of a graph that are one node: its ticket, as far as they need it. */
struct dmi_alone {
    dmi_u64 seq;     /* 0: it is to do nothing */
    dmi_u64 payload; /* address of the launch's first byte in the ring */
    dmi_u64 desc;    /* address of the slot for its closing descriptor */
    struct dmi_rows rows[DMI_COPIES];
    dmi_u32 offset16[DMI_COPIES];     /* as in a ticket */
    unsigned char record[DMI_COPIES]; /* number of its record in the launch */
};

/*
 * Copies of a graph that has no other nodes of ours: this node brings what the launch says, copies, and publishes for the launch. The exec's state has its two words
 * in the place of a ticket.
 */
struct dmi_copies_alone {
    dmi_u64 used;    /* address of a u64: the last launch that it copied for */
    dmi_u64 retired; /* address of a u32: blocks that are done; 0 before and after */
    struct dmi_alone launch;
    struct dmi_graph_copies copies;
};

struct dmi_close {
    dmi_u64 state; /* address of the exec's first ticket */
    dmi_u64 marks; /* address of the first action's struct dmi_copy_mark */
    dmi_u64 desc;
    dmi_u32 n_tickets;
    dmi_u32 n_slots; /* of the descriptor ring */
};

#ifndef __CUDACC__
static_assert(sizeof(struct dmi_open) <= 4096, "kernel parameters of drivers before 12.1");
static_assert(sizeof(struct dmi_reopen) == 32, "all that a launch says");
static_assert(sizeof(struct dmi_graph_copy) == 144, "shared with device code");
static_assert(sizeof(struct dmi_graph_copies) <= 4096, "kernel parameters of drivers before 12.1");
static_assert(sizeof(struct dmi_copies_alone) <= 4096, "kernel parameters of drivers before 12.1");
static_assert(DMI_COPIES <= 32, "their records are bits of one word");
static_assert(sizeof(struct dmi_close_desc) == 64, "stands in a slot");
static_assert(sizeof(struct dmi_copy_mark) == 16, "shared with device code");
static_assert(sizeof(struct dmi_desc) == 64, "one slot is one cache line");
static_assert(sizeof(struct dmi_gather) == 96, "shared with device code");
static_assert(sizeof(struct dmi_copy) == 192, "shared with device code");
#endif

#endif
