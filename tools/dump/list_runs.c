/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump list of a folder that holds several runs. */
#include "tools/dump/dump.h"

#include "core/cleanup.h"
#include "read/runs.h"
#include "read/value.h"

#include <string.h>
#include <time.h>

static void cell_start(struct text *to, const json_t *row)
{
    json_int_t ns = json_integer_value(json_object_get(row, "start_realtime_ns"));
    time_t seconds = (time_t)(ns / 1000000000);
    struct tm tm;
    char when[40] = "-";
    if (ns > 0 && gmtime_r(&seconds, &tm))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    text_printf(to, "%s", when);
}

static const struct column columns[] = {
    { "STATE", "state", -8, NULL },
    { "PID", "pid", 8, NULL },
    { " STARTED", "started", -21, cell_start },
    { "RECORDS", "records", 10, NULL },
    { "SIZE", "file_bytes", 10, NULL, value_of_bytes },
    { "DAMAGE", "damage", 6, NULL },
    { " RUN", "run", -1, NULL },
};

static json_t *broken_row(const char *path, const char *why)
{
    return json_pack("{s:o, s:s, s:b, s:o}", "run", value_text(path), "state", "unreadable",
                     "damage", 1, "error", value_text(why));
}

static json_t *run_row(const struct reader *reader, bool *damaged)
{
    const struct reader_run *run = reader_run(reader);
    *damaged = false;
    for (size_t i = 0; i < reader_n_findings(reader); i++)
        *damaged |= reader_finding(reader, i)->damage;
    return VALUE_OBJECT(
        { "run", value_text(run->path) }, { "state", json_string(facts_state(run)) },
        { "uuid", value_text(run->uuid) }, { "pid", value_u64(run->pid) },
        { "start_realtime_ns", value_u64(run->start_ns) },
        { "records", value_u64(facts_n_records(reader)) },
        { "file_bytes", value_u64(run->n_file_bytes) }, { "damage", json_boolean(*damaged) });
}

int dump_list_runs(const char *folder, bool json)
{
    struct report report = { .json = json };
    struct err err = { 0 };
    _cleanup_(runs_deinit) struct runs runs = { 0 };
    char number[COUNTED_BYTES];
    bool any_damaged = false;
    if (runs_find(&err, folder, &runs)) {
        complain("%s", err.msg);
        return DUMP_USAGE;
    }
    if (!runs.n) {
        complain("%s holds no run: expected a folder of runs, as dmi-run --out names", folder);
        return DUMP_USAGE;
    }
    report_line(&report,
                "%s holds %s; every command takes one of them, or else the latest:", folder,
                counted(runs.n, "run", "runs", number));
    report_line(&report, "%s", "");
    report_table(&report, "runs", columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < runs.n; i++) {
        _cleanup_(reader_closep) struct reader *reader = NULL;
        struct err why = { 0 };
        bool damaged = true;
        if (reader_open_index(&why, runs.paths[i], &reader))
            report_row(&report, broken_row(runs.paths[i], why.msg));
        else
            report_row(&report, run_row(reader, &damaged));
        any_damaged |= damaged;
    }
    report_table_end(&report);
    return report_end(&report, any_damaged ? DUMP_FAILED : DUMP_OK);
}
