/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/replay.h"

#include "core/any.h"
#include "core/clock.h"
#include "core/err.h"
#include "tools/common/stop.h"
#include "tools/replay/describe.h"

#include <errno.h>

#define LEAST_POLL    100000000u /* between two looks at a run that grows */
#define POLL_PER_LOOK 4u         /* a look at a large run costs CPU time: so many times that */

static void show(struct replay *r)
{
    uint64_t n_done = 0, n_all = 0, n_bytes = 0;
    for (size_t i = 0; i < r->n; i++) {
        n_done += r->sources[i].n_past;
        n_all += r->sources[i].n_all;
        n_bytes += r->sources[i].n_bytes;
    }
    progress_show(&r->progress, n_done, n_all, n_bytes, r->options->follow);
}

/* All that is there now. */
static int send_all(struct err *err, struct replay *r)
{
    struct replay_source *s;
    uint64_t time_ns;
    int res = 0;
    while (!res && !stop_asked() && (s = replay_next(r, &time_ns))) {
        res = replay_wait(err, r, time_ns);
        if (res || stop_asked())
            break;
        res = replay_send_next(err, r, s);
        if (!res)
            res = replay_settle_at_times(err, r);
        if (r->progress.on)
            show(r);
    }
    return res ? res : replay_gone(err, r);
}

/* ------------------------------------------------------------------------- a run that grows */

static bool any_grows(const struct replay *r)
{
    return ANY(i, r->n, source_grows(&r->sources[i]));
}

/* A run whose process has ended since may hold more than this look saw: so look again, once. @all: also there where it
 * had ended when the run was opened. @spent_ns: of CPU time. */
static int look_again(struct err *err, struct replay *r, bool all, uint64_t *spent_ns)
{
    uint64_t begin = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    int res = 0;
    for (size_t i = 0; !res && i < r->n; i++) {
        struct replay_source *s = &r->sources[i];
        if (!all && !source_grows(s))
            continue;
        res = source_refresh(err, s);
        if (!res && !source_grows(s))
            res = source_refresh(err, s);
        if (!res)
            res = replay_send_findings(err, r, s);
    }
    *spent_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - begin;
    return res;
}

static int follow(struct err *err, struct replay *r)
{
    uint64_t spent_ns = 0;
    int res = stop_asked() ? 0 : look_again(err, r, true, &spent_ns);
    if (!res)
        res = send_all(err, r);
    while (!res && !stop_asked() && any_grows(r)) {
        uint64_t ns = POLL_PER_LOOK * spent_ns;
        res = replay_settle_at_times(err, r);
        if (!res)
            res = replay_pause(err, r, ns > LEAST_POLL ? ns : LEAST_POLL);
        if (!res && !stop_asked())
            res = look_again(err, r, false, &spent_ns);
        if (!res)
            res = send_all(err, r);
    }
    return res;
}

/* ------------------------------------------------------------------------- beginning and end */

static int begin(struct err *err, struct replay *r)
{
    int res = replay_settle(err, r); /* from now on a kill leaves a cursor */
    for (size_t i = 0; !res && i < r->n; i++)
        res = replay_send_facts(err, r, &r->sources[i], ITEM_RUN,
                                describe_run(&r->sources[i], r->resumed));
    for (size_t i = 0; !res && i < r->n; i++)
        res = replay_send_findings(err, r, &r->sources[i]);
    return res;
}

static int send_drops(struct err *err, struct replay *r, struct replay_source *s)
{
    int res = 0;
    for (uint32_t i = 0; !res && i < reader_n_sites(s->reader); i++) {
        json_t *drops = describe_drops(s, i);
        if (drops)
            res = replay_send_facts(err, r, s, ITEM_GAP, drops);
    }
    return res;
}

/* Of a run that goes on the end says so: a cursor does not count it. */
static int end(struct err *err, struct replay *r)
{
    bool complete = !r->stopped;
    int res = 0;
    for (size_t i = 0; !res && i < r->n; i++) {
        struct replay_source *s = &r->sources[i];
        bool done = complete && !source_grows(s);
        if (done)
            res = send_drops(err, r, s);
        if (!res)
            res = replay_send_facts(err, r, s, ITEM_END, describe_end(s, done));
        s->done = done && !res;
    }
    return res;
}

static int run_all(struct err *err, struct replay *r)
{
    TRY(begin(err, r));
    if (r->sink->kind->per_request)
        return replay_requests(err, r);
    int res = send_all(err, r);
    return res || !r->options->follow ? res : follow(err, r);
}

int replay_run(struct err *err, struct replay *r)
{
    progress_begin(&r->progress);
    int res = run_all(err, r);
    progress_end(&r->progress);
    r->stopped = stop_asked();
    if (res && res != -EINTR)
        return res;
    /* The end is not among what a cursor counts, unless it is the end of all: the next replay writes its own. */
    int settled = res ? 0 : replay_settle(err, r);
    if (!res && !settled && !r->sink->kind->per_request)
        res = end(err, r);
    if (!res && !settled && !r->stopped && !any_grows(r))
        res = replay_settle(err, r);
    return settled ? settled : res;
}
