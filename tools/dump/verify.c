/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump verify: every checksum, every file, the accounting; and a comparison with reference activations. */
#include "tools/dump/dump.h"

static void verdict(struct report *report, const struct reader *reader, size_t n_damage)
{
    const struct reader_run *run = reader_run(reader);
    if (n_damage)
        report_line(report, "%zu thing%s wrong with %s", n_damage, n_damage == 1 ? " is" : "s are",
                    run->path);
    else
        report_line(report, "%s: %zu segments, %zu records, all checksums right, the account %s",
                    run->path, run->n_segments, reader_n_records(reader),
                    run->state == READER_CLOSED ? "whole" : "holds (not closed)");
}

int dump_verify(struct reader *reader, const struct options *o)
{
    struct report report = { .json = o->json };
    if (reader_verify(reader))
        return no_memory();
    if (report.json)
        facts_run(&report, reader);
    size_t n_damage = facts_findings(&report, reader);
    int status = n_damage ? DUMP_FAILED : DUMP_OK;
    report_member(&report, "intact", json_boolean(!n_damage));
    verdict(&report, reader, n_damage);
    if (o->against) {
        int compared = dump_compare(reader, o, &report);
        status = compared > status ? compared : status;
    }
    return report_end(&report, status);
}
