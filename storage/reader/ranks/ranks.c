/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runs of one command's ranks, read as one: each has a reader of its own, and this one has what they have together.
 * Source: docs/format.md 8.1.
 */
#include "core/any.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "storage/reader/ranks/ranks_agree.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------- which rank a run is */

/* The first steps of a run. Return: 0 with *@found, -ENOMEM. */
static int first_step(struct reader *r, const struct dmi_step_entry **found)
{
    struct reader_cursor at = { 0 };
    struct reader_chunk *c;
    int res;
    for (;;) {
        const char *wrong = NULL;
        res = reader_next_listed(r, DMI_CHUNK_STEPS, &at, &c);
        if (res == -EAGAIN)
            at = (struct reader_cursor){ 0 }; /* at most once a segment */
        else if (res || !c)
            return res == -ENOMEM ? res : 0;
        if (res || chunk_type_repeats(c->type))
            continue;
        res = reader_load_chunk(r, &r->index.segments[at.segment], c, &wrong);
        if (res == -ENOMEM)
            return res;
        if (!res && c->n_held) {
            *found = c->steps[0].entry;
            return 0;
        }
    }
}

static uint64_t n_records(const struct reader *r)
{
    uint64_t n = 0;
    for (size_t s = 0; s < r->said.n_sites; s++)
        n += r->found[s].records;
    return n;
}

static int take_about(struct reader *r, struct reader_rank *about)
{
    const struct dmi_step_entry *step = NULL;
    int res = first_step(r, &step);
    *about = (struct reader_rank){
        .path = r->run.path, .uuid = r->run.uuid, .state = r->run.state, .known = step != NULL
    };
    if (step)
        memcpy(about->ranks, step->ranks, sizeof about->ranks);
    return res;
}

/* Whether these runs are those of ranks: one job, each another rank, or nothing captured. */
static bool are_ranks(const struct reader_ranks *k)
{
    size_t n_known = 0;
    for (size_t i = 0; i < k->n; i++) {
        const char *job = k->runs[i]->run.job, *first = k->runs[0]->run.job;
        if (!job || !first || strcmp(job, first))
            return false;
        if (!k->about[i].known && n_records(k->runs[i]))
            return false;
        n_known += k->about[i].known;
        for (size_t j = 0; j < i; j++)
            if (k->about[i].known && k->about[j].known &&
                reader_same_rank(&k->about[i], &k->about[j]))
                return false;
    }
    return n_known != 0;
}

/* Whether run @i is looked at. */
static bool is_wanted(const struct reader_ranks *k, size_t i)
{
    bool any = true;
    for (int a = 0; a < DMI_AXIS_COUNT; a++) {
        any &= k->only[a] < 0;
        if (k->only[a] >= 0 && (!k->about[i].known || k->about[i].ranks[2 * a] != k->only[a]))
            return false;
    }
    return any || k->about[i].known;
}

/* ------------------------------------------------------------------------- sites */

static int add_sites(struct reader *r, const struct reader *run, uint32_t *site_of, size_t *room)
{
    for (size_t s = 0; s < run->said.n_sites; s++) {
        if (GROW(r->said.sites, r->said.n_sites, *room))
            return -ENOMEM;
        site_of[s] = (uint32_t)r->said.n_sites;
        r->said.sites[r->said.n_sites] = run->said.sites[s];
        r->said.sites[r->said.n_sites++].id = site_of[s];
    }
    return 0;
}

struct named_site {
    const char *name;
    uint32_t run, site; /* run: the first that has its dictionary */
};

static int named_order(const void *pa, const void *pb)
{
    const struct named_site *a = pa, *b = pb;
    int c = strcmp(a->name, b->name);
    if (c)
        return c;
    ORDER(a, b, run);
    return a->site < b->site ? -1 : a->site > b->site;
}

