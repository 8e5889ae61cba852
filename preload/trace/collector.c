/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/collector.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/priority.h"
#include "preload/base/thread.h"
#include "preload/session/session.h"
#include "preload/trace/activity.h"
#include "preload/trace/beat.h"
#include "preload/trace/clock.h"
#include "preload/trace/events.h"
#include "preload/trace/gauge.h"
#include "preload/trace/named.h"
#include "preload/trace/range_ring.h"
#include "preload/trace/steps.h"
#include "preload/trace/summary.h"
#include "storage/table.h"

#include <dmi/format.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUND_NS    20000000u   /* between looks at the ring */
#define WRITE_NS    1000000000u /* between chunks, */
#define MOST_BYTES  65536u      /* unless there is that much */
#define NAMES_KNOWN 32u         /* ranges whose names are looked at */
#define CATCH_UP_NS 100000000u
#define GRACE_NS    2000000000u /* for the disk, after the deadline of the device */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the next two */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t asked, looked; /* collector_catch_up() and rounds that saw it */

/* The collector's thread alone uses it, but for what names another user. */
static struct collector {
    pthread_t thread;
    bool runs;
    uint64_t stop_ns; /* atomic; 0: on and on. Else until when the device is waited for */
    struct trace_clock clock;
    uint64_t write_ns;                    /* when chunks were written last */
    struct text times;                    /* struct dmi_step_times each */
    struct text ranges, words;            /* struct dmi_range_entry, and their strings */
    struct text marks, texts;             /* struct dmi_mark, and their strings */
    uint64_t lost;                        /* steps in no chunk that a mark has said */
    uint64_t refused;                     /* steps that the disk did not take */
    uint64_t ranges_lost, ranges_refused; /* the same of ranges */
    uint64_t looked_ns;                   /* CLOCK_REALTIME: when that was looked at last */
    uint32_t source;                      /* that a mark has said */
    struct summary summary;
    struct beat beat;
    uint64_t wrote_ns; /* of the last round: in what may wait for the disk */
} collector;

/* ------------------------------------------------------------------------- marks */

static void mark(enum dmi_mark_kind kind, int64_t value, const char *text)
{
    struct collector *c = &collector;
    size_t n = strlen(text);
    const struct dmi_mark at = { .time_ns = clock_real_ns(),
                                 .value = value,
                                 .kind = kind,
                                 .text_offset = n ? (uint32_t)c->texts.n : 0,
                                 .text_bytes = (uint32_t)n };
    text_add(&c->texts, text, n);
    text_add(&c->marks, (const char *)&at, sizeof at);
}

/* What happened since it was last looked at. */
static void note_marks(void)
{
    struct collector *c = &collector;
    uint32_t source = steps_source();
    uint64_t lost = stepring_lost() + c->refused;
    if (source != c->source)
        mark(DMI_MARK_SOURCE, source, source <= DMI_STEP_NAMED_RANGE ? named_text() : "");
    if (lost != c->lost)
        mark(DMI_MARK_LOST, (int64_t)(lost - c->lost), "");
    uint64_t ranges_lost = range_ring_lost() + c->ranges_refused, looked_ns = clock_real_ns();
    char looks[48];
    snprintf(looks, sizeof looks, "%" PRIu64 ":%" PRIu64, c->looked_ns, looked_ns);
    if (ranges_lost != c->ranges_lost)
        mark(DMI_MARK_RANGES_LOST, (int64_t)(ranges_lost - c->ranges_lost), looks);
    c->source = source;
    c->lost = lost;
    c->ranges_lost = ranges_lost;
    c->looked_ns = looked_ns;
}

static void look_at_clocks(void)
{
    struct clock_pair real = clock_pair(clock_real_ns);
    int64_t by = trace_clock_pair(&collector.clock, real.mono_ns, real.other);
    if (by)
        mark(DMI_MARK_CLOCK_SET, by, "");
}

/* ------------------------------------------------------------------------- chunks */

/* Appends what there is of one kind. Return: entries that the disk did not take. */
static uint64_t append(uint16_t type, struct text *entries, size_t size, struct text *texts)
{
    struct text meta = { 0 };
    uint64_t n = entries->n / size;
    if (!n && !entries->failed)
        return 0;
    int r = table_meta(entries, size, texts, &meta) ? run_append_meta(session.run, type, &meta)
                                                    : -ENOMEM;
    if (r && session_write_failed(-r))
        log_line("cannot write the trace: %s; further steps may be lost", strerror(-r));
    entries->n = texts->n = 0;
    entries->failed = texts->failed = 0;
    return r ? n : 0;
}

