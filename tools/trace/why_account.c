/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/why_account.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "storage/codec/hash.h"
#include "storage/ran.h"
#include "tools/common/say.h"
#include "tools/trace/kernels.h"
#include "tools/trace/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- names */

const char *why_name(const struct why_names *names, uint32_t name)
{
    return name ? names->all[name - 1] : "";
}

void why_names_deinit(struct why_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->all[i]);
    free(names->all);
    hashed_deinit(&names->by_hash);
    *names = (struct why_names){ 0 };
}

static uint64_t hash_of(const char *name, size_t n)
{
    return hash_bytes(name, n);
}

/* 0: no memory. A name ends with its first 0. */
static uint32_t name_number(struct why_names *names, const char *name, size_t n)
{
    n = strnlen(name, n);
    if (GROW(names->all, names->n, names->room) ||
        !HASHED_MAKE_ROOM(&names->by_hash, names->n, i,
                          hash_of(names->all[i], strlen(names->all[i]))))
        return 0;
    uint32_t *place = HASHED_FIND(&names->by_hash, hash_of(name, n), i,
                                  strlen(names->all[i]) == n && !memcmp(names->all[i], name, n));
    if (!*place) {
        if (!(names->all[names->n] = strndup(name, n)))
            return 0;
        *place = (uint32_t)++names->n;
    }
    return *place;
}

/* ------------------------------------------------------------------------- what is known of the turns */

/* First and last of what ran in a step, by sums. */
struct span {
    uint64_t number, begin_ns, end_ns, busy_ns;
};

struct filling {
    const struct trace_run *run;
    const struct why_turns *turns;
    struct why_names *names;
    struct why_account *all;
    size_t n;
    uint64_t longest_ns; /* of the turns of @all */
    struct span *spans;  /* of all steps with sums, by begin */
    uint64_t *last_ends; /* the latest end of those up to each */
    size_t n_spans, spans_room;
    struct why_names raw; /* of kernels, as the driver has them */
    uint32_t *short_of;   /* each one's short form */
    size_t short_room;
    uint64_t ran_until_ns; /* latest end of a record */
    bool has_sums;
    uint64_t placed_ns,
        unplaced_ns; /* that sums say something ran: for steps; for none, or none that is known */
    bool failed;
};

static bool add_interval(struct why_interval **all, size_t *n, size_t *room,
                         struct why_interval one)
{
    if (GROW(*all, *n, *room))
        return false;
    (*all)[(*n)++] = one;
    return true;
}

/* The first of the accounts whose turn may end after @ns. */
static size_t first_after(const struct filling *f, uint64_t ns)
{
    size_t i = 0;
    SEARCH(i, f->n, f->all[i].turn->begin_ns + f->longest_ns <= ns);
    return i;
}

/* The interval goes to each turn that it meets, cut to it. @ran: something ran on the device; else of @thread's turns (0: of all). */
static void give(struct filling *f, struct why_interval one, bool ran, uint32_t thread)
{
    for (size_t i = first_after(f, one.begin_ns);
         i < f->n && f->all[i].turn->begin_ns < one.end_ns && !f->failed; i++) {
        struct why_account *a = &f->all[i];
        const struct why_turn *t = a->turn;
        struct why_interval cut = one;
        cut.begin_ns = one.begin_ns > t->begin_ns ? one.begin_ns : t->begin_ns;
        cut.end_ns = one.end_ns < t->end_ns ? one.end_ns : t->end_ns;
        if (cut.end_ns <= cut.begin_ns || (thread && t->at.thread != thread))
            continue;
        f->failed = ran ? !add_interval(&a->ran, &a->n_ran, &a->ran_room, cut)
                        : !add_interval(&a->did, &a->n_did, &a->did_room, cut);
    }
}

static uint16_t kind_of(const struct reader_range *range)
{
    static const char *const waits[] = { "cuStreamSynchronize", "cuEventSynchronize",
                                         "cuCtxSynchronize", "cuMemcpy" };
    uint16_t kind = range->at.source == DMI_RANGE_CALL      ? LINE_CALL
                    : range->at.source == DMI_RANGE_STOPPED ? LINE_STOPPED
                                                            : LINE_RANGE;
    for (size_t i = 0; i < sizeof waits / sizeof *waits && kind == LINE_CALL; i++) {
        size_t n = strlen(waits[i]);
        if (range->at.name_bytes >= n && !memcmp(range->name, waits[i], n))
            kind = LINE_WAIT;
    }
    return kind;
}

static void take_range(void *ctx, const struct reader_range *range)
{
    struct filling *f = ctx;
    const struct dmi_range_entry *at = &range->at;
    if (f->failed || at->source == DMI_RANGE_OVERLAPS)
        return;
    struct why_interval one = { at->begin_ns, at->end_ns, 0, at->depth, kind_of(range) };
    size_t i = first_after(f, at->begin_ns);
    if (i == f->n || f->all[i].turn->begin_ns >= at->end_ns)
        return;
    f->failed = !(one.name = name_number(f->names, range->name, at->name_bytes));
    give(f, one, false, at->thread);
}