/* Sites of one name are alike in all dictionaries, the first of them with the first, and so on. */
static int key_sites(struct reader_ranks *k, const struct reader *r, const uint32_t *owner)
{
    _cleanup_(freep) struct named_site *all = calloc(r->said.n_sites + 1, sizeof *all);
    k->site_key = calloc(r->said.n_sites + 1, sizeof *k->site_key);
    if (!all || !k->site_key)
        return -ENOMEM;
    for (uint32_t s = 0; s < r->said.n_sites; s++)
        all[s] = (struct named_site){ r->said.sites[s].name, owner[s], s };
    qsort(all, r->said.n_sites, sizeof *all, named_order);
    uint64_t name = 0, nth = 0;
    for (size_t i = 0; i < r->said.n_sites; i++) {
        bool same = i && !strcmp(all[i].name, all[i - 1].name);
        name += i && !same;
        nth = same && all[i].run == all[i - 1].run ? nth + 1 : 0;
        k->site_key[all[i].site] = name << 32 | nth;
    }
    return 0;
}

/* The sites of all runs; runs with one dictionary share theirs. */
static int merge_sites(struct reader *r)
{
    struct reader_ranks *k = r->ranks;
    size_t room = 0, owned = 0;
    uint32_t *owner = NULL;
    int res = 0;
    for (size_t i = 0; !res && i < k->n; i++) {
        const struct reader *run = k->runs[i];
        size_t same = 0, before = r->said.n_sites;
        while (same < i && (k->runs[same]->said.dictionary_hash != run->said.dictionary_hash ||
                            k->runs[same]->said.n_sites != run->said.n_sites))
            same++;
        k->site_of[i] = calloc(run->said.n_sites + 1, sizeof *k->site_of[i]);
        if (!k->site_of[i])
            res = -ENOMEM;
        else if (same < i)
            memcpy(k->site_of[i], k->site_of[same], run->said.n_sites * sizeof *k->site_of[i]);
        else
            res = add_sites(r, run, k->site_of[i], &room);
        for (size_t s = before; !res && s < r->said.n_sites; s++) {
            if (GROW(owner, s, owned))
                res = -ENOMEM;
            else
                owner[s] = (uint32_t)i;
        }
    }
    if (!res)
        res = key_sites(k, r, owner);
    free(owner);
    return res;
}

/* ------------------------------------------------------------------------- what they are together */

static void add_site_counters(struct dmi_site_counters *to, const struct dmi_site_counters *more)
{
    reader_add_tally(&to->expected, &more->expected);
    reader_add_tally(&to->captured, &more->captured);
    reader_add_tally(&to->released, &more->released);
    reader_add(&to->launches, more->launches);
    reader_add(&to->uncounted, more->uncounted);
    for (int d = 0; d < DMI_DROP_ROOM; d++)
        reader_add_tally(&to->dropped[d], &more->dropped[d]);
}

/* Sums of the counters; none where one of them cannot be read. */
static int merge_counters(struct reader *r)
{
    const struct reader_ranks *k = r->ranks;
    free(r->counters);
    r->run.counters = r->counters = NULL;
    struct dmi_counters *sum = calloc(1, sizeof *sum + r->said.n_sites * sizeof sum->sites[0]);
    if (!sum)
        return -ENOMEM;
    sum->n_sites = (uint32_t)r->said.n_sites;
    sum->state = r->run.state == READER_CLOSED ? DMI_COUNTERS_CLOSED : DMI_COUNTERS_RUNNING;
    for (size_t i = 0; i < k->n; i++) {
        const struct dmi_counters *c = k->runs[i]->counters;
        if (!c) {
            free(sum);
            return 0;
        }
        reader_add(&sum->forwards, c->forwards);
        reader_add(&sum->launches_matched, c->launches_matched);
        reader_add(&sum->steps, c->steps);
        reader_add(&sum->steps_refused, c->steps_refused);
        reader_add(&sum->waits, c->waits);
        reader_add(&sum->waits_over, c->waits_over);
        reader_add(&sum->wait_ns, c->wait_ns);
        for (uint32_t s = 0; s < c->n_sites; s++)
            add_site_counters(&sum->sites[k->site_of[i][s]], &c->sites[s]);
    }
    r->run.counters = r->counters = sum;
    return 0;
}

static int merge_found(struct reader *r)
{
    const struct reader_ranks *k = r->ranks;
    free(r->found);
    r->found = calloc(r->said.n_sites + 1, sizeof *r->found);
    for (size_t i = 0; r->found && i < k->n; i++)
        for (size_t s = 0; s < k->runs[i]->said.n_sites; s++)
            reader_add_tally(&r->found[k->site_of[i][s]], &k->runs[i]->found[s]);
    return r->found ? 0 : -ENOMEM;
}

