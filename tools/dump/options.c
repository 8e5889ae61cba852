/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/options.h"

#include "policy/number.h"
#include "tools/common/choice.h"
#include "tools/common/say.h"
#include "tools/common/usage.h"
#include "tools/dump/formats.h"
#include "tools/dump/output.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char before[] =
    "dmi-dump list   RUN                  what was captured: sites, layers, shapes, requests\n"
    "dmi-dump show   SITE RUN             values of a site\n"
    "dmi-dump stats  RUN                  sizes, ratio, and whether captured + dropped = expected\n"
    "dmi-dump verify RUN                  every checksum, every file, the accounting\n"
    "dmi-dump verify RUN --against REF    compare with a safetensors file of reference "
    "activations\n"
    "dmi-dump diff   RUN OTHER            where two runs differ: site, layer, request, token\n"
    "dmi-dump export RUN --format F -o O  tensors in what others read; some formats take several "
    "runs\n"
    "dmi-dump edits  RUN                  what edits were in force when, and who changed them\n"
    "dmi-dump recover RUN -o O            a new run of what a kill or damage has left\n"
    "\n"
    "RUN is a run's folder, one segment file, or an --out folder: then the run of the command that "
    "was\n"
    "started last, or those of its ranks, which are joined. OUT/latest likewise.\n"
    "SITE is a site's name, or a tensor's as `list --tensors` prints it.\n"
    "\n";

static const char after[] =
    "\n"
    "Exit status: 0 all well; 1 damage, accounting that does not balance, a difference, nothing "
    "found;\n"
    "2 wrong usage, a name that the run has not, or nothing readable.\n"
    "\n"
    "Formats of export, the default first:\n";

static bool parse_double(const char *s, double *out)
{
    char *end;
    *out = strtod(s, &end);
    return end != s && !*end && *out >= 0;
}

static int take_tolerance(const struct option_row *row, void *into)
{
    if (parse_double(optarg, option_field(row, into)))
        return -1;
    return usage_wrong("--%s: '%s' is neither a number above 0 nor 0", option_word(row), optarg);
}

static int take_rows(const struct option_row *row, void *into)
{
    struct dump_options *o = into;
    return option_taken(choice_numbers(option_word(row), optarg, true, &o->rows));
}

static int take_rank(const struct option_row *row, void *into)
{
    struct dump_options *o = into;
    (void)row;
    o->by_rank = true;
    return option_taken(choice_ranks(optarg, o->ranks));
}

static int take_queries(const struct option_row *row, void *into)
{
    struct dump_options *o = into;
    o->by_heads = true;
    o->last_queries = !strcmp(optarg, "last");
    if (o->last_queries || !strcmp(optarg, "all"))
        return -1;
    return usage_wrong("--%s: '%s' is neither all nor last", option_word(row), optarg);
}

static int take_head_dim(const struct option_row *row, void *into)
{
    struct dump_options *o = into;
    int64_t n;
    o->by_heads = true;
    bool good = parse_integer(optarg, &n) && n > 0 && n <= 65536;
    o->head_dim = good ? (uint32_t)n : 0;
    if (good)
        return -1;
    return usage_wrong("--%s: '%s' is no number from 1 to 65536", option_word(row), optarg);
}

static int take_multiplier(const struct option_row *row, void *into)
{
    struct dump_options *o = into;
    o->by_heads = true;
    if (parse_double(optarg, &o->multiplier) && o->multiplier > 0 && isfinite(o->multiplier))
        return -1;
    return usage_wrong("--%s: '%s' is no number above 0", option_word(row), optarg);
}

