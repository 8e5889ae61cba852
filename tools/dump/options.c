/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/options.h"

#include "tools/common/choice.h"
#include "tools/dump/formats.h"
#include "tools/dump/output.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage_text[] =
    "dmi-dump list   RUN                  what was captured: sites, layers, shapes, requests\n"
    "dmi-dump show   SITE RUN             values of a site\n"
    "dmi-dump stats  RUN                  sizes, ratio, and whether captured + dropped = expected\n"
    "dmi-dump verify RUN                  every checksum, every file, the accounting\n"
    "dmi-dump verify RUN --against REF    compare with a safetensors file of reference "
    "activations\n"
    "dmi-dump diff   RUN OTHER            where two runs differ: site, layer, request, token\n"
    "dmi-dump export RUN --format F -o O  tensors in what others read\n"
    "dmi-dump edits  RUN                  what edits were in force when, and who changed them\n"
    "dmi-dump recover RUN -o O            a new run of what a kill or damage has left\n"
    "\n"
    "RUN is a run's folder, the --out folder of one run or of one command's ranks, which are "
    "joined, or\n"
    "one segment file.\n"
    "SITE is a site's name, or a tensor's as `list --tensors` prints it.\n"
    "\n"
    "  --from ADDRESS      in the place of RUN: from a ClickHouse server "
    "(clickhouse://HOST/DATABASE, "
    "?run=UUID\n"
    "                      where there are several)\n"
    "  --json              JSON on stdout instead of text\n"
    "  --site NAME         list, diff, export: only this site or tensor\n"
    "  --layer N | A:B     show, list, diff, export: only this layer, or layers A to B-1\n"
    "  --layers 2,15,last  export -f vllm: these layers, in this order; last: what enters the last "
    "norm\n"
    "  --step S | A:B      show: the engine's step numbers (without step metadata: forwards)\n"
    "  --forward F | A:B   show: forwards, counted from 0\n"
    "  --rows A:B          show: rows A to B-1 of what is selected (default: the first 4)\n"
    "  --request ID        show, list, stats, diff, export: only this request; verify --against: "
    "only this\n"
    "                      one, or what to call that of a run whose engine gave no request ids\n"
    "  --tokens T          show, list, stats, diff, export: only these tokens of each request: "
    "positions\n"
    "                      A:B, prompt, generated, or last\n"
    "  --rejected          show, list, stats, export: also rows whose drafts were rejected\n"
    "  --superseded        show, list, stats, export: also rows whose position was computed again\n"
    "  --fill-cached       export: rows of tokens that a prefix cache had, from a request that "
    "computed them\n"
    "                      with the same tokens from position 0 on; the output says from which\n"
    "  --rank R | tp=R,... of a folder with the runs of several ranks: only those of tensor "
    "parallel rank\n"
    "                      R, or with these ranks of tp, pp, dp, ep; not joined with the others\n"
    "  --request ID=NAME   verify --against, diff: request ID, which the reference, or OTHER, "
    "calls "
    "NAME\n"
    "  --all               show: all values of a row\n"
    "  --map               show: a heat map: rows down, blocks of the width or layers across\n"
    "  --records           list: every record\n"
    "  --tensors           list: every tensor as export would name it\n"
    "  --requests          list: every request: its state, its tokens computed, cached and "
    "rejected;\n"
    "                      stats: what each one's capture cost\n"
    "  --edits             stats: of each edit the rows that were due, written and missed\n"
    "  --export FILE       edits: write what was in force in the end, as a file of edits, with its "
    "vectors in\n"
    "                      a safetensors file beside it\n"
    "  --tolerance X       verify: error norm / reference norm of a tensor (default 3e-3); diff: "
    "the "
    "same\n"
    "                      (default: every bit)\n"
    "  --row-tolerance X   verify, diff: the same of a single row (verify's default: 2e-2)\n"
    "  --format F, -f      export: one of the formats below\n"
    "  --output PATH, -o   export, recover: where to (default: RUN's name in the current folder)\n"
    "  --force             edits, export: replace a file that is there, or a folder that an export "
    "wrote\n"
    "  --names N           export -f npz: keys, or transformerlens: its names where it has one\n"
    "  --queries Q         export -f vllm-hook: all, or last: only each request's last\n"
    "  --head-dim N        export -f vllm-hook: elements of a head, if captured without a "
    "dimension of heads\n"
    "  --multiplier X      export -f vllm-hook: by what attention multiplies queries and keys "
    "(default:\n"
    "                      1 / square root of a head's elements)\n"
    "  --version           the version\n"
    "\n"
    "Exit status: 0 all well; 1 damage, accounting that does not balance, a difference, nothing "
    "found;\n"
    "2 wrong usage or nothing readable.\n"
    "\n"
    "Formats of export, the default first:\n";

