/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one state of the capturing process: off, or armed with a spec and, from the first launch on,
 * a run on disk.
 */
#ifndef PRELOAD_PROCESS_H
#define PRELOAD_PROCESS_H

#include "core/atomic.h"
#include "policy/spec.h"
#include "storage/run.h"

#include <dmi/counters.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct process {
    int armed; /* 1: launches are looked at. Released by process_start(), acquired by every wrapper */
    int state; /* enum process_state in process.c */
    pid_t pid; /* that armed it: a vfork child shares our memory, not our pid */
    struct spec *spec;
    uint64_t ring_bytes;   /* 0: neither environment nor spec says */
    uint32_t ring_slots;   /* the same */
    uint32_t active;       /* launches between launch_before() and launch_after() */
    uint64_t exit_ns;      /* bound of the last flush */
    pid_t finisher;        /* thread that does it */
    int finished;          /* 1: it is over. Released and acquired by process_finish() */
    uint64_t next_launch;  /* launch sequence; any thread */
    uint64_t next_forward; /* any thread */
    uint64_t next_step;    /* any thread */
    uint64_t step;         /* in force; UINT64_MAX: none. Any thread */
    uint64_t step_forward; /* counts the steps that begin a forward, if the spec has such a kind */
    uint64_t memory_epoch; /* rises whenever device memory may have been freed; any thread */
    struct run *run;       /* released by process_run(), acquired by it */
    struct dmi_counters *counters; /* written before @run */
    pthread_mutex_t lock;          /* opening the run, problems */
    uint32_t *reported;            /* per site: bits of enum problem already told; under the lock */
    uint8_t *off;                  /* per site: 1: dmi_site_enable() switched it off; any thread */
    uint64_t switches;             /* rises behind each change of @off; any thread */
};

extern struct process process;

/* Is there a spec to follow? Acquires process_start(): the spec that it published may be read. */
static inline bool process_armed(void)
{
    return __builtin_expect(atomic_load_acquire(&process.armed), 0);
}

/* Is the capture of a site on? Thread: any. */
static inline bool process_site_on(uint32_t site)
{
    return !atomic_load_relaxed(&process.off[site]);
}

/* What may be wrong with a site, each told once. */
enum problem {
    PROBLEM_BAD_POINTER,
    PROBLEM_BAD_EXPR,
    PROBLEM_TOO_LARGE,
    PROBLEM_COUNT,       /* matched another number of times than declared */
    PROBLEM_NO_MATCH,    /* matched nothing in the whole run */
    PROBLEM_UNSUPPORTED, /* in a graph, or where we hold no ring */
    PROBLEM_COPY_FAILED,
    PROBLEM_NO_PARAMS, /* the driver does not tell the kernel's parameters */
};

/* After a successful cuInit: reads DMI_SPEC and the rest, arms. Once a process. Thread: any. */
void process_start(void);

/**
 * process_run() - the run on disk, made at the first call
 * Thread: any; may block on the disk. Return: NULL where it cannot be made (capture is then off).
 */
struct run *process_run(void);

/* The last flush: drains all arenas within exit_ns, closes the run, disarms. Once; any thread. */
void process_finish(void);

/* One line in log and manifest, once per site and kind of problem. Thread: any. */
void process_problem(uint32_t site, enum problem problem, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Counters of a site; NULL before the run is made. */
static inline struct dmi_site_counters *process_site(uint32_t site)
{
    return process.counters ? &process.counters->sites[site] : NULL;
}

/* Adds to (or, with @sign -1, takes from) a tally. Thread: any. */
void process_count(struct dmi_tally *tally, int sign, uint64_t records, uint64_t rows,
                   uint64_t bytes);

/* One record is in no segment, and why. */
void process_drop(uint32_t site, enum dmi_drop reason, uint64_t rows, uint64_t bytes);

#endif
