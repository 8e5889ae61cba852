/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/options.h"

#include "policy/number.h"
#include "tools/common/choice.h"
#include "tools/common/say.h"
#include "tools/common/usage.h"

#include <stdio.h>
#include <string.h>

static const char usage_text[] =
    "dmi-analyze attention RUN     which tokens a head attends to, proved by what the model made "
    "of it\n"
    "dmi-analyze heads RUN         which heads look back, copy, induce, rest on the first token\n"
    "dmi-analyze focus RUN         how much of its attention a prompt's end gives to the "
    "instruction\n"
    "dmi-analyze rerank RUN        which document a query reads\n"
    "dmi-analyze stats RUN         what tensors hold: norms, moments, the largest value, outlier "
    "channels\n"
    "dmi-analyze routing RUN       which experts a mixture of experts chose, and how evenly\n"
    "\n"
    "RUN is a run's folder, the --out folder of one run or of one command's ranks, which are "
    "joined, or\n"
    "one segment file.\n"
    "\n"
    "  --request ID        of this request; a run of one request needs none\n"
    "  --layers LIST       only these layers: 0,3-7,last (3-7: 7 is included)\n"
    "  --heads LIST        only these heads of each layer: 0,4:8 (4:8: 8 is not included)\n"
    "                      focus, rerank: a file that lists them: [[LAYER, HEAD], ...]\n"
    "  --tokens LIST       only these queries: positions 5 or A:B, which -2: counts from the end, "
    "prompt,\n"
    "                      response, response[0:16], last, all\n"
    "  --top N             so many of the strongest pairs, or of the first heads (default: 10)\n"
    "  --skip-first        leave out the first token as a key: heads that have nothing to say rest "
    "there\n"
    "  --map               of one head: a map, queries down, keys across\n"
    "  --config FILE       the model's config.json, the folder that has it, or a GGUF: how q and k "
    "are\n"
    "                      rotated, windows, softcap (default: what an adapter noted in the run)\n"
    "  --rope-order O      halves or pairs: which dimensions of a head RoPE turns together, where "
    "neither\n"
    "                      config nor run says it\n"
    "  --prefix RUN[:ID]   keys and values of positions that the request lacks, from a request of "
    "this run\n"
    "  --fill-cached       rows of tokens that a prefix cache had, from a request that computed "
    "them with\n"
    "                      the same tokens from position 0 on\n"
    "  --rank R | tp=R,... of a folder with the runs of several ranks: only those of tensor "
    "parallel rank\n"
    "                      R, or with these ranks of tp, pp, dp, ep; not joined with the others\n"
    "  --unchecked         print an answer although its proof fails, or lacks where it must be\n"
    "  --multiplier X      by what scores are multiplied (default: the config's, else 1 / square "
    "root of a\n"
    "                      head's elements)\n"
    "  --q-rot NAME        a site of this name in the place of q_rot, rows of q after RoPE\n"
    "  --k-rot NAME        the same of k_rot\n"
    "  --q-norm NAME       the same of q_norm: after a norm by head, before RoPE\n"
    "  --k-norm NAME       the same of k_norm\n"
    "  --q NAME            the same of q, before both\n"
    "  --k NAME            the same of k\n"
    "  --v NAME            the same of v\n"
    "  --z NAME            the same of z\n"
    "  --threads N         threads that compute (default: 1)\n"
    "  --memory SIZE       bytes for keys, values and rows of weights, K, M or G after the number "
    "(default: 3M,\n"
    "                      or more where twenty rows of each head that shares a KV head need "
    "more)\n"
    "  --exclude-bos       heads: mul and abs without weights of the first token\n"
    "  --exclude-current   heads: mul and abs without weights of the query's own token\n"
    "  --spans FILE        focus: where instruction and data lie in each prompt, in JSON\n"
    "  --tokenizer FILE    focus, rerank: a tokenizer.json, the folder that has it, or a GGUF: for "
    "passages\n"
    "                      that are given by text or by a chat's role\n"
    "  --measure M         focus: sum_normalize (default), max_normalize, sum, max\n"
    "  --below X           focus: exit with status 3 if a request was below X\n"
    "  --follow            focus: a line for each request as it ends its prompt, until the run "
    "ends;\n"
    "                      stats: an answer whenever the run has grown\n"
    "  --find              focus: the heads that tell requests apart, from --plain and --injected\n"
    "  --plain LIST        focus: ids of requests without an injection, separated by commas\n"
    "  --injected LIST     focus: ids of requests with one\n"
    "  --times X           focus: so many standard deviations between the two (default: 4)\n"
    "  --passages FILE     rerank: where documents and queries lie, in JSON\n"
    "  --query ID          rerank: the request with the query\n"
    "  --null ID           rerank: the request with a query without content, as N/A\n"
    "  --all-heads         rerank: sum over all heads, though --heads names some\n"
    "  --site NAME         stats: only this site; may come several times\n"
    "  --by WHAT           stats: what a line is of: layer (default), token or channel\n"
    "  --experts N         routing: how many a layer has, where router_logits was not captured\n"
    "  --top-k K           routing: choices are the K largest router logits, weights their "
    "softmax\n"
    "  --ids NAME          routing: the site of this name in the place of topk_ids; heads: of "
    "token_ids\n"
    "  --weights NAME      routing: the same of topk_weights\n"
    "  --logits NAME       routing: the same of router_logits\n"
    "  --output FILE, -o   also write the answer as safetensors; attention: or npy, where the name "
    "ends so\n"
    "  --force             replace a file that is there\n"
    "  --json              JSON on stdout instead of text\n"
    "  --version           the version\n"
    "\n"
    "Exit status: 0 all well; 1 nothing to answer from; 2 wrong usage, a name that the run has "
    "not, or\n"
    "nothing readable; 3 a request was below --below; 4 the answer was refused: attention's "
    "weights times v are not z.\n";

