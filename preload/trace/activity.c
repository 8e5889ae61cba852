/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/activity.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/log.h"
#include "cupti/lend.h"
#include "cupti/other_clock.h"
#include "cupti/tracer.h"
#include "preload/base/driver.h"
#include "preload/session/session.h"
#include "preload/trace/graphs.h"
#include "preload/trace/join.h"
#include "preload/trace/keep.h"
#include "preload/trace/lanes.h"
#include "preload/trace/leaves.h"
#include "preload/trace/moments.h"
#include "preload/trace/ran_chunks.h"
#include "preload/trace/recent.h"
#include "preload/trace/steps.h"
#include "preload/trace/sums.h"

#include <dmi/format.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define VARIABLE    "DMI_CUPTI"
#define RING        "DMI_TRACE_RING"
#define MOST_AGO_NS 600000000000 /* a record is no older when it comes */
#define FLUSH_NS    50000000u
#define FEW         10000u /* records of which a share says nothing yet */
#define RING_BYTES  (64u << 20)
#define SETTLED     4u /* rounds after which all launches of a step that has ended are known */

static struct activity {
    enum activity_tier tier;
    int claimed;    /* 1: a thread starts it, or has; atomic */
    int started;    /* 1: it was tried. Released by activity_start(), acquired by collects() */
    struct err why; /* steps are alone; code 0: they are not. Written before @started, and stays */
    bool said;      /* what came of the start */

    /* the collector's */
    struct join *join;
    struct trace_sums sums;    /* of both tiers */
    struct ran_chunks records; /* of the tier full, and what is kept */
    struct ran_chunks summed;  /* of the tier kernels */
    struct recent recent;      /* of the tier kernels */
    struct keep_window kept; /* that is or was stored last: what comes late of it is stored, too */
    bool keeping;            /* it is not answered yet; so far: */
    uint64_t kept_gone, kept_records, kept_failed;
    uint32_t keep_rounds; /* since the last step that is asked for has its number */
    uint64_t n_numbers;   /* of steps that have one */
    struct trace_clock clock;
    uint64_t flush_ns;
    bool second;              /* it is over, and what is of no step was not summed since */
    uint64_t no_memory;       /* records that were never dealt */
    bool told_strange;        /* and that records do not keep to it */
    struct other_clock other; /* by which records have their times since another user had CUPTI */
    bool lent;                /* it had */
    uint64_t n_other_times;   /* records whose times cannot be */
    uint64_t n_doubts;        /* runs and numbers of steps that were lost so far */
    uint64_t n_lost;          /* all that was lost when it was last looked at */
    char dearest[192];
} activity = { .records.type = DMI_CHUNK_TRACE, .summed.type = DMI_CHUNK_SUMS };

/* ------------------------------------------------------------------------- start */

void activity_want(enum activity_tier tier)
{
    activity.tier = tier;
    if (tier == ACTIVITY_KERNELS)
        keep_expect();
}

bool activity_wanted(void)
{
    return activity.tier != ACTIVITY_NONE;
}

const char *activity_tier(void)
{
    static const char *const names[] = { "steps", "kernels", "full" };
    return names[activity.tier];
}

static int cuda_major(void)
{
    int version = 0;
    if (driver_table.cuDriverGetVersion)
        driver_table.cuDriverGetVersion(&version);
    return version / 1000;
}

static int start(struct err *err)
{
    if (lend_came_first(err))
        return -EBUSY;
    activity.join = join_new();
    return activity.join ? tracer_start(err, driver_real_dlsym, getenv(VARIABLE), cuda_major())
                         : err_set(err, -ENOMEM, "no memory");
}

static void start_ring(void)
{
    uint64_t n_bytes = session_env_size(RING);
    n_bytes = n_bytes ? n_bytes : RING_BYTES;
    if (recent_init(&activity.recent, n_bytes))
        log_line("trace: no memory for a ring of %" PRIu64 " bytes (" RING
                 "): no steps can be kept",
                 n_bytes);
    keep_use(activity.recent.records != NULL);
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return !stat(a, &of_a) && !stat(b, &of_b) && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}

