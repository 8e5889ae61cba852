/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/edit/edits.h"

#include "core/any.h"
#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/grow.h"
#include "core/log.h"
#include "preload/context/edit_region.h"
#include "preload/edit/accounts.h"
#include "preload/edit/in_flight.h"
#include "preload/edit/places.h"
#include "preload/edit/requests.h"
#include "preload/session/session.h"

#include <dmi/span.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct edit_version *in_force;                    /* held; under the lock */

struct edit_version *edits_hold(void)
{
    if (!session.spec->n_places)
        return NULL;
    pthread_mutex_lock(&lock);
    struct edit_version *v = in_force;
    if (v)
        version_use(v);
    pthread_mutex_unlock(&lock);
    return v;
}

void edits_put_in_force(struct edit_version *v)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < v->n; i++)
        n += !v->uses[i].off;
    accounts_in_force(n);
    pthread_mutex_lock(&lock);
    struct edit_version *before = in_force;
    in_force = v;
    pthread_mutex_unlock(&lock);
    atomic_add_acq_rel(&session.switches, 1); /* acquired by follow_switches() of graph/launch.c */
    version_release(before);
}

/* ------------------------------------------------------------------------- whose rows have which edits */

/* A step while its rows are found. */
struct asking {
    const struct dmi_step *said;
    struct edit_step *step;
    struct edit_version *now;
    size_t room, room_donors;
    bool no_memory;
};

/* The step holds the version until it ends. Takes over @v. */
static void keep(struct asking *a, struct edit_version *v)
{
    struct edit_step *s = a->step;
    for (uint32_t i = 0; i < s->n_held; i++)
        if (s->held[i] == v) {
            version_release(v);
            return;
        }
    if (grow((void **)&s->held, s->n_held, &a->room, sizeof *s->held, 4)) {
        a->no_memory = true;
        version_release(v);
        return;
    }
    s->held[s->n_held++] = v;
}

static bool has_live(const struct edit_version *v)
{
    return ANY(i, v->n, v->uses[i].edit->live);
}

static uint32_t sections_of(void *arg, const struct dmi_span *span,
                            struct edit_section out[EDIT_MAX_SECTIONS])
{
    struct asking *a = arg;
    struct edit_version *own = a->now;
    if (span) {
        own = requests_version(span->request_id, a->now);
        keep(a, own);
    }
    out[0] = version_section(own);
    if (own == a->now)
        return 1;
    /* edits that follow changes come after the others, in their order */
    out[0].live = false;
    out[1] = version_section(a->now);
    out[1].settled = false;
    return has_live(a->now) ? 2 : 1;
}

/* ------------------------------------------------------------------------- rows of the bank */

/* The version that the request has. */
static struct edit_version *version_of(struct asking *a, const struct dmi_span *span)
{
    struct edit_section sections[EDIT_MAX_SECTIONS];
    sections_of(a, span, sections);
    return (struct edit_version *)(uintptr_t)sections[0].owner;
}

/* The step holds the donor until it ends. Takes over @d. Return: its number, 0: there is none. */
static uint32_t keep_donor(struct asking *a, struct donor *d)
{
    struct edit_step *s = a->step;
    if (d && grow((void **)&s->donors, s->n_donors, &a->room_donors, sizeof *s->donors, 4)) {
        a->no_memory = true;
        donor_release(d);
        return 0;
    }
    if (!d)
        return 0;
    s->donors[s->n_donors++] = d;
    return donor_number(d);
}

static struct donor *add_donor(struct asking *a, const struct edit_use *use,
                               const struct dmi_span *span)
{
    return donors_add(edit_saves(use->edit), use->edit->ops[0].keep, version_of(a, span), span);
}

