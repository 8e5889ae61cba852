/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records dealt to steps. A model of an engine launches steps in streams; its device runs them, late and in turn; records come in any order, some
 * of them never. CUPTI's clock is another one than the system's: it is fast or slow, drifts, is set, and records need not keep to what it says. What is
 * said of a record's step is compared with what the model knows. The correlation id is the place in the model's list.
 */
#include "cupti/layouts.h"
#include "preload/trace/join.h"

#include <dmi/trace.h>

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 65536

struct made {
    struct records_event event;
    uint64_t step;   /* as it should be said */
    uint64_t end_ns; /* of CLOCK_MONOTONIC */
    bool launch;     /* it is counted */
};

static struct made made[MOST];
static uint32_t n_made, n_right, n_wrong, n_unknown, n_given;
static struct join *join;
static uint64_t now = 1000000000; /* nanoseconds of the host */

/* CUPTI's clock less the system's, by what it is ahead since @set_ns, and by what records are ahead of what CUPTI says. */
static struct {
    int64_t ahead_ns, set_by_ns, lie_ns;
    int64_t ppm;
    uint64_t set_ns;
    bool told, told_late; /* CUPTI's clock says that it was set; it lies from then on alone */
    bool exact;           /* places are known without it */
} world;
static struct own_clock own;
static uint64_t waited[8];    /* when each stream was waited for; 0: it was launched in since */
static uint64_t busy[8];      /* until when each stream is */
static uint64_t open_deal[8]; /* as join_calls.open */
static uint64_t random_state;

static uint64_t draw(uint64_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % below;
}

static uint64_t open_of(uint32_t context, uint32_t stream)
{
    ck_assert_uint_eq(context, 1);
    return open_deal[stream];
}

static void take(const struct records_event *e, uint64_t step)
{
    ck_assert_uint_lt(e->correlation, n_made);
    n_given++;
    if (step == DMI_RAN_UNKNOWN)
        n_unknown++;
    else if (step == made[e->correlation].step)
        n_right++;
    else
        n_wrong++;
}

/* Graphs of the model are these. */
static bool is_exec(uint32_t graph)
{
    return graph == 5 || graph == 6;
}

static int64_t says_ahead(uint64_t ns)
{
    int64_t drift = (int64_t)(ns - 1000000000) / 1000 * world.ppm / 1000;
    bool set = world.set_ns && ns >= world.set_ns && world.told;
    return world.ahead_ns + drift + (set ? world.set_by_ns : 0);
}

/* By the clock of records. */
static uint64_t by_records(uint64_t ns)
{
    bool set = world.set_ns && ns >= world.set_ns && !world.told;
    bool lies = !world.told_late || (world.set_ns && ns >= world.set_ns);
    return ns +
           (uint64_t)(says_ahead(ns) + (set ? world.set_by_ns : 0) + (lies ? world.lie_ns : 0));
}

static struct placed place(struct records_event *e)
{
    if (world.exact)
        return (struct placed){ e->begin_ns, e->end_ns, 0 };
    return own_clock_place(&own, e->begin_ns, e->end_ns);
}

/* Graph 7 is one of conditional nodes alone. */
static bool is_perhaps(uint32_t graph)
{
    return graph == 7;
}

static const struct join_calls calls = {
    .open = open_of, .is_exec = is_exec, .is_perhaps = is_perhaps, .place = place, .take = take
};

static void set_up(void)
{
    join = join_new();
    n_made = n_right = n_wrong = n_unknown = n_given = 0;
    memset(busy, 0, sizeof busy);
    memset(open_deal, 0xff, sizeof open_deal);
    random_state = 1;
    now = 1000000000;
    memset(&world, 0, sizeof world);
    memset(&own, 0, sizeof own);
    memset(waited, 0, sizeof waited);
    world.exact = true;
}

static void tear_down(void)
{
    join_free(join);
}

/* ------------------------------------------------------------------------- the model */

