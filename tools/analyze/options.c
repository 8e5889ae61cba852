/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/options.h"

#include "policy/number.h"
#include "tools/common/choice.h"
#include "tools/common/usage.h"

#include <stdio.h>
#include <string.h>

static const char before[] =
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
    "\n";

static const char after[] =
    "\n"
    "Exit status: 0 all well; 1 nothing to answer from; 2 wrong usage, a name that the run has "
    "not, or\n"
    "nothing readable; 3 a request was below --below; 4 the answer was refused: attention's "
    "weights times v are not z.\n";

static int take_multiplier(const struct option_row *row, void *into)
{
    double *out = option_field(row, into);
    if (parse_decimal(optarg, out) && *out > 0)
        return -1;
    return usage_wrong("--multiplier: '%s' is no number above 0", optarg);
}

static int take_memory(const struct option_row *row, void *into)
{
    uint64_t *out = option_field(row, into);
    if (parse_size(optarg, strlen(optarg), out) && *out)
        return -1;
    return usage_wrong("--memory: '%s' is no size", optarg);
}

static int take_order(const struct option_row *row, void *into)
{
    uint32_t *out = option_field(row, into);
    *out = !strcmp(optarg, "halves") ? DMI_ANALYZE_HALVES : DMI_ANALYZE_PAIRS;
    if (*out == DMI_ANALYZE_HALVES || !strcmp(optarg, "pairs"))
        return -1;
    return usage_wrong("--rope-order: '%s' is neither halves nor pairs", optarg);
}

static int take_measure(const struct option_row *row, void *into)
{
    uint32_t *out = option_field(row, into);
    static const char *const names[] = { "sum_normalize", "max_normalize", "sum", "max" };
    for (*out = 0; *out < 4; ++*out)
        if (!strcmp(names[*out], optarg))
            return -1;
    return usage_wrong("--measure: '%s' is none of sum_normalize, max_normalize, sum, max", optarg);
}

static int take_decimal(const struct option_row *row, void *into)
{
    double *out = option_field(row, into);
    if (parse_decimal(optarg, out) && *out >= 0)
        return -1;
    return usage_wrong("--%s: '%s' is neither a number above 0 nor 0", option_word(row), optarg);
}

static int take_by(const struct option_row *row, void *into)
{
    enum by *out = option_field(row, into);
    static const char *const words[] = { "layer", "token", "channel" };
    for (int i = 0; i < 3; i++)
        if (!strcmp(optarg, words[i])) {
            *out = (enum by)i;
            return -1;
        }
    return usage_wrong("--by: '%s' is none of layer, token, channel", optarg);
}

static int take_name(const struct option_row *row, void *into)
{
    struct analyze_options *o = into;
    (void)row;
    if (o->n_names == OPTIONS_MOST_SITES) {
        return usage_wrong("--site: more than %d", OPTIONS_MOST_SITES);
    }
    o->names[o->n_names++] = (struct dmi_read_name){ optarg, strlen(optarg) };
    return -1;
}

static int take_ranks(const struct option_row *row, void *into)
{
    return option_taken(choice_ranks(optarg, option_field(row, into)));
}