/* Requests of which edits save rows, before any edit asks for some: it may take what the same step saves. */
static void find_donors(struct asking *a, const struct dmi_span *span)
{
    struct edit_section sections[EDIT_MAX_SECTIONS];
    uint32_t n = sections_of(a, span, sections);
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t i = 0; i < sections[s].n; i++) {
            const struct edit_use *use = &sections[s].uses[i];
            bool holds = use->edit->live ? sections[s].live : sections[s].settled;
            if (!use->off && holds && edit_saves(use->edit) &&
                select_request(&use->edit->who, span->request_id, span->tags))
                keep_donor(a, add_donor(a, use, span));
        }
}

static void find_all_donors(struct asking *a)
{
    for (uint32_t i = 0; session.spec->bank_bytes && i < a->said->n_spans; i++) {
        const struct dmi_span *span = dmi_span_at(a->said, i);
        if (!(span->flags & DMI_SPAN_PADDING) && span->n_tokens)
            find_donors(a, span);
    }
}

static uint32_t donor_of(void *arg, const struct edit_use *use, const struct dmi_span *span,
                         uint32_t counter, int *miss)
{
    struct asking *a = arg;
    const char *takes = edit_takes(use->edit);
    struct donor *d =
        takes ? donors_find(takes, version_of(a, span), span) : add_donor(a, use, span);
    uint32_t number = keep_donor(a, d);
    if (!number)
        *miss = takes ? DMI_EDIT_MISS_NO_SOURCE : DMI_EDIT_MISS_NO_ROOM;
    else if (takes)
        accounts_source(counter, takes, donor_request(d));
    return number;
}

/* ------------------------------------------------------------------------- caches */

#define OWN_ROWS UINT64_MAX /* rows that the request saves itself: they follow from its tokens */

/* A request whose salt is asked for. */
struct salting {
    struct edit_version *version; /* that it has */
    const char *id, *tags;
    const char
        *lacks; /* a name under which nobody has the rows that it takes; NULL: there is none */
};

static uint64_t source_of(void *arg, const char *bank)
{
    struct salting *s = arg;
    const struct edit_version *v = s->version;
    const struct dmi_span span = { .request_id = s->id };
    for (uint32_t i = 0; i < v->n; i++) {
        const char *saves = v->uses[i].off ? NULL : edit_saves(v->uses[i].edit);
        if (saves && !strcmp(saves, bank) && select_request(&v->uses[i].edit->who, s->id, s->tags))
            return OWN_ROWS;
    }
    struct donor *d = donors_find(bank, s->version, &span);
    uint64_t number = d ? donor_number(d) : 0;
    donor_release(d);
    if (!number)
        s->lacks = bank;
    return number;
}

uint64_t edits_request_salt(struct edit_version *v, const char *id, const char *tags,
                            const char **lacks)
{
    struct salting s = { v, id, tags, NULL };
    const struct edit_sources sources = { source_of, &s };
    uint64_t salt = edits_salt(v->uses, v->n, id, tags, &sources);
    *lacks = s.lacks;
    return salt;
}

/* Is the request told apart, by its salt, from all that have not its edits? */
static bool is_salted(struct asking *a, const struct dmi_span *span)
{
    struct edit_section sections[EDIT_MAX_SECTIONS];
    uint32_t n = sections_of(a, span, sections);
    for (uint32_t i = 0; i < n; i++) {
        const char *lacks;
        uint64_t salt = edits_request_salt((struct edit_version *)(uintptr_t)sections[i].owner,
                                           span->request_id, span->tags, &lacks);
        if (salt && !requests_have_salt(span->tags, salt))
            return false;
    }
    return true;
}

static int relied; /* 1: cached prefixes may have what edits that are `everywhere` wrote; atomic */

bool edits_lie_in_caches(void)
{
    return atomic_load_relaxed(&relied);
}

/* May the edit write, as far as other requests get keys and values of this one? */
static bool may_share(struct asking *a, const struct edit_use *use, const struct dmi_span *span)
{
    if (use->edit->any_cache || edit_saves(use->edit) || (a->said->flags & DMI_STEP_CACHES_NOTHING))
        return true;
    if (use->everywhere) {
        atomic_store_relaxed(&relied, 1);
        return true;
    }
    return (a->said->flags & DMI_STEP_CACHES_PREFIXES) && is_salted(a, span);
}