enum option_id {
    OPT_REQUEST = 256,
    OPT_LAYERS,
    OPT_HEADS,
    OPT_TOKENS,
    OPT_TOP,
    OPT_SKIP_FIRST,
    OPT_MAP,
    OPT_CONFIG,
    OPT_EXCLUDE_BOS,
    OPT_EXCLUDE_CURRENT,
    OPT_SPANS,
    OPT_TOKENIZER,
    OPT_MEASURE,
    OPT_BELOW,
    OPT_FOLLOW,
    OPT_FIND,
    OPT_PLAIN,
    OPT_INJECTED,
    OPT_TIMES,
    OPT_PASSAGES,
    OPT_QUERY,
    OPT_NULL,
    OPT_ALL_HEADS,
    OPT_ROPE_ORDER,
    OPT_PREFIX,
    OPT_FILL_CACHED,
    OPT_RANK,
    OPT_UNCHECKED,
    OPT_MULTIPLIER,
    OPT_Q_ROT,
    OPT_K_ROT,
    OPT_Q_NORM,
    OPT_K_NORM,
    OPT_Q,
    OPT_K,
    OPT_V,
    OPT_Z,
    OPT_THREADS,
    OPT_MEMORY,
    OPT_SITE,
    OPT_BY,
    OPT_EXPERTS,
    OPT_TOP_K,
    OPT_IDS,
    OPT_WEIGHTS,
    OPT_LOGITS,
    OPT_OUTPUT,
    OPT_FORCE,
    OPT_JSON,
    OPT_VERSION
};

