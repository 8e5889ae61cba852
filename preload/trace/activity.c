/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/activity.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/log.h"
#include "cupti/layouts.h"
#include "cupti/tracer.h"
#include "preload/base/driver.h"
#include "preload/session/session.h"
#include "preload/trace/join.h"
#include "preload/trace/lanes.h"
#include "preload/trace/steps.h"
#include "storage/ran.h"

#include <dmi/format.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE   "DMI_CUPTI"
#define FLUSH_NS   50000000u
#define MOST_BYTES 262144u /* of a chunk */
#define FEW        10000u  /* records of which a share says nothing yet */

static struct activity {
    bool wanted;
    int claimed;    /* 1: a thread starts it, or has; atomic */
    int started;    /* 1: it was tried. Released by activity_start(), acquired by collects() */
    struct err why; /* steps are alone; code 0: they are not. Written before @started, and stays */
    bool marked;    /* that they are */

    /* the collector's */
    struct join *join;
    struct ran_writer writer;
    struct trace_clock clock;
    uint64_t flush_ns;
    uint64_t no_memory, refused; /* records that are in no chunk */
    uint64_t n_doubts;           /* runs and numbers of steps that were lost so far */
    uint64_t n_lost;             /* all that was lost when it was last looked at */
} activity;

/* ------------------------------------------------------------------------- start */

void activity_want(void)
{
    activity.wanted = true;
}

bool activity_wanted(void)
{
    return activity.wanted;
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
    activity.join = join_new();
    return activity.join ? tracer_start(err, getenv(VARIABLE), cuda_major())
                         : err_set(err, -ENOMEM, "no memory");
}

void activity_start(void)
{
    if (!activity.wanted || !cuda_major() || atomic_exchange_acq_rel(&activity.claimed, 1))
        return;
    if (start(&activity.why)) {
        log_line("DMI_TRACE=full: %s; steps alone are traced", activity.why.msg);
    } else {
        log_line("what runs on the device is traced, by %s", tracer_path());
        if (!tracer_knows_layouts())
            log_line(
                "trace: this CUPTI is newer than the layouts of records that are known here: what "
                "all versions have in common is read");
        lanes_use(true);
    }
    atomic_store_release(&activity.started, 1); /* to collects() */
}

/* Are there records to come? */
static bool collects(void)
{
    return atomic_load_acquire(&activity.started) && !activity.why.code; /* of activity_start() */
}

static void say_alone(activity_mark *mark)
{
    bool alone =
        atomic_load_acquire(&activity.started) && activity.why.code; /* of activity_start() */
    if (alone && !activity.marked)
        mark(DMI_MARK_STEPS_ALONE, 0, activity.why.msg);
    activity.marked = alone;
}

/* ------------------------------------------------------------------------- what comes */

static void take_event(void *ctx, const struct records_event *event)
{
    (void)ctx;
    activity.no_memory += !join_add(activity.join, event);
}

static void take_run(const struct join_run *run)
{
    struct join_run real = *run;
    real.begin_ns = trace_clock_real(&activity.clock, run->begin_ns);
    activity.n_doubts += !join_add_run(activity.join, &real);
}

void activity_step(uint64_t deal, uint64_t number)
{
    if (collects())
        activity.n_doubts += !join_step(activity.join, deal, number);
}

/* What has been lost makes counts wrong. */
static void look_for_doubts(const struct tracer_counts *c)
{
    uint64_t n = c->dropped + c->walk.n_no_time + c->walk.n_unread + activity.no_memory +
                 activity.n_doubts + lanes_lost();
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
    mark(DMI_MARK_STEPS_ALONE, 0, why);
}

static void look_for_nonsense(const struct tracer_counts *c, activity_mark *mark)
{
    if (!tracer_runs())
        return;
    if (c->walk.n_strange)
        give_up("CUPTI's records have another layout than their version says", mark);
    else if (c->walk.n >= FEW && c->walk.n_no_time * 100 >= c->walk.n)
        give_up("one in a hundred of CUPTI's records has no times", mark);
}

/* ------------------------------------------------------------------------- chunks */