/* What the runs have in one list goes one after the other. @list, @n: where it and its length lie in struct reader_run. Return: 0 or -ENOMEM. */
static int merge_list(struct reader *r, size_t list, size_t n, size_t size)
{
    const struct reader_ranks *k = r->ranks;
    size_t n_all = 0, *to_n = (size_t *)(void *)((char *)&r->run + n);
    char **to = (char **)(void *)((char *)&r->run + list);
    for (size_t i = 0; i < k->n; i++)
        n_all += *(const size_t *)(const void *)((const char *)&k->runs[i]->run + n);
    free(*to);
    *to = calloc(n_all + 1, size);
    *to_n = 0;
    for (size_t i = 0; *to && i < k->n; i++) {
        const char *run = (const char *)&k->runs[i]->run;
        size_t some = *(const size_t *)(const void *)(run + n);
        if (some)
            memcpy(*to + *to_n * size, *(char *const *)(const void *)(run + list), some * size);
        *to_n += some;
    }
    return *to ? 0 : -ENOMEM;
}
#define MERGE_LIST(r, list, n)                                                                     \
    merge_list(r, offsetof(struct reader_run, list), offsetof(struct reader_run, n),               \
               sizeof *(r)->run.list)

static int by_time(const void *a, const void *b)
{
    uint64_t x = ((const struct reader_change *)a)->time_ns,
             y = ((const struct reader_change *)b)->time_ns;
    return x < y ? -1 : x > y;
}

static int merge_changes(struct reader *r)
{
    int res = MERGE_LIST(r, changes, n_changes);
    if (!res)
        qsort((void *)(uintptr_t)r->run.changes, r->run.n_changes, sizeof *r->run.changes, by_time);
    return res;
}

static int merge_edits(struct reader *r)
{
    const struct reader_ranks *k = r->ranks;
    struct reader_edits *to = &r->run.edits;
    *to = (struct reader_edits){ .accounts = to->accounts };
    for (size_t i = 0; i < k->n; i++) {
        const struct reader_edits *e = &k->runs[i]->run.edits;
        to->known = to->known || e->known;
        to->missing = to->missing || e->missing;
        to->ended += e->ended;
        to->marked += e->marked;
        to->in_force = e->in_force > to->in_force ? e->in_force : to->in_force;
    }
    to->known = to->known && !to->missing;
    return MERGE_LIST(r, edits.accounts, edits.n);
}

/* What is said of the runs as they stand. */
static int merge_run(struct reader *r)
{
    const struct reader_ranks *k = r->ranks;
    size_t first = 0;
    while (!k->about[first].known) /* there is one: are_ranks() */
        first++;
    const struct reader_problem *problems = r->run.problems;
    const struct reader_change *changes = r->run.changes;
    struct reader_edits edits = r->run.edits;
    size_t n_beside = r->run.n_beside;
    r->run = k->runs[first]->run;
    r->run.path = r->place.path;
    r->run.problems = problems;
    r->run.changes = changes;
    r->run.edits = edits;
    r->run.n_beside = n_beside;
    r->run.n_runs = k->n;
    r->run.ranks = k->about;
    r->run.n_segments = 0;
    r->run.n_file_bytes = r->run.n_torn = r->run.n_read = 0;
    r->run.state = READER_CLOSED;
    for (size_t i = 0; i < k->n; i++) {
        const struct reader_run *run = &k->runs[i]->run;
        k->about[i].state = run->state;
        r->run.n_segments += run->n_segments;
        r->run.n_file_bytes += run->n_file_bytes;
        r->run.n_torn += run->n_torn;
        r->run.n_read += run->n_read;
        if (run->state == READER_RUNNING || r->run.state == READER_CLOSED)
            r->run.state = run->state;
    }
    TRY(MERGE_LIST(r, problems, n_problems));
    TRY(merge_changes(r));
    TRY(merge_edits(r));
    TRY(merge_found(r));
    return merge_counters(r);
}

/* ------------------------------------------------------------------------- findings */

