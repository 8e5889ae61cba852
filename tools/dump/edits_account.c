/* SPDX-License-Identifier: Apache-2.0 */
/* due = written + missed, of each edit and of each request. */
#include "tools/dump/edits.h"

#include "core/cleanup.h"
#include "core/words.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Of some accounts. Sums of hostile numbers wrap, and hurt nothing. */
struct sum {
    const struct dmi_edit_account *of; /* the first of them */
    uint64_t n_requests,
        n_marked; /* those of which accounts are open; of them with a row that was missed */
    uint64_t due, written, missed, lost, not_finite;
    uint64_t reasons[DMI_EDIT_MISS_ROOM];
    bool holds;
};

static void add(struct sum *s, const struct reader_edit_account *a)
{
    if (!s->of)
        s->holds = true;
    s->of = s->of ? s->of : a->at;
    s->n_requests += a->at->n_request != 0;
    s->n_marked += a->at->n_request && a->missed;
    s->due += a->at->due;
    s->written += a->at->written;
    s->missed += a->missed;
    s->lost += a->lost;
    s->not_finite += a->at->not_finite;
    for (uint32_t k = 0; k < DMI_EDIT_MISS_ROOM; k++)
        s->reasons[k] += a->at->missed[k];
    s->holds = s->holds && a->holds;
}

static struct sum sum_of(const struct reader_edits *edits)
{
    struct sum s = { .holds = true };
    for (size_t i = 0; i < edits->n; i++)
        add(&s, &edits->accounts[i]);
    return s;
}

static json_t *reasons_value(const uint64_t reasons[DMI_EDIT_MISS_ROOM])
{
    json_t *o = json_object();
    for (uint32_t k = 0; k < DMI_EDIT_MISS_ROOM; k++) {
        const char *name = dmi_edit_miss_name(k);
        uint64_t before = (uint64_t)json_integer_value(json_object_get(o, name));
        if (reasons[k]) /* reasons that are not known share a word */
            json_object_set_new(o, name, value_u64(before + reasons[k]));
    }
    return o;
}

static const char *lost_key(const struct reader_run *run)
{
    return run->state == READER_RUNNING ? "in_flight" : "lost_at_kill";
}

static void set_sum(json_t *o, const struct sum *s, const struct reader_run *run)
{
    json_object_set_new(o, "due", value_u64(s->due));
    json_object_set_new(o, "written", value_u64(s->written));
    json_object_set_new(o, "missed", value_u64(s->missed));
    json_object_set_new(o, "missed_by_reason", reasons_value(s->reasons));
    json_object_set_new(o, lost_key(run), value_u64(s->lost));
    json_object_set_new(o, "not_finite", value_u64(s->not_finite));
    json_object_set_new(o, "holds", json_boolean(s->holds));
}

/* ------------------------------------------------------------------------- in one line */

static json_t *summary_value(const struct sum *s, const struct reader_run *run, size_t n_changes,
                             const json_t *in_force)
{
    json_t *o = json_object();
    json_object_set_new(o, "known", json_boolean(run->edits.known));
    json_object_set_new(o, "changes", json_integer((json_int_t)n_changes));
    json_object_set_new(o, "in_force", in_force ? json_deep_copy(in_force) : json_array());
    if (!run->edits.known)
        return o;
    set_sum(o, s, run);
    json_object_set_new(o, "requests_marked", value_u64(run->edits.marked + s->n_marked));
    return o;
}

static void summary_line(struct report *report, const struct sum *s, const struct reader_run *run,
                         size_t n_changes, size_t n_in_force)
{
    char changes[COUNTED_BYTES], edits[COUNTED_BYTES], lost[64] = "";
    if (s->lost)
        snprintf(lost, sizeof lost, " + %" PRIu64 " %s", s->lost,
                 run->state == READER_RUNNING ? "still on their way" : "lost at kill");
    counted(n_changes, "change", "changes", changes);
    counted(n_in_force, "edit", "edits", edits);
    if (!run->edits.known) {
        report_line(report, "edits    %s, %s in force in the end; what became of rows is not known",
                    changes, edits);
        return;
    }
    report_line(report,
                "edits    %s, %s in force in the end; %" PRIu64 " %s due%s %" PRIu64
                " written + %" PRIu64 " missed%s",
                changes, edits, s->due, word_for(s->due, "row", "rows"), s->holds ? " =" : ", NOT",
                s->written, s->missed, lost);
}

int edits_summary(struct report *report, const struct reader *reader)
{
    const struct reader_run *run = reader_run(reader);
    _cleanup_(edit_history_deinit) struct edit_history h = { 0 };
    if (edit_history_build(reader, &h))
        return no_memory();
    if (!run->edits.known && !run->edits.missing && !h.n)
        return DUMP_OK;
    struct sum s = sum_of(&run->edits);
    const json_t *in_force = h.n ? h.changes[h.n - 1].in_force : NULL;
    report_member(report, "edits", summary_value(&s, run, h.n, in_force));
    summary_line(report, &s, run, h.n, json_array_size(in_force));
    return DUMP_OK;
}