/* Number of the short form of a kernel's name. 0: no memory. */
static uint32_t short_name(struct filling *f, const char *name, size_t n)
{
    size_t known = f->raw.n;
    uint32_t raw = name_number(&f->raw, name, n);
    if (!raw || GROW(f->short_of, known, f->short_room))
        return 0;
    if (f->raw.n > known) {
        struct text found = { 0 };
        names_short(&found, f->raw.all[raw - 1]);
        f->short_of[raw - 1] = found.failed ? 0 : name_number(f->names, found.data, found.n);
        text_deinit(&found);
    }
    return f->short_of[raw - 1];
}

/* The name of what ran. 0: no memory. */
static uint32_t ran_name(struct filling *f, const struct dmi_trace_shape *shape, const char *name)
{
    const char *word = shape->kind == DMI_RAN_FURTHER ? "further kernels" : kernels_word(shape);
    return shape->kind == DMI_RAN_KERNEL ? short_name(f, name, shape->name_bytes)
                                         : name_number(f->names, word, strlen(word));
}

static void take_ran(void *ctx, const struct ran *ran)
{
    struct filling *f = ctx;
    size_t i = f->failed ? f->n : first_after(f, ran->begin_ns);
    if (i == f->n || f->all[i].turn->begin_ns >= ran->end_ns)
        return;
    struct why_interval one = { ran->begin_ns, ran->end_ns, ran_name(f, &ran->shape, ran->name), 0,
                                ran_is_own(&ran->shape, ran->name) ? LINE_OWN : LINE_BUSY };
    f->failed = !one.name;
    give(f, one, true, 0);
}

/* ------------------------------------------------------------------------- lines */

bool why_parts_add(struct why_parts *parts, enum why_line_kind kind, uint32_t name, uint64_t ns)
{
    size_t i = 0;
    if (!ns)
        return true;
    while (i < parts->n && (parts->all[i].kind != kind || parts->all[i].name != name))
        i++;
    if (i == parts->n) {
        if (GROW(parts->all, parts->n, parts->room))
            return false;
        parts->all[parts->n++] = (struct why_part){ .kind = kind, .name = name };
    }
    parts->all[i].ns += ns;
    return true;
}

static int by_time(const void *pa, const void *pb)
{
    const struct why_interval *a = pa, *b = pb;
    ORDER(a, b, begin_ns);
    ORDER(b, a, end_ns); /* the outer one first */
    ORDER(a, b, depth);
    return 0;
}

/* What a thread does: nothing, where the process was stopped; else in the innermost range, and of a call and a range the call. */
static bool is_inner(const struct why_interval *a, const struct why_interval *b)
{
    unsigned x = a->kind == LINE_STOPPED ? 2 : a->kind != LINE_RANGE,
             y = b->kind == LINE_STOPPED ? 2 : b->kind != LINE_RANGE;
    return x != y ? x > y : a->depth >= b->depth;
}

/*
 * What the thread did from @begin to @end, a time in which the device was idle. Such times come in order: of what the thread did, the first @n_open of @a->did meet what comes
 * next, and those from @next on have not begun.
 */
static bool add_host(struct why_account *a, uint64_t begin, uint64_t end)
{
    while (begin < end) {
        const struct why_interval *in = NULL;
        uint64_t until = end;
        size_t n = 0;
        while (a->next < a->n_did && a->did[a->next].begin_ns <= begin)
            a->did[a->n_open++] = a->did[a->next++];
        if (a->next < a->n_did && a->did[a->next].begin_ns < until)
            until = a->did[a->next].begin_ns;
        for (size_t i = 0; i < a->n_open; i++) {
            if (a->did[i].end_ns <= begin)
                continue;
            struct why_interval *one = &a->did[n++];
            *one = a->did[i];
            until = one->end_ns < until ? one->end_ns : until;
            if (!in || is_inner(one, in))
                in = one;
        }
        a->n_open = n;
        if (!why_parts_add(&a->parts, in ? (enum why_line_kind)in->kind : LINE_NOT_SEEN,
                           in ? in->name : 0, until - begin))
            return false;
        begin = until;
    }
    return true;
}

/* By records: where several run at once, the one that began first counts. */
static bool add_ran(struct why_account *a)
{
    uint64_t at = a->turn->begin_ns;
    for (size_t i = 0; i < a->n_ran; i++) {
        const struct why_interval *one = &a->ran[i];
        if (one->begin_ns > at && !add_host(a, at, one->begin_ns))
            return false;
        at = one->begin_ns > at ? one->begin_ns : at;
        if (one->end_ns > at &&
            !why_parts_add(&a->parts, (enum why_line_kind)one->kind, one->name, one->end_ns - at))
            return false;
        at = one->end_ns > at ? one->end_ns : at;
    }
    return add_host(a, at, a->turn->end_ns);
}