static void write_chunks(void)
{
    struct collector *c = &collector;
    struct text none = { 0 };
    c->refused += append(DMI_CHUNK_STEP_TIMES, &c->times, sizeof(struct dmi_step_times), &none);
    c->ranges_refused +=
        append(DMI_CHUNK_RANGES, &c->ranges, sizeof(struct dmi_range_entry), &c->words);
    note_marks();
    append(DMI_CHUNK_MARKS, &c->marks, sizeof(struct dmi_mark), &c->texts);
    c->write_ns = clock_mono_ns();
}

/* ------------------------------------------------------------------------- steps */

/* Its times become those of files. */
static void take(struct trace_step *step)
{
    struct collector *c = &collector;
    struct dmi_step_times *at = &step->at;
    summary_add(&c->summary, at);
    activity_step(step->deal, at->number);
    for (size_t i = 0; i < step->n_deals; i++)
        activity_step(step->deals[i], at->number);
    free(step->deals);
    int64_t ahead_ns = trace_clock_ahead_of(&c->clock, at->begin_ns, step->real_ns);
    at->begin_ns = trace_clock_real(ahead_ns, at->begin_ns);
    at->end_ns = trace_clock_real(ahead_ns, at->end_ns);
    at->launch_ns = trace_clock_real(ahead_ns, at->launch_ns);
    at->waited_ns = trace_clock_real(ahead_ns, at->waited_ns);
    text_add(&c->times, (const char *)at, sizeof *at);
}

/* Is the oldest step done with? @last: nothing more of it is waited for. */
static bool settle(struct trace_step *step, bool last)
{
    if (!events_pending(step)) {
        events_drop(step);
        return true;
    }
    if (events_settle(step))
        return true;
    if (!last)
        return false;
    step->at.flags |= DMI_STEP_UNFINISHED;
    return true;
}

/* All steps that are done. Return: whether none is left. */
static bool collect(bool last)
{
    struct trace_step *step;
    while ((step = stepring_oldest()) && settle(step, last)) {
        take(step);
        stepring_free(step);
        if (collector.times.n >= MOST_BYTES)
            write_chunks();
    }
    return !step;
}

/* ------------------------------------------------------------------------- ranges */

/* Most names come again and again: of those that came last the bytes stand in a chunk once. */
static void add_name(struct dmi_range_entry *at, const char *name)
{
    struct collector *c = &collector;
    size_t n = c->ranges.n / sizeof *at, first = n > NAMES_KNOWN ? n - NAMES_KNOWN : 0;
    const struct dmi_range_entry *all = (const void *)c->ranges.data;
    at->name_bytes = (uint32_t)strlen(name);
    for (size_t i = n; i-- > first && at->name_bytes;) {
        if (all[i].name_bytes != at->name_bytes ||
            memcmp(c->words.data + all[i].name_offset, name, at->name_bytes) != 0)
            continue;
        at->name_offset = all[i].name_offset;
        return;
    }
    at->name_offset = at->name_bytes ? (uint32_t)c->words.n : 0;
    text_add(&c->words, name, at->name_bytes);
}

static void add_facts(struct dmi_range_entry *at, const struct range_entry *e)
{
    struct text *words = &collector.words;
    size_t n = words->n;
    for (uint8_t i = 0; i < e->n_facts; i++) {
        text_printf(words, i ? ", " : "{");
        text_json(words, e->facts[i].key);
        text_printf(words, ": %lld", (long long)e->facts[i].value);
    }
    if (e->n_facts)
        text_add(words, "}", 1);
    at->facts_bytes = (uint32_t)(words->n - n);
    at->facts_offset = at->facts_bytes ? (uint32_t)n : 0;
}

static void take_range(const struct range_entry *e)
{
    struct collector *c = &collector;
    int64_t ahead_ns = trace_clock_ahead(&c->clock, e->begin_ns);
    struct dmi_range_entry at = { .begin_ns = trace_clock_real(ahead_ns, e->begin_ns),
                                  .end_ns = trace_clock_real(ahead_ns, e->end_ns),
                                  .step = e->step,
                                  .thread = e->thread,
                                  .depth = e->depth,
                                  .source = e->source };
    add_name(&at, e->name);
    add_facts(&at, e);
    text_add(&c->ranges, (const char *)&at, sizeof at);
}

