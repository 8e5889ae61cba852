/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session: what this process captures (the spec), where to (the run), what has been counted. It is off, or
 * armed from cuInit until the last flush, for one or several kinds of work. Without SESSION_SITES and SESSION_RECORDING it has no spec. preload/lifecycle.c arms and ends it; everybody else enters it.
 *
 *     if (session_enter(&call))     errno is kept from here on
 *         ...                       armed: spec, run and counters stay until session_leave()
 *     session_leave(&call);
 */
#pragma once

#include "core/atomic.h"
#include "policy/spec.h"
#include "storage/writer/run.h"

#include <dmi/counters.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SESSION_NO_STEP UINT64_MAX

/* What a session does; a set of bits. */
enum session_work {
    SESSION_SITES = 1, /* follows the spec's sites: there is a run */
    SESSION_RECORDING =
        2,             /* records every launch for dmi-sites: there is no run, and none is opened */
    SESSION_TRACE = 4, /* times steps: there is a run */

    SESSION_FOLLOWS =
        SESSION_SITES | SESSION_RECORDING, /* there is a spec, which calls are looked at by */
    SESSION_WRITES = SESSION_SITES | SESSION_TRACE,
};

struct session {
    uint32_t armed;  /* enum session_work; 0: off. Written by lifecycle.c, read by session_does() */
    uint32_t active; /* calls between session_enter() and session_leave() */
    pid_t pid;       /* that armed it: a vfork child shares our memory, not our pid */
    struct spec *spec; /* written before @armed, never freed; NULL: none is followed */
    const struct overload *
        overload; /* in force; never freed. Released by session_set_overload(), acquired by session_overload() */
    int sheds;             /* 1: some overload that was in force sheds. Written before @overload */
    uint64_t ring_bytes;   /* 0: neither environment nor spec says */
    uint32_t ring_slots;   /* the same */
    uint32_t encoders;     /* threads a context; 0: not said */
    uint32_t rung;         /* enum codec_rung and one; 0: the backlog chooses */
    void (*at_exit)(void); /* of the atexit handler that session_run() registers */
    uint64_t next_launch;  /* launch number; any thread */
    uint64_t next_forward; /* any thread */
    uint64_t next_step;    /* any thread */
    uint64_t
        memory_epoch; /* rises when memory changes in which tensors may have been found; any thread */
    uint32_t does; /* enum session_work: what it was armed for. Written before @armed, and stays */
    struct run *run;               /* released and acquired by session_run() */
    struct dmi_counters *counters; /* written before @run */
    struct dmi_live *live;         /* likewise; NULL: the run has none */
    pthread_mutex_t lock;          /* arming, opening the run */
    uint32_t *reported;            /* per site: bits of enum problem reported already; atomic */
    char **
        sentences; /* per site: what was reported of it last, where an entry is two sites; atomic */
    uint8_t *off;  /* per site: enum site_switch; atomic */
    uint64_t switches;        /* rises after each change of @off; any thread */
    uint64_t write_errors[4]; /* bit N: a write that failed with errno N was reported; atomic */
};

#define SESSION_INIT                                                                               \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER                                                          \
    }

extern struct session session;

/* ------------------------------------------------------------------------- entering it */

/* One call of the application's in the library, on the stack of its thread. */
struct session_call {
    int saved_errno;
    bool outer; /* the thread had the session open before: a callback within a call */
};

/* Is it armed, and does it do any of @what? Acquires lifecycle_start(). Thread: any. */
static inline bool session_does(uint32_t what)
{
    return __builtin_expect(atomic_load_acquire(&session.armed) & what, 0);
}

/* Is there a spec to follow? What lifecycle_start() published of it may be read. */
static inline bool session_armed(void)
{
    return session_does(SESSION_FOLLOWS);
}

/* Was it armed for @what? Also once it is off again. Thread: any that entered, or that saw it armed. */
static inline bool session_is_for(enum session_work what)
{
    return session.does & (uint32_t)what;
}

/**
 * session_enter() - begin work of ours in a call of the application's
 * The last flush waits for all who are in. Thread: any. Return: true if the session follows a spec: spec, run and
 * counters then stay as they are. session_leave() follows in any case.
 */
bool session_enter(struct session_call *call);

/* The same of a session that does any of @what: the run stays as it is. */
bool session_enter_for(struct session_call *call, uint32_t what);

/* The driver's call stands between these two: errno is then the application's and the driver's alone. */
void session_pause(const struct session_call *call);
void session_resume(struct session_call *call);

/* The work is done. */
void session_leave(const struct session_call *call);

/* The value of an expression of ours in a call of the application's; @none where the session is off. */
#define IN_SESSION(value, none)                                                                    \
    ({                                                                                             \
        struct session_call _within;                                                               \
        __typeof__(value) _value = session_enter(&_within) ? (value) : (none);                     \
        session_leave(&_within);                                                                   \
        _value;                                                                                    \
    })

/*
 * The calling thread may use run and counters without having entered: our own threads, which end before the run
 * does, and the one that closes it.
 */
void session_attach(void);

/* ------------------------------------------------------------------------- what it says */

/**
 * session_run() - the run on disk, created by the first call
 * Thread: any that entered; may block on the disk. Return: NULL where it cannot be created: the session is then off.
 */
struct run *session_run(void);

