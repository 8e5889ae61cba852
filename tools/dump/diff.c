/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump diff: two runs against each other. */
#include "tools/dump/diff.h"

#include "core/cleanup.h"
#include "read/missing.h"
#include "tools/common/opened.h"

#include <errno.h>

static int open_other(struct err *err, struct differ *d, const struct dump_options *o)
{
    int r = opened_index(err, o->other, &d->other.reader);
    if (!r && o->by_rank)
        r = missing_ranks(err, d->other.reader, o->ranks);
    return r;
}

/* Names what is wrong with a run, which of them first. Return: how much is damage. */
static size_t findings_of(const struct reader *reader)
{
    struct report quiet = { 0 };
    if (reader_n_findings(reader))
        complain("of %s:", reader_run(reader)->path);
    return facts_findings(&quiet, reader);
}

static void differ_close(struct differ *d)
{
    differ_deinit(d);
    reader_close(d->other.reader);
}

int dump_diff(struct reader *reader, const struct dump_options *o)
{
    struct err err = { 0 };
    struct report report = { .json = o->json };
    _cleanup_(differ_close) struct differ d = { .run = { .reader = reader },
                                                .select = &o->select,
                                                .tolerance = o->tolerance,
                                                .row_tolerance = o->row_tolerance,
                                                .undecoded = complain_undecoded };
    int r = open_other(&err, &d, o);
    if (!r)
        r = differ_pair(&err, &d);
    if (!r)
        r = differ_rows(&err, &d);
    if (r) {
        complain("%s", err.msg);
        if (r == -ENOTUNIQ)
            complain("dmi-dump list --runs %s lists them", o->other);
        return DUMP_USAGE;
    }
    int status = diff_report(&d, &report);
    if (diff_edits(&d, &report))
        return DUMP_USAGE;
    size_t n_damage = findings_of(reader) + findings_of(d.other.reader);
    return report_end(&report, n_damage && status == DUMP_OK ? DUMP_FAILED : status);
}