/* Nanoseconds of a call, of the way to the device, and of a kernel; of play() others. */
static uint64_t call_ns = 100, way_ns = 500, kernel_ns = 900;

/* Something runs in the stream: after what is there, for a while. A graph's kernels share its correlation id, here its place. */
static void runs(uint32_t kind, uint32_t stream, const char *name, uint32_t graph, uint64_t step,
                 bool launch)
{
    uint64_t begin = busy[stream] > now + way_ns ? busy[stream] : now + way_ns;
    uint64_t end = begin + kernel_ns + (world.exact ? 0 : draw(kernel_ns));
    struct made *m = &made[n_made];
    *m = (struct made){ .event = { .kind = kind,
                                   .correlation = n_made,
                                   .begin_ns = by_records(begin),
                                   .end_ns = by_records(end),
                                   .context = 1,
                                   .stream = stream,
                                   .graph = graph,
                                   .name = name },
                        .step = step,
                        .launch = launch };
    busy[stream] = end + 100;
    m->end_ns = end;
    waited[stream] = 0;
    n_made++;
    now += call_ns;
}

struct plan {
    uint32_t n_kernels; /* first, middle ones alike, last */
    uint32_t n_graphs;  /* after the kernels */
    bool copies;
    uint32_t lead;  /* kernels of DMI's before them */
    uint32_t graph; /* the id of the graphs; 0: 5 and 6 in turn */
    bool alike;     /* kernels have one name */
};

static const char *kernel_name(const struct plan *p, uint32_t i)
{
    return !i || p->alike ? "first" : i + 1 == p->n_kernels ? "last" : "middle";
}

/* 0: it is not known to be idle. */
static uint64_t idle_since(uint32_t stream)
{
    if (!world.exact)
        return waited[stream];
    return now < busy[stream] ? 0 : busy[stream] ? busy[stream] : 1;
}

/* One step's launches in a stream, and the run that says so. */
static struct join_run launch(const struct plan *p, uint32_t stream, uint64_t deal, uint64_t step)
{
    struct join_run run = { .deal = deal,
                            .context = 1,
                            .stream = stream,
                            .kernels = p->n_kernels,
                            .graphs = p->n_graphs,
                            .begin_ns = now,
                            .in_step = step >= DMI_RAN_FIRST,
                            .lead = p->lead,
                            .idle_ns = idle_since(stream) };
    for (uint32_t i = 0; i < p->lead; i++)
        runs(LAYOUTS_KERNEL, stream, "dmi_copy_eager", 0, step, false);
    for (uint32_t i = 0; i < p->n_kernels; i++) {
        runs(LAYOUTS_KERNEL, stream, kernel_name(p, i), 0, step, true);
        if (p->copies && !draw(3))
            runs(draw(2) ? LAYOUTS_COPY : LAYOUTS_KERNEL, stream, "dmi_copy_eager", 0, step, false);
    }
    run.graph_ids = JOIN_NO_GRAPHS;
    for (uint32_t i = 0; i < p->n_graphs; i++) {
        uint32_t graph = p->graph ? p->graph : 5 + i % 2;
        run.graph_ids = join_graph(run.graph_ids, graph);
        runs(LAYOUTS_KERNEL, stream, "in_graph", graph, step, true);
    }
    run.first = p->n_kernels ? join_name("first") : JOIN_GRAPH;
    run.last = p->n_graphs ? JOIN_GRAPH : join_name(kernel_name(p, p->n_kernels - 1));
    return run;
}

static void round_of(bool last)
{
    const struct clock_pair pair = { now + (uint64_t)says_ahead(now), now, 100 };
    own_clock_take(&own, &pair);
    join_deal(join, &calls, world.exact ? UINT64_MAX / 2 : now, last);
}

/* As many as records are waited for. */
static void wait_long(void)
{
    for (int i = 0; i < 50; i++)
        round_of(false);
}

/* ------------------------------------------------------------------------- tests */