static uint32_t counter_of(void *arg, const struct edit_use *use, const struct dmi_span *span,
                           int *miss)
{
    struct asking *a = arg;
    uint32_t account = accounts_find(use, span ? span->request_id : NULL, miss);
    if (*miss != EDIT_NO_MISS || !span)
        return account;
    if (!may_share(a, use, span))
        *miss = DMI_EDIT_MISS_CACHE_SHARED;
    return account;
}

/*
 * Rows of a request with the salt of its edits come from requests with these edits, and all rows have those that are everywhere. No row
 * that comes from a cache can be saved, and none is known to be patched from the same donor.
 */
static bool has_cached(void *arg, const struct edit_use *use, const struct dmi_span *span)
{
    return !use->edit->any_cache && !edit_saves(use->edit) && !edit_takes(use->edit) &&
           (use->everywhere || is_salted(arg, span));
}

/* ------------------------------------------------------------------------- steps */

static int ranks;                    /* 1: several have the same requests; atomic */
static struct edit_ranks said_ranks; /* of the last step; under the lock */
static bool ranks_known;

bool edits_ranks(struct edit_ranks *out)
{
    pthread_mutex_lock(&lock);
    *out = said_ranks;
    bool known = ranks_known;
    pthread_mutex_unlock(&lock);
    return known;
}

bool edits_have_ranks(void)
{
    return atomic_load_relaxed(&ranks);
}

/* Requests whose last step was said ahead of it have ended when the next one of its thread begins. */
static void note_last(const struct dmi_step *said, uint64_t sequence)
{
    for (uint32_t i = 0; i < said->n_spans; i++) {
        const struct dmi_span *span = dmi_span_at(said, i);
        if (span->flags & DMI_SPAN_LAST && !(span->flags & DMI_SPAN_PADDING))
            requests_last(span->request_id, sequence);
    }
}

static void say_unknown_cache(const struct edit_rows *rows, uint32_t flags)
{
    static int said;
    for (uint32_t i = 0; i < rows->n_shares; i++)
        if (rows->shares[i].miss == DMI_EDIT_MISS_CACHE_SHARED &&
            !atomic_exchange_acq_rel(&said, 1))
            log_line(
                flags & DMI_STEP_CACHES_PREFIXES
                    ? "the engine shares cached prefixes between requests, and a request has not "
                      "the salt of its edits: they write nothing there (dmi-ctl RUN edit salt)"
                    : "whether the engine shares cached prefixes between requests is not known: "
                      "edits write nothing, unless they say cache: ignore");
}

/* A patch that goes on after the prompt, once for each edit. */
static void say_generated(const struct edit_rows *rows)
{
    static uint64_t told[4]; /* by uid; a bit each; atomic */
    char sentence[384];
    for (uint32_t i = 0; i < rows->n_shares; i++) {
        const struct edit_share *share = &rows->shares[i];
        if (!share->n_generated)
            continue;
        const struct edit_use *use =
            &((const struct edit_version *)share->owner)->uses[share->edit];
        uint64_t bit = 1ull << use->uid % 64;
        if (__atomic_fetch_or(&told[use->uid / 64 % 4], bit, __ATOMIC_RELAXED) & bit)
            continue;
        snprintf(
            sentence, sizeof sentence,
            "the edit \"%s\" patches generated tokens: the prompt of a request ends before its "
            "'tokens' do; 'prompt[A:B]' stays within the prompt",
            use->edit->name);
        log_line("%s", sentence);
        if (session.run)
            run_problem(session.run, NULL, "patch_after_prompt", sentence);
    }
}

static struct edit_rows_ask ask_of(struct asking *a)
{
    return (struct edit_rows_ask){ .spec = session.spec,
                                   .sections = sections_of,
                                   .counter = counter_of,
                                   .donor = donor_of,
                                   .has_cached = has_cached,
                                   .arg = a };
}

