/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump edits: what was in force when, who changed it, and in which requests rows were missed, or taken from others. */
#include "tools/dump/edits.h"

#include "core/cleanup.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* "calm, no-refusal (off)"; "none" */
static void edits_add_names(struct text *to, const json_t *in_force)
{
    size_t n = json_array_size(in_force);
    for (size_t i = 0; i < n; i++) {
        const json_t *edit = json_array_get(in_force, i);
        text_printf(to, "%s%s%s", i ? ", " : "", edit_text(edit, "name"),
                    edit_is_off(edit) ? " (off)" : "");
    }
    if (!n)
        text_printf(to, "none");
}

/* ------------------------------------------------------------------------- changes */

/* In words: who asked ends what was asked. */
static const char *who_of(const char *what, size_t *n_what)
{
    static const struct {
        const char *text;
        size_t n_before; /* bytes before who it is */
    } begins[] = { { ", by uid ", 5 }, { ", from the first step", 2 } };
    *n_what = strlen(what);
    for (size_t i = 0; i < N_OF(begins); i++) {
        const char *at = strstr(what, begins[i].text);
        if (at) {
            *n_what = (size_t)(at - what);
            return at + begins[i].n_before;
        }
    }
    return "";
}

static void cell_time(struct text *to, const json_t *row)
{
    uint64_t ns = (uint64_t)json_integer_value(json_object_get(row, "time_ns"));
    time_t seconds = (time_t)(ns / 1000000000u);
    struct tm tm;
    char day[32];
    if (gmtime_r(&seconds, &tm) && strftime(day, sizeof day, "%F %T", &tm))
        text_printf(to, "%s.%03" PRIu64, day, ns / 1000000u % 1000);
}

static void cell_names(struct text *to, const json_t *row)
{
    edits_add_names(to, json_object_get(row, "edits"));
}

static const struct column change_columns[] = {
    { "TIME (UTC)", "time_ns", -23, cell_time },
    { "STEP", "step_sequence", 6, NULL },
    { "LAUNCH", "launch", 8, NULL },
    { "WHO", "who", -22, NULL },
    { "WHAT", "what", -30, NULL },
    { "THEN IN FORCE", "edits", -1, cell_names },
};

static json_t *change_row(const struct edit_change *c)
{
    size_t n_what;
    const char *who = who_of(c->at->what, &n_what);
    json_t *row = json_copy(c->note);
    json_object_set_new(row, "time_ns", value_u64(c->at->time_ns));
    json_object_set_new(row, "step_sequence", value_u64(c->at->step));
    json_object_set_new(row, "launch", value_u64(c->at->launch));
    json_object_set_new(row, "who", value_text(who));
    json_object_set_new(row, "what", value_bytes(c->at->what, n_what));
    return row;
}

/* ------------------------------------------------------------------------- notes of requests */

static void cell_missed(struct text *to, const json_t *row)
{
    const char *reason;
    json_t *n;
    json_object_foreach(json_object_get(row, "missed"), reason, n) text_printf(
        to, "%s%s=%" JSON_INTEGER_FORMAT, to->n ? " " : "", reason, json_integer_value(n));
}

static const struct column missed_columns[] = {
    { "EDIT", "edit", -18, NULL },
    { "REQUEST", "request", -24, NULL },
    { "DUE", "due", 9, NULL },
    { "WRITTEN", "written", 9, NULL },
    { " MISSED", "missed", -1, cell_missed },
};

static const struct column taken_columns[] = {
    { "EDIT", "edit", -18, NULL },
    { "REQUEST", "request", -24, NULL },
    { "TAKES ROWS OF", "donor", -24, NULL },
    { "SAVED AS", "bank", -1, NULL },
};

/* What a run notes of a request and an edit: notes that have the key. */
struct noted {
    const char *table, *key;
    const struct column *columns;
    size_t n_columns;
};

static const struct noted missed = { "requests_with_missed_rows", "missed", missed_columns,
                                     N_OF(missed_columns) };
static const struct noted taken = { "requests_with_taken_rows", "donor", taken_columns,
                                    N_OF(taken_columns) };

/* NULL: the note is of something else. */
static json_t *note_of(const struct reader_change *change, const struct noted *noted)
{
    json_t *note = change->more ? object_parse(change->more, strlen(change->more)) : NULL;
    if (json_is_string(json_object_get(note, "edit")) && json_object_get(note, noted->key))
        return note;
    json_decref(note);
    return NULL;
}

/* The table has a title where there is a row. */
static void noted_table(struct report *report, const struct reader_run *run,
                        const struct noted *noted)
{
    bool begun = report->json;
    if (begun)
        report_table(report, noted->table, noted->columns, noted->n_columns);
    for (size_t i = 0; i < run->n_changes; i++) {
        json_t *note = note_of(&run->changes[i], noted);
        if (!note)
            continue;
        if (!begun) {
            report_line(report, "%s", "");
            report_table(report, noted->table, noted->columns, noted->n_columns);
        }
        begun = true;
        report_row(report, note);
    }
    if (begun)
        report_table_end(report);
}

/* ------------------------------------------------------------------------- the command */

static void list_changes(struct report *report, const struct reader *reader,
                         const struct edit_history *h)
{
    const struct reader_run *run = reader_run(reader);
    report_member(report, "run", value_text(run->path));
    if (!h->n)
        report_line(report, run->edits.known ? "No edit was in force in this run."
                                             : "This run has no places for edits.");
    if (h->n || report->json) {
        report_table(report, "changes", change_columns, N_OF(change_columns));
        for (size_t i = 0; i < h->n; i++)
            report_row(report, change_row(&h->changes[i]));
        report_table_end(report);
    }
    noted_table(report, run, &missed);
    noted_table(report, run, &taken);
}

int dump_edits(struct reader *reader, const struct dump_options *o)
{
    struct err err = { 0 };
    struct report report = { .json = o->json };
    _cleanup_(edit_history_deinit) struct edit_history h = { 0 };
    if (edit_history_build(reader, &h))
        return no_memory();
    list_changes(&report, reader, &h);
    int r = o->edits_to ? edits_export(&err, reader_run(reader), &h, o->edits_to, o->force) : 0;
    if (r)
        complain("%s", err.msg);
    size_t n_damage = facts_findings(&report, reader);
    return report_end(&report, r ? DUMP_USAGE : n_damage ? DUMP_FAILED : DUMP_OK);
}