/* How much of the turn the span has. */
static uint64_t meets(const struct span *s, const struct why_turn *t)
{
    uint64_t begin = s->begin_ns > t->begin_ns ? s->begin_ns : t->begin_ns;
    uint64_t end = s->end_ns < t->end_ns ? s->end_ns : t->end_ns;
    return end > begin ? end - begin : 0;
}

/* By the sums of its step, whose names are in @a->parts already, and whose sum is more where kernels overlap. */
static bool add_span(struct why_account *a, const struct span *s)
{
    uint64_t sum = 0, left = s->busy_ns;
    for (size_t i = 0; i < a->parts.n; i++)
        sum += a->parts.all[i].ns;
    for (size_t i = 0; i < a->parts.n; i++) {
        uint64_t ns =
            sum > s->busy_ns
                ? (uint64_t)((double)a->parts.all[i].ns / (double)sum * (double)s->busy_ns)
                : a->parts.all[i].ns;
        a->parts.all[i].ns = ns < left ? ns : left;
        left -= a->parts.all[i].ns;
    }
    return why_parts_add(&a->parts, LINE_BUSY, 0, left) &&
           why_parts_add(&a->parts, LINE_BETWEEN, 0, meets(s, a->turn) - s->busy_ns) &&
           add_host(a, a->turn->begin_ns, s->begin_ns) && add_host(a, s->end_ns, a->turn->end_ns);
}

/* ------------------------------------------------------------------------- sums */

static int by_begin(const void *pa, const void *pb)
{
    const struct span *a = pa, *b = pb;
    ORDER(a, b, begin_ns);
    return 0;
}

static void take_span(void *ctx, const struct ran_sum *sum)
{
    struct filling *f = ctx;
    if (f->failed || sum->shape.kind != DMI_RAN_BUSY)
        return;
    f->has_sums = true;
    if (sum->step < DMI_RAN_FIRST) { /* of all of a second */
        f->unplaced_ns += sum->sum_ns;
        return;
    }
    if ((f->failed = GROW(f->spans, f->n_spans, f->spans_room)))
        return;
    f->placed_ns += sum->sum_ns;
    f->spans[f->n_spans++] = (struct span){ sum->step - DMI_RAN_FIRST, sum->begin_ns,
                                            sum->begin_ns + sum->bytes, sum->sum_ns };
}

/*
 * The one span that meets the turn. A tenth of the turn may be another's, and as much of the span beyond it: copies go with the kernel before them, so those at the begin of a step are
 * the last of the step before. NULL: there is another, or none, or what ran for no known step is more than a hundredth of all, as nothing says when that was.
 */
static const struct span *alone(const struct filling *f, const struct why_turn *t)
{
    const struct span *found = NULL;
    uint64_t little = why_turn_ns(t) / 10;
    size_t i = 0;
    if (f->unplaced_ns > f->placed_ns / 100)
        return NULL;
    SEARCH(i, f->n_spans, f->spans[i].begin_ns < t->end_ns);
    while (i-- > 0 && f->last_ends[i] > t->begin_ns) {
        const struct span *s = &f->spans[i];
        if (s->number == t->at.number)
            found = s;
        else if (meets(s, t) > little)
            return NULL;
    }
    return found && found->begin_ns >= t->begin_ns && found->end_ns <= t->end_ns + little &&
                   found->busy_ns <= meets(found, t)
               ? found
               : NULL;
}

static int by_number(const void *pa, const void *pb)
{
    const struct why_account *const *a = pa, *const *b = pb;
    ORDER((*a)->turn, (*b)->turn, at.number);
    return 0;
}

struct naming {
    struct filling *f;
    struct why_account **by_number; /* those that sums tell of */
    size_t n;
};

static void take_sum(void *ctx, const struct ran_sum *sum)
{
    struct naming *n = ctx;
    size_t i = 0;
    if (n->f->failed || sum->shape.kind == DMI_RAN_BUSY || sum->step < DMI_RAN_FIRST)
        return;
    SEARCH(i, n->n, n->by_number[i]->turn->at.number < sum->step - DMI_RAN_FIRST);
    enum why_line_kind kind = ran_is_own(&sum->shape, sum->name) ? LINE_OWN : LINE_BUSY;
    for (; i < n->n && n->by_number[i]->turn->at.number == sum->step - DMI_RAN_FIRST; i++) {
        uint32_t name = ran_name(n->f, &sum->shape, sum->name);
        n->f->failed |= !name || !why_parts_add(&n->by_number[i]->parts, kind, name, sum->sum_ns);
    }
}