START_TEST(a_step_gets_what_it_launched)
{
    const struct plan plan = { 5, 2, true };
    for (uint64_t i = 0; i < 3; i++) {
        struct join_run run = launch(&plan, 1, 10 * i + 5, DMI_RAN_FIRST + i);
        ck_assert(join_add_run(join, &run));
        const struct plan between = { 1, 0, false };
        run = launch(&between, 1, 10 * i + 6, DMI_RAN_OUTSIDE);
        ck_assert(join_add_run(join, &run));
        ck_assert(join_step(join, 10 * i + 5, i));
    }
    for (uint32_t i = n_made; i-- > 0;)
        ck_assert(join_add(join, &made[i].event));
    round_of(false);
    ck_assert_uint_eq(n_given, 0); /* others might come before them */
    round_of(false);
    ck_assert_uint_ge(n_right, n_made - 1); /* of the last launch more might come */
    ck_assert_uint_eq(n_right, n_given);
    wait_long();
    ck_assert_uint_eq(n_right, n_made);
    round_of(true);
    ck_assert_uint_eq(n_given, n_made);
}
END_TEST

/* The next launch need not wait for all of the one before (programmatic dependent launch). */
START_TEST(kernels_may_end_in_another_order_than_they_were_launched)
{
    const struct plan plan = { 5, 0, false };
    for (uint64_t i = 0; i < 4; i++) {
        struct join_run run = launch(&plan, 1, i + 1, DMI_RAN_FIRST + i);
        ck_assert(join_add_run(join, &run));
        ck_assert(join_step(join, i + 1, i));
        made[n_made - 1].event.end_ns += 3000; /* when kernels of the next step have ended */
    }
    for (uint32_t i = 0; i < n_made; i++)
        ck_assert(join_add(join, &made[i].event));
    wait_long();
    ck_assert_uint_eq(n_right, n_made);
}
END_TEST

START_TEST(nothing_is_dealt_before_the_step_has_ended)
{
    const struct plan plan = { 5, 0, false };
    struct join_run run = launch(&plan, 1, 5, DMI_RAN_FIRST);
    join_add_run(join, &run);
    for (uint32_t i = 0; i < n_made; i++)
        join_add(join, &made[i].event);
    for (int i = 0; i < 300; i++)
        round_of(false);
    ck_assert_uint_eq(n_given, 0);
    open_deal[1] = 5; /* another thread may launch for it */
    join_step(join, 5, 0);
    for (int i = 0; i < 300; i++)
        round_of(false);
    ck_assert_uint_eq(n_given, 0);
    open_deal[1] = 6;
    wait_long();
    ck_assert_uint_eq(n_right, 5);
}
END_TEST

/* A kernel too few, at each place in turn: that step is not known, and the next one only where its stream was idle before. */
START_TEST(a_missing_record_makes_no_other_step_wrong)
{
    const struct plan plan = { 4, 0, false };
    for (uint64_t i = 0; i < 6; i++) {
        struct join_run run = launch(&plan, 1, i + 1, DMI_RAN_FIRST + i);
        join_add_run(join, &run);
        join_step(join, i + 1, i);
        if (i % 2)
            now = busy[1] + 1000; /* the engine waits after every second step */
    }
    for (uint32_t i = 0; i < n_made; i++)
        if (i != (uint32_t)_i)
            join_add(join, &made[i].event);
    for (int i = 0; i < 400; i++)
        round_of(false);
    round_of(true);
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert_uint_eq(n_given, n_made - 1);
    ck_assert_uint_ge(n_right, 16);
}
END_TEST

START_TEST(a_launch_that_is_not_counted_makes_no_other_step_wrong)
{
    const struct plan plan = { 4, 0, false };
    for (uint64_t i = 0; i < 6; i++) {
        if (i == (uint64_t)_i)
            runs(LAYOUTS_KERNEL, 1, i % 2 ? "first" : "unseen", 0, DMI_RAN_UNKNOWN, true);
        struct join_run run = launch(&plan, 1, i + 1, DMI_RAN_FIRST + i);
        join_add_run(join, &run);
        join_step(join, i + 1, i);
        if (i % 2)
            now = busy[1] + 1000;
    }
    for (uint32_t i = 0; i < n_made; i++)
        join_add(join, &made[i].event);
    for (int i = 0; i < 400; i++)
        round_of(false);
    round_of(true);
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert_uint_eq(n_given, n_made);
    ck_assert_uint_ge(n_right, 16);
}
END_TEST

