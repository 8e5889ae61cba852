/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When steps ran, as it lies on disk: little-endian, no padding. Host times are nanoseconds of CLOCK_REALTIME. Source and meaning:
 * docs/format.md 6.4 to 6.8.
 */
#ifndef DMI_TRACE_H
#define DMI_TRACE_H

#include <assert.h>
#include <stdint.h>

/* What says where a step begins, the best one last. */
enum dmi_step_source {
    DMI_STEP_NAMED_GRAPH = 1,  /* each launch of a graph, as the user named it */
    DMI_STEP_NAMED_KERNEL = 2, /* each launch of a kernel that the user named */
    DMI_STEP_NAMED_RANGE = 3,  /* each NVTX range that the user named */
    DMI_STEP_FORWARD = 4,      /* a forward of the HookSpec */
    DMI_STEP_ENGINE = 5,       /* dmi_step_begin() */
};

enum dmi_step_times_flags {
    DMI_STEP_HAS_DEVICE = 1 << 0, /* device_ns is known */
    DMI_STEP_HAS_GAP = 1 << 1,    /* gap_ns is known */
    DMI_STEP_SEVERAL = 1 << 2,    /* several threads launched: the last of their ends counts */
    DMI_STEP_UNENDED = 1 << 3,    /* the process, or its thread, ended within it */
    /* device_ns is at least what the device took: it was done, or may have been, before the host looked */
    DMI_STEP_HOST_LATE = 1 << 4,

    /* why device_ns is not known */
    DMI_STEP_NO_LAUNCH = 1 << 8,     /* nothing was launched in it */
    DMI_STEP_CAPTURING = 1 << 9,     /* a stream was being captured */
    DMI_STEP_STREAM_GONE = 1 << 10,  /* the stream of its last launch ended before it */
    DMI_STEP_CONTEXT_GONE = 1 << 11, /* the CUDA context ended before the device was done */
    DMI_STEP_REFUSED = 1 << 12,      /* the driver refused an event */
    DMI_STEP_UNFINISHED = 1 << 13,   /* the device was not done when the process ended */
    /* it ended in another context, in a stream that only its thread can name, or while another thread was about to make its first launch */
    DMI_STEP_ELSEWHERE = 1 << 14,
};

/* 6.4. An entry of a STEP_TIMES chunk. */
struct dmi_step_times {
    uint64_t number; /* of the step in the run's trace, from 0, in the order in which they ended */
    uint64_t step;   /* sequence, as in STEPS; DMI_NO_STEP: the engine did not say it */
    uint64_t begin_ns;  /* host */
    uint64_t end_ns;    /* host: said, or where the next one began */
    uint64_t launch_ns; /* host: just before its first launch; 0: there was none */
    uint64_t device_ns; /* from its first launch's turn to its last one's end */
    int64_t
        gap_ns; /* device: from the end of the step before it in its context; below 0: they overlap */
    uint64_t stall_ns;       /* host: in calls that load code or allocate memory */
    uint64_t context;        /* tokens that its requests have by its end */
    uint32_t launches;       /* kernels that the application launched one by one */
    uint32_t graph_launches; /* graphs */
    uint32_t own;            /* kernels of DMI's, in graphs and beside launches */
    uint32_t flags;          /* enum dmi_step_times_flags */
    uint32_t rows;           /* of the batch, padding included */
    uint32_t requests;       /* spans that are no padding */
    uint32_t prefill;        /* their tokens by phase; an unknown phase counts as prefill */
    uint32_t decode;         /* drafts included */
    uint16_t device;         /* CUDA ordinal */
    uint16_t source;         /* enum dmi_step_source */
    uint32_t thread;         /* that began it, as the system numbers them */
    uint32_t loads;          /* calls that load code */
    uint32_t allocations;    /* calls that allocate memory */
    uint32_t waits;          /* calls in which the host waits for the device */
    uint32_t wait_us;        /* microseconds in them */
    uint64_t engine_step;    /* the engine's own number of it; DMI_NO_STEP: not known */
    uint64_t
        waited_ns; /* host: end of the last of its waits; 0: there was none, or it is not known */
};

#define DMI_STEP_TIMES_LEAST                                                                       \
    128u /* of writers before 2026-11-29: all up to engine_step; since then to waited_ns */