static void take_end(void *ctx, const struct ran *ran)
{
    struct filling *f = ctx;
    f->ran_until_ns = ran->end_ns > f->ran_until_ns ? ran->end_ns : f->ran_until_ns;
}

/* When something ran, by steps. */
static int read_spans(struct err *err, struct filling *f)
{
    int r = reader_each_sum(err, f->run->reader, take_span, f);
    f->last_ends = calloc(f->n_spans + 1, sizeof *f->last_ends);
    f->failed |= !f->last_ends;
    SORT(f->spans, f->n_spans, by_begin);
    uint64_t last = 0;
    for (size_t i = 0; i < f->n_spans && !f->failed; i++)
        f->last_ends[i] = last = f->spans[i].end_ns > last ? f->spans[i].end_ns : last;
    if (!r && !f->has_sums)
        r = reader_each_ran(err, f->run->reader, take_end, f);
    return r;
}

/* What sums say of the turns that records do not tell of. */
static int fill_by_sums(struct err *err, struct filling *f)
{
    struct naming n = { f, calloc(f->n + 1, sizeof *n.by_number), 0 };
    int r = 0;
    f->failed |= !n.by_number;
    for (size_t i = 0; i < f->n && !f->failed; i++) {
        if (f->all[i].how == HOW_RECORDS || !alone(f, f->all[i].turn))
            continue;
        f->all[i].how = HOW_SUMS;
        n.by_number[n.n++] = &f->all[i];
    }
    SORT(n.by_number, n.n, by_number);
    if (!r && n.n && !f->failed)
        r = reader_each_sum(err, f->run->reader, take_sum, &n);
    free(n.by_number);
    return r;
}

/* ------------------------------------------------------------------------- all of it */

/* Is each record there of what ran in turn @t of the run? Of steps that were kept, with a neighbour on each side; or of all steps, as there are no sums. */
static bool has_records(const struct filling *f, const struct runs_steps *kept,
                        const struct why_turn *t)
{
    const struct why_turns *all = f->turns;
    const struct trace_marks *m = &f->run->marks;
    size_t i = (size_t)(t - all->all);
    if (!f->has_sums)
        return t->end_ns <= f->ran_until_ns && !m->n_ran_lost && !m->n_ran_dropped && !m->n_lent;
    return i && i + 1 < all->n && runs_step_asked(kept, all->all[i - 1].at.number) &&
           runs_step_asked(kept, t->at.number) && runs_step_asked(kept, all->all[i + 1].at.number);
}

/* Return: whether records tell of any. */
static bool find_records(struct filling *f)
{
    struct runs_steps kept;
    bool any = false;
    f->failed |= !runs_kept(f->run, &kept);
    for (size_t i = 0; i < f->n && !f->failed; i++) {
        bool has = has_records(f, &kept, f->all[i].turn);
        f->all[i].how = has ? HOW_RECORDS : HOW_HOST;
        any |= has;
    }
    runs_kept_deinit(&kept);
    return any;
}

static bool divide(struct filling *f, struct why_account *a)
{
    SORT(a->did, a->n_did, by_time);
    SORT(a->ran, a->n_ran, by_time);
    if (a->how == HOW_RECORDS)
        return add_ran(a);
    if (a->how == HOW_SUMS)
        return add_span(a, alone(f, a->turn));
    return add_host(a, a->turn->begin_ns, a->turn->end_ns);
}

int why_accounts_fill(const struct trace_run *run, const struct why_turns *turns,
                      struct why_names *names, struct why_account *all, size_t n)
{
    struct err err = { 0 };
    struct filling f = { .run = run, .turns = turns, .names = names, .all = all, .n = n };
    for (size_t i = 0; i < n; i++) {
        uint64_t ns = why_turn_ns(all[i].turn);
        f.longest_ns = ns > f.longest_ns ? ns : f.longest_ns;
    }
    int r = read_spans(&err, &f);
    if (!r)
        r = reader_each_range(&err, run->reader, take_range, &f);
    if (!r && find_records(&f))
        r = reader_each_ran(&err, run->reader, take_ran, &f);
    if (!r)
        r = fill_by_sums(&err, &f);
    for (size_t i = 0; i < n && !r && !f.failed; i++)
        f.failed = !divide(&f, &all[i]);
    if (!r && f.failed)
        r = err_set_errno(&err, ENOMEM, "cannot read %s", run->run->path);
    if (r)
        complain("%s", err.msg);
    free(f.spans);
    free(f.last_ends);
    free(f.short_of);
    why_names_deinit(&f.raw);
    return r ? REPORT_IMPOSSIBLE : 0;
}

void why_accounts_deinit(struct why_account *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(all[i].parts.all);
        free(all[i].ran);
        free(all[i].did);
    }
}
