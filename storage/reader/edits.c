/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What became of the rows that edits want: the file `edits`, which the process updates while it runs. And what the edits were: files that
 * notes of changes name. Source: docs/format.md 10.2.
 */
#include "core/any.h"
#include "core/cleanup.h"
#include "storage/codec/hash.h"
#include "storage/reader/reader_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_NAME "edits"

/* ------------------------------------------------------------------------- accounts */

static bool has_places(const struct reader *r)
{
    return ANY(i, r->said.n_sites, r->said.sites[i].writes);
}

static bool is_of_run(const struct reader *r, const struct dmi_edit_accounts *e, size_t n)
{
    return n == sizeof *e + (uint64_t)e->n * sizeof e->accounts[0] &&
           (!r->said.have_uuid || !memcmp(e->run_uuid, r->said.uuid, sizeof e->run_uuid));
}

/* Once the run is closed the manifest has size and hash; the manifest of an older run has neither. Return: they hold, or there are none. */
static bool check_hash(struct reader *r, const void *data, size_t n)
{
    const json_t *said = json_object_get(r->said.manifest, FILE_NAME);
    const char *hash = object_text(said, "xxh3");
    char is[17];
    if (r->run.state != READER_CLOSED || !json_is_object(said))
        return true;
    snprintf(is, sizeof is, "%016" PRIx64, hash_bytes(data, n));
    bool holds = n == object_number(said, "bytes") && hash && !strcmp(hash, is);
    if (!holds)
        reader_note(&r->notes, true, FILE_NAME, -1, 0,
                    "does not match size and checksum in the manifest");
    return holds;
}

/* Sets *@out, NULL where it cannot be used: that is noted. Return: 0 or -ENOMEM. */
static int load(struct reader *r, struct dmi_edit_accounts **out)
{
    uint8_t *data = NULL;
    size_t n;
    int res = reader_load(r, FILE_NAME, DMI_MAX_JSON, &data, &n);
    *out = NULL;
    if (res == -ENOMEM)
        return res;
    if (res == -ENOENT && json_is_null(json_object_get(r->said.manifest, FILE_NAME))) {
        reader_note(&r->notes, false, FILE_NAME, -1, 0,
                    "the process could not create it: what became of rows that edits want is not "
                    "known");
        return 0;
    }
    if (res) {
        reader_note(&r->notes, true, FILE_NAME, -1, 0, "missing or unreadable: %s", strerror(-res));
        return 0;
    }
    struct dmi_edit_accounts *e = (struct dmi_edit_accounts *)data;
    bool ours = n >= sizeof *e && e->magic == DMI_EDIT_ACCOUNTS_MAGIC;
    bool holds = check_hash(r, data, n);
    if (ours && holds && e->version != DMI_EDIT_ACCOUNTS_VERSION)
        reader_note_unknown(&r->notes, FILE_NAME, -1, 0, "of version %" PRIu32 ", not used",
                            e->version);
    else if (!ours || e->version != DMI_EDIT_ACCOUNTS_VERSION || !is_of_run(r, e, n))
        reader_note(&r->notes, true, FILE_NAME, -1, 0, "damaged or of another run; not used");
    else
        *out = (struct dmi_edit_accounts *)steal_ptr(data);
    free(data);
    return 0;
}

static bool same_account(const struct dmi_edit_account *a, const struct dmi_edit_account *b)
{
    return a->uid == b->uid && a->state == b->state && a->n_request == b->n_request &&
           !memcmp(a->edit, b->edit, sizeof a->edit) &&
           !memcmp(a->request, b->request, sizeof a->request);
}

/*
 * What is due is counted before the rest: of an account that goes on it comes from the later reading. An account that began or ended between
 * the two is left out.
 */
static void take_due(struct dmi_edit_accounts *now, const struct dmi_edit_accounts *after)
{
    for (uint32_t i = 0; i < now->n && i < after->n; i++)
        if (same_account(&now->accounts[i], &after->accounts[i]))
            now->accounts[i].due = after->accounts[i].due;
        else
            now->accounts[i].state = DMI_EDIT_ACCOUNT_FREE;
}

/* Return: 0 or -ENOMEM. */
static int load_settled(struct reader *r, struct dmi_edit_accounts **out)
{
    struct dmi_edit_accounts *after = NULL;
    int res = load(r, out);
    if (!res && *out && r->run.state == READER_RUNNING)
        res = load(r, &after);
    if (after)
        take_due(*out, after);
    free(after);
    return res;
}

/* Is all after the text that begins at @text zero? */
static bool ends(const char *text, size_t n_text, size_t n)
{
    while (n_text < n && !text[n_text])
        n_text++;
    return n_text == n;
}