/* A time in which no thread of the process ran is one of them. */
static void look_at_beat(void)
{
    struct range_entry stop = { .step = DMI_NO_STEP,
                                .source = DMI_RANGE_STOPPED,
                                .name = "no thread of the process ran" };
    if (beat_look(&collector.beat, ROUND_NS + collector.wrote_ns, &stop.begin_ns, &stop.end_ns))
        take_range(&stop);
}

/* ------------------------------------------------------------------------- rounds */

/* Until the next round is due, or somebody asks for it. @seen: what the last one saw. Return: what the next one sees. */
static uint64_t nap(uint64_t seen)
{
    struct timespec until = clock_timespec(clock_mono_ns() + ROUND_NS);
    pthread_mutex_lock(&lock);
    looked = seen;
    pthread_cond_broadcast(&changed);
    while (asked == seen && !pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until))
        ;
    seen = asked;
    pthread_mutex_unlock(&lock);
    return seen;
}

void collector_catch_up(void)
{
    struct timespec until = clock_timespec(clock_mono_ns() + CATCH_UP_NS);
    if (!stepring_oldest())
        return;
    pthread_mutex_lock(&lock);
    uint64_t mine = ++asked;
    pthread_cond_broadcast(&changed);
    while (looked < mine && !pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until))
        ;
    pthread_mutex_unlock(&lock);
}

/* Return: whether to go on. */
static bool round_of(uint64_t now)
{
    uint64_t stop = atomic_load_acquire(&collector.stop_ns); /* of collector_stop() */
    look_at_clocks();
    look_at_beat();
    bool empty = collect(stop && now >= stop);
    gauge_steps(&collector.summary, stepring_lost() + collector.refused);
    range_ring_take(take_range);
    bool write = now - collector.write_ns >= WRITE_NS;
    uint64_t begin_ns = clock_mono_ns();
    activity_round(&collector.clock, write, mark, write_chunks);
    if (write || collector.ranges.n + collector.words.n >= MOST_BYTES)
        write_chunks();
    collector.wrote_ns = clock_mono_ns() - begin_ns;
    return !(stop && empty);
}

static void *collector_main(void *arg)
{
    (void)arg;
    pthread_setname_np(pthread_self(), "dmi-trace");
    session_attach();
    priority_lower();
    collector.write_ns = clock_mono_ns();
    collector.looked_ns = clock_real_ns();
    mark(DMI_MARK_BEGUN, 0, activity_tier());
    uint64_t seen = 0;
    while (round_of(clock_mono_ns()))
        seen = nap(seen);
    activity_finish(&collector.clock, mark, write_chunks);
    write_chunks();
    note_marks();
    mark(DMI_MARK_ENDED, (int64_t)stepring_ended(), "");
    append(DMI_CHUNK_MARKS, &collector.marks, sizeof(struct dmi_mark), &collector.texts);
    return NULL;
}

/* ------------------------------------------------------------------------- start and stop */

int collector_start(void)
{
    int r = thread_start(&collector.thread, collector_main, NULL);
    collector.runs = !r;
    return r;
}

static const char *source_words(void)
{
    switch (collector.source) {
    case DMI_STEP_ENGINE: return "the engine";
    case DMI_STEP_FORWARD: return "forwards of the HookSpec";
    default: return named_text();
    }
}

static void say_summary(void)
{
    static char lines[SUMMARY_LINES][SUMMARY_BYTES];
    size_t n = summary_lines(&collector.summary, collector.lost, collector.ranges_lost,
                             source_words(), activity_dearest(), run_path(session.run), lines);
    for (size_t i = 0; i < n; i++)
        log_line("%s", lines[i]);
}

bool collector_stop(uint64_t end_ns)
{
    uint64_t until = end_ns + GRACE_NS;
    struct timespec at = clock_timespec(until);
    if (!collector.runs)
        return true;
    atomic_store_release(&collector.stop_ns, end_ns ? end_ns : 1); /* to round_of() */
    if (pthread_clockjoin_np(collector.thread, NULL, CLOCK_MONOTONIC, &at))
        return false;
    collector.runs = false;
    say_summary();
    text_deinit(&collector.times);
    text_deinit(&collector.ranges);
    text_deinit(&collector.words);
    text_deinit(&collector.marks);
    text_deinit(&collector.texts);
    return true;
}

void collector_reset(void)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t nobody = PTHREAD_COND_INITIALIZER;
    lock = unlocked;
    changed = nobody;
    asked = looked = 0;
    collector = (struct collector){ 0 };
}