START_TEST(streams_with_steps_of_several_threads_are_not_known)
{
    const struct plan plan = { 2, 0, false };
    struct join_run run = launch(&plan, 1, 1, DMI_RAN_FIRST);
    run.shared = true;
    join_add_run(join, &run);
    join_step(join, 1, 0);
    run = launch(&plan, 2, 2, DMI_RAN_FIRST + 1);
    join_add_run(join, &run);
    join_step(join, 2, 1);
    for (uint32_t i = 0; i < n_made; i++)
        join_add(join, &made[i].event);
    wait_long();
    ck_assert(n_unknown == 2 && n_right == 2);
}
END_TEST

/* The records of one graph come in two parts, a while apart. */
START_TEST(a_graph_that_comes_in_parts_is_one_launch)
{
    const struct plan plan = { 1, 1, false };
    struct join_run a = launch(&plan, 1, 1, DMI_RAN_FIRST);
    uint32_t first = n_made - 1;
    for (int i = 0; i < 4; i++) {
        runs(LAYOUTS_KERNEL, 1, "in_graph", 5, DMI_RAN_FIRST, true);
        made[n_made - 1].event.correlation = made[first].event.correlation;
    }
    struct join_run b = launch(&plan, 1, 2, DMI_RAN_FIRST + 1);
    join_add_run(join, &a);
    join_add_run(join, &b);
    join_step(join, 1, 0);
    join_step(join, 2, 1);
    for (uint32_t i = 0; i < first + 2; i++)
        join_add(join, &made[i].event);
    for (int i = 0; i < 20; i++)
        round_of(false);
    for (uint32_t i = first + 2; i < n_made; i++)
        join_add(join, &made[i].event);
    wait_long();
    ck_assert_uint_eq(n_right, n_made);
}
END_TEST

/* Steps with a graph that runs or does not, after the first kernel (0) or after the last one (1). */
START_TEST(a_graph_that_may_run_nothing_takes_no_step_from_others)
{
    const struct plan plan = { 2, 0, false };
    uint32_t n_loose = 0;
    for (uint64_t i = 0; i < 8; i++) {
        struct join_run run = launch(&plan, 1, i + 1, DMI_RAN_FIRST + i);
        if (i % 3) {
            runs(LAYOUTS_KERNEL, 1, "in_body", 7, DMI_RAN_FIRST + i, false);
            if (!_i) { /* it is the one before the last */
                struct made last = made[n_made - 1];
                made[n_made - 1] = made[n_made - 2];
                made[n_made - 2] = last;
                made[n_made - 1].event.correlation = n_made - 1;
                made[n_made - 2].event.correlation = n_made - 2;
            }
            n_loose++;
        }
        join_add_run(join, &run);
        join_step(join, i + 1, i);
    }
    for (uint32_t i = 0; i < n_made; i++)
        join_add(join, &made[i].event);
    wait_long();
    round_of(true);
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert_uint_eq(n_unknown, _i ? n_loose : 0);
    ck_assert_uint_eq(n_right, n_made - n_unknown);
    ck_assert_uint_eq(join_unplaced(join), 0);
}
END_TEST

/* Several threads launch for a step in one stream: their counts are one. */
START_TEST(threads_of_one_step_are_counted_together)
{
    const struct plan plan = { 3, 1, false };
    struct join_run a = launch(&plan, 1, 1, DMI_RAN_FIRST), b = launch(&plan, 1, 1, DMI_RAN_FIRST);
    join_add_run(join, &a);
    join_add_run(join, &b);
    join_step(join, 1, 0);
    for (uint32_t i = 0; i < n_made; i++)
        join_add(join, &made[i].event);
    wait_long();
    ck_assert_uint_eq(n_right, 8);
}
END_TEST