enum option_id {
    OPT_JSON = 256,
    OPT_SITE,
    OPT_LAYER,
    OPT_STEP,
    OPT_FORWARD,
    OPT_ROWS,
    OPT_REQUEST,
    OPT_TOKENS,
    OPT_REJECTED,
    OPT_SUPERSEDED,
    OPT_FILL_CACHED,
    OPT_RANK,
    OPT_ALL,
    OPT_RECORDS,
    OPT_TENSORS,
    OPT_REQUESTS,
    OPT_EDITS,
    OPT_EXPORT,
    OPT_AGAINST,
    OPT_FROM,
    OPT_FORCE,
    OPT_MAP,
    OPT_NAMES,
    OPT_QUERIES,
    OPT_HEAD_DIM,
    OPT_MULTIPLIER,
    OPT_TOLERANCE,
    OPT_ROW_TOLERANCE,
    OPT_VERSION
};

static const struct option long_options[] = {
    { "json", no_argument, NULL, OPT_JSON },
    { "site", required_argument, NULL, OPT_SITE },
    { "layer", required_argument, NULL, OPT_LAYER },
    { "layers", required_argument, NULL, OPT_LAYER },
    { "step", required_argument, NULL, OPT_STEP },
    { "forward", required_argument, NULL, OPT_FORWARD },
    { "rows", required_argument, NULL, OPT_ROWS },
    { "request", required_argument, NULL, OPT_REQUEST },
    { "tokens", required_argument, NULL, OPT_TOKENS },
    { "rejected", no_argument, NULL, OPT_REJECTED },
    { "superseded", no_argument, NULL, OPT_SUPERSEDED },
    { "fill-cached", no_argument, NULL, OPT_FILL_CACHED },
    { "rank", required_argument, NULL, OPT_RANK },
    { "all", no_argument, NULL, OPT_ALL },
    { "records", no_argument, NULL, OPT_RECORDS },
    { "tensors", no_argument, NULL, OPT_TENSORS },
    { "requests", no_argument, NULL, OPT_REQUESTS },
    { "edits", no_argument, NULL, OPT_EDITS },
    { "export", required_argument, NULL, OPT_EXPORT },
    { "force", no_argument, NULL, OPT_FORCE },
    { "map", no_argument, NULL, OPT_MAP },
    { "names", required_argument, NULL, OPT_NAMES },
    { "queries", required_argument, NULL, OPT_QUERIES },
    { "head-dim", required_argument, NULL, OPT_HEAD_DIM },
    { "multiplier", required_argument, NULL, OPT_MULTIPLIER },
    { "against", required_argument, NULL, OPT_AGAINST },
    { "from", required_argument, NULL, OPT_FROM },
    { "tolerance", required_argument, NULL, OPT_TOLERANCE },
    { "row-tolerance", required_argument, NULL, OPT_ROW_TOLERANCE },
    { "format", required_argument, NULL, 'f' },
    { "output", required_argument, NULL, 'o' },
    { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, OPT_VERSION },
    { 0 },
};

/* Which commands take an option, by their first letters but for stats and edits: 't' and 'i'; options that are not here go with all. */
static const struct {
    int id;
    const char *commands;
} taken_by[] = {
    { OPT_SITE, "lde" },
    { OPT_LAYER, "slde" },
    { OPT_STEP, "s" },
    { OPT_FORWARD, "s" },
    { OPT_ROWS, "s" },
    { OPT_REQUEST, "sltdev" },
    { OPT_TOKENS, "sltde" },
    { OPT_REJECTED, "slte" },
    { OPT_SUPERSEDED, "slte" },
    { OPT_FILL_CACHED, "e" },
    { OPT_ALL, "s" },
    { OPT_RECORDS, "l" },
    { OPT_TENSORS, "l" },
    { OPT_REQUESTS, "lt" },
    { OPT_AGAINST, "v" },
    { OPT_EDITS, "t" },
    { OPT_EXPORT, "i" },
    { OPT_FORCE, "ei" },
    { OPT_MAP, "s" },
    { OPT_NAMES, "e" },
    { OPT_QUERIES, "e" },
    { OPT_HEAD_DIM, "e" },
    { OPT_MULTIPLIER, "e" },
    { OPT_TOLERANCE, "vd" },
    { OPT_ROW_TOLERANCE, "vd" },
    { 'f', "e" },
    { 'o', "er" },
};

static const char *option_name(int id)
{
    for (const struct option *o = long_options; o->name; o++)
        if (o->val == id)
            return o->name;
    return "?";
}

static int hint(void)
{
    complain("try: dmi-dump --help");
    return DUMP_USAGE;
}