/* What is wrong with an account that is in use, NULL: nothing. */
static const char *account_wrong(const struct dmi_edit_account *a)
{
    if (a->state > DMI_EDIT_ACCOUNT_TOTAL)
        return "its state is none";
    if (a->n_request >= sizeof a->request || !memchr(a->edit, 0, sizeof a->edit))
        return "its texts do not end";
    if (!a->uid || !a->edit[0])
        return "it is of no edit";
    if (a->state != DMI_EDIT_ACCOUNT_OPEN && a->n_request)
        return "a sum over requests names one";
    if (!ends(a->edit, strlen(a->edit), sizeof a->edit) ||
        !ends(a->request, a->n_request, sizeof a->request))
        return "bytes that are 0 are not";
    return NULL;
}

/* ------------------------------------------------------------------------- what notes of changes call the edits */

struct edit_name {
    uint64_t uid;
    char *name; /* NULL: no note has named it */
};

struct edit_names {
    struct edit_name *list; /* those of the accounts, ascending */
    size_t n, n_named;
    uint64_t greatest; /* uid that any note names */
    bool complete;     /* all notes of the run are there */
};

static int by_uid(const void *pa, const void *pb)
{
    const struct edit_name *a = pa, *b = pb;
    return a->uid < b->uid ? -1 : a->uid > b->uid;
}

static struct edit_name *name_of(const struct edit_names *names, uint64_t uid)
{
    const struct edit_name key = { .uid = uid };
    return names->n ? bsearch(&key, names->list, names->n, sizeof key, by_uid) : NULL;
}

static void free_names(struct edit_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->list[i].name);
    free(names->list);
}

/* Of the edits that a note says are in force. Return: 0 or -ENOMEM. */
static int take_names(struct edit_names *names, const json_t *note)
{
    const json_t *edits = json_object_get(note, "edits"), *one;
    size_t i;
    if (!json_is_integer(json_object_get(note, "version")))
        return 0;
    json_array_foreach(edits, i, one)
    {
        uint64_t uid = object_number(one, "uid");
        const char *text = object_text(one, "name");
        struct edit_name *name = name_of(names, uid);
        names->greatest = uid > names->greatest ? uid : names->greatest;
        if (!name || name->name || !text)
            continue;
        name->name = strdup(text);
        if (!name->name)
            return -ENOMEM;
        names->n_named++;
    }
    return 0;
}

static void list_uids(const struct dmi_edit_accounts *e, struct edit_names *names)
{
    size_t n = 0;
    for (uint32_t i = 0; i < e->n; i++)
        if (e->accounts[i].state != DMI_EDIT_ACCOUNT_FREE)
            names->list[names->n++].uid = e->accounts[i].uid;
    qsort(names->list, names->n, sizeof *names->list, by_uid);
    for (size_t i = 0; i < names->n; i++)
        if (!i || names->list[i].uid != names->list[n - 1].uid)
            names->list[n++].uid = names->list[i].uid;
    names->n = n;
}

/* The latest notes first: they name all that is in force. Return: 0 or -ENOMEM. */
static int find_names(const struct reader *r, struct edit_names *names)
{
    int res = 0;
    names->list = calloc(r->edits->n + 1u, sizeof *names->list);
    if (!names->list)
        return -ENOMEM;
    list_uids(r->edits, names);
    names->complete = true;
    for (size_t i = 0; i < r->run.n_changes; i++)
        names->complete = names->complete && r->run.changes[i].number == i;
    for (size_t i = r->run.n_changes; !res && i && names->n_named < names->n; i--) {
        const char *more = r->run.changes[i - 1].more;
        json_t *note = more ? object_parse(more, strlen(more)) : NULL;
        res = take_names(names, note);
        json_decref(note);
    }
    return res;
}

/*
 * What notes say against the account, NULL: nothing. *@damage: else it is an edit whose note may not have reached the disk, or was read
 * too early.
 */
static const char *name_wrong(const struct reader *r, const struct edit_names *names,
                              const struct dmi_edit_account *a, bool *damage)
{
    const struct edit_name *name = name_of(names, a->uid);
    bool later = a->uid > names->greatest && r->run.state != READER_CLOSED;
    *damage = true;
    if (name && name->name)
        return strcmp(name->name, a->edit) ? "the changes call its edit otherwise" : NULL;
    if (!names->complete || (later && r->run.state == READER_RUNNING))
        return NULL;
    *damage = !later;
    return "no change names its edit";
}

static struct reader_edit_account judge(const struct dmi_edit_account *a, enum reader_state state)
{
    struct reader_edit_account out = { .at = a };
    bool fits = true;
    for (uint32_t k = 0; k < DMI_EDIT_MISS_ROOM; k++)
        fits &= reader_add(&out.missed, a->missed[k]);
    uint64_t known = a->written;
    fits &= reader_add(&known, out.missed);
    out.lost = a->due > known ? a->due - known : 0;
    out.holds = fits && (state == READER_RUNNING || known == a->due ||
                         (state == READER_KILLED && known < a->due));
    return out;
}