/* A thread may be interrupted between the two, and the collector closes the run meanwhile. */
START_TEST(a_run_without_launches_is_none)
{
    const struct plan nothing = { 0, 0, false };
    struct join_run run = launch(&nothing, 1, 5, DMI_RAN_FIRST);
    ck_assert(run.idle_ns);
    ck_assert(join_add_run(join, &run));
    join_doubt(join);
    ck_assert(join_step(join, 5, 0));
    round_of(true);
    ck_assert_uint_eq(n_given, 0);
    ck_assert_uint_eq(join_unplaced(join), 0);
}
END_TEST

START_TEST(kernels_beyond_the_room_for_names_are_counted)
{
    static char names[10000][16];
    const uint32_t n = sizeof names / sizeof *names, room = 8192;
    for (uint32_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "kernel%u", i);
        runs(LAYOUTS_KERNEL, 1, names[i], 0, DMI_RAN_UNKNOWN, true);
        ck_assert(join_add(join, &made[i].event));
    }
    ck_assert_uint_eq(join_unnamed(join), n - room);
    ck_assert(join_add(join, &made[0].event)); /* it has its place */
    ck_assert_uint_eq(join_unnamed(join), n - room);
    round_of(true);
    ck_assert_uint_eq(n_given, n + 1);
}
END_TEST

/* Two graphs of the same kernels in turn, of which one launch's record is missing, and CUPTI does not say so. @tell: what is said of a graph's id. */
static void play_graphs(bool idle, uint32_t (*tell)(uint32_t graph), bool known)
{
    for (uint64_t i = 0; i < 8; i++) {
        const struct plan plan = { 0, 1, false, 0, 5 + (uint32_t)i % 2 };
        struct join_run run = launch(&plan, 1, i + 1, DMI_RAN_FIRST + i);
        run.graph_ids = known ? run.graph_ids : 0;
        join_add_run(join, &run);
        join_step(join, i + 1, i);
        if (idle && i == 4)
            now = busy[1] + 1000;
    }
    for (uint32_t i = 0; i < n_made; i++) {
        struct records_event e = made[i].event;
        e.graph = tell(e.graph);
        if (i != 2)
            join_add(join, &e);
    }
    for (int i = 0; i < 400; i++)
        round_of(false);
    round_of(true);
    ck_assert_uint_eq(n_given, n_made - 1);
}

static uint32_t right_id(uint32_t graph)
{
    return graph;
}

static uint32_t other_id(uint32_t graph)
{
    return graph + 100;
}

/* As many kernels of the same names: the ids alone tell that a record is of the next step. */
START_TEST(a_record_of_another_graph_is_not_the_steps)
{
    play_graphs(_i, right_id, true);
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert_uint_eq(n_right, _i ? 2 + 3 : 2);
    ck_assert_uint_ge(join_misnamed(join), 1); /* the step that lacks it */
    ck_assert(!join_ids_differ(join));
}
END_TEST

START_TEST(ids_that_no_graph_has_are_not_compared)
{
    play_graphs(true, other_id, true);
    ck_assert(join_ids_differ(join));
    ck_assert_uint_eq(join_misnamed(join), 0);
    ck_assert_uint_ge(n_right, 2);
}
END_TEST

/* By the numbers of other graphs, each time: CUPTI may number its records otherwise. */
START_TEST(ids_that_never_fit_are_not_compared)
{
    const uint64_t n = 40;
    for (uint64_t i = 0; i < n; i++) {
        const struct plan plan = { 0, 1, false, 0, 5 + (uint32_t)i % 2 };
        struct join_run run = launch(&plan, 1, i + 1, DMI_RAN_FIRST + i);
        join_add_run(join, &run);
        join_step(join, i + 1, i);
        now = busy[1] + 1000000;
        struct records_event e = made[i].event;
        e.graph = e.graph == 5 ? 6 : 5;
        join_add(join, &e);
    }
    for (uint64_t i = 0; i < n + 3; i++)
        wait_long();
    round_of(true);
    ck_assert(join_ids_differ(join));
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert_uint_ge(n_right, n - 16);
}
END_TEST

