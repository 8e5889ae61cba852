/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump recover: of a run that a kill or a disk left damaged, a new one that is closed and verifies. */
#include "tools/dump/recover.h"

#include "core/cleanup.h"
#include "core/words.h"
#include "read/account.h"
#include "tools/common/leftover.h"
#include "tools/common/outfile.h"
#include "tools/dump/dump.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int refuse(struct err *err, const struct reader_run *run)
{
    if (run->n_runs > 1)
        return err_set(err, -ENOTUNIQ, "%s holds the runs of %zu ranks: recover them one by one",
                       run->path, run->n_runs);
    if (run->state == READER_RUNNING)
        return err_set(err, -EBUSY,
                       "%s is still written by process %" PRIu64
                       ": recover it when that has ended, or read it as it is",
                       run->path, run->pid);
    return 0;
}

/* ------------------------------------------------------------------------- what was lost */

static void add_part(struct text *t, const char *one, const char *several,
                     const struct dmi_tally *lost)
{
    if (lost->records || lost->rows || lost->bytes)
        text_printf(t, "; %" PRIu64 " %s (%" PRIu64 " %s, %" PRIu64 " %s) %s", lost->records,
                    word_for(lost->records, "record", "records"), lost->rows,
                    word_for(lost->rows, "row", "rows"), lost->bytes,
                    word_for(lost->bytes, "byte", "bytes"), word_for(lost->records, one, several));
}

static void add_count(struct text *t, uint64_t n, const char *one, const char *several)
{
    if (n)
        text_printf(t, "; %" PRIu64 " %s", n, word_for(n, one, several));
}

/* What was lost, as sentences in a row. */
static void add_lost(struct text *to, const struct recovery *x)
{
    const struct recover_lost *l = &x->lost;
    _cleanup_(text_deinit) struct text t = { 0 };
    add_count(&t, l->n_chunks, "chunk is damaged or missing", "chunks are damaged or missing");
    add_part(&t, "that was written cannot be read", "that were written cannot be read", &l->unread);
    add_part(&t, "was on its way when the process ended",
             "were on their way when the process ended", &l->at_kill);
    add_count(&t, reader_run(x->reader)->n_torn,
              "byte at the end is of a chunk that was not finished",
              "bytes at the end are of a chunk that was not finished");
    add_count(&t, l->n_steps, "step is lost", "steps are lost");
    add_count(&t, l->n_stepless, "record is of a step that is lost, and without tokens",
              "records are of a step that is lost, and without tokens");
    add_count(&t, x->n_not_fetched, "part of a row or step was not fetched",
              "parts of rows or steps were not fetched");
    add_count(&t, l->n_edit_rows, "row that an edit wanted was on its way",
              "rows that edits wanted were on their way");
    add_count(&t, l->n_packs, "file of edits cannot be copied", "files of edits cannot be copied");
    if (l->unknown)
        text_printf(&t, "; what was expected and what was dropped is not known of all sites: the "
                        "counters cannot be read, or contradict what the run holds");
    text_printf(to, "%s", t.failed ? "?" : t.n ? t.data + 2 : "nothing is lost");
}

static void add_origin(struct text *t, const struct reader_run *run)
{
    text_printf(t, "from the run %s", run->uuid);
    if (run->host)
        text_printf(t, " (process %" PRIu64 " on %s, begun at %" PRIu64 " ns)", run->pid, run->host,
                    run->start_ns);
}

static bool lacks(const struct recovery *x)
{
    const struct recover_lost *l = &x->lost;
    const struct reader_run *run = reader_run(x->reader);
    bool damaged = x->n_undecoded || l->n_packs || (l->unknown && !facts_is_segment(run));
    for (size_t i = 0; i < reader_n_findings(x->reader); i++)
        damaged |= reader_finding(x->reader, i)->damage;
    return damaged || x->n_not_fetched || l->unread.records || l->n_stepless;
}

