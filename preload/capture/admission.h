/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission: from a launch of a site to a record's place in the ring, or to a counted drop. Eager launches and
 * graphs go the same way; each site of a launch is in one state at a time:
 *
 *   NONE -> COUNTED -> EXPECTED -> RESERVED -> LAUNCHED
 *                         |           |
 *                         +-> DROPPED <+        GIVEN_UP: the drain has dropped it, for good
 *
 * Thread: the application's launching thread, entered; functions that need the capture context's lock say so.
 */
#pragma once

#include "policy/select.h"
#include "preload/base/stream.h"
#include "preload/capture/operand.h"
#include "preload/capture/said.h"
#include "preload/capture/step.h"
#include "preload/context/context.h"
#include "preload/function/variants.h"

#include <stdbool.h>
#include <stdint.h>

enum admission_state {
    ADMISSION_NONE,     /* the launch is no occurrence of the site */
    ADMISSION_COUNTED,  /* it took an occurrence; nobody wants a record */
    ADMISSION_EXPECTED, /* a record is expected of it */
    ADMISSION_PIECES, /* the same, and the launch is larger than the ring: eager/pieces.c copies it in pieces */
    ADMISSION_RESERVED, /* it has all that it needs: its lists of rows, and its slot and bytes in the ring if it publishes */
    ADMISSION_LAUNCHED, /* its action was handed to the device */
    ADMISSION_DROPPED,  /* its record is a counted drop, under @reason */
    ADMISSION_GIVEN_UP, /* the drain has counted its record as a drop: its slot may be somebody else's */
};

/* One site of one launch. */
struct admission {
    const struct operand
        *operand; /* borrowed until the launch is over; set by admission_expect() */
    enum admission_state state;
    bool has_record;         /* its action publishes one: it is counted, and takes a slot */
    bool edits_due;          /* of a place: rows of it are due (edit/accounts.h) */
    uint32_t at;             /* of one: DMI_EDIT_AT() */
    int reason;              /* drop reason, DROP_NONE */
    struct context *context; /* whose occurrence it took */
    uint32_t site, occurrence;
    const struct variant_site
        *range;               /* what the range says that it was launched in, NULL: nothing */
    enum context_doubt doubt; /* its occurrence is unknown */
    int32_t layer;
    bool has_layer; /* that is known, and the launch is a pass of it */
    uint32_t
        pass; /* how often the layer ran before in the forward; FORWARD_NO_PASS: it cannot be known */
    uint64_t forward;
    struct select_pick pick; /* EXPECTED: which rows; its lists live as long as the launch's step */
    uint64_t n_bytes;        /* of those */
    /* rows besides, of requests that are shed: counted as drops of their own */
    uint32_t n_shed;
    uint64_t shed_bytes;
    /* RESERVED */
    uint64_t slot,
        payload; /* running number in the ring; offset of its bytes, of a graph's from the launch's first */
    uint64_t
        rows_list; /* pick.rows and pick.kept as the context's row lists, where there are any */
    uint64_t kept_list;
    /* of a graph: number among the launch's records; index in the launch's choices, DMI_ROWS_ALL: all rows */
    uint32_t place, choice;
};

/* One launch: its sites, in the order in which their occurrences are counted. */
struct admission_launch {
    struct context *context;
    struct admission *items; /* borrowed */
    uint32_t n;
    struct said said;           /* which step it is of, and whose occurrences it counts */
    struct step *step;          /* that, held until admission_end(); NULL: none */
    struct edit_version *edits; /* where there is no step: in force, held; NULL: none */
    bool
        edits_differ; /* the launch is of one of overlapping steps, and their requests have several versions */
    const struct overload *overload; /* in force when it began */
    uint64_t number;                 /* the launch number, once something is reserved */
    uint64_t
        unslotted; /* its number among launches whose lists no slot keeps, UNSLOTTED_NONE: it is none */
    uint64_t time_ns; /* when that was */
    bool together;    /* a graph's: all records have one place in the ring */
    /* with @together: the first of its slots, RING_NO_SLOT: it holds none; offset of its first byte; its records, held, NULL: there are none; and the choices of rows of its actions */
    uint64_t slot, payload;
    struct launch_records *records;
    struct dmi_rows choices[DMI_TICKET_ROWS];
    uint32_t n_choices, n_unslotted_choices; /* the latter first */
};

