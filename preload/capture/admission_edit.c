/* SPDX-License-Identifier: Apache-2.0 */
/* The part of admission.h that is about places for edits: what is due at a launch, and what becomes of it. */
#include "preload/capture/admission_private.h"
#include "preload/capture/forward.h"
#include "preload/edit/accounts.h"
#include "preload/edit/edits.h"
#include "preload/edit/places.h"

/* What edits do in the launch's step, or without one. */
static const struct edit_rows *rows_of(const struct admission_launch *l)
{
    return l->step ? &l->step->edits.rows : l->edits ? &l->edits->every : NULL;
}

static const struct edit *edit_of(const struct edit_share *share)
{
    const struct edit_version *version = share->owner;
    return version->uses[share->edit].edit;
}

/* A tensor of other vectors than the edit's, or one of which this rank lacks something that the edit sums. */
static void report_misfit(const struct edit_share *share, const struct admission *item,
                          const struct dmi_edit_part *p, uint32_t n, uint32_t fits)
{
    if (fits == DMI_EDIT_DIVIDED)
        session_problem(
            item->site, PROBLEM_UNSUPPORTED,
            "the edit \"%s\" writes nothing here: it needs a sum over a row that ranks "
            "divide; one over each head is possible where each head lies on one rank: a vector "
            "as long as a head, or \"heads\"",
            edit_of(share)->name);
    else
        session_problem(
            item->site, PROBLEM_UNSUPPORTED,
            "the edit \"%s\" has vectors of %u elements, columns or heads that do not suit "
            "rows of %u elements: it writes nothing here",
            edit_of(share)->name, p->width, n);
}

/* What ranks cannot do. @stepless: no step says which rank this is. */
static void report_rank(const struct edit_share *share, const struct admission *item, bool stepless)
{
    char why[256];
    struct dmi_edit_cut cut;
    struct edit_ranks ranks;
    bool known = !stepless && edits_ranks(&ranks);
    if (edit_by_rank(edit_of(share), session.spec, known ? &ranks : NULL, &cut, why, sizeof why) ==
        EDIT_RANK_CANNOT)
        session_problem(item->site, PROBLEM_UNSUPPORTED, "the edit \"%s\" writes nothing here: %s",
                        edit_of(share)->name, why);
}

/* One edit in several passes of a layer is more than most who write it think of. Kernels without layers are launched as often as they are. */
static void report_passes(const struct edit_share *share, const struct admission *item)
{
    if (item->layer < 0 && !session_site(item->site)->about.tap)
        return;
    session_problem(item->site, PROBLEM_PASSES,
                    "layer %d ran more than once in a forward: the edit \"%s\" %s in each pass; "
                    "\"pass: N\" in the edit names one",
                    (int)item->layer, edit_of(share)->name,
                    edit_saves(edit_of(share)) ? "saves rows" : "writes");
}

/* Why rows are missed in a launch whose pass is not known. */
static int miss_of_pass(const struct admission *item, const struct dmi_edit_part *p)
{
    if (!p->pass || item->pass != FORWARD_NO_PASS)
        return EDIT_NO_MISS;
    return item->doubt == CONTEXT_UNCOUNTED ? DMI_EDIT_MISS_UNSUPPORTED : DMI_EDIT_MISS_NO_STEP;
}

/* What the share's version does at the place, in the item's layer. Return: its table. */
static const struct edit_table *parts_at(const struct edit_share *share,
                                         const struct admission *item,
                                         const struct dmi_edit_part **first,
                                         const struct dmi_edit_part **end)
{
    uint32_t n;
    const struct edit_table *table = version_table(share->owner);
    *first = edit_table_parts(table, session_site(item->site)->write.place, item->layer, &n);
    *end = *first + n;
    return table;
}

/*
 * Rows that are due here by @sign, and, with a reason (EDIT_NO_MISS: none), those that could have been written missed by it. Return:
 * whether anything is due.
 */