static void take_notes(struct reader *r, const struct reader *run)
{
    const char *slash = strrchr(run->place.path, '/');
    for (size_t i = 0; i < run->notes.n; i++) {
        const struct reader_finding *f = &run->notes.list[i].finding;
        _cleanup_(freep) char *file = NULL;
        if (asprintf(&file, "%s/%s", slash ? slash + 1 : run->place.path, f->file) < 0) {
            file = NULL;
            continue;
        }
        if (f->unknown)
            reader_note_unknown(&r->notes, file, f->chunk, f->offset, "%s", f->text);
        else
            reader_note(&r->notes, f->damage, file, f->chunk, f->offset, "%s", f->text);
    }
}

/* A rank of which there is no run, where a rank that there is says how many there are. */
static void note_missing(struct reader *r)
{
    const struct reader_ranks *k = r->ranks;
    int32_t size[3] = { 1, 1, 1 }; /* tp, pp, dp; expert parallel ranks are the same processes */
    for (size_t i = 0; i < k->n; i++)
        for (int a = 0; a < 3; a++)
            if (k->about[i].known && k->about[i].ranks[2 * a + 1] > size[a])
                size[a] = k->about[i].ranks[2 * a + 1];
    int64_t n = (int64_t)size[0] * size[1], n_missing = 0;
    for (int64_t at = 0; at < n * size[2] && at < 65536; at++) {
        const int32_t want[3] = { (int32_t)(at % size[0]), (int32_t)(at / size[0] % size[1]),
                                  (int32_t)(at / n) };
        bool found = false;
        for (size_t i = 0; i < k->n; i++)
            found |= k->about[i].known && k->about[i].ranks[0] == want[0] &&
                     k->about[i].ranks[2] == want[1] && k->about[i].ranks[4] == want[2];
        if (!found && n_missing++ < 8)
            reader_note(&r->notes, false, "ranks", -1, 0,
                        "no run of tensor parallel rank %d of %d, pipeline rank %d of %d, data "
                        "rank %d of %d is here",
                        want[0], size[0], want[1], size[1], want[2], size[2]);
    }
    if (n_missing > 8)
        reader_note(&r->notes, false, "ranks", -1, 0, "and none of %" PRId64 " further ranks",
                    n_missing - 8);
}

int reader_note_alone(struct reader *r)
{
    struct reader_rank about = { 0 };
    uint32_t axis = DMI_AXIS_COUNT;
    int res = 0;
    for (size_t s = 0; s < r->said.n_sites; s++)
        axis = r->said.sites[s].shard != DMI_SHARD_NONE ? r->said.sites[s].shard_axis : axis;
    if (axis < DMI_AXIS_COUNT)
        res = take_about(r, &about);
    if (!res && axis < DMI_AXIS_COUNT && about.ranks[2 * axis + 1] > 1)
        reader_note(
            &r->notes, false, "ranks", -1, 0,
            "no run but that of %s rank %d of %d is here: what is divided over the ranks, or "
            "added, is its part",
            dmi_axis_name(axis), about.ranks[2 * axis], about.ranks[2 * axis + 1]);
    return res;
}

static int join(struct err *err, struct reader *r)
{
    reader_forget_all(&r->notes);
    for (size_t i = 0; i < r->ranks->n; i++)
        take_notes(r, r->ranks->runs[i]);
    reader_note_ranks(r);
    note_missing(r);
    int res = merge_run(r);
    if (!res && r->selection.made)
        res = reader_join_ranks(r);
    return res ? err_set_errno(err, -res, "cannot join the runs of %s", r->place.path) : 0;
}

/* ------------------------------------------------------------------------- opening and its like */

void reader_free_ranks(struct reader *r)
{
    struct reader_ranks *k = r->ranks;
    if (!k)
        return;
    r->run.conventions = r->run.absent = r->run.about = NULL; /* a run's */
    for (size_t i = 0; i < k->n; i++) {
        reader_close_one(k->runs[i]);
        free(k->site_of[i]);
        free(k->step_of[i]);
    }
    free(k->runs);
    free(k->about);
    free(k->site_of);
    free(k->site_key);
    free(k->step_of);
    for (size_t i = 0; i < k->n_left_out; i++) {
        reader_close_one(k->left_out[i].run);
        free(k->left_out[i].site_of);
        free(k->left_out[i].step_of);
        free(k->left_out[i].why);
    }
    free(k->left_out);
    free(k->contradictions);
    free(k->parts);
    free(k);
    r->ranks = NULL;
}