static int print_usage(FILE *to)
{
    fputs(usage_text, to);
    for (size_t i = 0; formats[i]; i++)
        fprintf(to, "  %-19s %s\n", formats[i]->name, formats[i]->what);
    fprintf(to, "By Python, as they need its packages (python -m dmi --help): %s\n",
            FORMATS_ELSEWHERE);
    return to == stdout ? DUMP_OK : DUMP_USAGE;
}

static bool parse_double(const char *s, double *out)
{
    char *end;
    *out = strtod(s, &end);
    return end != s && !*end && *out >= 0;
}

static int take_tolerance(int id, double *out)
{
    if (parse_double(optarg, out))
        return -1;
    complain("--%s: '%s' is neither a number above 0 nor 0", option_name(id), optarg);
    return hint();
}

static bool is_list(const char *layers)
{
    return strchr(layers, ',') || !strcmp(layers, "last");
}

/* Return: as take_option(). */
static int take(bool taken)
{
    return taken ? -1 : hint();
}

static int take_range(int id, struct range *range, bool *given)
{
    *given = true;
    return take(choice_range(option_name(id), optarg, range));
}

static int take_queries(struct options *o)
{
    o->by_heads = true;
    o->last_queries = !strcmp(optarg, "last");
    if (o->last_queries || !strcmp(optarg, "all"))
        return -1;
    complain("--queries: '%s' is neither all nor last", optarg);
    return hint();
}

static int take_head_dim(struct options *o)
{
    struct range range;
    o->by_heads = true;
    bool good = choice_parse_range(optarg, &range) && range.first > 0 &&
                range.end == range.first + 1 && range.first <= 65536;
    o->head_dim = good ? (uint32_t)range.first : 0;
    if (good)
        return -1;
    complain("--head-dim: '%s' is no number from 1 to 65536", optarg);
    return hint();
}

static int take_multiplier(struct options *o)
{
    o->by_heads = true;
    if (parse_double(optarg, &o->multiplier) && o->multiplier > 0 && isfinite(o->multiplier))
        return -1;
    complain("--multiplier: '%s' is no number above 0", optarg);
    return hint();
}

/* A list is for formats that choose by themselves: hand_over(). */
static int take_layers(int id, struct options *o)
{
    o->layers = optarg;
    return is_list(optarg) ? -1 : take_range(id, &o->select.layers, &o->select.by_layer);
}

/* Return: -1 to go on, else an exit status. */
static int take_option(int c, struct options *o)
{
    switch (c) {
    case OPT_JSON: o->json = true; break;
    case OPT_SITE: o->select.site = optarg; break;
    case OPT_LAYER: return take_layers(c, o);
    case OPT_STEP: return take_range(c, &o->steps, &o->by_step);
    case OPT_FORWARD: return take_range(c, &o->forwards, &o->by_forward);
    case OPT_ROWS: return take_range(c, &o->rows, &o->by_rows);
    case OPT_REQUEST: o->select.request = optarg; break;
    case OPT_TOKENS: return take(choice_tokens(optarg, &o->select));
    case OPT_REJECTED: o->select.rejected = true; break;
    case OPT_SUPERSEDED: o->select.superseded = true; break;
    case OPT_FILL_CACHED: o->select.fill_cached = true; break;
    case OPT_RANK: o->by_rank = true; return take(choice_ranks(optarg, o->ranks));
    case OPT_ALL: o->all_values = true; break;
    case OPT_RECORDS: o->records = true; break;
    case OPT_TENSORS: o->tensors = true; break;
    case OPT_REQUESTS: o->requests = true; break;
    case OPT_EDITS: o->edits = true; break;
    case OPT_EXPORT: o->edits_to = optarg; break;
    case OPT_FORCE: o->force = true; break;
    case OPT_MAP: o->map = true; break;
    case OPT_NAMES: o->names = optarg; break;
    case OPT_QUERIES: return take_queries(o);
    case OPT_HEAD_DIM: return take_head_dim(o);
    case OPT_MULTIPLIER: return take_multiplier(o);
    case OPT_AGAINST: o->against = optarg; break;
    case OPT_FROM: o->from = optarg; break;
    case OPT_TOLERANCE: return take_tolerance(c, &o->tolerance);
    case OPT_ROW_TOLERANCE: return take_tolerance(c, &o->row_tolerance);
    case 'f': o->format = optarg; break;
    case 'o': o->output = optarg; break;
    case 'h': return print_usage(stdout);
    case OPT_VERSION: puts("dmi-dump " DMI_VERSION); return DUMP_OK;
    default: return hint();
    }
    return -1;
}