static const struct option long_options[] = {
    { "request", required_argument, NULL, OPT_REQUEST },
    { "layers", required_argument, NULL, OPT_LAYERS },
    { "layer", required_argument, NULL, OPT_LAYERS },
    { "heads", required_argument, NULL, OPT_HEADS },
    { "head", required_argument, NULL, OPT_HEADS },
    { "tokens", required_argument, NULL, OPT_TOKENS },
    { "top", required_argument, NULL, OPT_TOP },
    { "skip-first", no_argument, NULL, OPT_SKIP_FIRST },
    { "map", no_argument, NULL, OPT_MAP },
    { "config", required_argument, NULL, OPT_CONFIG },
    { "exclude-bos", no_argument, NULL, OPT_EXCLUDE_BOS },
    { "exclude-current", no_argument, NULL, OPT_EXCLUDE_CURRENT },
    { "spans", required_argument, NULL, OPT_SPANS },
    { "tokenizer", required_argument, NULL, OPT_TOKENIZER },
    { "measure", required_argument, NULL, OPT_MEASURE },
    { "below", required_argument, NULL, OPT_BELOW },
    { "follow", no_argument, NULL, OPT_FOLLOW },
    { "find", no_argument, NULL, OPT_FIND },
    { "plain", required_argument, NULL, OPT_PLAIN },
    { "injected", required_argument, NULL, OPT_INJECTED },
    { "times", required_argument, NULL, OPT_TIMES },
    { "passages", required_argument, NULL, OPT_PASSAGES },
    { "query", required_argument, NULL, OPT_QUERY },
    { "null", required_argument, NULL, OPT_NULL },
    { "all-heads", no_argument, NULL, OPT_ALL_HEADS },

    { "rope-order", required_argument, NULL, OPT_ROPE_ORDER },
    { "prefix", required_argument, NULL, OPT_PREFIX },
    { "fill-cached", no_argument, NULL, OPT_FILL_CACHED },
    { "rank", required_argument, NULL, OPT_RANK },
    { "unchecked", no_argument, NULL, OPT_UNCHECKED },
    { "multiplier", required_argument, NULL, OPT_MULTIPLIER },
    { "q-rot", required_argument, NULL, OPT_Q_ROT },
    { "k-rot", required_argument, NULL, OPT_K_ROT },
    { "q-norm", required_argument, NULL, OPT_Q_NORM },
    { "k-norm", required_argument, NULL, OPT_K_NORM },
    { "q", required_argument, NULL, OPT_Q },
    { "k", required_argument, NULL, OPT_K },
    { "v", required_argument, NULL, OPT_V },
    { "z", required_argument, NULL, OPT_Z },
    { "threads", required_argument, NULL, OPT_THREADS },
    { "memory", required_argument, NULL, OPT_MEMORY },
    { "site", required_argument, NULL, OPT_SITE },
    { "by", required_argument, NULL, OPT_BY },
    { "experts", required_argument, NULL, OPT_EXPERTS },
    { "top-k", required_argument, NULL, OPT_TOP_K },
    { "ids", required_argument, NULL, OPT_IDS },
    { "weights", required_argument, NULL, OPT_WEIGHTS },
    { "logits", required_argument, NULL, OPT_LOGITS },
    { "output", required_argument, NULL, OPT_OUTPUT },
    { "force", no_argument, NULL, OPT_FORCE },
    { "json", no_argument, NULL, OPT_JSON },
    { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, OPT_VERSION },
    { 0 },
};

/* Which commands take an option; options that are not here go with all. */
#define COMPUTING "attention heads focus rerank"
static const struct {
    int id;
    const char *commands;
} taken_by[] = {
    { OPT_HEADS, COMPUTING },
    { OPT_TOKENS, "attention heads stats routing" },
    { OPT_TOP, "attention heads focus" },
    { OPT_SKIP_FIRST, "attention stats" },
    { OPT_MAP, "attention" },
    { OPT_CONFIG, COMPUTING },
    { OPT_ROPE_ORDER, COMPUTING },
    { OPT_PREFIX, COMPUTING },
    { OPT_UNCHECKED, COMPUTING },
    { OPT_MULTIPLIER, COMPUTING },
    { OPT_Q_ROT, COMPUTING },
    { OPT_K_ROT, COMPUTING },
    { OPT_Q_NORM, COMPUTING },
    { OPT_K_NORM, COMPUTING },
    { OPT_Q, COMPUTING },
    { OPT_K, COMPUTING },
    { OPT_V, COMPUTING },
    { OPT_Z, COMPUTING },
    { OPT_THREADS, COMPUTING " stats" },
    { OPT_MEMORY, COMPUTING },
    { OPT_SITE, "stats" },
    { OPT_BY, "stats" },
    { OPT_EXPERTS, "routing" },
    { OPT_TOP_K, "routing" },
    { OPT_EXCLUDE_BOS, "heads" },
    { OPT_EXCLUDE_CURRENT, "heads" },
    { OPT_SPANS, "focus" },
    { OPT_TOKENIZER, "focus rerank" },
    { OPT_MEASURE, "focus" },
    { OPT_BELOW, "focus" },
    { OPT_FOLLOW, "focus stats" },
    { OPT_FIND, "focus" },
    { OPT_PLAIN, "focus" },
    { OPT_INJECTED, "focus" },
    { OPT_TIMES, "focus" },
    { OPT_PASSAGES, "rerank" },
    { OPT_QUERY, "rerank" },
    { OPT_NULL, "rerank" },
    { OPT_ALL_HEADS, "rerank" },
    { OPT_IDS, "heads routing" },
    { OPT_WEIGHTS, "routing" },
    { OPT_LOGITS, "routing" },
    { OPT_OUTPUT, "attention heads focus stats routing" },
    { OPT_FORCE, "attention heads stats routing" },
};