static void close_ranksp(struct reader **r)
{
    if (*r)
        reader_free_ranks(*r);
    reader_close_one(*r);
}

static int open_runs(struct err *err, char **paths, size_t n, struct reader_ranks *k)
{
    int res = 0;
    k->runs = calloc(n + 1, sizeof *k->runs);
    k->about = calloc(n + 1, sizeof *k->about);
    k->site_of = calloc(n + 1, sizeof *k->site_of);
    k->step_of = calloc(n + 1, sizeof *k->step_of);
    if (!k->runs || !k->about || !k->site_of || !k->step_of)
        return err_set_errno(err, ENOMEM, "cannot open the runs");
    for (size_t i = 0; !res && i < n; i++) {
        res = reader_open_one(err, paths[i], false, &k->runs[i]);
        if (res)
            break;
        k->n++;
        k->runs[i]->selection.all_steps = true;
        if (take_about(k->runs[i], &k->about[i]))
            res = err_set_errno(err, ENOMEM, "cannot open %s", paths[i]);
    }
    if (!res && reader_leave_twins(k))
        res = err_set_errno(err, ENOMEM, "cannot open the runs");
    return res;
}

int reader_open_ranks(struct err *err, const struct reader_found *found, struct reader **out)
{
    struct err why = { 0 };
    _cleanup_(close_ranksp) struct reader *r = calloc(1, sizeof *r);
    if (!r || !(r->ranks = calloc(1, sizeof *r->ranks)) || !(r->place.path = strdup(found->folder)))
        return err_set_errno(err, ENOMEM, "cannot open %s", found->folder);
    r->place.dir = -1;
    r->notes.walking = UINT32_MAX;
    for (int a = 0; a < DMI_AXIS_COUNT; a++)
        r->ranks->only[a] = -1;
    if (open_runs(&why, found->paths, found->n, r->ranks) || !are_ranks(r->ranks))
        return reader_say_several(err, found);
    if (merge_sites(r))
        return err_set_errno(err, ENOMEM, "cannot open %s", found->folder);
    TRY(join(err, r));
    *out = steal_ptr(r);
    return 0;
}

int reader_select_ranks(struct err *err, struct reader *r, const struct reader_query *query)
{
    static const struct reader_query nothing = { .site = "", .request = "", .n_request = 0 };
    const struct reader_ranks *k = r->ranks;
    int res = reader_keep_query(err, r, query);
    for (size_t i = 0; !res && i < k->n; i++) {
        bool wanted = is_wanted(k, i);
        k->runs[i]->selection.all_steps = wanted;
        res = reader_select_one(err, k->runs[i], wanted ? query : &nothing);
    }
    return res ? res : join(err, r);
}

int reader_refresh_ranks(struct err *err, struct reader *r)
{
    struct reader_ranks *k = r->ranks;
    int res = 0;
    for (size_t i = 0; !res && i < k->n; i++) {
        res = reader_refresh_one(err, k->runs[i]);
        if (!res && !k->about[i].known && take_about(k->runs[i], &k->about[i]))
            res = err_set_errno(err, ENOMEM, "cannot read %s again", r->place.path);
    }
    if (!res && reader_leave_twins(k))
        res = err_set_errno(err, ENOMEM, "cannot read %s again", r->place.path);
    return res ? res : join(err, r);
}

int reader_verify_ranks(struct reader *r)
{
    struct err err = { 0 };
    int res = 0;
    for (size_t i = 0; !res && i < r->ranks->n; i++)
        res = reader_verify_one(r->ranks->runs[i]);
    return res ? res : join(&err, r);
}

size_t reader_only_ranks(struct reader *r, const int32_t ranks[DMI_AXIS_COUNT])
{
    struct reader_ranks *k = r->ranks;
    struct reader_rank about;
    size_t n = 0;
    if (k)
        memcpy(k->only, ranks, sizeof k->only);
    for (size_t i = 0; k && i < k->n; i++)
        n += is_wanted(k, i);
    if (k || take_about(r, &about) || !about.known)
        return n;
    return !ANY(a, DMI_AXIS_COUNT, ranks[a] >= 0 && ranks[a] != about.ranks[2 * a]);
}
