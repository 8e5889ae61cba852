/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intervals of addresses, none of which overlaps another, in order: a tree in which each node knows what its subtree is
 * together. To find one, to follow a run of adjacent mappings, to add and to take out cost the logarithm of their number.
 * Thread: one at a time (regions.c has the lock).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define INTERVALS_DEVICES 64

/* The end of [@base, @base + @n_bytes), which may be that of the address space. */
static inline uint64_t intervals_end(uint64_t base, uint64_t n_bytes)
{
    return n_bytes > UINT64_MAX - base ? UINT64_MAX : base + n_bytes;
}

/* The caller's memory, while it is in the tree. */
struct interval {
    uint64_t base, n_bytes;
    bool
        mapping; /* of mapped memory: it goes on in a mapping that begins where it ends; an allocation does not */
    bool shared;       /* another process or device may write it */
    uint64_t readable; /* bit D: device D may read it */
    /* the tree's own */
    struct interval *child[2]; /* before it, after it */
    uint64_t rank;             /* random; above those of its children */
    struct {
        uint64_t first, end; /* addresses */
        uint64_t readable;   /* by these devices all of it */
        bool joined;         /* adjacent mappings and nothing else */
        bool shared;         /* some of it is */
    } all;                   /* of the interval and of those below it */
};

/* All zeros: there are none. */
struct intervals {
    struct interval *root;
    uint64_t n_added;
};

/* The interval that @address lies in. Return: NULL if there is none. */
struct interval *intervals_find(const struct intervals *intervals, uint64_t address);

/* The first interval that ends after @address. Return: NULL if there is none. */
struct interval *intervals_after(const struct intervals *intervals, uint64_t address);

/* Adds an interval that overlaps no other; its first five fields are set. */
void intervals_add(struct intervals *intervals, struct interval *interval);

/* Takes out each interval that has an address in [@base, @base + @n_bytes), the whole of it. Return: a tree of those, for intervals_pop(). */
struct interval *intervals_cut(struct intervals *intervals, uint64_t base, uint64_t n_bytes);

/* Takes one interval from a tree that was cut out. Return: NULL if none is left. */
struct interval *intervals_pop(struct interval **tree);

/* Access changes in [@base, @base + @n_bytes): bits in @granted are set, those in @revoked are cleared. */
void intervals_permit(struct intervals *intervals, uint64_t base, uint64_t n_bytes,
                      uint64_t granted, uint64_t revoked);

/* An interval in the tree becomes a shared one. */
void intervals_share(struct intervals *intervals, struct interval *interval);

/* What can be read in one go from the beginning of an interval on. */
struct interval_run {
    uint64_t end; /* address */
    bool shared;  /* some of it is */
    bool closed;  /* it ends there; else it was not followed any further */
    bool barred;  /* it ends at a mapping that the device may not read */
};

/* The run of mappings, or the allocation, that begins with @interval, followed up to @limit or a little further. */
struct interval_run intervals_run(const struct intervals *intervals,
                                  const struct interval *interval, int device, uint64_t limit);