static int report_recovery(const struct recovery *x, const struct dump_options *o,
                           const char *output)
{
    struct report report = { .json = o->json };
    const struct recover_lost *l = &x->lost;
    _cleanup_(text_deinit) struct text t = { 0 };
    report_member(&report, "output", value_text(output));
    report_member(&report, "from", value_text(reader_run(x->reader)->uuid));
    report_member(&report, "records", value_u64(x->n_records));
    report_member(&report, "steps", value_u64(x->n_steps));
    report_member(&report, "lost_is_known", json_boolean(!l->unknown));
    report_member(&report, "damaged_chunks", value_u64(l->n_chunks));
    report_member(&report, "unread", account_tally(&l->unread));
    report_member(&report, "lost_at_kill", account_tally(&l->at_kill));
    report_member(&report, "torn_bytes", value_u64(reader_run(x->reader)->n_torn));
    report_member(&report, "lost_steps", value_u64(l->n_steps));
    report_member(&report, "records_without_step", value_u64(l->n_stepless));
    report_line(&report, "%" PRIu64 " %s and %" PRIu64 " %s, to %s", x->n_records,
                word_for(x->n_records, "record", "records"), x->n_steps,
                word_for(x->n_steps, "step", "steps"), output);
    add_lost(&t, x);
    report_line(&report, "%s", t.data ? t.data : "");
    report.failed |= t.failed;
    return report_end(&report, lacks(x) ? DUMP_FAILED : DUMP_OK);
}

/* ------------------------------------------------------------------------- the new run */

/* In its manifest, so that whoever reads it knows where it comes from. */
static void note_origin(struct recovery *x)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    add_origin(&t, reader_run(x->reader));
    text_printf(&t, ": ");
    add_lost(&t, x);
    run_problem(x->run, NULL, "recovered", t.failed ? "of another run" : t.data);
}

/* Closes the run and gives its folder the name that was asked for. */
static int publish(struct err *err, struct recovery *x, struct outfile *place)
{
    _cleanup_(freep) char *path = strdup(run_path(x->run));
    int r = path ? run_close(x->run) : -ENOMEM;
    if (path)
        x->run = NULL;
    if (r)
        return err_set_errno(err, -r, "cannot write %s", place->path);
    leftover_hold();
    r = rename(path, place->path)
            ? err_set_errno(err, errno, "cannot give %s its name", place->path)
            : 0;
    if (!r)
        outfile_discard(place); /* the empty folder around it */
    leftover_release();
    return r;
}

static int recover(struct err *err, struct recovery *x, struct outfile *place)
{
    int r = outfile_open(err, place);
    if (!r)
        r = recover_open(err, x, place->temporary);
    if (!r)
        r = recover_copy(err, x);
    if (r)
        return r;
    recover_count(x);
    if (recover_edits(x))
        return err_set_errno(err, ENOMEM, "cannot recover");
    note_origin(x);
    return publish(err, x, place);
}

int dump_recover(struct reader *index, const struct dump_options *o)
{
    struct err err = { 0 };
    struct report quiet = { 0 };
    _cleanup_(outfile_deinit) struct outfile place = { .fd = -1 };
    _cleanup_(reader_closep) struct reader *reader = NULL;
    _cleanup_(recover_deinit) struct recovery x = { 0 };
    const struct reader_run *run = reader_run(index);
    int r = refuse(&err, run);
    if (!r)
        r = outfile_choose(&err, &place, o->output, run->path, "-recovered", true);
    if (!r)
        r = reader_open_distrusting(&err, run->path, &reader);
    if (!r) {
        x.reader = reader;
        x.n_not_fetched = o->n_not_fetched;
        r = recover(&err, &x, &place);
        facts_findings(&quiet, reader);
    }
    if (r) {
        complain("%s", err.msg);
        return DUMP_USAGE;
    }
    return report_recovery(&x, o, place.path);
}
