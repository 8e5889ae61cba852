/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What became of the rows that edits want: the file `edits`, which the process updates while it runs. And what the edits were: files that
 * notes of changes name. Source: docs/format.md 10.2.
 */
#include "core/cleanup.h"
#include "storage/codec/hash.h"
#include "storage/reader/reader_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FILE_NAME "edits"

/* ------------------------------------------------------------------------- accounts */

static bool has_places(const struct reader *r)
{
    for (size_t i = 0; i < r->said.n_sites; i++)
        if (r->said.sites[i].writes)
            return true;
    return false;
}

static bool is_of_run(const struct reader *r, const struct dmi_edit_accounts *e, size_t n)
{
    return n == sizeof *e + (uint64_t)e->n * sizeof e->accounts[0] &&
           (!r->said.have_uuid || !memcmp(e->run_uuid, r->said.uuid, sizeof e->run_uuid));
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
    if (res) {
        reader_note(&r->notes, true, FILE_NAME, -1, 0, "missing or unreadable: %s", strerror(-res));
        return 0;
    }
    struct dmi_edit_accounts *e = (struct dmi_edit_accounts *)data;
    bool ours = n >= sizeof *e && e->magic == DMI_EDIT_ACCOUNTS_MAGIC;
    if (ours && e->version != DMI_EDIT_ACCOUNTS_VERSION)
        reader_note_unknown(&r->notes, FILE_NAME, -1, 0, "of version %" PRIu32 ", not used",
                            e->version);
    else if (!ours || !is_of_run(r, e, n))
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

/* What is due is counted before the rest: of an account that goes on it comes from the later reading. */
static void take_due(struct dmi_edit_accounts *now, const struct dmi_edit_accounts *after)
{
    for (uint32_t i = 0; i < now->n && i < after->n; i++)
        if (same_account(&now->accounts[i], &after->accounts[i]))
            now->accounts[i].due = after->accounts[i].due;
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

/* What is wrong with an account, NULL: nothing. */
static const char *account_wrong(const struct dmi_edit_account *a)
{
    if (a->state > DMI_EDIT_ACCOUNT_TOTAL)
        return "its state is none";
    if (a->n_request >= sizeof a->request || !memchr(a->edit, 0, sizeof a->edit))
        return "its texts do not end";
    return NULL;
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

static void note_account(struct reader *r, uint32_t i, const char *wrong)
{
    reader_note(&r->notes, true, FILE_NAME, -1,
                sizeof *r->edits + i * (uint64_t)sizeof r->edits->accounts[0],
                "an account contradicts itself, and is left out: %s", wrong);
}

static void note_sum(struct reader *r, uint32_t i, const struct reader_edit_account *a)
{
    reader_note(&r->notes, true, FILE_NAME, -1,
                sizeof *r->edits + i * (uint64_t)sizeof r->edits->accounts[0],
                "edit %s: written + missed is not due: %" PRIu64 " rows written + %" PRIu64
                " missed, %" PRIu64 " due",
                a->at->edit, a->at->written, a->missed, a->at->due);
}

static void fill(struct reader *r, struct reader_edit_account *list)
{
    struct reader_edits *to = &r->run.edits;
    for (uint32_t i = 0; i < r->edits->n; i++) {
        const struct dmi_edit_account *at = &r->edits->accounts[i];
        const char *wrong = account_wrong(at);
        if (wrong)
            note_account(r, i, wrong);
        if (wrong || at->state == DMI_EDIT_ACCOUNT_FREE)
            continue;
        list[to->n] = judge(at, r->run.state);
        if (!list[to->n].holds)
            note_sum(r, i, &list[to->n]);
        to->n++;
    }
}

int reader_take_edits(struct reader *r)
{
    int res = has_places(r) ? load_settled(r, &r->edits) : 0;
    if (res || !r->edits)
        return res;
    struct reader_edit_account *list = calloc(r->edits->n + 1u, sizeof *list);
    if (!list)
        return -ENOMEM;
    r->run.edits = (struct reader_edits){ .known = true,
                                          .accounts = list,
                                          .ended = r->edits->ended,
                                          .marked = r->edits->marked,
                                          .in_force = r->edits->in_force };
    fill(r, list);
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
    const char *name = reader_text_of(note, "file"), *said = reader_text_of(note, "xxh3");
    _cleanup_(freep) uint8_t *data = NULL;
    char is[17];
    size_t n = 0;
    if (!reader_is_edits_file(name)) {
        reader_note(&r->notes, true, FILE_NAME, -1, 0,
                    "a change names a file of edits that is none");
        return;
    }
    int res = reader_load(r, name, reader_number_of(note, "bytes"), &data, &n);
    snprintf(is, sizeof is, "%016" PRIx64, res ? 0 : hash_bytes(data, n));
    if (res && res != -EFBIG)
        reader_note(&r->notes, true, name, -1, 0, "a change names it; missing or unreadable: %s",
                    strerror(-res));
    else if (res || n != reader_number_of(note, "bytes") || !said || strcmp(is, said))
        reader_note(&r->notes, true, name, -1, 0,
                    "does not match size and checksum in the change that names it");
}

int reader_check_packs(struct reader *r)
{
    for (size_t i = 0; r->place.dir >= 0 && i < r->run.n_changes; i++) {
        const char *more = r->run.changes[i].more;
        json_t *note = more ? reader_parse_json(more, strlen(more)) : NULL;
        if (json_object_get(note, "version") && json_object_get(note, "file"))
            check_pack(r, note);
        json_decref(note);
    }
    return 0;
}