int edits_remark(struct report *report, const struct reader *reader)
{
    _cleanup_(edit_history_deinit) struct edit_history h = { 0 };
    if (edit_history_build(reader, &h))
        return no_memory();
    report_member(report, "edited", json_boolean(h.any));
    if (h.any)
        report_line(report,
                    "Edits %s in force in this run (dmi-dump edits): what differs may be their "
                    "work, and no error of the engine.",
                    h.n ? "were" : "may have been");
    return DUMP_OK;
}

/* ------------------------------------------------------------------------- tables */

/* Missed rows by reason, what was lost, and whether it all is due. */
static void cell_remark(struct text *to, const json_t *row)
{
    const char *reason;
    json_t *n;
    json_object_foreach(json_object_get(row, "missed_by_reason"), reason, n) text_printf(
        to, "%s%s=%" JSON_INTEGER_FORMAT, to->n ? " " : "", reason, json_integer_value(n));
    static const char *const keys[] = { "lost_at_kill", "in_flight", "not_finite" };
    for (size_t i = 0; i < N_OF(keys); i++) {
        const char *key = keys[i];
        if (object_number(row, key))
            text_printf(to, "%s%s=%" PRIu64, to->n ? " " : "", key, object_number(row, key));
    }
    if (json_is_false(json_object_get(row, "holds")))
        text_printf(to, "%sMISMATCH", to->n ? " " : "");
}

static const struct column columns[] = {
    { "EDIT", "edit", -18, NULL },    { "UID", "uid", 4, NULL },
    { "DUE", "due", 10, NULL },       { "WRITTEN", "written", 10, NULL },
    { "MISSED", "missed", 10, NULL }, { "REQUESTS OPEN", "requests_open", 14, NULL },
    { "", "holds", -1, cell_remark },
};

static json_t *row_of(const struct sum *s, const struct reader_run *run)
{
    json_t *o = json_object();
    json_object_set_new(o, "edit", value_text(s->of->edit));
    json_object_set_new(o, "uid", value_u64(s->of->uid));
    set_sum(o, s, run);
    return o;
}

static int by_edit(const void *pa, const void *pb)
{
    const struct dmi_edit_account *a = ((const struct reader_edit_account *)pa)->at;
    const struct dmi_edit_account *b = ((const struct reader_edit_account *)pb)->at;
    if (a->uid != b->uid)
        return a->uid < b->uid ? -1 : 1;
    return strcmp(a->edit, b->edit);
}

static void requests_rows(struct report *report, const struct reader_edits *edits,
                          const struct reader_run *run)
{
    report_table(report, "edit_requests", NULL, 0);
    for (size_t i = 0; i < edits->n; i++) {
        const struct dmi_edit_account *at = edits->accounts[i].at;
        struct sum s = { 0 };
        if (at->state != DMI_EDIT_ACCOUNT_OPEN)
            continue;
        add(&s, &edits->accounts[i]);
        json_t *row = row_of(&s, run);
        json_object_set_new(row, "request",
                            at->n_request ? value_bytes(at->request, at->n_request) : json_null());
        report_row(report, row);
    }
    report_table_end(report);
}

int edits_table(struct report *report, const struct reader *reader)
{
    const struct reader_run *run = reader_run(reader);
    size_t n = run->edits.n;
    _cleanup_(freep) struct reader_edit_account *all = calloc(n + 1, sizeof *all);
    if (!all)
        return no_memory();
    if (n)
        memcpy(all, run->edits.accounts, n * sizeof *all);
    qsort(all, n, sizeof *all, by_edit);
    const struct reader_edits edits = { .accounts = all, .n = n };
    report_line(report, "%s", "");
    report_table(report, "edit_accounts", columns, N_OF(columns));
    for (size_t i = 0; i < n;) {
        struct sum s = { 0 };
        size_t first = i;
        while (i < n && !by_edit(&all[first], &all[i]))
            add(&s, &all[i++]);
        json_t *row = row_of(&s, run);
        json_object_set_new(row, "requests_open", value_u64(s.n_requests));
        report_row(report, row);
    }
    report_table_end(report);
    if (report->json)
        requests_rows(report, &edits, run);
    struct sum s = sum_of(&edits);
    if (!run->edits.known)
        report_line(report, "%s", "What became of rows that edits want is not known.");
    else
        report_line(report, "%" PRIu64 " of the edits' requests have a row that was missed%s",
                    run->edits.marked + s.n_marked,
                    run->edits.marked + s.n_marked ? ": dmi-dump edits names them." : ".");
    return DUMP_OK;
}