/* @wanted: what the user names, NULL: nothing. */
static void say_library(const char *wanted, const char *path)
{
    if (wanted && !is_same_file(wanted, path))
        log_line("what runs on the device is traced, by %s: the process has that one, so " VARIABLE
                 "=%s is not used",
                 path, wanted);
    else
        log_line("what runs on the device is traced, by %s", path);
}

void activity_start(void)
{
    if (!activity.tier || !cuda_major() || atomic_exchange_acq_rel(&activity.claimed, 1))
        return;
    if (start(&activity.why)) {
        log_line("DMI_TRACE=%s: %s; steps alone are traced", activity_tier(), activity.why.msg);
        keep_use(false);
    } else {
        say_library(getenv(VARIABLE), tracer_path());
        if (*tracer_lacks())
            log_line("trace: CUPTI records no %s", tracer_lacks());
        if (!tracer_knows_layouts())
            log_line(
                "trace: this CUPTI is newer than the layouts of records that are known here: what "
                "all versions have in common is read");
        if (activity.tier == ACTIVITY_KERNELS)
            start_ring();
        lanes_use(true);
    }
    atomic_store_release(&activity.started, 1); /* to collects() */
}

/* Are there records to come? */
static bool collects(void)
{
    return atomic_load_acquire(&activity.started) && !activity.why.code; /* of activity_start() */
}

/* In the manifest, too: a user may have asked for more. */
static void mark_alone(const char *why, activity_mark *mark)
{
    mark(DMI_MARK_STEPS_ALONE, 0, why);
    run_problem(session.run, NULL, "steps_alone", why);
}

static void say_lacks(void)
{
    char sentence[160];
    snprintf(sentence, sizeof sentence, "CUPTI records no %s", tracer_lacks());
    run_problem(session.run, NULL, "kinds_missing", sentence);
}

/* What came of the start, once. */
static void say_start(activity_mark *mark)
{
    if (activity.said || !atomic_load_acquire(&activity.started)) /* of activity_start() */
        return;
    activity.said = true;
    if (activity.why.code)
        mark_alone(activity.why.msg, mark);
    else if (*tracer_lacks())
        say_lacks();
}

/* ------------------------------------------------------------------------- what comes */

static uint64_t real_of(uint64_t mono_ns)
{
    return trace_clock_real(trace_clock_ahead(&activity.clock, mono_ns), mono_ns);
}

/* Times of a record that comes after another user had CUPTI, which may have left it a clock of its own. Return: false: they are none of these minutes. */
static bool find_times(struct records_event *e)
{
    if (tracer_runs() && other_clock_knows(&activity.other)) {
        e->begin_ns = real_of(other_clock_mono(&activity.other, e->begin_ns));
        e->end_ns = real_of(other_clock_mono(&activity.other, e->end_ns));
    }
    int64_t ago_ns = (int64_t)(clock_real_ns() - e->end_ns);
    return e->begin_ns <= e->end_ns && ago_ns > -MOST_AGO_NS && ago_ns < MOST_AGO_NS;
}

static void take_event(void *ctx, const struct records_event *event)
{
    (void)ctx;
    struct records_event real = *event;
    if (activity.lent && !find_times(&real))
        activity.n_other_times++;
    else
        activity.no_memory += !join_add(activity.join, &real);
}

static void take_run(const struct join_run *run)
{
    activity.n_doubts += !join_add_run(activity.join, run);
}

static void take_lost(uint32_t context, uint32_t stream)
{
    activity.n_doubts += !join_doubt_stream(activity.join, context, stream);
}

void activity_step(uint64_t deal, uint64_t number)
{
    if (!collects())
        return;
    activity.n_doubts += !join_step(activity.join, deal, number);
    activity.n_numbers = number + 1;
}

/* What has been lost makes counts wrong. */
static void look_for_doubts(const struct tracer_counts *c)
{
    uint64_t n = c->dropped + c->walk.n_no_time + c->walk.n_unread + activity.no_memory +
                 activity.n_doubts + activity.n_other_times + lanes_lost() + lanes_unknown() +
                 c->n_untold + (c->walk.refused != 0);
    if (n != activity.n_lost)
        join_doubt(activity.join);
    activity.n_lost = n;
}

