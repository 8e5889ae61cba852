/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of what is in force: made, noted in the run, and waited for until every context has what they need. */
#include "core/cleanup.h"
#include "core/log.h"
#include "preload/context/edit_region.h"
#include "preload/edit/accounts.h"
#include "preload/edit/edits.h"
#include "preload/edit/in_flight.h"
#include "preload/edit/places.h"
#include "preload/session/session.h"
#include "storage/codec/hash.h"
#include "storage/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define UPLOAD_NS 5000000000u /* for the contexts to have new tables */

static uint64_t n_packs; /* one thread at a time */

static void release(struct edit_version **v)
{
    version_release(*v);
}

/* Its uses are as they will be. */
static int finish(struct err *err, struct edit_version *v)
{
    return edits_every(v) ? err_set(err, -ENOMEM, "no memory") : 0;
}

/* ------------------------------------------------------------------------- noted, and in force */

/* Its edits, as the note has them. */
static void add_uses(struct text *t, const struct edit_version *v)
{
    text_printf(t, ", \"version\": %" PRIu64 ", \"edits\": [", v->number);
    for (uint32_t i = 0; i < v->n; i++) {
        const struct edit_use *use = &v->uses[i];
        text_printf(t, "%s{\"name\": ", i ? ", " : "");
        text_json(t, use->edit->name);
        text_printf(t, ", \"site\": ");
        text_json(t, use->edit->site);
        text_printf(t, ", \"uid\": %" PRIu64 ", \"hash\": \"%016" PRIx64 "\", \"number\": %td",
                    use->uid, use->of->hash, use->edit - use->of->list);
        text_printf(t, "%s%s", use->edit->any_cache ? ", \"cache\": \"ignore\"" : "",
                    use->edit->live ? ", \"live\": true" : "");
        if (use->off)
            text_printf(t, ", \"off\": true");
        if (use->times && use->times->from == EDIT_NUMBER) {
            text_printf(t, ", \"times\": ");
            text_json_double(t, use->times->number);
        }
        text_printf(t, "}");
    }
    text_printf(t, "]");
}

/* Return: 0, or -errno and @err says why the run takes no note. */
static int note(struct err *err, const struct edit_version *v, const char *what, const char *more)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    add_uses(&t, v);
    text_printf(&t, "%s", more ? more : "");
    text_add(&t, "", 1);
    int r = t.failed ? -ENOMEM : session_note_change_with(what, t.data, true);
    return r ? err_set_errno(err, -r, "the run takes no note of it") : 0;
}

/* Takes over @v. @what: in words; @more: as of session_note_change_with(). */
static int publish(struct err *err, struct edit_version *v, const char *what, const char *more,
                   uint64_t *step)
{
    if (!edit_region_wait(UPLOAD_NS)) {
        version_release(v);
        return err_set(err, -ETIMEDOUT, "a context did not take the tables within 5 s");
    }
    int r = note(err, v, what, more);
    if (r) {
        version_release(v);
        return r;
    }
    *step = atomic_load_relaxed(&session.next_step);
    edits_put_in_force(v);
    return 0;
}

/* ------------------------------------------------------------------------- adding */

static struct edits *unpack(struct err *err, const void *pack, size_t n)
{
    struct spec_errors errors = { 0 };
    struct edits *edits = NULL;
    int r = edits_unpack("edits", pack, n, session.spec, &errors, &edits);
    if (r)
        err_set(err, r < 0 ? r : -EINVAL, "%s", errors.n_lines ? errors.lines[0] : "no memory");
    spec_errors_deinit(&errors);
    return edits;
}

static uint32_t number_of(const struct edit_version *v, const char *name)
{
    uint32_t i = 0;
    while (v && i < v->n && strcmp(v->uses[i].edit->name, name))
        i++;
    return v && i < v->n ? i : UINT32_MAX;
}

static int check_names(struct err *err, const struct edit_version *v, const struct edits *edits)
{
    for (uint32_t i = 0; i < edits->n; i++)
        if (number_of(v, edits->list[i].name) != UINT32_MAX)
            return err_set(
                err, -EEXIST,
                "the edit \"%s\" is there already: remove it first, or give another name",
                edits->list[i].name);
    return 0;
}

/* Text and numbers go into a file of the run. Adds to @more which. */
static int keep_pack(struct err *err, const void *pack, size_t n, struct text *more)
{
    char name[64];
    snprintf(name, sizeof name, "edits-%06" PRIu64 ".pack", n_packs);
    int r = run_put_file(session.run, name, pack, n);
    if (r)
        return err_set_errno(err, -r, "%s cannot be written", name);
    n_packs++;
    text_printf(more, ", \"file\": \"%s\", \"bytes\": %zu, \"xxh3\": \"%016" PRIx64 "\"", name, n,
                hash_bytes(pack, n));
    text_add(more, "", 1);
    return more->failed ? err_set(err, -ENOMEM, "no memory") : 0;
}

