/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run/outcome.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/regular.h"
#include "read/value.h"
#include "storage/reader/reader.h"
#include "storage/text.h"
#include "tools/common/say.h"

#include <dmi/edit_account.h>
#include <dmi/format.h>

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_NS  2000000000u /* for processes that outlive the command */
#define PAUSE_US 20000

struct outcome_edit {
    char *name, *site;    /* owned */
    bool always;          /* it wants rows of each request */
    uint32_t n_runs;      /* in which it was in force */
    uint32_t n_due;       /* of these, with rows that it wants */
    uint32_t n_unwritten; /* of these, of which it wrote none */
    uint32_t n_missed;    /* of these, of which each is known to be missed */
    uint32_t n_lacks;     /* of these, whose model lacks a layer that it names */
    char *lacks;          /* which; owned */
    uint64_t written;
    uint64_t due, missed[DMI_EDIT_MISS_COUNT]; /* of @n_unwritten */
};

/* ------------------------------------------------------------------------- before */

static bool is_always(const struct edit *edit)
{
    return FIRST(k, edit->n_ops, edit->ops[k].times.from == EDIT_TAG, false,
                 select_is_default(&edit->who));
}

bool outcome_begin(struct outcome *o, const struct edits *edits, const char *out)
{
    struct err ignored = { 0 }; /* a folder that is not there has no run */
    *o = (struct outcome){ .out = strdup(out), .edits = calloc(edits->n + 1, sizeof *o->edits) };
    for (uint32_t i = 0; o->edits && i < edits->n; i++) {
        struct outcome_edit *e = &o->edits[o->n_edits++];
        *e = (struct outcome_edit){ .name = strdup(edits->list[i].name),
                                    .site = strdup(edits->list[i].site),
                                    .always = is_always(&edits->list[i]) };
        if (!e->name || !e->site)
            return false;
    }
    runs_find(&ignored, out, &o->before);
    return o->out && o->edits;
}

static void forget(struct outcome *o)
{
    for (uint32_t i = 0; i < o->n_edits; i++) {
        struct outcome_edit *e = &o->edits[i];
        free(e->lacks);
        *e = (struct outcome_edit){ .name = e->name, .site = e->site, .always = e->always };
    }
    o->n_runs = 0;
}

void outcome_deinit(struct outcome *o)
{
    forget(o);
    for (uint32_t i = 0; i < o->n_edits; i++) {
        free(o->edits[i].name);
        free(o->edits[i].site);
    }
    free(o->edits);
    free(o->out);
    runs_deinit(&o->before);
}

/* ------------------------------------------------------------------------- a run */

/* The file of accounts. Return: NULL: there is none that can be read; else free(). */
static struct dmi_edit_accounts *load_accounts(const char *run)
{
    struct err ignored = { 0 };
    uint64_t n = 0;
    _cleanup_(freep) char *path = NULL;
    if (asprintf(&path, "%s/edits", run) < 0)
        return NULL;
    _cleanup_(freep) struct dmi_edit_accounts *a =
        (void *)regular_read(&ignored, path, DMI_MAX_JSON, &n);
    if (!a || n < sizeof *a || a->magic != DMI_EDIT_ACCOUNTS_MAGIC ||
        a->version != DMI_EDIT_ACCOUNTS_VERSION ||
        n != sizeof *a + (uint64_t)a->n * sizeof a->accounts[0])
        return NULL;
    return steal_ptr(a);
}

/* Each run by itself: what one process wrote is no help to the rows of another. */
static void add_accounts(struct outcome_edit *e, const struct dmi_edit_accounts *all)
{
    uint64_t due = 0, written = 0, missed[DMI_EDIT_MISS_COUNT] = { 0 }, n_missed = 0;
    bool any = false;
    for (uint32_t i = 0; all && i < all->n; i++) {
        const struct dmi_edit_account *a = &all->accounts[i];
        if (a->state == DMI_EDIT_ACCOUNT_FREE || strncmp(a->edit, e->name, sizeof a->edit) != 0)
            continue;
        any = true;
        due += a->due;
        written += a->written;
        for (uint32_t k = 0; k < DMI_EDIT_MISS_COUNT; k++) {
            missed[k] += a->missed[k];
            n_missed += a->missed[k];
        }
    }
    e->n_runs += any;
    e->n_due += due != 0;
    e->written += written;
    if (!due || written)
        return;
    e->n_unwritten++;
    e->n_missed += n_missed == due;
    e->due += due;
    for (uint32_t k = 0; k < DMI_EDIT_MISS_COUNT; k++)
        e->missed[k] += missed[k];
}