enum dmi_mark_kind {
    DMI_MARK_BEGUN = 1,  /* the trace begins; text: its tier */
    DMI_MARK_SOURCE = 2, /* value: enum dmi_step_source from here on; text: what the user named */
    DMI_MARK_CLOCK_SET = 3, /* the clock was set by value nanoseconds */
    DMI_MARK_LOST =
        4, /* value steps are in no chunk: no room in memory, or the disk refused them */
    DMI_MARK_ENDED = 5,        /* the trace ends; value: steps that ended in it */
    DMI_MARK_RANGES_LOST = 6,  /* value ranges are in no chunk, as DMI_MARK_LOST */
    DMI_MARK_RAN = 7,          /* the tracer ends; value: records that CUPTI delivered */
    DMI_MARK_RAN_LOST = 8,     /* value of these are in no chunk; text: why */
    DMI_MARK_RAN_DROPPED = 9,  /* value records were dropped by CUPTI, and never delivered */
    DMI_MARK_STEPS_ALONE = 10, /* no kernels are traced from here on; text: why */
    DMI_MARK_RAN_SUMMED = 11,  /* value of those of DMI_MARK_RAN are in sums alone */
    DMI_MARK_KEPT =
        12, /* what ran in steps was stored on demand; text: A:B, numbers from A to before B; value: steps that were asked for and were not in memory any more */
    DMI_MARK_RING =
        13, /* value records that are in sums alone went from memory unasked; text: A:B, the steps that are there */
    DMI_MARK_LENT = 14, /* value 1: another user has CUPTI from here on; 0: it is back */
};

/* 6.5. An entry of a MARKS chunk. */
struct dmi_mark {
    uint64_t time_ns;
    int64_t value;
    uint32_t kind;        /* enum dmi_mark_kind */
    uint32_t text_offset; /* in the strings */
    uint32_t text_bytes;
    uint32_t reserved; /* 0 */
};

enum dmi_range_source {
    DMI_RANGE_SAID = 1,     /* dmi_range_begin() */
    DMI_RANGE_NVTX = 2,     /* an NVTX range that a thread pushed and popped */
    DMI_RANGE_OVERLAPS = 3, /* dmi_range_begin_at(): ranges of its thread may overlap it */
    DMI_RANGE_CALL = 4,     /* a call of the driver's that took long, by its name */
    DMI_RANGE_STOPPED = 5,  /* no thread of the process ran; @thread is 0 */
};

/* 6.6. An entry of a RANGES chunk. */
struct dmi_range_entry {
    uint64_t begin_ns, end_ns; /* host */
    uint64_t
        step; /* that the engine had said last when it began; DMI_NO_STEP: none was under way */
    uint32_t thread;      /* as the system numbers it */
    uint16_t depth;       /* ranges of the thread that were open when it began */
    uint16_t source;      /* enum dmi_range_source */
    uint32_t name_offset; /* in the strings */
    uint32_t name_bytes;
    uint32_t facts_offset; /* likewise: a JSON object of numbers */
    uint32_t facts_bytes;  /* 0: there are none */
};

enum dmi_ran_kind {
    DMI_RAN_KERNEL = 1,
    DMI_RAN_COPY = 2,
    DMI_RAN_FILL = 3,
    /* of sums alone */
    DMI_RAN_FURTHER = 4, /* kernels of names that have no sum of their own */
    DMI_RAN_BUSY = 5,    /* all records of the step together: when one of them at least ran */
};

/* 6.7, 6.8. The metadata of a TRACE or SUMS chunk: this, shapes, strings, columns. */
struct dmi_trace_head {
    uint32_t n_records; /* or sums */
    uint32_t n_shapes;
    uint32_t shape_bytes; /* of each */
    uint32_t n_string_bytes;
    uint64_t n_column_bytes;
};

/* What ran, and where: what many records have in common. */
struct dmi_trace_shape {
    uint32_t kind;        /* enum dmi_ran_kind */
    uint32_t name_offset; /* of a kernel, mangled; in the strings */
    uint32_t name_bytes;
    uint32_t device;          /* CUDA ordinal */
    uint32_t context, stream; /* CUPTI's ids */
    uint32_t grid[3], block[3];
    uint32_t static_shared, dynamic_shared; /* bytes a block */
    uint32_t registers;                     /* a thread */
    uint32_t how;                           /* of a copy: enum CUpti_ActivityMemcpyKind */
};

#define DMI_RAN_UNKNOWN 0u /* column step: which step it is of is not known */
#define DMI_RAN_OUTSIDE 1u /* it is of none */
#define DMI_RAN_FIRST   2u /* and from here on: the step's number, plus this */

static_assert(sizeof(struct dmi_trace_head) == 24, "on-disk layout");
static_assert(sizeof(struct dmi_trace_shape) == 64, "on-disk layout");
static_assert(sizeof(struct dmi_range_entry) == 48, "on-disk layout");
static_assert(sizeof(struct dmi_step_times) == 144, "on-disk layout");
static_assert(sizeof(struct dmi_mark) == 32, "on-disk layout");

#endif
