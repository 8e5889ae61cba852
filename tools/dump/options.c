/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/options.h"

#include "policy/number.h"
#include "tools/common/choice.h"
#include "tools/common/say.h"
#include "tools/common/usage.h"
#include "tools/dump/formats.h"
#include "tools/dump/output.h"

#include <errno.h>
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
    "dmi-dump export RUN --format F -o O  tensors in what others read; some formats take several "
    "runs\n"
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
    "  --site NAME         list, diff, export: only this site or tensor; vllm stacks several\n"
    "  --layers LIST       show, list, diff, export: only these layers: 0,3-7,last (3-7: 7 is "
    "included).\n"
    "                      Formats that stack layers take them in this order; there last is what "
    "enters the\n"
    "                      last norm\n"
    "  --step A:B          show: the engine's step numbers (without step metadata: forwards), A to "
    "B-1\n"
    "  --forward A:B       show: forwards, counted from 0\n"
    "  --rows A:B          show: rows A to B-1 of what is selected, -2: the last two (default: the "
    "first 4)\n"
    "  --request ID        show, list, stats, diff, export: only this request; verify --against: "
    "only this\n"
    "                      one, or what to call that of a run whose engine gave no request ids\n"
    "  --tokens LIST       show, list, stats, diff, export: only these tokens of each request: "
    "positions 5\n"
    "                      or A:B, which -2: counts from the end, prompt, response, "
    "response[0:16], "
    "last, all\n"
    "                      These options may come several times: all of it is wanted. Lists have "
    "commas.\n"
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
    "  --append            export: go on with a dataset that is there: what it has is not written "
    "twice\n"
    "  --names N           export -f npz: keys, or transformerlens: its names where it has one\n"
    "  --loss-mask FILE    export -f vllm: which tokens count in a loss, by request: JSON lines "
    "{\"request\": ID,\n"
    "                      \"spans\": [[A, B], ...]} or {\"request\": ID, \"mask\": [0, 1, ...]}\n"
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
    "2 wrong usage, a name that the run has not, or nothing readable.\n"
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
    OPT_APPEND,
    OPT_MAP,
    OPT_NAMES,
    OPT_LOSS_MASK,
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
    { "append", no_argument, NULL, OPT_APPEND },
    { "map", no_argument, NULL, OPT_MAP },
    { "names", required_argument, NULL, OPT_NAMES },
    { "loss-mask", required_argument, NULL, OPT_LOSS_MASK },
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
    { OPT_APPEND, "e" },
    { OPT_MAP, "s" },
    { OPT_NAMES, "e" },
    { OPT_LOSS_MASK, "e" },
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
    return usage_wrong("--%s: '%s' is neither a number above 0 nor 0", option_name(id), optarg);
}

/* Return: as take_option(). */
static int take(bool taken)
{
    return taken ? -1 : usage_hint();
}

static int take_numbers(int id, bool from_end, struct slices *slices)
{
    return take(choice_numbers(option_name(id), optarg, from_end, slices));
}

static int take_queries(struct options *o)
{
    o->by_heads = true;
    o->last_queries = !strcmp(optarg, "last");
    if (o->last_queries || !strcmp(optarg, "all"))
        return -1;
    return usage_wrong("--queries: '%s' is neither all nor last", optarg);
}

static int take_head_dim(struct options *o)
{
    int64_t n;
    o->by_heads = true;
    bool good = parse_integer(optarg, &n) && n > 0 && n <= 65536;
    o->head_dim = good ? (uint32_t)n : 0;
    if (good)
        return -1;
    return usage_wrong("--head-dim: '%s' is no number from 1 to 65536", optarg);
}

static int take_multiplier(struct options *o)
{
    o->by_heads = true;
    if (parse_double(optarg, &o->multiplier) && o->multiplier > 0 && isfinite(o->multiplier))
        return -1;
    return usage_wrong("--multiplier: '%s' is no number above 0", optarg);
}

/* Return: -1 to go on, else an exit status. */
static int take_option(int c, struct options *o)
{
    switch (c) {
    case OPT_JSON: o->json = true; break;
    case OPT_SITE: return take(choice_name(optarg, &o->select.sites));
    case OPT_LAYER: return take(choice_layers(optarg, &o->select));
    case OPT_STEP: return take_numbers(c, false, &o->steps);
    case OPT_FORWARD: return take_numbers(c, false, &o->forwards);
    case OPT_ROWS: return take_numbers(c, true, &o->rows);
    case OPT_REQUEST: return take(choice_name(optarg, &o->select.requests));
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
    case OPT_APPEND: o->append = true; break;
    case OPT_MAP: o->map = true; break;
    case OPT_NAMES: o->names = optarg; break;
    case OPT_LOSS_MASK: o->loss_mask = optarg; break;
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
    default: return DUMP_USAGE;
    }
    return -1;
}

static int take_words(int n, char **words, const struct command *commands, struct options *o)
{
    for (const struct command *c = commands; c->name; c++)
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

/* Whether the format can be what several runs, or several calls, write. */
static bool is_one(const struct options *o, const struct format *format)
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

/* Checks what goes with some formats alone, and gives --site and --layers to a format that chooses by itself. Return: as take_option(). */
static int hand_over(struct options *o)
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

int options_parse(int argc, char **argv, const struct command *commands, struct options *o)
{
    *o = (struct options){ .ranks = { -1, -1, -1, -1 }, .tolerance = -1, .row_tolerance = -1 };
    int c;
    uint32_t given = 0;
    while ((c = usage_option(argc, argv, "f:o:h", long_options)) != -1) {
        int status = take_option(c, o);
        given |= bit_of(c);
        if (status >= 0)
            return status;
    }
    if (optind == argc)
        return print_usage(stderr);
    int status = take_words(argc - optind, argv + optind, commands, o);
    if (status < 0 && !are_taken(o, given))
        status = usage_hint();
    set_tolerances(o);
    return status < 0 ? hand_over(o) : status;
}

void options_deinit(struct options *o)
{
    selection_deinit(&o->select);
    selection_deinit(&o->own);
}