/* What the library says of an edit whose layers a model lacks. */
static void add_lacks(struct outcome_edit *e, const json_t *manifest)
{
    char begin[EDIT_MAX_NAME + 64];
    size_t i, n = (size_t)snprintf(begin, sizeof begin, EDIT_PROBLEM, e->name);
    const json_t *problem;
    json_array_foreach(json_object_get(manifest, "problems"), i, problem)
    {
        const char *said = json_string_value(json_object_get(problem, "sentence"));
        if (!said || strncmp(said, begin, n) != 0)
            continue;
        e->n_lacks++;
        if (!e->lacks)
            e->lacks = strdup(said + n);
        return;
    }
}

static bool was_before(const struct outcome *o, const char *path)
{
    return ANY(i, o->before.n, !strcmp(o->before.paths[i], path));
}

/* Does an engine of several ranks run here, some of which are not among the command's processes? They may have what no row was due for here. */
static bool lacks_ranks(const struct outcome *o, const char *job)
{
    struct err ignored = { 0 };
    struct runs now = { 0 };
    uint64_t n = 0, all = 1;
    runs_find(&ignored, o->out, &now);
    for (size_t i = 0; i < now.n; i++) {
        _cleanup_(reader_closep) struct reader *r = NULL;
        if (was_before(o, now.paths[i]) || reader_open(&ignored, now.paths[i], &r) ||
            !reader_run(r)->job || strcmp(reader_run(r)->job, job) != 0)
            continue;
        const int32_t *ranks = reader_first_ranks(r);
        uint64_t size = 1;
        for (int a = 0; ranks && a < DMI_AXIS_COUNT; a++)
            if (a != DMI_AXIS_DP && ranks[2 * a + 1] > 1)
                size *= (uint64_t)ranks[2 * a + 1];
        n += ranks != NULL;
        all = size > all ? size : all;
    }
    runs_deinit(&now);
    return all > 1 && n < all;
}

static void add_run(struct outcome *o, const char *path, const char *job)
{
    struct err ignored = { 0 };
    _cleanup_(freep) char *name = NULL;
    if (asprintf(&name, "%s/manifest.json", path) < 0)
        return;
    json_t *manifest = value_read(&ignored, name, DMI_MAX_JSON, JSON_ALLOW_NUL);
    const char *own = json_string_value(json_object_get(manifest, "job"));
    if (own && !strcmp(own, job)) {
        _cleanup_(freep) struct dmi_edit_accounts *all = load_accounts(path);
        o->n_runs++;
        for (uint32_t i = 0; i < o->n_edits; i++) {
            add_accounts(&o->edits[i], all);
            add_lacks(&o->edits[i], manifest);
        }
    }
    json_decref(manifest);
}

static void look(struct outcome *o, const char *job)
{
    struct err ignored = { 0 };
    struct runs now = { 0 };
    forget(o);
    runs_find(&ignored, o->out, &now);
    for (size_t i = 0; i < now.n; i++)
        if (!was_before(o, now.paths[i]))
            add_run(o, now.paths[i], job);
    runs_deinit(&now);
}

/* ------------------------------------------------------------------------- judged */

static bool any_written(const struct outcome *o)
{
    return ANY(i, o->n_edits, o->edits[i].written);
}

/* One that wants some requests or tokens alone may find none, unless no row at all was written. */
static bool is_made(const struct outcome *o, const struct outcome_edit *e)
{
    if (e->n_unwritten || (e->n_lacks && e->n_lacks >= e->n_due))
        return false;
    return e->written || (!e->n_due && (o->elsewhere || (!e->always && any_written(o))));
}

/* Were rows due in a process, and is it known of each that it was missed? Processes that go on do not change that. */
static bool all_missed(const struct outcome *o)
{
    return ANY(i, o->n_edits, o->edits[i].n_missed);
}

static uint32_t n_not_made(const struct outcome *o)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n_edits; i++)
        n += !is_made(o, &o->edits[i]);
    return n;
}

