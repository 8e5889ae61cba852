/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump verify: every checksum, every file, the accounting; and a comparison with reference activations. */
#include "tools/dump/dump.h"
#include "tools/dump/edits.h"

#include "core/cleanup.h"
#include "core/words.h"

static void verdict(struct report *report, const struct reader *reader, size_t n_damage)
{
    const struct reader_run *run = reader_run(reader);
    char records[COUNTED_BYTES];
    counted(reader_n_records(reader), "record", "records", records);
    if (n_damage)
        report_line(report, "%zu %s wrong with %s (%s can be read)", n_damage,
                    word_for(n_damage, "thing is", "things are"), run->path, records);
    else
        report_line(report, "%s: %zu %s, %s, every checksum is right", run->path, run->n_segments,
                    word_for(run->n_segments, "segment", "segments"), records);
}

/* @balances: false where the accounting is known and does not. Return: an exit status. */
static int account(struct report *report, const struct reader *reader, bool *balances)
{
    _cleanup_(sites_deinit) struct sites sites = { 0 };
    _cleanup_(accounts_deinit) struct accounts accounts = { 0 };
    if (sites_build(reader, &sites) || accounts_build(reader, &sites, &accounts))
        return no_memory();
    facts_account(report, reader, &accounts.total);
    facts_left_out(report, reader_run(reader));
    *balances = accounts.total.balances || !accounts.total.known;
    return DUMP_OK;
}

int dump_verify(struct reader *reader, const struct dump_options *o)
{
    struct report report = { .json = o->json };
    bool balances = false, trace_holds = false;
    if (reader_verify(reader))
        return no_memory();
    if (report.json)
        facts_run(&report, reader);
    size_t n_damage = facts_findings(&report, reader);
    verdict(&report, reader, n_damage);
    if (account(&report, reader, &balances))
        return DUMP_USAGE;
    if (facts_trace_account(&report, reader, &trace_holds))
        return no_memory();
    balances &= trace_holds;
    if (edits_summary(&report, reader))
        return DUMP_USAGE;
    report_member(&report, "intact", json_boolean(!n_damage && balances));
    int status = n_damage || !balances ? DUMP_FAILED : DUMP_OK;
    if (o->against) {
        int compared = dump_compare(reader, o, &report);
        status = compared > status ? compared : status;
        if (edits_remark(&report, reader))
            return DUMP_USAGE;
    }
    return report_end(&report, status);
}