/**
 * session_note_change() - the run notes that something was changed
 * @what: in words; @at_once: it is on the disk, and in the log, when this returns, unless the disk refuses
 * Thread: as session_run(). Return: 0, also where there is no run; -ENOSPC, -ENOMEM: it is not noted.
 */
int session_note_change(const char *what, bool at_once);

/* The same with further keys of the note's object: @more is JSON with a comma in front, or NULL. */
int session_note_change_with(const char *what, const char *more, bool at_once);

/* A size from the environment with an optional K, M or G (binary). Return: 0 where it is unset or no size. */
uint64_t session_env_size(const char *name);

/* Memory in which tensors were found has ended, or is mapped or shared otherwise: it is looked up again. To operand_check_memory(). Thread: any. */
static inline void session_memory_freed(void)
{
    if (session_armed())
        atomic_add_acq_rel(&session.memory_epoch, 1);
}

enum site_switch {
    SITE_ON = 0,
    SITE_OFF = 1,      /* by dmi_site_enable() */
    SITE_GIVEN_UP = 2, /* by session_give_up(), for good */
};

/* Is the capture of a site on? Thread: any. */
static inline bool session_site_on(uint32_t site)
{
    return atomic_load_relaxed(&session.off[site]) == SITE_ON;
}

/* Switches a site on or off, unless it was given up. Takes effect at the next launches. Thread: any that entered. */
void session_site_switch(uint32_t site, bool on);

/* What happens under pressure. Thread: any, once armed. */
static inline const struct overload *session_overload(void)
{
    return atomic_load_acquire(&session.overload);
}

/* May requests have been shed, now or under what was in force before? Thread: any, once armed. */
static inline bool session_sheds(void)
{
    return atomic_load_relaxed(&session.sheds);
}

/* From the next launches and steps on; @overload stays until the process ends. Thread: one at a time. */
static inline void session_set_overload(const struct overload *overload)
{
    if (overload_sheds(overload))
        atomic_store_relaxed(&session.sheds, 1);
    atomic_store_release(&session.overload, overload);
}

/* A site of the spec. Thread: any, once armed. */
static inline const struct spec_site *session_site(uint32_t site)
{
    return &session.spec->sites[site];
}

/* Counters of a site. Thread: any that entered, once session_run() gave a run. */
static inline struct dmi_site_counters *session_counters(uint32_t site)
{
    return &session.counters->sites[site];
}

/* Adds to (or, with @sign -1, takes from) a tally. Thread: any. */
void session_count(struct dmi_tally *tally, int sign, uint64_t records, uint64_t rows,
                   uint64_t bytes);

/* No reason to drop a record; beside enum dmi_drop. */
#define DROP_NONE (-1)

/* One record is in no segment, and why. Thread: as session_counters(). */
void session_drop(uint32_t site, enum dmi_drop reason, uint64_t rows, uint64_t bytes);

/* What may be wrong with a site; each is reported once a run. */
enum problem {
    PROBLEM_BAD_POINTER,
    PROBLEM_BAD_EXPR,
    PROBLEM_TOO_LARGE,
    PROBLEM_COUNT,       /* matched another number of times than declared */
    PROBLEM_NO_MATCH,    /* matched nothing in the whole run */
    PROBLEM_UNSUPPORTED, /* in a graph, or in a context without a ring */
    PROBLEM_COPY_FAILED,
    PROBLEM_NO_PARAMS,   /* the driver does not say where the kernel's parameters lie */
    PROBLEM_NO_STEP,     /* its rows or steps are chosen by what the engine does not say */
    PROBLEM_PRESSURE,    /* switched off, as it would have to be dropped each time */
    PROBLEM_GIVEN_UP,    /* switched off for good: its launches cannot be counted */
    PROBLEM_UNCOUNTED,   /* some of its launches cannot be counted */
    PROBLEM_PASSES,      /* a layer of it ran more than once in a step */
    PROBLEM_ONE_FORWARD, /* nothing began a forward: its occurrences go on to the run's end */
};

/**
 * session_problem() - one line in log and manifest, once per site and kind of problem
 * Does nothing in a thread that has not the session open: the run may be closed. Thread: any. Keeps errno.
 */
void session_problem(uint32_t site, enum problem problem, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A problem that is reported later, if at all. */
struct session_deferred {
    bool any;
    uint32_t site;
    enum problem problem;
    char sentence[512];
};

/* Until session_leave() problems of the calling thread are about @kernel, which their sentences name; NULL: about none. Borrowed. */
void session_about(const char *kernel);

/* Whether problems of the calling thread stand in the log too, or in the manifest alone. */
void session_log_problems(bool on);

/* Problems of the calling thread go to @deferred, the first of them stays; NULL: they are reported again. Thread: any. */
void session_defer(struct session_deferred *deferred);

/* What @deferred holds is reported now. Thread: as session_problem(). */
void session_report_deferred(struct session_deferred *deferred);

/**
 * session_give_up() - a site is switched off for good, and reported, as launches of it will not be counted
 * What was expected before stays. The last resort, where a launch can be neither captured nor dropped. Thread: as
 * session_problem().
 */
void session_give_up(uint32_t site, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* All sites: it is not known which are concerned. Thread: the same. */
void session_give_up_all(const char *why);

/* A write failed with this errno. Return: whether for the first time in this process. Thread: any. */
bool session_write_failed(int error);

/* Was it reported already? Thread: any. */
bool session_reported(uint32_t site, enum problem problem);
