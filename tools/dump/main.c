/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump: look at, check and export a run. See docs/man/dmi-dump.1. */
#include "tools/dump/dump.h"
#include "tools/common/leftover.h"
#include "tools/common/ticker.h"
#include "tools/dump/edits.h"
#include "tools/dump/fetch.h"

#include "core/cleanup.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const struct dump_command commands[] = {
    { "list", dump_list, .selects = true },
    { "show", dump_show, .takes_site = true, .selects = true },
    { "stats", dump_stats },
    { "verify", dump_verify, .reads_all = true, .aliases = true },
    { "diff", dump_diff, .takes_other = true, .by_itself = true, .aliases = true },
    { "edits", dump_edits },
    { "export", dump_export, .selects = true, .takes_several = true },
    { "recover", dump_recover, .by_itself = true },
    { 0 },
};

/* JSON on a terminal goes around the lines that the ticker knows of. */
static void start_ticker(const struct reader *reader, const struct dump_options *o)
{
    if (!o->json || !isatty(STDOUT_FILENO))
        ticker_start(o->command->reads_all ? reader_run(reader)->n_file_bytes : 0);
}

static int run_command(struct dump_options *o)
{
    struct err err = { 0 };
    _cleanup_(reader_closep) struct reader *reader = NULL;
    if (o->list_runs)
        return dump_list_runs(o->run, o->json);
    int r = dump_open(&err, o, o->run, &reader);
    if (r == -ENOTUNIQ && o->command->run == dump_list)
        return dump_list_runs(o->run, o->json);
    if (r) {
        complain("%s", err.msg);
        if (r == -ENOTUNIQ)
            complain("dmi-dump list --runs %s lists them", o->run);
        return DUMP_USAGE;
    }
    start_ticker(reader, o);
    int status = o->command->run(reader, o);
    ticker_stop();
    return status;
}

/* From a server: the run is fetched first. */
static int run_fetched(struct dump_options *o)
{
    struct err err = { 0 };
    char *folder;
    if (fetch(&err, o->from, &folder, &o->n_not_fetched)) {
        complain("%s", err.msg);
        return DUMP_USAGE;
    }
    o->run = folder;
    int status = run_command(o);
    fetch_remove(folder);
    return status == DUMP_OK && o->n_not_fetched ? DUMP_FAILED : status;
}

int main(int argc, char **argv)
{
    leftover_install();
    struct dump_options o;
    int status = options_parse(argc, argv, commands, &o);
    if (status < 0)
        status = o.from ? run_fetched(&o) : run_command(&o);
    options_deinit(&o);
    return say_flush(status, DUMP_USAGE);
}