START_TEST(a_run_whose_ids_are_not_known_is_not_compared)
{
    play_graphs(true, right_id, false);
    ck_assert(!join_ids_differ(join));
    ck_assert_uint_eq(join_misnamed(join), 0);
    ck_assert_uint_ge(n_right, 2);
}
END_TEST

/* Of two launches and one after a wait the first one's record alone comes. */
START_TEST(what_ran_before_a_wait_is_of_no_step_after_it)
{
    const struct plan two = { 0, 2, false, 0, 5 }, one = { 0, 1, false, 0, 5 };
    struct join_run run = launch(&two, 1, 1, DMI_RAN_FIRST);
    join_add_run(join, &run);
    join_step(join, 1, 0);
    now = busy[1] + 100;
    run = launch(&one, 1, 2, DMI_RAN_FIRST + 1);
    ck_assert(run.idle_ns);
    join_add_run(join, &run);
    join_step(join, 2, 1);
    join_add(join, &made[0].event);
    join_doubt(join);
    wait_long();
    round_of(true);
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert_uint_eq(n_unknown, 1);
}
END_TEST

/* Ids of several graphs count in their order; one that is not known makes all of them so. */
START_TEST(ids_of_graphs_together)
{
    uint64_t both = join_graph(join_graph(JOIN_NO_GRAPHS, 5), 6);
    ck_assert_uint_ne(both, join_graph(join_graph(JOIN_NO_GRAPHS, 6), 5));
    ck_assert_uint_ne(both, join_graph(JOIN_NO_GRAPHS, 6));
    ck_assert_uint_eq(join_graph(both, 0), 0);
    ck_assert_uint_eq(join_graph(0, 5), 0);
}
END_TEST

/* ------------------------------------------------------------------------- CUPTI's own clock */

static void pair(struct own_clock *c, uint64_t mono_ns, int64_t ahead_ns)
{
    const struct clock_pair both = { mono_ns + (uint64_t)ahead_ns, mono_ns, 100 };
    own_clock_take(c, &both);
}

static void lies_at(const struct own_clock *c, uint64_t begin, uint64_t begin_ns, uint64_t error_ns)
{
    struct placed at = own_clock_place(c, begin, begin + 10);
    ck_assert_uint_eq(at.begin_ns, begin_ns);
    ck_assert_uint_eq(at.end_ns, begin_ns + 10);
    ck_assert_uint_eq(at.error_ns, error_ns + OWN_CLOCK_ERR_NS);
}

START_TEST(a_record_lies_between_the_pairs_around_it)
{
    static struct own_clock c;
    const uint64_t ms = 1000000;
    ck_assert_uint_ge(own_clock_place(&c, 5, 15).error_ns, OWN_CLOCK_NEVER); /* no pair was taken */
    pair(&c, 100 * ms, -3000000);
    pair(&c, 200 * ms, -3001000); /* it drifts */
    pair(&c, 300 * ms, -3001000);
    lies_at(&c, 147 * ms, 150 * ms + 500, 600);
    lies_at(&c, 247 * ms, 250 * ms + 1000, 100);
    lies_at(&c, 47 * ms, 50 * ms, 100 + 49999);          /* before them all */
    lies_at(&c, 347 * ms, 350 * ms + 1000, 100 + 50001); /* after them all */
}
END_TEST