static bool account(const struct admission_launch *l, const struct admission *item, int sign,
                    int why)
{
    const struct edit_rows *rows = rows_of(l);
    bool saves = session_site(item->site)->action == SPEC_SAVE;
    const struct dmi_edit_shape row = view_shape(&item->operand->view);
    const struct edit_table *table = NULL;
    const struct dmi_edit_part *p = NULL, *end = NULL;
    bool any = false;
    for (uint32_t i = 0; i < rows->n_shares; i++) {
        const struct edit_share *share = &rows->shares[i];
        if (!i || share->owner != rows->shares[i - 1].owner)
            table = parts_at(share, item, &p, &end);
        while (p < end && p->edit < share->edit)
            p++;
        if (p == end || p->edit != share->edit || (edit_saves(edit_of(share)) != NULL) != saves ||
            (item->pass != FORWARD_NO_PASS && !DMI_EDIT_IN_PASS(p, item->at)))
            continue;
        int64_t n_rows =
            sign * (int64_t)(rows->every ? item->operand->view.dims[0] : share->n_rows);
        int miss = share->miss != EDIT_NO_MISS ? share->miss : miss_of_pass(item, p);
        miss = miss != EDIT_NO_MISS ? miss : why;
        uint32_t fits = !row.n ? DMI_EDIT_FITS : edit_part_fit(table, p, row, share->cut).fits;
        if (fits == DMI_EDIT_ELSEWHERE)
            continue; /* ranks that have what it names do it */
        if (fits != DMI_EDIT_FITS && share->miss == EDIT_NO_MISS) {
            miss = fits == DMI_EDIT_DIVIDED ? DMI_EDIT_MISS_RANK : DMI_EDIT_MISS_WIDTH;
            if (sign > 0)
                report_misfit(share, item, p, row.n, fits);
        }
        if (share->miss == DMI_EDIT_MISS_RANK && sign > 0)
            report_rank(share, item, rows->every);
        if (item->pass && item->pass != FORWARD_NO_PASS && !p->pass && miss == EDIT_NO_MISS &&
            sign > 0)
            report_passes(share, item);
        accounts_due(share->counter, n_rows);
        if (miss != EDIT_NO_MISS)
            accounts_missed(share->counter, (enum dmi_edit_miss)miss, n_rows);
        any = true;
    }
    return any;
}

/* What hinders a launch, as accounts say it. */
static enum dmi_edit_miss miss_of(int drop)
{
    switch (drop) {
    case DMI_DROP_BAD_POINTER:
    case DMI_DROP_BAD_EXPR: return DMI_EDIT_MISS_BAD_POINTER;
    case DMI_DROP_COPY_FAILED: return DMI_EDIT_MISS_DRIVER;
    case DMI_DROP_NO_MEMORY: return DMI_EDIT_MISS_NO_ROOM;
    default: return DMI_EDIT_MISS_UNSUPPORTED;
    }
}

/* Why no edit writes in the launch, whatever becomes of it. */
static int miss_of_step(const struct admission_launch *l)
{
    return l->edits_differ ? (int)DMI_EDIT_MISS_NO_STEP : EDIT_NO_MISS;
}

/* Rows that were due are missed after all; only those that could have been written. */
static void miss_rows(const struct admission_launch *l, const struct admission *item, int drop)
{
    if (l->edits_differ)
        return;
    account(l, item, -1, EDIT_NO_MISS);
    account(l, item, 1, (int)miss_of(drop));
}

/* How many of a tensor's rows the lists name; none where all that edits want is missed. */
static uint32_t n_written(const struct edit_rows *rows, uint32_t n_rows)
{
    if (!rows->n_words)
        return 0;
    return rows->every ? n_rows : edit_rows_below(rows, n_rows);
}

void admission_expect_edit(const struct admission_launch *l, struct admission *item, int drop)
{
    const struct edit_rows *rows = rows_of(l);
    uint32_t pass = item->pass == FORWARD_NO_PASS ? 0 : DMI_EDIT_PASS(item->pass);
    item->has_record = false;
    item->at = DMI_EDIT_AT(item->layer, pass);
    places_saw(item->site, item->layer, view_shape(&item->operand->view), pass);
    if (!rows || !rows->n_shares)
        return;
    if (!account(l, item, 1, miss_of_step(l)))
        return; /* no edit does anything in this layer */
    item->edits_due = true;
    item->pick =
        (struct select_pick){ .n = l->edits_differ ? 0
                                                   : n_written(rows, item->operand->view.dims[0]),
                              .rows = rows->words,
                              .n_list = rows->n_words };
    if (drop == DROP_NONE && (!l->context->edits.region || item->operand->view.of_requests))
        drop = DMI_DROP_UNSUPPORTED;
    item->state = ADMISSION_EXPECTED;
    if (drop == DROP_NONE && item->pick.n)
        return;
    item->state = drop == DROP_NONE ? ADMISSION_COUNTED : ADMISSION_DROPPED;
    item->reason = drop;
    if (drop != DROP_NONE)
        miss_rows(l, item, drop);
}

void admission_miss_edit(const struct admission_launch *l, struct admission *item, int drop)
{
    if (item->edits_due)
        miss_rows(l, item, drop);
}

void admission_take_back_edit(const struct admission_launch *l, struct admission *item)
{
    bool dropped = item->state == ADMISSION_DROPPED && !l->edits_differ;
    int why = dropped ? (int)miss_of(item->reason) : miss_of_step(l);
    if (item->state == ADMISSION_NONE)
        return; /* it was not counted: nothing else of it is set */
    if (item->edits_due && item->state != ADMISSION_LAUNCHED)
        account(l, item, -1, why);
    item->edits_due = false;
}