static void name_all(struct text *t, const struct edits *edits)
{
    for (uint32_t i = 0; i < edits->n; i++)
        text_printf(t, "%s%s", i ? ", " : "", edits->list[i].name);
}

/* Which edit of the version saves rows under the name. Return: UINT32_MAX: none. */
static uint32_t saver_of(const struct edit_version *v, const char *name)
{
    uint32_t i = 0;
    while (i < v->n && !(edit_saves(v->uses[i].edit) && !strcmp(edit_saves(v->uses[i].edit), name)))
        i++;
    return i < v->n ? i : UINT32_MAX;
}

/* Do the edits from number @first on save under names of their own, and take what some edit saves? */
static int check_bank(struct err *err, const struct edit_version *v, uint32_t first)
{
    for (uint32_t i = first; i < v->n; i++) {
        const struct edit *edit = v->uses[i].edit;
        const char *saves = edit_saves(edit), *takes = edit_takes(edit);
        if (saves && saver_of(v, saves) != i)
            return err_set(
                err, -EEXIST,
                "the edit \"%s\" saves rows as \"%s\", as \"%s\" does: give another name",
                edit->name, saves, v->uses[saver_of(v, saves)].edit->name);
        if (takes && saver_of(v, takes) == UINT32_MAX && !donors_have(takes))
            return err_set(err, -ENOENT,
                           "the edit \"%s\" takes rows that no edit saves as \"%s\": add one with "
                           "{save: %s} first, or in the same file",
                           edit->name, takes, takes);
    }
    return 0;
}

/* The version that has them too. @edits is taken over. */
static int prepare(struct err *err, struct edits *edits, struct edit_version **out)
{
    _cleanup_(release) struct edit_version *now = edits_hold();
    int r = check_names(err, now, edits);
    if (r) {
        edits_free(edits);
        return r;
    }
    struct edit_version *v = version_new(err, now, UINT32_MAX, edits);
    r = v ? check_bank(err, v, now ? now->n : 0) : err->code;
    struct edit_ranks ranks;
    bool known = edits_ranks(&ranks);
    r = !r ? places_check(err, v, now ? now->n : 0, known ? &ranks : NULL) : err->code;
    if (r)
        version_release(v);
    else
        *out = v;
    return r;
}

int edits_check(struct err *err, const void *pack, size_t n)
{
    struct edit_version *v = NULL;
    struct edits *edits = unpack(err, pack, n);
    int r = edits ? prepare(err, edits, &v) : err->code;
    version_release(v);
    return r;
}

/* No step was before: what is the same everywhere needs no salt. */
static void mark_everywhere(struct edit_version *v)
{
    for (uint32_t i = 0; i < v->n; i++)
        v->uses[i].everywhere = edit_is_constant(v->uses[i].edit, v->uses[i].of);
}

static int add(struct err *err, const void *pack, size_t n, const char *who, bool first,
               uint64_t *step)
{
    _cleanup_(text_deinit) struct text what = { 0 }, more = { 0 };
    struct edit_version *v = NULL;
    struct edits *edits = unpack(err, pack, n);
    if (!edits)
        return err->code;
    text_printf(&what, "edits add ");
    name_all(&what, edits);
    text_printf(&what, "%s", who);
    text_add(&what, "", 1);
    int r = prepare(err, edits, &v);
    if (!r && what.failed)
        r = err_set(err, -ENOMEM, "no memory");
    if (!r && first)
        mark_everywhere(v);
    if (!r)
        r = finish(err, v);
    if (!r)
        r = keep_pack(err, pack, n, &more);
    if (!r)
        return publish(err, v, what.data, more.data, step);
    version_release(v);
    return r;
}

int edits_add(struct err *err, const void *pack, size_t n, const char *who, uint64_t *step)
{
    return add(err, pack, n, who, false, step);
}

/* All of a file, which may change meanwhile. Return: NULL, and @err says why. */
static char *read_file(struct err *err, const char *path, size_t *n)
{
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) {
        err_set_errno(err, errno, "it cannot be read");
        return NULL;
    }
    _cleanup_(freep) char *data = S_ISREG(st.st_mode) ? malloc((size_t)st.st_size + 1) : NULL;
    ssize_t got = 1;
    for (*n = 0; data && got > 0 && *n < (size_t)st.st_size;) {
        got = read(fd, data + *n, (size_t)st.st_size - *n);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0)
            *n += (size_t)got;
    }
    if (!data || !*n || got < 0) {
        err_set(err, -EINVAL, "it cannot be read");
        return NULL;
    }
    return steal_ptr(data);
}