/* What to do, or to look at, where most rows were missed for the reason; NULL: docs/edits.md says it. */
static const char *advice(uint32_t reason)
{
    switch (reason) {
    case DMI_EDIT_MISS_CACHE_SHARED:
        return "the engine shares cached prefixes, or does not say whether it does: give requests "
               "the salt of their edits (dmi-ctl RUN edit salt), or "
               "say \"cache: ignore\" in a file of edits";
    case DMI_EDIT_MISS_CACHED: return "the engine had the rows from its cache of prefixes";
    case DMI_EDIT_MISS_WIDTH: return "the vector is not as wide as the rows";
    case DMI_EDIT_MISS_NO_STEP:
        return "the engine announced no requests, and the edit chooses among them";
    case DMI_EDIT_MISS_UNSUPPORTED:
        return "what was tapped, or the graph that launched it, takes no edit: the log says why";
    default: return NULL;
    }
}

static void add_missed(struct text *t, const struct outcome_edit *e)
{
    uint32_t most = 0, n = 0;
    if (e->n_unwritten < e->n_due)
        text_printf(t, "in %u of the %u processes with rows due ", e->n_unwritten, e->n_due);
    text_printf(t, "0 rows written of %" PRIu64 " due", e->due);
    for (uint32_t k = 0; k < DMI_EDIT_MISS_COUNT; k++) {
        if (e->missed[k])
            text_printf(t, "%s%" PRIu64 " %s", n++ ? ", " : "; missed: ", e->missed[k],
                        dmi_edit_miss_name(k));
        most = e->missed[k] > e->missed[most] ? k : most;
    }
    if (!n)
        text_printf(t, "; what became of them is not known: the process was killed");
    else if (advice(most))
        text_printf(t, " (%s)", advice(most));
}

/* Why an edit was not done. */
static void add_why(struct text *t, const struct outcome_edit *e)
{
    if (e->n_lacks && e->lacks)
        text_printf(t, "%s", e->lacks);
    else if (!e->n_runs)
        text_printf(t, "no process took it: the log says why");
    else if (e->n_unwritten)
        add_missed(t, e);
    else if (e->always)
        text_printf(t, "no row was due: nothing was computed at %s, or not in its layers", e->site);
    else
        text_printf(t, "no row was due: no request or token that it wants was computed");
}

static void say_edit(const struct outcome_edit *e, const char *before)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    add_why(&t, e);
    text_add(&t, "", 1);
    if (!t.failed)
        complain("%sedit \"%s\" at %s: %s", before, e->name, e->site, t.data);
}

static void say(const struct outcome *o, uint32_t n, const char *library)
{
    bool one = n == 1 && o->n_edits == 1;
    for (uint32_t i = 0; o->n_runs && i < o->n_edits; i++)
        if (!is_made(o, &o->edits[i]))
            say_edit(&o->edits[i], !one ? ""
                                   : o->edits[i].n_unwritten && o->edits[i].written
                                       ? "not in all processes: "
                                   : o->edits[i].written ? "not in all its layers: "
                                                         : "no row was edited: ");
    if (!o->n_runs)
        complain("no row was edited: no process of the command has initialised CUDA, or tapped a "
                 "tensor, with %s loaded, unless a line above says otherwise",
                 library);
    else if (!one && !any_written(o))
        complain("no row was edited");
    else if (!one)
        complain("%u of %u edits were not done", n, o->n_edits);
}

bool outcome_made(struct outcome *o, const char *job, const struct holder *holder,
                  const char *library)
{
    uint64_t end_ns = clock_mono_ns() + WAIT_NS;
    bool goes_on = holder_is_used(holder);
    look(o, job);
    while (goes_on && n_not_made(o) && clock_mono_ns() < end_ns) {
        usleep(PAUSE_US);
        goes_on = holder_is_used(holder); /* before the look: who ended then has said all */
        look(o, job);
    }
    uint32_t n = n_not_made(o);
    if (n && !o->elsewhere && lacks_ranks(o, job)) {
        o->elsewhere = true;
        n = n_not_made(o);
    }
    bool judged = !goes_on || all_missed(o);
    if (n && goes_on)
        complain("processes of the command go on: what edits write in them is not waited for");
    if (n && judged)
        say(o, n, library);
    return !n || !judged;
}
