/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/top/view_edits.h"

#include "core/grow.h"

#include <errno.h>
#include <string.h>

/* The edit of that name, added where there is none; NULL without memory. */
static struct view_edit *find(struct top_view *v, const char *name)
{
    for (size_t i = 0; i < v->n_edits; i++)
        if (!strcmp(v->edits[i].name, name))
            return &v->edits[i];
    if (GROW(v->edits, v->n_edits, v->edits_room))
        return NULL;
    v->edits[v->n_edits] = (struct view_edit){ .name = name };
    return &v->edits[v->n_edits++];
}

static void add_account(struct view_edit *to, const struct dmi_edit_account *a)
{
    to->due += a->due;
    to->written += a->written;
    for (uint32_t k = 0; k < DMI_EDIT_MISS_ROOM; k++) {
        to->missed += a->missed[k];
        to->missed_by[k] += a->missed[k];
    }
}

/* Rows of one name are in several accounts, and move from one to another when their request ends. */
static uint64_t written_of(const struct dmi_edit_accounts *accounts, const char *name)
{
    uint64_t n = 0;
    for (uint32_t i = 0; accounts && i < accounts->n; i++)
        if (accounts->accounts[i].state != DMI_EDIT_ACCOUNT_FREE &&
            !strcmp(accounts->accounts[i].edit, name))
            n += accounts->accounts[i].written;
    return n;
}

static void add_counts(struct view_counts *to, const struct dmi_edit_accounts *accounts)
{
    to->edits_in_force += accounts->in_force;
    for (uint32_t i = 0; i < accounts->n; i++) {
        const struct dmi_edit_account *a = &accounts->accounts[i];
        if (a->state == DMI_EDIT_ACCOUNT_FREE)
            continue;
        to->edit_rows_due += a->due;
        to->edit_rows_written += a->written;
        for (uint32_t k = 0; k < DMI_EDIT_MISS_ROOM; k++)
            to->edit_rows_missed += a->missed[k];
    }
}

int view_add_edits(struct top_view *v, const struct top_run *run)
{
    const struct dmi_edit_accounts *now = run->now.edits;
    const struct dmi_edit_accounts *before = run->before.edits ? run->before.edits : now;
    for (uint32_t i = 0; now && i < now->n; i++) {
        const struct dmi_edit_account *a = &now->accounts[i];
        struct view_edit *edit = a->state == DMI_EDIT_ACCOUNT_FREE ? NULL : find(v, a->edit);
        if (!edit && a->state != DMI_EDIT_ACCOUNT_FREE)
            return -ENOMEM;
        if (edit)
            add_account(edit, a);
    }
    if (!now)
        return 0;
    v->has_edits = true;
    add_counts(&v->now, now);
    add_counts(&v->before, before);
    for (size_t i = 0; i < v->n_edits; i++)
        v->edits[i].written_before += written_of(before, v->edits[i].name);
    return 0;
}