/* From here on steps are alone. */
static void give_up(const char *why, activity_mark *mark)
{
    lanes_use(false);
    tracer_stop();
    log_line("trace: %s; steps alone are traced from here on", why);
    mark_alone(why, mark);
}

static void look_for_nonsense(const struct tracer_counts *c, activity_mark *mark)
{
    if (!tracer_runs())
        return;
    char why[80];
    if (c->walk.refused) {
        snprintf(why, sizeof why, "CUPTI does not read its own records (error %d)",
                 c->walk.refused);
        give_up(why, mark);
    } else if (c->walk.n_strange)
        give_up("CUPTI's records have another layout than their version says", mark);
    else if (c->walk.n >= FEW && (c->walk.n_no_time + activity.n_other_times) * 100 >= c->walk.n)
        give_up("one in a hundred of CUPTI's records has no times", mark);
}

/* What runs while CUPTI is lent has no records, and launches are counted all the same. */
static void look_at_others(activity_mark *mark)
{
    struct err why = { 0 };
    enum lend_news news = lend_round(&why);
    other_clock_look(&activity.other, lend_other_clock());
    if (news == LEND_OVER)
        give_up(why.msg, mark);
    if (news == LEND_BACK && activity.other.read && !other_clock_knows(&activity.other))
        give_up("the clock that another profiler gave CUPTI stands still", mark);
    if (news == LEND_LENT) {
        tracer_take(take_event, NULL); /* these have CUPTI's own times, if it had */
        activity.lent = true;
    }
    if (news != LEND_LENT && news != LEND_BACK)
        return;
    bool lent = news == LEND_LENT;
    activity.n_doubts++;
    log_line("trace: CUPTI is %s",
             lent ? "lent to another profiler of this process" : "back, and records come again");
    mark(DMI_MARK_LENT, lent, "");
}

/* ------------------------------------------------------------------------- rounds */

static void store(const struct records_event *event, uint64_t step)
{
    ran_chunks_record(&activity.records, event, step, graphs_place(event));
}

static void store_kept(void *ctx, const struct records_event *event, uint64_t number)
{
    (void)ctx;
    activity.kept_records++;
    store(event, DMI_RAN_FIRST + number);
}

static bool is_kept(uint64_t step)
{
    const struct keep_window *kept = &activity.kept;
    return step >= DMI_RAN_FIRST + kept->first && step < DMI_RAN_FIRST + kept->end;
}

static void take_dealt(const struct records_event *event, uint64_t step)
{
    sums_take(&activity.sums, event, step);
    if (is_kept(step))
        store_kept(NULL, event, step - DMI_RAN_FIRST);
    else if (activity.tier == ACTIVITY_FULL)
        store(event, step);
    else if (activity.recent.records && step >= DMI_RAN_FIRST)
        recent_add(&activity.recent, event, step - DMI_RAN_FIRST);
}

/* Once. */
static void tell_strange(void)
{
    if (activity.told_strange || !join_clocks_differ(activity.join))
        return;
    activity.told_strange = true;
    log_line("trace: by CUPTI's clock records ran while their stream was idle: their steps are "
             "known by counts of launches alone");
}

static void deal(bool last, activity_mark *mark)
{
    static const struct join_calls calls = { .open = lanes_open,
                                             .is_exec = graphs_had,
                                             .is_perhaps = leaves_perhaps,
                                             .place = moments_place,
                                             .take = take_dealt };
    lanes_take(last, steps_deal(), take_run);
    tracer_take(take_event, NULL);
    struct tracer_counts counts = tracer_counts();
    lanes_take_lost(take_lost);
    join_uncounted(activity.join, lanes_unknown() + lanes_crowded());
    look_for_doubts(&counts);
    look_for_nonsense(&counts, mark);
    moments_look(&activity.clock, activity.other.read);
    join_deal(activity.join, &calls, clock_mono_ns(), last);
    tell_strange();
    graphs_sweep();
}