#define AT(field) offsetof(struct dump_options, field)
static const struct option_row rows[] = {
    { "--from ADDRESS",
      "in the place of RUN: from a ClickHouse server (clickhouse://HOST/DATABASE, ?run=UUID\n"
      "where there are several)",
      option_text, AT(from) },
    { "--json", "JSON on stdout instead of text", option_flag, AT(json) },
    { "--site NAME", "list, diff, export: only this site or tensor; vllm stacks several",
      choice_take_name, AT(select.sites), "list diff export" },
    { "--layers LIST",
      "show, list, diff, export: only these layers: 0,3-7,last (3-7: 7 is included).\n"
      "Formats that stack layers take them in this order; there last is what enters the\n"
      "last norm",
      choice_take_layers, AT(select), "show list diff export" },
    { "--layer LIST", NULL, choice_take_layers, AT(select), "show list diff export" },
    { "--step A:B", "show: the engine's step numbers (without step metadata: forwards), A to B-1",
      choice_take_numbers, AT(steps), "show" },
    { "--forward A:B", "show: forwards, counted from 0", choice_take_numbers, AT(forwards),
      "show" },
    { "--rows A:B",
      "show: rows A to B-1 of what is selected, -2: the last two (default: the first 4)", take_rows,
      0, "show" },
    { "--request ID",
      "show, list, stats, diff, export: only this request; verify --against: only this\n"
      "one, or what to call that of a run whose engine gave no request ids",
      choice_take_name, AT(select.requests), "show list stats diff export verify" },
    { "--tokens LIST",
      "show, list, stats, diff, export: only these tokens of each request: positions 5\n"
      "or A:B, which -2: counts from the end, prompt, response, response[0:16], last, all\n"
      "These options may come several times: all of it is wanted. Lists have commas.",
      choice_take_tokens, AT(select), "show list stats diff export" },
    { "--rejected", "show, list, stats, export: also rows whose drafts were rejected", option_flag,
      AT(select.rejected), "show list stats export" },
    { "--superseded", "show, list, stats, export: also rows whose position was computed again",
      option_flag, AT(select.superseded), "show list stats export" },
    { "--fill-cached",
      "export: rows of tokens that a prefix cache had, from a request that computed them\n"
      "with the same tokens from position 0 on; the output says from which",
      option_flag, AT(select.fill_cached), "export" },
    { "--rank R | tp=R,...",
      "of a folder with the runs of several ranks: only those of tensor parallel rank\n"
      "R, or with these ranks of tp, pp, dp, ep; not joined with the others",
      take_rank },
    { "--request ID=NAME",
      "verify --against, diff: request ID, which the reference, or OTHER, calls NAME" },
    { "--all", "show: all values of a row", option_flag, AT(all_values), "show" },
    { "--map", "show: a heat map: rows down, blocks of the width or layers across", option_flag,
      AT(map), "show" },
    { "--runs", "list: the runs of a folder, a line each", option_flag, AT(list_runs), "list" },
    { "--records", "list: every record", option_flag, AT(records), "list" },
    { "--tensors", "list: every tensor as export would name it", option_flag, AT(tensors), "list" },
    { "--requests",
      "list: every request: its state, its tokens computed, cached and rejected;\n"
      "stats: what each one's capture cost",
      option_flag, AT(requests), "list stats" },
    { "--edits", "stats: of each edit the rows that were due, written and missed", option_flag,
      AT(edits), "stats" },
    { "--export FILE",
      "edits: write what was in force in the end, as a file of edits, with its vectors in\n"
      "a safetensors file beside it",
      option_text, AT(edits_to), "edits" },
    { "--tolerance X",
      "verify: error norm / reference norm of a tensor (default 3e-3); diff: the same\n"
      "(default: every bit)",
      take_tolerance, AT(tolerance), "verify diff" },
    { "--row-tolerance X", "verify, diff: the same of a single row (verify's default: 2e-2)",
      take_tolerance, AT(row_tolerance), "verify diff" },
    { "--format F, -f", "export: one of the formats below", option_text, AT(format), "export" },
    { "--output PATH, -o", "export, recover: where to (default: RUN's name in the current folder)",
      option_text, AT(output), "export recover" },
    { "--force", "edits, export: replace a file that is there, or a folder that an export wrote",
      option_flag, AT(force), "export edits" },
    { "--append", "export: go on with a dataset that is there: what it has is not written twice",
      option_flag, AT(append), "export" },
    { "--names N", "export -f npz: keys, or transformerlens: its names where it has one",
      option_text, AT(names), "export" },
    { "--loss-mask FILE",
      "export -f vllm: which tokens count in a loss, by request: JSON lines {\"request\": ID,\n"
      "\"spans\": [[A, B], ...]} or {\"request\": ID, \"mask\": [0, 1, ...]}",
      option_text, AT(loss_mask), "export" },
    { "--queries Q", "export -f vllm-hook: all, or last: only each request's last", take_queries, 0,
      "export" },
    { "--head-dim N",
      "export -f vllm-hook: elements of a head, if captured without a dimension of heads",
      take_head_dim, 0, "export" },
    { "--multiplier X",
      "export -f vllm-hook: by what attention multiplies queries and keys (default:\n"
      "1 / square root of a head's elements)",
      take_multiplier, 0, "export" },
    { "--version", "the version" },
    { "--against REF", NULL, option_text, AT(against), "verify" },
};

static void print_formats(FILE *to)
{
    for (size_t i = 0; formats[i]; i++)
        fprintf(to, "  %-19s %s\n", formats[i]->name, formats[i]->what);
    fprintf(to, "By Python, as they need its packages (python -m dmi --help): %s\n",
            FORMATS_ELSEWHERE);
}

static const struct options_table table = {
    .name = "dmi-dump",
    .before = before,
    .after = after,
    .more = print_formats,
    .column = 22,
    OPTIONS_ROWS(rows),
};