/* The first edits. As edits_add(). */
static int add_file(struct err *err, const char *path)
{
    size_t n;
    uint64_t step;
    _cleanup_(freep) char *data = read_file(err, path, &n);
    return data ? add(err, data, n, ", from the first step on", true, &step) : err->code;
}

/* ------------------------------------------------------------------------- changing and removing */

/* Return: its number, UINT32_MAX, and @err says so, where there is none. */
static uint32_t find(struct err *err, const struct edit_version *now, const char *name)
{
    uint32_t i = number_of(now, name);
    if (i == UINT32_MAX)
        err_set(err, -ENOENT, "no edit is called \"%s\"%s", name,
                now && now->n ? "; list names them" : ": there is none");
    return i;
}

/* Rows of cached prefixes would keep what they have of it. */
static int refuse_cached(struct err *err, const struct edit_use *use)
{
    if (!use->everywhere || !edits_lie_in_caches())
        return 0;
    return err_set(err, -EBUSY,
                   "the edit \"%s\" writes without a salt, as it was the same in all requests from "
                   "the first step on: prefixes that "
                   "the engine caches have it, and it cannot change. Begin the command again; an "
                   "edit with \"cache: ignore\" may "
                   "change",
                   use->edit->name);
}

static void add_words(struct text *t, const struct edit_coefficient *times, int on)
{
    if (times) {
        text_printf(t, " times=");
        text_json_double(t, times->number);
    }
    if (on >= 0)
        text_printf(t, on ? " on" : " off");
}

int edits_set(struct err *err, const char *name, const struct edit_coefficient *times, int on,
              const char *who, uint64_t *step)
{
    _cleanup_(release) struct edit_version *now = edits_hold();
    _cleanup_(text_deinit) struct text what = { 0 };
    uint32_t i = find(err, now, name);
    if (i == UINT32_MAX || refuse_cached(err, &now->uses[i]))
        return err->code;
    struct edit_version *v = version_new(err, now, UINT32_MAX, NULL);
    if (!v)
        return err->code;
    struct edit_use *use = &v->uses[i];
    use->everywhere = false;
    if (on >= 0)
        use->off = !on;
    if (times && !use->times)
        use->times = malloc(sizeof *use->times);
    if (times && use->times)
        *use->times = *times;
    text_printf(&what, "edits set %s", name);
    add_words(&what, times, on);
    text_printf(&what, "%s", who);
    text_add(&what, "", 1);
    int r =
        what.failed || (times && !use->times) ? err_set(err, -ENOMEM, "no memory") : finish(err, v);
    if (!r)
        return publish(err, v, what.data, NULL, step);
    version_release(v);
    return r;
}

int edits_remove(struct err *err, const char *name, const char *who, uint64_t *step)
{
    _cleanup_(release) struct edit_version *now = edits_hold();
    _cleanup_(text_deinit) struct text what = { 0 };
    uint32_t i = find(err, now, name);
    if (i == UINT32_MAX || refuse_cached(err, &now->uses[i]))
        return err->code;
    struct edit_version *v = version_new(err, now, i, NULL);
    text_printf(&what, "edits remove %s%s", name, who);
    text_add(&what, "", 1);
    int r = !v ? err->code : what.failed ? err_set(err, -ENOMEM, "no memory") : finish(err, v);
    if (!r)
        return publish(err, v, what.data, NULL, step);
    version_release(v);
    return r;
}

/* ------------------------------------------------------------------------- start */

static void settle(void)
{
    accounts_settle();
    in_flight_settle();
}

static const struct edit_watch watch = { .collect = accounts_collect, .settle = settle };

static void note_request(const char *what, const char *more)
{
    session_note_change_with(what, more, false);
}

void edits_start(void)
{
    const char *path = getenv("DMI_EDITS");
    struct err err = { 0 };
    if (!session.spec->n_places)
        return;
    accounts_start(run_edits(session.run), note_request);
    edit_region_start(session.spec->edit_bytes, &watch);
    /* requests that begin before the first edit have none until they end */
    struct edit_version *none = version_new(&err, NULL, UINT32_MAX, NULL);
    if (!none || finish(&err, none)) {
        log_line("no edit can come into force: %s", err.msg);
        version_release(none);
        return;
    }
    edits_put_in_force(none);
    if (path && *path && add_file(&err, path))
        log_line("%s: %s: no edit is in force", path, err.msg);
}