/* In the tier full sums are for the log alone. */
static void write_sums(bool all)
{
    bool kernels = activity.tier == ACTIVITY_KERNELS;
    sums_round(&activity.sums, activity.second, all, kernels ? &activity.summed : NULL);
    activity.second = false;
}

static void write_chunks(void)
{
    ran_chunks_write(&activity.records);
    ran_chunks_write(&activity.summed);
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A question that is new: what is in memory now is stored, before it goes; the rest of these steps will be as it is dealt. */
static void begin_keep(void)
{
    struct keep_window asked;
    if (activity.keeping || !keep_asked(&asked))
        return;
    uint64_t first = most(asked.first, activity.recent.whole);
    activity.kept = (struct keep_window){ first < asked.end ? first : asked.end, asked.end };
    activity.keeping = true;
    activity.keep_rounds = 0;
    activity.kept_gone = activity.kept.first - asked.first;
    activity.kept_records = 0;
    activity.kept_failed = activity.records.refused + activity.records.no_memory;
    recent_store(&activity.recent, activity.kept.first, activity.kept.end, store_kept, NULL);
}

static void mark_window(enum dmi_mark_kind kind, uint64_t value, uint64_t first, uint64_t end,
                        activity_mark *mark)
{
    char text[48];
    snprintf(text, sizeof text, "%" PRIu64 ":%" PRIu64, first, end);
    mark(kind, (int64_t)value, text);
}

/*
 * Answers once the records of the steps that are asked for are there, or @last: none comes any more. Times and sums of the steps are in the
 * run, too, before it does.
 */
static void end_keep(bool last, activity_mark *mark, activity_write *write)
{
    const struct ran_chunks *c = &activity.records;
    struct keep_answer answer = { .window = activity.kept,
                                  .gone = activity.kept_gone,
                                  .records = activity.kept_records };
    activity.keep_rounds += activity.n_numbers >= activity.kept.end;
    if (!activity.keeping || (!last && (activity.keep_rounds < SETTLED ||
                                        join_awaits(activity.join, activity.kept.end))))
        return;
    write_sums(true);
    write_chunks();
    if (c->refused + c->no_memory != activity.kept_failed)
        answer.state = KEEP_REFUSED;
    else
        mark_window(DMI_MARK_KEPT, answer.gone, answer.window.first, answer.window.end, mark);
    write();
    activity.keeping = false;
    keep_done(&answer);
}

void activity_round(const struct trace_clock *clock, bool second, activity_mark *mark,
                    activity_write *write)
{
    activity.clock = *clock;
    say_start(mark);
    if (!collects())
        return;
    uint64_t now = clock_mono_ns();
    activity.second |= second;
    look_at_others(mark);
    begin_keep();
    if (now - activity.flush_ns >= FLUSH_NS) {
        activity.flush_ns = now;
        tracer_flush(false);
        deal(false, mark);
        write_sums(false);
        end_keep(false, mark, write);
    }
    if (second)
        write_chunks();
}

static void mark_lost(activity_mark *mark, uint64_t n, const char *why)
{
    if (n)
        mark(DMI_MARK_RAN_LOST, (int64_t)n, why);
}

/* How many they are CUPTI does not say. */
static void say_kept_back(int error, activity_mark *mark)
{
    char why[80];
    if (!error)
        return;
    snprintf(why, sizeof why, "CUPTI does not give its last records back (error %d)", error);
    log_line("trace: %s: what ran last is missing", why);
    mark_alone(why, mark);
}

/* What is known to be lost. */
static const char *why_unplaced(void)
{
    struct tracer_counts c = tracer_counts();
    if (c.dropped)
        return "CUPTI dropped records";
    if (activity.lent)
        return "CUPTI was lent to another user of it";
    if (c.walk.n_no_time + c.walk.n_unread + activity.n_other_times)
        return "CUPTI's records had no times that are known";
    return "their records did not come, or do not fit";
}

static void say_account(const struct join *join)
{
    if (join_unplaced(join))
        log_line("trace: what %llu launches ran is of no known step: %s",
                 (unsigned long long)join_unplaced(join), why_unplaced());
    if (join_too_many(join))
        log_line("trace: %llu records are of no known step: more of them waited in a stream for "
                 "their step's end than there is room for",
                 (unsigned long long)join_too_many(join));
    if (lanes_crowded())
        log_line("trace: what %llu launches ran is of no known step: their threads launch in more "
                 "than 1,024 streams at a time",
                 (unsigned long long)lanes_crowded());
    if (join_misnamed(join))
        log_line("trace: what %llu launches ran is of no known step: by the ids of graphs the "
                 "records are of others",
                 (unsigned long long)join_misnamed(join));
    if (join_ids_differ(join))
        log_line("trace: CUPTI's records name graphs by other ids than it gives for them: "
                 "they are not compared");
    if (graphs_strange())
        log_line("trace: CUPTI's records name nodes of graphs by other ids than it gives for them: "
                 "sites and layers of what graphs ran are not known");
    if (lanes_unknown())
        log_line(
            "trace: what %llu launches ran is of no known step: CUPTI did not know their stream",
            (unsigned long long)lanes_unknown());
    if (tracer_counts().untold)
        log_line("trace: CUPTI does not say how many records it dropped (error %d)",
                 tracer_counts().untold);
    if (join_unnamed(join))
        log_line(
            "trace: %llu kernels have no name: there are too many names, or no memory for them",
            (unsigned long long)join_unnamed(join));
}

/* Where records go decides what is lost. */
static void mark_account(activity_mark *mark)
{
    const bool kernels = activity.tier == ACTIVITY_KERNELS;
    const struct ran_chunks *to = kernels ? &activity.summed : &activity.records;
    struct tracer_counts c = tracer_counts();
    uint64_t no_memory =
        activity.no_memory + to->no_memory + (kernels ? activity.sums.no_memory : 0);
    mark(DMI_MARK_RAN, (int64_t)c.walk.n, "");
    if (kernels)
        mark(DMI_MARK_RAN_SUMMED, (int64_t)(to->stored - activity.records.stored), "");
    if (activity.recent.records)
        mark_window(DMI_MARK_RING, activity.recent.gone, activity.recent.whole, activity.n_numbers,
                    mark);
    mark_lost(mark, c.walk.n_no_time, "they have no times");
    mark_lost(mark, activity.n_other_times, "they have times of no clock that is known");
    mark_lost(mark, c.walk.n_unread, "they are of other kinds");
    mark_lost(mark, no_memory, "no memory");
    mark_lost(mark, to->refused, "the disk refused them");
    if (c.dropped)
        mark(DMI_MARK_RAN_DROPPED, (int64_t)c.dropped, "");
}

static void forget(void)
{
    sums_deinit(&activity.sums);
    ran_chunks_deinit(&activity.records);
    ran_chunks_deinit(&activity.summed);
    recent_deinit(&activity.recent);
    join_free(activity.join);
    activity.join = NULL;
}

void activity_finish(const struct trace_clock *clock, activity_mark *mark, activity_write *write)
{
    activity.clock = *clock;
    say_start(mark);
    if (!collects())
        return;
    lanes_use(false);
    begin_keep();
    int kept_back = tracer_flush(true);
    deal(true, mark);
    write_sums(true);
    end_keep(true, mark, write);
    keep_use(false);
    write_chunks();
    tracer_stop();
    mark_account(mark);
    say_kept_back(kept_back, mark);
    say_account(activity.join);
    sums_dearest(&activity.sums, activity.dearest, sizeof activity.dearest);
    forget();
}

const char *activity_dearest(void)
{
    return activity.dearest;
}

void activity_reset(void)
{
    /* what the parent's collector had stays in its memory, unread */
    activity = (struct activity){ .records.type = DMI_CHUNK_TRACE, .summed.type = DMI_CHUNK_SUMS };
    keep_reset();
    moments_reset();
    lanes_reset();
    leaves_reset();
    lend_reset();
    tracer_reset();
}