static int take_words(int n, char **words, const struct dump_command *commands,
                      struct dump_options *o)
{
    for (const struct dump_command *c = commands; c->name; c++)
        if (!strcmp(words[0], c->name))
            o->command = c;
    if (!o->command && !strcmp(words[0], "join")) {
        return usage_wrong(
            "there is no 'join': every command joins the runs of ranks that a folder holds");
    }
    if (!o->command)
        return usage_command(words[0], "list, show, stats, verify, diff, edits, export or recover");
    int at = 1;
    if (o->command->takes_site && at < n) {
        if (!choice_name(words[at++], &o->select.sites))
            return DUMP_USAGE;
    } else if (o->command->takes_site) {
        return usage_wrong("%s needs a SITE (dmi-dump list names them) and a RUN", words[0]);
    }
    if (at == n && !o->from) {
        return usage_wrong("%s needs a RUN: a run's folder, or the --out folder of one run",
                           words[0]);
    }
    if (!o->from)
        o->run = words[at++];
    if (o->command->takes_other && at == n) {
        return usage_wrong("%s needs two runs: RUN OTHER", words[0]);
    }
    if (o->command->takes_other)
        o->other = words[at++];
    if (o->command->takes_several && o->run) {
        o->runs = words + at - 1;
        o->n_runs = (size_t)(n - at + 1);
        at = n;
    }
    if (at < n) {
        return usage_wrong("'%s' is one argument too many", words[at]);
    }
    return -1;
}

/* What is not given: diff allows nothing, or where one is given anything else. */
static void set_tolerances(struct dump_options *o)
{
    bool exact = o->command && o->command->takes_other;
    bool none = o->tolerance < 0 && o->row_tolerance < 0;
    if (o->tolerance < 0)
        o->tolerance = !exact ? 3e-3 : none ? 0 : HUGE_VAL;
    if (o->row_tolerance < 0)
        o->row_tolerance = !exact ? 2e-2 : none ? 0 : HUGE_VAL;
}

/* Whether the format can be what several runs, or several calls, write. */
static bool is_one(const struct dump_options *o, const struct format *format)
{
    if (o->append && o->force) {
        complain("--append goes on with what is there, --force replaces it: one of them");
        return false;
    }
    if (format->is_dataset || (!o->append && o->n_runs < 2))
        return true;
    complain("--format %s is of one run: a dataset of several runs, and --append, are for export "
             "--format vllm and vllm-hook",
             format->name);
    return false;
}

/* Checks what goes with some formats alone, and gives --site and --layers to a format that chooses by itself. Return: -1 to go on, else an exit status. */
static int hand_over(struct dump_options *o)
{
    const struct format *format = formats_find(o->format);
    bool exports = !strcmp(o->command->name, "export");
    bool chooses = exports && format && format->chooses;
    if (o->select.fill_cached && format && format->copy) {
        return usage_wrong(
            "--fill-cached: format %s has records as they are, and no tensors to fill",
            format->name);
    }
    bool takes_names = exports && format && format->takes_names;
    if (o->names &&
        (!takes_names || (strcmp(o->names, "keys") && strcmp(o->names, "transformerlens")))) {
        return usage_wrong("--names: '%s': export --format npz takes keys, or transformerlens",
                           o->names);
    }
    if (o->by_heads && !(exports && format && format->takes_heads)) {
        return usage_wrong(
            "--queries, --head-dim and --multiplier are for export --format vllm-hook");
    }
    if (exports && format && !is_one(o, format))
        return usage_hint();
    if (o->loss_mask && !(exports && format && format->takes_mask)) {
        return usage_wrong("--loss-mask is for export --format vllm");
    }
    if (chooses && !format->takes_sites && o->select.sites.n > 1) {
        return usage_wrong("--site: export --format %s takes one", format->name);
    }
    if (chooses) {
        o->own.sites = o->select.sites;
        memcpy(o->own.layers, o->select.layers, sizeof o->own.layers);
        o->own.n_layers = o->select.n_layers;
        o->select.sites = (struct selection_names){ 0 };
        o->select.n_layers = 0;
    }
    return -1;
}

int options_parse(int argc, char **argv, const struct dump_command *commands,
                  struct dump_options *o)
{
    *o = (struct dump_options){ .ranks = { -1, -1, -1, -1 }, .tolerance = -1, .row_tolerance = -1 };
    uint64_t given = 0;
    int status = options_read(&table, argc, argv, o, &given);
    if (status >= 0)
        return status;
    if (optind == argc)
        return options_help(&table, stderr);
    status = take_words(argc - optind, argv + optind, commands, o);
    if (status < 0)
        status = option_taken(options_fit(&table, o->command->name, given));
    set_tolerances(o);
    return status < 0 ? hand_over(o) : status;
}

void options_deinit(struct dump_options *o)
{
    selection_deinit(&o->select);
    selection_deinit(&o->own);
}