static void note_account(struct reader *r, uint32_t i, const char *wrong, bool damage)
{
    reader_note(&r->notes, damage, FILE_NAME, -1,
                sizeof *r->edits + i * (uint64_t)sizeof r->edits->accounts[0],
                damage ? "an account contradicts itself, and is left out: %s" : "an account: %s",
                wrong);
}

static void note_sum(struct reader *r, uint32_t i, const struct reader_edit_account *a)
{
    reader_note(&r->notes, true, FILE_NAME, -1,
                sizeof *r->edits + i * (uint64_t)sizeof r->edits->accounts[0],
                "edit %s: written + missed is not due: %" PRIu64 " rows written + %" PRIu64
                " missed, %" PRIu64 " due",
                a->at->edit, a->at->written, a->missed, a->at->due);
}

static void fill(struct reader *r, const struct edit_names *names, struct reader_edit_account *list)
{
    struct reader_edits *to = &r->run.edits;
    for (uint32_t i = 0; i < r->edits->n; i++) {
        const struct dmi_edit_account *at = &r->edits->accounts[i];
        bool damage = true;
        if (at->state == DMI_EDIT_ACCOUNT_FREE)
            continue;
        const char *wrong = account_wrong(at);
        if (!wrong)
            wrong = name_wrong(r, names, at, &damage);
        if (wrong)
            note_account(r, i, wrong, damage);
        if (wrong && damage)
            continue;
        list[to->n] = judge(at, r->run.state);
        if (!list[to->n].holds)
            note_sum(r, i, &list[to->n]);
        to->n++;
    }
}

static void check_head(struct reader *r)
{
    const struct dmi_edit_accounts *e = r->edits;
    if (e->reserved || e->marked > e->ended)
        reader_note(&r->notes, true, FILE_NAME, -1, 0, "its head contradicts itself: %s",
                    e->reserved ? "bytes that are 0 are not"
                                : "more accounts have a row that was missed than have ended");
}

int reader_take_edits(struct reader *r)
{
    bool places = has_places(r);
    int res = places ? load_settled(r, &r->edits) : 0;
    r->run.edits.missing = places && !r->edits;
    if (res || !r->edits)
        return res;
    struct edit_names names = { 0 };
    struct reader_edit_account *list = calloc(r->edits->n + 1u, sizeof *list);
    res = list ? find_names(r, &names) : -ENOMEM;
    if (res) {
        free_names(&names);
        free(list);
        return res;
    }
    check_head(r);
    r->run.edits = (struct reader_edits){ .known = true,
                                          .accounts = list,
                                          .ended = r->edits->ended,
                                          .marked = r->edits->marked,
                                          .in_force = r->edits->in_force };
    fill(r, &names, list);
    free_names(&names);
    return 0;
}

void reader_forget_edits(struct reader *r)
{
    free((void *)(uintptr_t)r->run.edits.accounts);
    r->run.edits = (struct reader_edits){ 0 };
    free(r->edits);
    r->edits = NULL;
}

/* ------------------------------------------------------------------------- files that notes name */

bool reader_is_edits_file(const char *name)
{
    char again[32];
    unsigned n;
    if (!name || sscanf(name, "edits-%9u.pack", &n) != 1)
        return false;
    snprintf(again, sizeof again, "edits-%06u.pack", n);
    return !strcmp(again, name);
}

static void check_pack(struct reader *r, const json_t *note)
{
    const char *name = object_text(note, "file"), *said = object_text(note, "xxh3");
    _cleanup_(freep) uint8_t *data = NULL;
    char is[17];
    size_t n = 0;
    if (!reader_is_edits_file(name)) {
        reader_note(&r->notes, true, FILE_NAME, -1, 0,
                    "a change names a file of edits that is none");
        return;
    }
    int res = reader_load(r, name, object_number(note, "bytes"), &data, &n);
    snprintf(is, sizeof is, "%016" PRIx64, res ? 0 : hash_bytes(data, n));
    if (res && res != -EFBIG)
        reader_note(&r->notes, true, name, -1, 0, "a change names it; missing or unreadable: %s",
                    strerror(-res));
    else if (res || n != object_number(note, "bytes") || !said || strcmp(is, said))
        reader_note(&r->notes, true, name, -1, 0,
                    "does not match size and checksum in the change that names it");
}

int reader_check_packs(struct reader *r)
{
    for (size_t i = 0; r->place.dir >= 0 && i < r->run.n_changes; i++) {
        const char *more = r->run.changes[i].more;
        json_t *note = more ? object_parse(more, strlen(more)) : NULL;
        if (json_object_get(note, "version") && json_object_get(note, "file"))
            check_pack(r, note);
        json_decref(note);
    }
    return 0;
}