#define AT(field) offsetof(struct analyze_options, field)
#define COMPUTING "attention heads focus rerank"
static const struct option_row rows[] = {
    { "--request ID", "of this request; a run of one request needs none", option_text,
      AT(request) },
    { "--layers LIST", "only these layers: 0,3-7,last (3-7: 7 is included)", option_text,
      AT(layers) },
    { "--layer LIST", NULL, option_text, AT(layers) },
    { "--heads LIST",
      "only these heads of each layer: 0,4:8 (4:8: 8 is not included)\n"
      "focus, rerank: a file that lists them: [[LAYER, HEAD], ...]",
      option_text, AT(heads_file), COMPUTING },
    { "--head LIST", NULL, option_text, AT(heads_file), COMPUTING },
    { "--tokens LIST",
      "only these queries: positions 5 or A:B, which -2: counts from the end, prompt,\n"
      "response, response[0:16], last, all",
      option_text, AT(tokens), "attention heads stats routing" },
    { "--top N", "so many of the strongest pairs, or of the first heads (default: 10)",
      option_number, AT(n_top), "attention heads focus", 1000000 },
    { "--skip-first",
      "leave out the first token as a key: heads that have nothing to say rest there", option_flag,
      AT(skip_first), "attention stats" },
    { "--map", "of one head: a map, queries down, keys across", option_flag, AT(map), "attention" },
    { "--config FILE",
      "the model's config.json, the folder that has it, or a GGUF: how q and k are\n"
      "rotated, windows, softcap (default: what an adapter noted in the run)",
      option_text, AT(config), COMPUTING },
    { "--rope-order O",
      "halves or pairs: which dimensions of a head RoPE turns together, where neither\n"
      "config nor run says it",
      take_order, AT(rope_order), COMPUTING },
    { "--prefix RUN[:ID]",
      "keys and values of positions that the request lacks, from a request of this run",
      option_text, AT(prefix), COMPUTING },
    { "--fill-cached",
      "rows of tokens that a prefix cache had, from a request that computed them with\n"
      "the same tokens from position 0 on",
      option_flag, AT(fill_cached) },
    { "--rank R | tp=R,...",
      "of a folder with the runs of several ranks: only those of tensor parallel rank\n"
      "R, or with these ranks of tp, pp, dp, ep; not joined with the others",
      take_ranks, AT(ranks) },
    { "--unchecked", "print an answer although its proof fails, or lacks where it must be",
      option_flag, AT(unchecked), COMPUTING },
    { "--multiplier X",
      "by what scores are multiplied (default: the config's, else 1 / square root of a\n"
      "head's elements)",
      take_multiplier, AT(multiplier), COMPUTING },
    { "--q-rot NAME", "a site of this name in the place of q_rot, rows of q after RoPE",
      option_text, AT(sites.q_rot), COMPUTING },
    { "--k-rot NAME", "the same of k_rot", option_text, AT(sites.k_rot), COMPUTING },
    { "--q-norm NAME", "the same of q_norm: after a norm by head, before RoPE", option_text,
      AT(sites.q_norm), COMPUTING },
    { "--k-norm NAME", "the same of k_norm", option_text, AT(sites.k_norm), COMPUTING },
    { "--q NAME", "the same of q, before both", option_text, AT(sites.q), COMPUTING },
    { "--k NAME", "the same of k", option_text, AT(sites.k), COMPUTING },
    { "--v NAME", "the same of v", option_text, AT(sites.v), COMPUTING },
    { "--z NAME", "the same of z", option_text, AT(sites.z), COMPUTING },
    { "--threads N", "threads that compute (default: 1)", option_number, AT(n_threads),
      COMPUTING " stats", 256 },
    { "--memory SIZE",
      "bytes for keys, values and rows of weights, K, M or G after the number (default: 3M,\n"
      "or more where twenty rows of each head that shares a KV head need more)",
      take_memory, AT(n_memory), COMPUTING },
    { "--exclude-bos", "heads: mul and abs without weights of the first token", option_flag,
      AT(exclude_bos), "heads" },
    { "--exclude-current", "heads: mul and abs without weights of the query's own token",
      option_flag, AT(exclude_current), "heads" },
    { "--spans FILE", "focus: where instruction and data lie in each prompt, in JSON", option_text,
      AT(spans), "focus" },
    { "--tokenizer FILE",
      "focus, rerank: a tokenizer.json, the folder that has it, or a GGUF: for passages\n"
      "that are given by text or by a chat's role",
      option_text, AT(tokenizer), "focus rerank" },
    { "--measure M", "focus: sum_normalize (default), max_normalize, sum, max", take_measure,
      AT(measure), "focus" },
    { "--below X", "focus: exit with status 3 if a request was below X", take_decimal, AT(below),
      "focus" },
    { "--follow",
      "focus: a line for each request as it ends its prompt, until the run ends;\n"
      "stats: an answer whenever the run has grown",
      option_flag, AT(follow), "focus stats" },
    { "--find", "focus: the heads that tell requests apart, from --plain and --injected",
      option_flag, AT(find), "focus" },
    { "--plain LIST", "focus: ids of requests without an injection, separated by commas",
      option_text, AT(plain), "focus" },
    { "--injected LIST", "focus: ids of requests with one", option_text, AT(injected), "focus" },
    { "--times X", "focus: so many standard deviations between the two (default: 4)", take_decimal,
      AT(times), "focus" },
    { "--passages FILE", "rerank: where documents and queries lie, in JSON", option_text,
      AT(passages), "rerank" },
    { "--query ID", "rerank: the request with the query", option_text, AT(query), "rerank" },
    { "--null ID", "rerank: the request with a query without content, as N/A", option_text,
      AT(null), "rerank" },
    { "--all-heads", "rerank: sum over all heads, though --heads names some", option_flag,
      AT(all_heads), "rerank" },
    { "--site NAME", "stats: only this site; may come several times", take_name, 0, "stats" },
    { "--by WHAT", "stats: what a line is of: layer (default), token or channel", take_by, AT(by),
      "stats" },
    { "--experts N", "routing: how many a layer has, where router_logits was not captured",
      option_number, AT(n_experts), "routing", 65536 },
    { "--top-k K", "routing: choices are the K largest router logits, weights their softmax",
      option_number, AT(top_k), "routing", 64 },
    { "--ids NAME", "routing: the site of this name in the place of topk_ids; heads: of token_ids",
      option_text, AT(ids), "heads routing" },
    { "--weights NAME", "routing: the same of topk_weights", option_text, AT(weights), "routing" },
    { "--logits NAME", "routing: the same of router_logits", option_text, AT(logits), "routing" },
    { "--output FILE, -o",
      "also write the answer as safetensors; attention: or npy, where the name ends so",
      option_text, AT(output), "attention heads focus stats routing" },
    { "--force", "replace a file that is there", option_flag, AT(force),
      "attention heads stats routing" },
    { "--json", "JSON on stdout instead of text", option_flag, AT(json) },
    { "--version", "the version" },
};

static const struct options_table table = {
    .name = "dmi-analyze", .before = before, .after = after, .column = 22, OPTIONS_ROWS(rows)
};

static int take_words(int n, char **words, const struct analyze_command *commands,
                      struct analyze_options *o)
{
    for (const struct analyze_command *c = commands; c->name && !o->command; c++)
        if (!strcmp(words[0], c->name))
            o->command = c;
    if (!o->command)
        return usage_command(words[0], "attention, heads, focus, rerank, stats or routing");
    if (n != 2)
        return usage_wrong("%s takes a run, and nothing more", o->command->name);
    o->run = words[1];
    return -1;
}

int options_parse(int argc, char **argv, const struct analyze_command *commands,
                  struct analyze_options *o)
{
    uint64_t given = 0;
    *o = (struct analyze_options){
        .ranks = { -1, -1, -1, -1 }, .n_threads = 1, .n_top = 10, .below = -1, .times = 4
    };
    int status = options_read(&table, argc, argv, o, &given);
    if (status >= 0)
        return status;
    if (optind == argc)
        return options_help(&table, stderr);
    status = take_words(argc - optind, argv + optind, commands, o);
    if (status < 0 && o->heads_file && !o->command->by_file)
        status = option_taken(choice_numbers("heads", o->heads_file, false, &o->heads));
    return status < 0 ? option_taken(options_fit(&table, o->command->name, given)) : status;
}