static const char *option_name(int id)
{
    for (const struct option *o = long_options; o->name; o++)
        if (o->val == id)
            return o->name;
    return "?";
}

/* Return: as take_option(). */
static int take(bool taken)
{
    return taken ? -1 : usage_hint();
}

static int take_number(int id, int64_t most, uint32_t *out)
{
    int64_t n;
    bool good = parse_integer(optarg, &n) && n >= 1 && n <= most;
    *out = good ? (uint32_t)n : 0;
    if (good)
        return -1;
    return usage_wrong("--%s: '%s' is no number from 1 to %lld", option_name(id), optarg,
                       (long long)most);
}

static int take_multiplier(double *out)
{
    if (parse_decimal(optarg, out) && *out > 0)
        return -1;
    return usage_wrong("--multiplier: '%s' is no number above 0", optarg);
}

static int take_memory(uint64_t *out)
{
    if (parse_size(optarg, strlen(optarg), out) && *out)
        return -1;
    return usage_wrong("--memory: '%s' is no size", optarg);
}

static int take_order(uint32_t *out)
{
    *out = !strcmp(optarg, "halves") ? DMI_ANALYZE_HALVES : DMI_ANALYZE_PAIRS;
    if (*out == DMI_ANALYZE_HALVES || !strcmp(optarg, "pairs"))
        return -1;
    return usage_wrong("--rope-order: '%s' is neither halves nor pairs", optarg);
}

static int take_measure(uint32_t *out)
{
    static const char *const names[] = { "sum_normalize", "max_normalize", "sum", "max" };
    for (*out = 0; *out < 4; ++*out)
        if (!strcmp(names[*out], optarg))
            return -1;
    return usage_wrong("--measure: '%s' is none of sum_normalize, max_normalize, sum, max", optarg);
}

static int take_decimal(int id, double *out)
{
    if (parse_decimal(optarg, out) && *out >= 0)
        return -1;
    return usage_wrong("--%s: '%s' is neither a number above 0 nor 0", option_name(id), optarg);
}

static int take_site(int c, struct dmi_analyze_sites *s)
{
    switch (c) {
    case OPT_Q_ROT: s->q_rot = optarg; break;
    case OPT_K_ROT: s->k_rot = optarg; break;
    case OPT_Q_NORM: s->q_norm = optarg; break;
    case OPT_K_NORM: s->k_norm = optarg; break;
    case OPT_Q: s->q = optarg; break;
    case OPT_K: s->k = optarg; break;
    case OPT_V: s->v = optarg; break;
    default: s->z = optarg; break;
    }
    return -1;
}

static int take_by(enum by *out)
{
    static const char *const words[] = { "layer", "token", "channel" };
    for (int i = 0; i < 3; i++)
        if (!strcmp(optarg, words[i])) {
            *out = (enum by)i;
            return -1;
        }
    return usage_wrong("--by: '%s' is none of layer, token, channel", optarg);
}

static int take_name(struct options *o)
{
    if (o->n_names == OPTIONS_MOST_SITES) {
        return usage_wrong("--site: more than %d", OPTIONS_MOST_SITES);
    }
    o->names[o->n_names++] = (struct dmi_read_name){ optarg, strlen(optarg) };
    return -1;
}

static int print_usage(FILE *to)
{
    fputs(usage_text, to);
    return to == stdout ? ANALYZE_OK : ANALYZE_USAGE;
}