int edits_step(const struct dmi_step *said, uint64_t sequence, edits_is_over *is_over,
               struct edit_step *out)
{
    *out = (struct edit_step){ .n_held = 0 };
    if (said->tp_size > 1 || said->pp_size > 1 || said->ep_size > 1)
        atomic_store_relaxed(&ranks, 1);
    struct edit_version *now = edits_hold();
    if (!now)
        return 0;
    pthread_mutex_lock(&lock);
    said_ranks = edit_ranks_of(said);
    ranks_known = true;
    pthread_mutex_unlock(&lock);
    requests_end_last(is_over, said, edits_request_end);
    struct asking a = { .said = said, .step = out, .now = now };
    keep(&a, now);
    find_all_donors(&a);
    const struct edit_rows_ask ask = ask_of(&a);
    int r = edit_rows_build(said, &ask, &out->rows);
    if (!r && a.no_memory)
        r = -ENOMEM;
    if (r)
        edits_step_deinit(out);
    else {
        say_unknown_cache(&out->rows, said->flags);
        say_generated(&out->rows);
    }
    note_last(said, sequence);
    return r;
}

void edits_step_deinit(struct edit_step *step)
{
    edit_rows_deinit(&step->rows);
    for (uint32_t i = 0; i < step->n_held; i++)
        version_release(step->held[i]);
    for (uint32_t i = 0; i < step->n_donors; i++)
        donor_release(step->donors[i]);
    free(step->held);
    free(step->donors);
    *step = (struct edit_step){ 0 };
}

void edits_request_end(const char *id)
{
    struct edit_version *v = requests_forget(id);
    version_release(v);
    donors_request_end(id);
    accounts_end(id);
}

int edits_every(struct edit_version *v)
{
    struct edit_step step = { .n_held = 0 };
    struct asking a = { .step = &step, .now = v };
    const struct edit_rows_ask ask = ask_of(&a);
    return edit_rows_build_every(&ask, &v->every);
}

/* ------------------------------------------------------------------------- places, and the end */

bool edits_reach_site(uint32_t site)
{
    struct edit_version *now = edits_hold();
    bool reach = (now && version_acts(now, site)) || requests_any(version_acts, site);
    version_release(now);
    return reach;
}

/* What became of an edit that is in force to the end. */
static void report(const struct edit_use *use)
{
    uint64_t due = 0, written = 0, missed[DMI_EDIT_MISS_COUNT] = { 0 };
    char reasons[256] = "";
    size_t n = 0;
    accounts_sum(use->uid, &due, &written, missed);
    for (uint32_t i = 0; i < DMI_EDIT_MISS_COUNT && n < sizeof reasons; i++)
        if (missed[i])
            n += (size_t)snprintf(reasons + n, sizeof reasons - n, "%s %" PRIu64 " %s",
                                  n ? "," : "; missed:", missed[i], dmi_edit_miss_name(i));
    _cleanup_(freep) char *models =
        run_described(session.run, "edited"); /* where they are several */
    log_line("edit \"%s\" at %s: %" PRIu64 " rows written of %" PRIu64 " due%s%s%s",
             use->edit->name, use->edit->site, written, due, reasons, models ? ", in " : "",
             models ? models : "");
    struct err err = { 0 };
    if (edits_have_ranks() || !places_lack(&err, use)) /* another rank has it */
        return;
    log_line("%s", err.msg);
    run_problem(session.run, use->edit->site, "no_match", err.msg);
}

void edits_finish(void)
{
    if (!session.spec->n_places)
        return;
    accounts_finish();
    struct edit_version *now = edits_hold();
    for (uint32_t i = 0; now && i < now->n; i++)
        report(&now->uses[i]);
    version_release(now);
}

void edits_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    in_force = NULL; /* the parent's */
    ranks_known = false;
    relied = 0;
    in_flight_reset();
    versions_reset();
    requests_reset();
    donors_reset();
    edit_region_reset();
    accounts_reset();
    places_reset();
}