/**
 * admission_take() - the next occurrence of @site, if the forward under way has that site
 * Under the capture context's lock, after forward_advance().
 */
void admission_take(struct context *context, uint32_t site, struct admission *item);

/* The same for a launch that is there, which is counted. */
void admission_count(struct context *context, uint32_t site, struct admission *item);

/*
 * Finds the layer of the counted @item, and which pass of it this is, once its range is known. @tapped: the layer of a tap; other sites have it from their occurrence.
 * Under the capture context's lock.
 */
void admission_locate(struct admission *item, int32_t tapped);

/*
 * What the thread launches for is settled, from here to admission_end(). Before occurrences are counted.
 * @said: what it launches for, whose rows are held once more; NULL: what holds for the thread now
 */
void admission_begin(struct admission_launch *launch, const struct said *said);

/* Nothing of it changes any more. */
void admission_end(struct admission_launch *launch);

/*
 * Does the spec want a record of this occurrence? It lies in the site's range, its step or forward is one of those that
 * are captured, and the site is on.
 */
bool admission_wanted(const struct admission_launch *launch, const struct admission *item);

/**
 * admission_expect() - a record is expected from here on: a kill between this and the launch shows as lost
 * @drop: reason why it cannot be read now, DROP_NONE; what else stands against it is found here
 * None is where the site keeps no row of the step: the item stays COUNTED.
 */
void admission_expect(const struct admission_launch *launch, struct admission *item,
                      const struct operand *operand, int drop);

/*
 * A launch of @site, or a tap, that is no occurrence of anything, as nobody can record it: it is expected, and a drop
 * under @reason. Thread: any that entered.
 */
void admission_refuse(uint32_t site, enum dmi_drop reason);

/**
 * admission_reserve() - what all EXPECTED items need; the others are left alone
 * An action that publishes needs a place in the ring: the thread waits for one only where the spec asks for completeness, bounded.
 * Other actions need none, and so a full ring does not stop them. What does not get it is DROPPED. All share one launch number.
 * Return: number of items that are RESERVED.
 */
uint32_t admission_reserve(struct admission_launch *launch);

/* What the operand's site keeps of it in the launch's step. */
struct select_pick admission_pick(const struct admission_launch *launch,
                                  const struct operand *operand);

/*
 * launch->records get their slots and bytes; and the slots, before any kernel learns of them, say what they are of: those of the first record are of @forward.
 * Under the lock. Return: DROP_NONE or why not.
 */
int admission_reserve_records(struct admission_launch *launch);
void admission_fill_slots(const struct admission_launch *launch, uint64_t forward);

/*
 * For eager/pieces.c, which reserves piece by piece. Under the lock: the item's lists of rows are there until
 * row_lists_settle(), and a slot with @n_bytes, which keeps them. Return: DROP_NONE or why not.
 */
int admission_place_lists(struct admission_launch *launch, struct admission *item);
int admission_reserve_slot(struct admission_launch *launch, struct admission *item,
                           uint64_t n_bytes);

/* Would all that is EXPECTED of the launch fit into an empty ring? */
bool admission_fits(const struct admission_launch *launch);

/*
 * Waits for the drain a little, and counts it; *@end_ns is 0 at first. Return: false once the time that the spec allows is
 * over.
 */
bool admission_wait(uint64_t *end_ns);

/* Where kernels find the list of rows that a RESERVED item takes, 0: it has none. */
CUdeviceptr admission_rows_address(const struct context *context, const struct admission *item);

/* An EXPECTED or RESERVED item becomes a counted drop, unless the drain has dropped it. */
void admission_drop(const struct admission_launch *launch, struct admission *item,
                    enum dmi_drop reason);

/* The copies of the RESERVED items are never launched: their slots are cancelled, the items EXPECTED again. Takes the context's lock. */
void admission_cancel(struct admission_launch *launch);

/* The driver took the launch: what is RESERVED is LAUNCHED. For graphs, whose copies come with it. */
void admission_launched(struct admission_launch *launch);

/* The driver refused the launch: it is as if nobody had asked for its records. What was LAUNCHED before stays. */
void admission_take_back(struct admission_launch *launch);

/*
 * The last word on a launch, on @stream, whatever became of it: an event tells when the LAUNCHED actions that hold no slot have read
 * their lists of rows. Calls the driver: no lock.
 */
void admission_settle(struct admission_launch *launch, struct stream stream);