/* Return: -1 to go on, else an exit status. */
static int take_option(int c, struct options *o)
{
    switch (c) {
    case OPT_REQUEST: o->request = optarg; break;
    case OPT_LAYERS: o->layers = optarg; break;
    case OPT_HEADS: o->heads_file = optarg; break;
    case OPT_EXCLUDE_BOS: o->exclude_bos = true; break;
    case OPT_EXCLUDE_CURRENT: o->exclude_current = true; break;
    case OPT_SPANS: o->spans = optarg; break;
    case OPT_TOKENIZER: o->tokenizer = optarg; break;
    case OPT_MEASURE: return take_measure(&o->measure);
    case OPT_BELOW: return take_decimal(c, &o->below);
    case OPT_TIMES: return take_decimal(c, &o->times);
    case OPT_FOLLOW: o->follow = true; break;
    case OPT_FIND: o->find = true; break;
    case OPT_PLAIN: o->plain = optarg; break;
    case OPT_INJECTED: o->injected = optarg; break;
    case OPT_PASSAGES: o->passages = optarg; break;
    case OPT_QUERY: o->query = optarg; break;
    case OPT_NULL: o->null = optarg; break;
    case OPT_ALL_HEADS: o->all_heads = true; break;
    case OPT_TOKENS: o->tokens = optarg; break;
    case OPT_TOP: return take_number(c, 1000000, &o->n_top);
    case OPT_SKIP_FIRST: o->skip_first = true; break;
    case OPT_MAP: o->map = true; break;
    case OPT_CONFIG: o->config = optarg; break;
    case OPT_ROPE_ORDER: return take_order(&o->rope_order);
    case OPT_PREFIX: o->prefix = optarg; break;
    case OPT_FILL_CACHED: o->fill_cached = true; break;
    case OPT_RANK: return take(choice_ranks(optarg, o->ranks));
    case OPT_UNCHECKED: o->unchecked = true; break;
    case OPT_MULTIPLIER: return take_multiplier(&o->multiplier);
    case OPT_THREADS: return take_number(c, 256, &o->n_threads);
    case OPT_MEMORY: return take_memory(&o->n_memory);
    case OPT_SITE: return take_name(o);
    case OPT_BY: return take_by(&o->by);
    case OPT_EXPERTS: return take_number(c, 65536, &o->n_experts);
    case OPT_TOP_K: return take_number(c, 64, &o->top_k);
    case OPT_IDS: o->ids = optarg; break;
    case OPT_WEIGHTS: o->weights = optarg; break;
    case OPT_LOGITS: o->logits = optarg; break;
    case OPT_OUTPUT: o->output = optarg; break;
    case OPT_FORCE: o->force = true; break;
    case OPT_JSON: o->json = true; break;
    case 'h': return print_usage(stdout);
    case OPT_VERSION: puts("dmi-analyze " DMI_VERSION); return ANALYZE_OK;
    case '?': return ANALYZE_USAGE;
    default: return take_site(c, &o->sites);
    }
    return -1;
}

/* Does the command take all options that were given? */
static bool are_taken(const struct options *o, const bool *given)
{
    bool good = true;
    for (size_t i = 0; i < sizeof taken_by / sizeof *taken_by; i++) {
        if (!given[taken_by[i].id - OPT_REQUEST])
            continue;
        char words[64];
        snprintf(words, sizeof words, " %s ", taken_by[i].commands);
        char name[32];
        snprintf(name, sizeof name, " %s ", o->command->name);
        if (strstr(words, name))
            continue;
        complain("%s takes no --%s", o->command->name, option_name(taken_by[i].id));
        good = false;
    }
    return good;
}

static int take_words(int n, char **words, const struct command *commands, struct options *o)
{
    for (const struct command *c = commands; c->name && !o->command; c++)
        if (!strcmp(words[0], c->name))
            o->command = c;
    if (!o->command)
        return usage_command(words[0], "attention, heads, focus, rerank, stats or routing");
    if (n != 2)
        return usage_wrong("%s takes a run, and nothing more", o->command->name);
    o->run = words[1];
    return -1;
}

int options_parse(int argc, char **argv, const struct command *commands, struct options *o)
{
    bool given[OPT_VERSION - OPT_REQUEST + 1] = { 0 };
    *o = (struct options){
        .ranks = { -1, -1, -1, -1 }, .n_threads = 1, .n_top = 10, .below = -1, .times = 4
    };
    int c, status;
    while ((c = usage_option(argc, argv, "ho:", long_options)) != -1) {
        c = c == 'o' ? OPT_OUTPUT : c;
        if ((status = take_option(c, o)) >= 0)
            return status;
        given[c - OPT_REQUEST] = true;
    }
    if (optind == argc)
        return print_usage(stderr);
    status = take_words(argc - optind, argv + optind, commands, o);
    if (status < 0 && o->heads_file && !o->command->by_file)
        status = take(choice_numbers("heads", o->heads_file, false, &o->heads));
    return status < 0 && !are_taken(o, given) ? usage_hint() : status;
}