START_TEST(a_record_of_about_when_the_clock_was_set_is_not_sure_for_a_while)
{
    static struct own_clock c;
    const uint64_t ms = 1000000;
    for (uint64_t i = 1; i <= 4; i++)
        pair(&c, i * 100 * ms, i < 3 ? 0 : -20000000);
    lies_at(&c, 150 * ms, 150 * ms, 100);
    lies_at(&c, 330 * ms, 350 * ms, 100);
    lies_at(&c, 190 * ms, 200 * ms, 10000100); /* at 190 ms before, or at 210 ms after */
    ck_assert_int_eq((int)(c.set), 2);
}
END_TEST

START_TEST(pairs_are_forgotten_in_turn)
{
    static struct own_clock c;
    const uint64_t ms = 1000000;
    for (uint64_t i = 1; i <= 3 * OWN_CLOCK_PAIRS; i++)
        pair(&c, i * 50 * ms, i < OWN_CLOCK_PAIRS ? 0 : 5000000);
    lies_at(&c, 2 * OWN_CLOCK_PAIRS * 50 * ms + 105 * ms, 2 * OWN_CLOCK_PAIRS * 50 * ms + 100 * ms,
            100);
    ck_assert_uint_ge(own_clock_place(&c, 100 * ms, 101 * ms).error_ns, 10 * ms);
}
END_TEST

/* ------------------------------------------------------------------------- random worlds */

static int64_t some(int64_t most)
{
    return (int64_t)draw((uint64_t)(2 * most)) - most;
}

enum kind {
    CONSTANT,  /* CUPTI's clock is fast or slow by up to 100 ms, */
    DRIFTS,    /* or by more and more: 50 ppm; it says so */
    SET,       /* it is set in between, and says so */
    LIES,      /* records are fast or slow of what it says */
    LIES_LATE, /* from some moment on */
    KINDS
};

static void make_world(enum kind kind)
{
    world.exact = false;
    world.told = true;
    world.ahead_ns = some(draw(2) ? 100000000 : 100000);
    if (kind == DRIFTS)
        world.ppm = draw(2) ? 50 : -50;
    world.set_ns = now + 20000000 + draw(200000000);
    if (kind == SET)
        world.set_by_ns = some(draw(2) ? 100000000 : 1000000);
    if (kind == LIES || kind == LIES_LATE)
        world.lie_ns = some(draw(2) ? 10000000 : 500000);
    world.told_late = kind == LIES_LATE;
    call_ns = 500 + draw(3000);
    way_ns = 2000 + draw(20000);
    kernel_ns = 1000 + draw(40000);
}

/* The host waits for the stream, and does something else. */
static void waits(uint32_t stream)
{
    now = (now > busy[stream] ? now : busy[stream]) + 1000 + draw(15000);
    waited[stream] = now;
}

/*
 * Random steps, streams, waits, orders and losses, in a random world. @lossy: records are dropped, which CUPTI says. @alike: all steps are, and their
 * kernels have one name.
 */
