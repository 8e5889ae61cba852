/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/export_report.h"

#include "core/cleanup.h"
#include "core/words.h"
#include "tools/dump/output.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#define MOST_TOLD 20 /* requests with rows of others */

/* How many samples there are, and why there are no more. */
static void report_samples(struct report *report, const struct export_totals *t, bool is_dataset,
                           bool goes_on)
{
    _cleanup_(text_deinit) struct text by_name = { 0 }, filled = { 0 }, already = { 0 },
                                       loss = { 0 };
    json_t *by = json_object();
    for (int f = SAMPLE_OF_NOBODY; f < SAMPLE_N_FAULTS; f++) {
        if (!t->left_out_by[f])
            continue;
        json_object_set_new(by, sample_fault_name(f), value_u64(t->left_out_by[f]));
        text_printf(&by_name, "%s%" PRIu64 " %s", by_name.n ? ", " : " (", t->left_out_by[f],
                    sample_fault_name(f));
    }
    report_member(report, "samples", value_u64(t->samples));
    report_member(report, "samples_filled", value_u64(t->samples_filled));
    if (t->samples_filled)
        text_printf(&filled, " (%" PRIu64 " with rows of other requests)", t->samples_filled);
    if (is_dataset)
        report_member(report, "there_already", value_u64(t->there_already));
    if (goes_on || t->there_already)
        text_printf(&already, "%" PRIu64 " there already, ", t->there_already);
    report_member(report, "without_loss", value_u64(t->without_loss));
    if (t->without_loss)
        text_printf(&loss, "; %" PRIu64 " of those written without a token in the loss",
                    t->without_loss);
    report_member(report, "requests_left_out", value_u64(t->left_out));
    report_member(report, "left_out_by", by);
    report_line(report, "samples: %" PRIu64 " written%s, %s%" PRIu64 " left out%s%s%s", t->samples,
                filled.n ? filled.data : "", already.n ? already.data : "", t->left_out,
                by_name.data ? by_name.data : "", by_name.n ? ")" : "", loss.n ? loss.data : "");
}

/* Which requests got rows of which others. */
static void report_filled(struct report *report, const struct export_totals *t)
{
    _cleanup_(text_deinit) struct text ids = { 0 };
    report_member(report, "filled_rows", value_u64(t->filled_rows));
    const char *id;
    json_t *donors, *donor;
    size_t i, n_told = 0, n = json_object_size(t->filled);
    json_object_foreach(t->filled, id, donors)
    {
        if (n_told++ == MOST_TOLD)
            break;
        ids.n = 0;
        json_array_foreach(donors, i, donor)
            text_printf(&ids, "%s'%s'", i ? ", " : "", json_string_value(donor));
        report_line(report, "cached tokens of '%s' have rows of %s", id, ids.data ? ids.data : "");
    }
    if (n > MOST_TOLD)
        report_line(report, "... and those of %zu more requests", n - MOST_TOLD);
    report_member(report, "filled", json_incref(t->filled));
}

/* In which requests edits wrote. */
static void report_edited(struct report *report, const struct export_totals *t)
{
    const char *id;
    json_t *edits;
    size_t n_told = 0, n = json_object_size(t->edited);
    if (!n)
        return;
    json_object_foreach(t->edited, id, edits)
    {
        if (n_told++ == MOST_TOLD)
            break;
        _cleanup_(text_deinit) struct text all = { 0 };
        for (size_t i = 0; i < json_array_size(edits); i++)
            text_printf(&all, "%s%s", i ? ", " : "", json_string_value(json_array_get(edits, i)));
        report_line(report, *id ? "edits wrote in '%s': %s" : "edits wrote%s: %s", id,
                    all.data ? all.data : "");
    }
    if (n > MOST_TOLD)
        report_line(report, "... and in %zu more requests", n - MOST_TOLD);
    report_member(report, "edits", json_incref(t->edited));
}

static void report_rows(struct report *report, const struct export_totals *t,
                        const struct dump_options *o)
{
    if (t->damaged)
        report_line(report,
                    "%" PRIu64 " records cannot be read: %" PRIu64 " rows of theirs are left out, "
                    "and with them %" PRIu64 " tensors altogether",
                    t->damaged, t->missing, t->emptied);
    if (t->rejected && !o->select.rejected)
        report_line(report, "%" PRIu64 " rows are left out because their drafts were rejected",
                    t->rejected);
    if (t->superseded && !o->select.superseded)
        report_line(report,
                    "%" PRIu64 " rows are left out because a later launch computed their position "
                    "again",
                    t->superseded);
    if (t->of_nobody)
        report_line(report, "%" PRIu64 " rows belong to no request (padding) and are left out",
                    t->of_nobody);
}

/* What went out, and what a file takes: values alone are less than it, or more where it is compressed. */
static void report_output(struct report *report, const struct export_totals *t, const char *output)
{
    struct stat st;
    char file[40] = "";
    if (!stat(output, &st) && S_ISREG(st.st_mode)) {
        report_member(report, "file_bytes", value_u64((uint64_t)st.st_size));
        snprintf(file, sizeof file, ", a file of %" PRIu64, (uint64_t)st.st_size);
    }
    report_line(report, "%" PRIu64 " %s, %" PRIu64 " %s of values, to %s%s", t->tensors,
                word_for(t->tensors, "tensor", "tensors"), t->bytes,
                word_for(t->bytes, "byte", "bytes"), output, file);
}

int export_report(const struct export_totals *t, const struct format *format,
                  const struct dump_options *o, const char *output)
{
    struct report report = { .json = o->json };
    if (output) {
        report_member(&report, "output", value_text(output));
        report_member(&report, "format", value_text(format->name));
        report_member(&report, "tensors", value_u64(t->tensors));
        report_member(&report, "bytes", value_u64(t->bytes));
        report_member(&report, "left_out", value_u64(t->mixed + t->emptied));
        report_member(&report, "damaged_records", value_u64(t->damaged));
        report_member(&report, "missing_rows", value_u64(t->missing));
        report_member(&report, "superseded_rows", value_u64(t->superseded));
        report_member(&report, "rejected_rows", value_u64(t->rejected));
        report_member(&report, "rows_of_nobody", value_u64(t->of_nobody));
        report_output(&report, t, output);
        report_rows(&report, t, o);
        if (o->select.fill_cached)
            report_filled(&report, t);
        report_edited(&report, t);
    }
    if (format->chooses)
        report_samples(&report, t, format->is_dataset, o->append);
    return report_end(&report, DUMP_OK);
}