static void write_chunk(void)
{
    struct text meta = { 0 };
    uint32_t n = activity.writer.n;
    if (!n)
        return;
    if (!ran_meta(&activity.writer, &meta)) {
        activity.no_memory += n;
        return;
    }
    int r = run_append_meta(session.run, DMI_CHUNK_TRACE, &meta);
    activity.refused += r ? n : 0;
    if (r && session_write_failed(-r))
        log_line("cannot write the trace: %s; what ran on the device may be lost", strerror(-r));
}

static uint32_t kind_of(uint32_t kind)
{
    switch (kind) {
    case LAYOUTS_KERNEL: return DMI_RAN_KERNEL;
    case LAYOUTS_SET: return DMI_RAN_FILL;
    default: return DMI_RAN_COPY;
    }
}

static void store(const struct records_event *e, uint64_t step)
{
    const char *name = e->kind == LAYOUTS_KERNEL && e->name ? e->name : "";
    struct ran ran = { .shape = { .kind = kind_of(e->kind),
                                  .name_bytes = (uint32_t)strlen(name),
                                  .device = e->device,
                                  .context = e->context,
                                  .stream = e->stream,
                                  .static_shared = e->static_shared,
                                  .dynamic_shared = e->dynamic_shared,
                                  .registers = e->registers,
                                  .how = e->how },
                       .name = name,
                       .begin_ns = e->begin_ns,
                       .end_ns = e->end_ns,
                       .step = step,
                       .correlation = e->correlation,
                       .graph = e->graph,
                       .node = e->node,
                       .bytes = e->bytes };
    memcpy(ran.shape.grid, e->grid, sizeof e->grid);
    memcpy(ran.shape.block, e->block, sizeof e->block);
    ran_add(&activity.writer, &ran);
    if (ran_bytes(&activity.writer) >= MOST_BYTES)
        write_chunk();
}

/* ------------------------------------------------------------------------- rounds */

static void deal(bool last, activity_mark *mark)
{
    static const struct join_calls calls = { .open = lanes_open, .take = store };
    lanes_take(last, steps_deal(), take_run);
    tracer_take(take_event, NULL);
    struct tracer_counts counts = tracer_counts();
    look_for_doubts(&counts);
    look_for_nonsense(&counts, mark);
    join_deal(activity.join, &calls, last);
}

void activity_round(const struct trace_clock *clock, bool write, activity_mark *mark)
{
    activity.clock = *clock;
    say_alone(mark);
    if (!collects())
        return;
    uint64_t now = clock_mono_ns();
    if (now - activity.flush_ns >= FLUSH_NS) {
        activity.flush_ns = now;
        tracer_flush(false);
        deal(false, mark);
    }
    if (write)
        write_chunk();
}

static void mark_lost(activity_mark *mark, uint64_t n, const char *why)
{
    if (n)
        mark(DMI_MARK_RAN_LOST, (int64_t)n, why);
}

static void say_account(const struct join *join)
{
    if (join_unplaced(join))
        log_line("trace: no records fit %llu launches: CUPTI lost some, or another user of it took "
                 "them; what they ran is of no known step",
                 (unsigned long long)join_unplaced(join));
    if (join_unnamed(join))
        log_line(
            "trace: %llu kernels have no name: there are too many names, or no memory for them",
            (unsigned long long)join_unnamed(join));
}

void activity_finish(const struct trace_clock *clock, activity_mark *mark)
{
    activity.clock = *clock;
    say_alone(mark);
    if (!collects())
        return;
    lanes_use(false);
    tracer_flush(true);
    deal(true, mark);
    write_chunk();
    tracer_stop();
    struct tracer_counts c = tracer_counts();
    mark(DMI_MARK_RAN, (int64_t)c.walk.n, "");
    mark_lost(mark, c.walk.n_no_time, "they have no times");
    mark_lost(mark, c.walk.n_unread, "they are of other kinds");
    mark_lost(mark, activity.no_memory, "no memory");
    mark_lost(mark, activity.refused, "the disk refused them");
    if (c.dropped)
        mark(DMI_MARK_RAN_DROPPED, (int64_t)c.dropped, "");
    say_account(activity.join);
    join_free(activity.join);
    ran_deinit(&activity.writer);
    activity.join = NULL;
}

void activity_reset(void)
{
    /* what the parent's collector had stays in its memory, unread */
    activity = (struct activity){ 0 };
    lanes_reset();
    tracer_reset();
}