static void play(uint64_t seed, enum kind kind, bool lossy, bool alike)
{
    random_state = seed;
    make_world(kind);
    uint32_t sent = 0, lost = 0;
    bool doubt = false;
    struct join_run late[2];
    uint32_t n_late = 0, wait_every = 1 + (uint32_t)draw(6), n_alike = 1 + (uint32_t)draw(6);
    uint64_t pause_ns = draw(2) ? 3000 + draw(30000) : 100000 + draw(3000000);
    for (uint64_t i = 0; i < 200; i++) {
        struct plan plan = {
            (uint32_t)draw(6), (uint32_t)draw(3), true, (uint32_t)draw(3), 0, false
        };
        if (alike)
            plan = (struct plan){ n_alike, 0, false, 0, 0, true };
        plan.n_kernels += !plan.n_kernels && !plan.n_graphs;
        bool between = !draw(4);
        uint64_t step = between ? DMI_RAN_OUTSIDE : DMI_RAN_FIRST + i;
        for (uint32_t s = 1; s <= 1 + draw(2); s++) {
            struct join_run run = launch(&plan, s, i + 1, step);
            if (n_late < 2)
                late[n_late++] = run;
            else
                join_add_run(join, &run);
        }
        if (!between)
            join_step(join, i + 1, i);
        while (n_late)
            join_add_run(join, &late[--n_late]);
        if (!draw(wait_every)) {
            waits(1);
            waits(2);
            now += pause_ns / 2 + draw(pause_ns);
        }
        if (draw(3))
            continue;
        /* what is over is sent, later ones first */
        uint32_t end = sent;
        while (end < n_made && made[end].end_ns <= now)
            end++;
        for (uint32_t k = end; k-- > sent;) {
            bool drop = lossy && !draw(40);
            lost += drop;
            doubt |= drop;
            if (!drop)
                join_add(join, &made[k].event);
        }
        sent = end;
        if (doubt)
            join_doubt(join);
        doubt = false;
        for (uint64_t k = draw(4); k; k--) {
            round_of(false);
            now += draw(1000000);
        }
    }
    waits(1);
    waits(2);
    for (; sent < n_made; sent++)
        join_add(join, &made[sent].event);
    for (int k = 0; k < 300; k++) {
        round_of(false);
        now += 50000000;
    }
    round_of(true);
    ck_assert_uint_eq(n_given, n_made - lost);
    /* Where records leave the clock that CUPTI says while others are missing, a record may have to show it first. */
    uint32_t most = kind == LIES_LATE && lossy ? n_made / 100 : 0;
    ck_assert_msg(n_wrong <= most, "seed %u: %u wrong", (unsigned)seed, n_wrong);
    bool steady = kind == CONSTANT || kind == DRIFTS;
    if (!lossy && steady)
        ck_assert_msg(n_right * 100 >= n_made * 99, "seed %u: %u of %u", (unsigned)seed, n_right,
                      n_made);
}

START_TEST(whatever_is_said_is_right)
{
    uint64_t seed = (uint64_t)_i + 1;
    play(seed, (enum kind)(seed / 2 % KINDS), seed % 2, seed / 2 / KINDS % 2);
}
END_TEST

int main(int argc, char **argv)
{
    int seeds = argc > 1 ? atoi(argv[1]) : 100;

    Suite *suite = suite_create("trace_join");
    TCase *c = tcase_create("join");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_test(c, a_step_gets_what_it_launched);
    tcase_add_test(c, kernels_may_end_in_another_order_than_they_were_launched);
    tcase_add_test(c, nothing_is_dealt_before_the_step_has_ended);
    tcase_add_loop_test(c, a_missing_record_makes_no_other_step_wrong, 0, 24);
    tcase_add_loop_test(c, a_launch_that_is_not_counted_makes_no_other_step_wrong, 0, 6);
    tcase_add_test(c, streams_with_steps_of_several_threads_are_not_known);
    tcase_add_test(c, a_graph_that_comes_in_parts_is_one_launch);
    tcase_add_loop_test(c, a_graph_that_may_run_nothing_takes_no_step_from_others, 0, 2);
    tcase_add_test(c, threads_of_one_step_are_counted_together);
    tcase_add_test(c, a_run_without_launches_is_none);
    tcase_add_test(c, kernels_beyond_the_room_for_names_are_counted);
    tcase_add_loop_test(c, a_record_of_another_graph_is_not_the_steps, 0, 2);
    tcase_add_test(c, ids_that_no_graph_has_are_not_compared);
    tcase_add_test(c, ids_that_never_fit_are_not_compared);
    tcase_add_test(c, a_run_whose_ids_are_not_known_is_not_compared);
    tcase_add_test(c, what_ran_before_a_wait_is_of_no_step_after_it);
    tcase_add_test(c, ids_of_graphs_together);
    tcase_add_test(c, a_record_lies_between_the_pairs_around_it);
    tcase_add_test(c, a_record_of_about_when_the_clock_was_set_is_not_sure_for_a_while);
    tcase_add_test(c, pairs_are_forgotten_in_turn);
    tcase_add_loop_test(c, whatever_is_said_is_right, 0, seeds);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
