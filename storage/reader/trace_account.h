/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run says of its own trace, and whether what is there agrees with it: the one judge for dmi-trace check and dmi-dump verify. A struct
 * reader is for one thread at a time. Source: docs/format.md 6.4 to 6.9.
 */
#pragma once

#include "storage/reader/reader.h"

/* Why records are in no chunk. */
struct trace_loss {
    char why[64];
    uint64_t n;
};

#define TRACE_LOSSES 8u /* reasons, each by itself; further ones come under the last one */

/* Steps by number, from @first to before @end, of which each record was stored on demand. */
struct trace_window {
    uint64_t first, end;
    uint64_t gone; /* steps before them, which were asked for, too */
    uint64_t records,
        summed; /* of the steps: that are stored; that sums are of. trace_judge() fills both */
};

/* Threads lost ranges between two looks at them. */
struct trace_ranges_lost {
    uint64_t after_ns, until_ns; /* CLOCK_REALTIME */
    uint64_t n;
};

/* The clock was set. */
struct trace_clock_set {
    uint64_t
        time_ns; /* CLOCK_REALTIME: when that was seen, a round of the collector's after it at most */
    int64_t by_ns;
};

/* Something that contradicts the page, how often, and where first. */
struct trace_wrong {
    const char *what; /* a clause in the plural */
    uint64_t n;
    char first[48];
};

/* What marks say. Accepts being zeroed. */
struct trace_marks {
    bool any;             /* there is one */
    uint64_t n_lost;      /* steps */
    uint64_t n_ended;     /* steps; with @has_ended */
    unsigned n_endings;   /* marks that say so */
    bool has_ended;       /* the trace ended cleanly */
    int64_t clock_set_ns; /* the sum of what marks say */
    struct trace_clock_set *clock_sets;
    size_t n_clock_sets, clock_sets_room;
    uint64_t n_ranges_lost;
    struct trace_ranges_lost *ranges_lost;
    size_t n_range_losses, range_losses_room;
    /* of what ran on the device */
    bool has_ran;                           /* the tracer ended cleanly: its records are */
    uint64_t n_ran;                         /* so many, */
    uint64_t n_ran_summed;                  /* of which these are in sums alone, */
    uint64_t n_ran_lost;                    /* and these in no chunk; */
    uint64_t n_ran_dropped;                 /* CUPTI delivered none of these */
    struct trace_loss losses[TRACE_LOSSES]; /* @n_ran_lost by reason; n 0: no more of them */
    struct trace_window *kept;              /* as they were asked for */
    size_t n_kept, kept_room;
    bool has_ring;            /* the last steps were in memory when the trace ended: */
    struct trace_window ring; /* these; */
    uint64_t n_ring_gone;     /* of those before, so many records had gone unasked */
    char alone
        [160]; /* why steps alone were traced; "": they were not, or nothing else was asked for */
    uint64_t n_lent, lent_ns; /* how often another user had CUPTI, and for how long */
    uint64_t lent_since_ns;   /* 0: it is back */
    struct trace_wrong negative,
        unreadable;   /* marks whose count is below 0; whose text is no A:B */
    uint64_t last_ns; /* of the mark before */
    bool failed;      /* no memory */
};

#define TRACE_RULES 24u

/* The judgement of a run's trace. Accepts being zeroed. */
struct trace_account {
    const char *path; /* of the run; borrowed from the reader */
    struct trace_marks marks;
    bool any; /* the run has something of a trace */
    uint64_t n_steps, n_released, n_missing;
    bool may_be_released; /* a segment is not there, or was released */
    uint64_t n_ranges;
    uint64_t n_ran,
        n_ran_unknown; /* records that are stored; of no known step, by sums where there are some */
    uint64_t
        n_kernels_unknown; /* of these; copies and fills outside of graphs may have no kernel before them in their stream */
    uint64_t n_summed;    /* records that sums are of, all of a step together */
    uint64_t n_overlaps;  /* steps that were under way together, and what their engine can do */
    const char *overlaps; /* a sentence, borrowed; NULL: there were none */
    struct trace_wrong wrong[TRACE_RULES]; /* with n 0: it does not occur */
    bool steps_balance, ran_balances, windows_balance;
    bool holds;    /* all of these, and nothing is wrong */
    bool lost_any; /* a step, a range or a record is in no chunk, or CUPTI dropped one */
};

/* Reads what marks say. trace_marks_deinit() in any case. Return: 0 or -errno with a sentence in @err. */
int trace_marks_read(struct err *err, struct reader *reader, struct trace_marks *marks);
void trace_marks_deinit(struct trace_marks *marks);

/**
 * trace_judge() - read all of the trace of each run, and hand its account to @fn
 * @account: borrowed until @fn returns
 * What cannot be read is among reader_n_findings() then. Memory grows with the marks alone. Return: 0 or -errno with a sentence in @err.
 */
int trace_judge(struct err *err, struct reader *reader,
                void (*fn)(void *ctx, const struct trace_account *account), void *ctx);

/* What contradicts is a finding of the reader's, as damage; what is lost is one, too. Return: as trace_judge(). */
int trace_note_findings(struct err *err, struct reader *reader);

/* Records that are in sums alone. A trace that did not end says no number: then sums are of those that are stored, too. */
uint64_t trace_summed_alone(const struct trace_account *account);