static int take_words(int n, char **words, const struct command *commands, struct options *o)
{
    for (const struct command *c = commands; c->name; c++)
        if (!strcmp(words[0], c->name))
            o->command = c;
    if (!o->command && !strcmp(words[0], "join")) {
        complain("there is no 'join': every command joins the runs of ranks that a folder holds");
        return hint();
    }
    if (!o->command) {
        complain("'%s' is no command: list, show, stats, verify, diff, edits, export, recover",
                 words[0]);
        return hint();
    }
    int at = 1;
    if (o->command->takes_site && at < n)
        o->select.site = words[at++];
    else if (o->command->takes_site) {
        complain("%s needs a SITE (dmi-dump list names them) and a RUN", words[0]);
        return hint();
    }
    if (at == n && !o->from) {
        complain("%s needs a RUN: a run's folder, or the --out folder of one run", words[0]);
        return hint();
    }
    if (!o->from)
        o->run = words[at++];
    if (o->command->takes_other && at == n) {
        complain("%s needs two runs: RUN OTHER", words[0]);
        return hint();
    }
    if (o->command->takes_other)
        o->other = words[at++];
    if (at < n) {
        complain("'%s' is one argument too many", words[at]);
        return hint();
    }
    return -1;
}

/* Of taken_by. */
static char letter_of(const char *command)
{
    return !strcmp(command, "stats") ? 't' : !strcmp(command, "edits") ? 'i' : *command;
}

/* Whether the command takes each of the options that were given. */
static bool are_taken(const struct options *o, uint32_t given)
{
    char letter = letter_of(o->command->name);
    for (size_t i = 0; i < sizeof taken_by / sizeof *taken_by; i++)
        if (given >> i & 1 && !strchr(taken_by[i].commands, letter)) {
            complain("%s does not take --%s", o->command->name, option_name(taken_by[i].id));
            return false;
        }
    return true;
}

static uint32_t bit_of(int id)
{
    for (size_t i = 0; i < sizeof taken_by / sizeof *taken_by; i++)
        if (taken_by[i].id == id)
            return 1u << i;
    return 0;
}

/* What is not given: diff allows nothing, or where one is given anything else. */
static void set_tolerances(struct options *o)
{
    bool exact = o->command && o->command->takes_other;
    bool none = o->tolerance < 0 && o->row_tolerance < 0;
    if (o->tolerance < 0)
        o->tolerance = !exact ? 3e-3 : none ? 0 : HUGE_VAL;
    if (o->row_tolerance < 0)
        o->row_tolerance = !exact ? 2e-2 : none ? 0 : HUGE_VAL;
}

/* Checks what goes with some formats alone, and gives --site and --layers to a format that chooses by itself. Return: as take_option(). */
static int hand_over(struct options *o)
{
    const struct format *format = formats_find(o->format);
    bool exports = !strcmp(o->command->name, "export");
    bool chooses = exports && format && format->chooses;
    if (!chooses && o->layers && is_list(o->layers)) {
        complain("--layers: a list, and 'last', are for export --format vllm and vllm-hook: '%s' "
                 "is neither a number nor a range A:B",
                 o->layers);
        return hint();
    }
    if (o->select.fill_cached && format && format->copy) {
        complain("--fill-cached: format %s has records as they are, and no tensors to fill",
                 format->name);
        return hint();
    }
    bool takes_names = exports && format && format->takes_names;
    if (o->names &&
        (!takes_names || (strcmp(o->names, "keys") && strcmp(o->names, "transformerlens")))) {
        complain("--names: '%s': export --format npz takes keys, or transformerlens", o->names);
        return hint();
    }
    if (o->by_heads && !(exports && format && format->takes_heads)) {
        complain("--queries, --head-dim and --multiplier are for export --format vllm-hook");
        return hint();
    }
    if (chooses) {
        o->site = o->select.site;
        o->select.site = NULL;
        o->select.by_layer = false;
    }
    return -1;
}

int options_parse(int argc, char **argv, const struct command *commands, struct options *o)
{
    static const struct range all = { 0, INT64_MAX };
    *o = (struct options){ .ranks = { -1, -1, -1, -1 },
                           .steps = all,
                           .forwards = all,
                           .rows = all,
                           .tolerance = -1,
                           .row_tolerance = -1 };
    int c;
    uint32_t given = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":f:o:h", long_options, NULL)) != -1) {
        int status;
        if (c == '?' || c == ':') {
            complain("%s '%s'", c == ':' ? "no value after" : "unknown option", argv[optind - 1]);
            status = hint();
        } else {
            status = take_option(c, o);
            given |= bit_of(c);
        }
        if (status >= 0)
            return status;
    }
    if (optind == argc)
        return print_usage(stderr);
    if (o->select.request)
        o->select.n_request = strlen(o->select.request);
    int status = take_words(argc - optind, argv + optind, commands, o);
    if (status < 0 && !are_taken(o, given))
        status = hint();
    set_tolerances(o);
    return status < 0 ? hand_over(o) : status;
}
