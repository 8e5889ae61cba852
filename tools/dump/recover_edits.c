/* SPDX-License-Identifier: Apache-2.0 */
/* What the old run has of edits: the accounts, what a kill took counted as lost, and the files that notes of changes name. */
#include "tools/dump/recover.h"

#include "core/cleanup.h"
#include "read/edit_history.h"
#include "read/edit_packs.h"

#include <stdlib.h>
#include <string.h>

static void copy_accounts(struct recovery *x)
{
    const struct reader_edits *old = &reader_run(x->reader)->edits;
    struct dmi_edit_accounts *to = run_edits(x->run);
    if (to && !old->known)
        run_drop_edits(x->run, "the run that was recovered has no such file that can be read");
    if (!to || !old->known)
        return;
    to->ended = old->ended;
    to->marked = old->marked;
    to->in_force = old->in_force;
    for (size_t i = 0, n = 0; i < old->n && n < to->n; i++) {
        const struct reader_edit_account *a = &old->accounts[i];
        if (!a->holds) /* it says nothing that can be believed, and is named */
            continue;
        struct dmi_edit_account *out = &to->accounts[n++];
        *out = *a->at;
        out->missed[DMI_EDIT_MISS_LOST] += a->lost;
        x->lost.n_edit_rows += a->lost;
    }
}

static void copy_pack(struct recovery *x, const char *name)
{
    void *data = NULL;
    size_t n = 0;
    if (!reader_is_edits_file(name) || edit_packs_load(reader_run(x->reader), name, &data, &n) ||
        run_put_file(x->run, name, data, n))
        x->lost.n_packs++;
    free(data);
}

int recover_edits(struct recovery *x)
{
    _cleanup_(edit_history_deinit) struct edit_history h = { 0 };
    int r = edit_history_build(x->reader, &h);
    for (size_t i = 0; !r && i < h.n; i++) {
        const char *name = edit_text(h.changes[i].note, "file");
        if (*name)
            copy_pack(x, name);
    }
    copy_accounts(x);
    return r;
}
