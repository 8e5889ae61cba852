/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/options.h"

#include "policy/number.h"
#include "read/utf8.h"
#include "tools/common/choice.h"
#include "tools/common/say.h"
#include "tools/common/usage.h"
#include "tools/replay/pace.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage_text[] =
    "dmi-replay RUN... --to SINK [OPTION]...    records again, in the recorded order\n"
    "dmi-replay RUN... --policy SPEC --link SIZE [--ring SIZE] [--speed S] [-D NAME=VALUE]... "
    "[--json]\n"
    "                                           what a HookSpec's overload would have kept\n"
    "\n"
    "RUN is a run's folder, or a folder with several runs (of ranks), which go together by time.\n"
    "\n"
    "  --to SINK           where to: one of the sinks below\n"
    "  --format F, -f      one of the formats below\n"
    "  --values            jsonl: with the values of records\n"
    "  --names FILE        also a JSON object an item, a line each, to FILE (for npy, which has no "
    "names)\n"
    "  --speed S           max (the default), 1 as recorded, 0.5 at half of that speed, 10x\n"
    "  --cursor FILE       go on after what the sink has taken, as FILE says, and write it there\n"
    "  --consume           delete segments that the sink has taken (of a run that is written its "
    "process "
    "does)\n"
    "  --follow            read on in a run that grows, until its process ends\n"
    "  --wait-for N        unix, tcp: begin when N readers are there (default: 1)\n"
    "  --lose-slow S       unix, tcp: give up a reader that takes nothing for S seconds\n"
    "  --at-once N         command: at most N at a time (default: 8)\n"
    "  --site NAME         only this site or tensor\n"
    "  --layers LIST       only these layers: 0,3-7,last (3-7: 7 is included)\n"
    "  --request ID        only rows of this request\n"
    "  --tokens LIST       only these tokens of each request: positions 5 or A:B, which -2: counts "
    "from the\n"
    "                      end, prompt, response, response[0:16], last, all\n"
    "  --step A:B          the engine's step numbers (without step metadata: forwards), A to B-1\n"
    "  --forward A:B       forwards, counted from 0. These options may come several times: all of "
    "it is wanted\n"
    "  --rejected          also rows whose drafts were rejected\n"
    "  --superseded        also rows whose position was computed again\n"
    "  --rank R | tp=R,... only the runs of tensor parallel rank R, or with these ranks of tp, pp, "
    "dp, ep\n"
    "  --policy SPEC       records go nowhere: try the overload of this HookSpec on them\n"
    "  --link SIZE         policy: bytes a second from the ring to the host; K, M or G may follow\n"
    "  --ring SIZE         policy: bytes of the ring (default: the HookSpec's ring)\n"
    "  -D NAME=VALUE       policy: a variable of the HookSpec\n"
    "  --json              the summary as JSON on stdout, or on stderr where stdout is the sink\n"
    "  --version           the version\n"
    "\n"
    "Exit status: 0 all was replayed; 1 damage, records that cannot be decoded, accounting that "
    "does not\n"
    "balance, a command or a reader that failed, nothing found, stopped before the end; 2 wrong "
    "usage, nothing\n"
    "readable, a sink that fails. With --follow a signal is a good end.\n";

enum option_id {
    OPT_TO = 256,
    OPT_VALUES,
    OPT_NAMES,
    OPT_SPEED,
    OPT_CURSOR,
    OPT_FOLLOW,
    OPT_CONSUME,
    OPT_WAIT_FOR,
    OPT_LOSE_SLOW,
    OPT_AT_ONCE,
    OPT_SITE,
    OPT_LAYER,
    OPT_REQUEST,
    OPT_TOKENS,
    OPT_STEP,
    OPT_FORWARD,
    OPT_REJECTED,
    OPT_SUPERSEDED,
    OPT_RANK,
    OPT_JSON,
    OPT_POLICY,
    OPT_LINK,
    OPT_RING,
    OPT_VERSION
};

static const struct option long_options[] = {
    { "to", required_argument, NULL, OPT_TO },
    { "format", required_argument, NULL, 'f' },
    { "values", no_argument, NULL, OPT_VALUES },
    { "names", required_argument, NULL, OPT_NAMES },
    { "speed", required_argument, NULL, OPT_SPEED },
    { "cursor", required_argument, NULL, OPT_CURSOR },
    { "follow", no_argument, NULL, OPT_FOLLOW },
    { "consume", no_argument, NULL, OPT_CONSUME },
    { "wait-for", required_argument, NULL, OPT_WAIT_FOR },
    { "lose-slow", required_argument, NULL, OPT_LOSE_SLOW },
    { "at-once", required_argument, NULL, OPT_AT_ONCE },
    { "site", required_argument, NULL, OPT_SITE },
    { "layer", required_argument, NULL, OPT_LAYER },
    { "layers", required_argument, NULL, OPT_LAYER },
    { "request", required_argument, NULL, OPT_REQUEST },
    { "tokens", required_argument, NULL, OPT_TOKENS },
    { "step", required_argument, NULL, OPT_STEP },
    { "forward", required_argument, NULL, OPT_FORWARD },
    { "rejected", no_argument, NULL, OPT_REJECTED },
    { "superseded", no_argument, NULL, OPT_SUPERSEDED },
    { "rank", required_argument, NULL, OPT_RANK },
    { "json", no_argument, NULL, OPT_JSON },
    { "policy", required_argument, NULL, OPT_POLICY },
    { "link", required_argument, NULL, OPT_LINK },
    { "ring", required_argument, NULL, OPT_RING },
    { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, OPT_VERSION },
    { 0 },
};

static int take(bool taken)
{
    return taken ? -1 : usage_hint();
}

static int print_usage(FILE *to)
{
    fputs(usage_text, to);
    fputs("\nSinks:\n", to);
    for (size_t i = 0; sinks[i]; i++)
        fprintf(to, "  %s%-*s %s\n", sinks[i]->prefix, 20 - (int)strlen(sinks[i]->prefix),
                sinks[i]->where, sinks[i]->what);
    fputs("\nFormats, the default first:\n", to);
    for (size_t i = 0; formats[i]; i++)
        fprintf(to, "  %-19s %s\n", formats[i]->name, formats[i]->what);
    return to == stdout ? REPLAY_OK : REPLAY_USAGE;
}

/* ------------------------------------------------------------------------- values of options */

static int take_to(struct options *o)
{
    o->to = optarg;
    o->kind = sink_find(optarg, &o->sink.where);
    if (o->kind)
        return -1;
    return usage_wrong(
        "--to: '%s' is no sink: write -, file:PATH, unix:PATH, tcp:HOST:PORT, command:CMD or "
        "clickhouse://HOST/",
        optarg);
}

static int take_format(struct options *o)
{
    o->sink.format = format_find(optarg);
    if (o->sink.format)
        return -1;
    return usage_wrong("--format: '%s' is no format: write frames, jsonl or npy", optarg);
}

static int take_speed(struct options *o)
{
    if (pace_parse(optarg, &o->speed))
        return -1;
    return usage_wrong("--speed: '%s' is no speed: write max, 1, 0.5 or 10x", optarg);
}

static int take_count(const char *name, unsigned *out)
{
    char *end;
    errno = 0;
    unsigned long v = strtoul(optarg, &end, 10);
    *out = (unsigned)v;
    if (*optarg >= '0' && *optarg <= '9' && !*end && !errno && v && v <= 1000000)
        return -1;
    return usage_wrong("--%s: '%s' is no number from 1 to 1000000", name, optarg);
}

static int take_size(const char *name, uint64_t *out)
{
    if (parse_size(optarg, strlen(optarg), out) && *out)
        return -1;
    return usage_wrong("--%s: '%s' is no size: write a number above 0, K, M or G may follow it",
                       name, optarg);
}

static int take_var(struct options *o)
{
    if (strchr(optarg, '=') && o->n_vars < SPEC_MAX_VARS) {
        o->vars[o->n_vars++] = optarg;
        return -1;
    }
    return usage_wrong("-D: '%s': write NAME=VALUE, at most %d times", optarg, SPEC_MAX_VARS);
}

static int take_selection(int c, struct wanted *w)
{
    switch (c) {
    case OPT_SITE: return take(choice_name(optarg, &w->select.sites));
    case OPT_LAYER: return take(choice_layers(optarg, &w->select));
    case OPT_REQUEST: return take(choice_name(optarg, &w->select.requests));
    case OPT_TOKENS: return take(choice_tokens(optarg, &w->select));
    case OPT_STEP: return take(choice_numbers("step", optarg, false, &w->steps));
    case OPT_FORWARD: return take(choice_numbers("forward", optarg, false, &w->forwards));
    case OPT_REJECTED: w->select.rejected = true; break;
    case OPT_SUPERSEDED: w->select.superseded = true; break;
    case OPT_RANK: w->by_rank = true; return take(choice_ranks(optarg, w->ranks));
    default: return REPLAY_USAGE;
    }
    return -1;
}

/* Return: -1 to go on, else an exit status. */
static int take_option(int c, struct options *o)
{
    switch (c) {
    case OPT_TO: return take_to(o);
    case 'f': return take_format(o);
    case OPT_VALUES: o->sink.values = true; break;
    case OPT_NAMES: o->sink.names = optarg; break;
    case OPT_SPEED: return take_speed(o);
    case OPT_CURSOR: o->cursor = optarg; break;
    case OPT_FOLLOW: o->follow = true; break;
    case OPT_CONSUME: o->consume = true; break;
    case OPT_WAIT_FOR: return take_count("wait-for", &o->sink.wait_for);
    case OPT_LOSE_SLOW: return take_count("lose-slow", &o->sink.lose_s);
    case OPT_AT_ONCE: return take_count("at-once", &o->at_once);
    case OPT_JSON: o->json = true; break;
    case OPT_POLICY: o->policy = optarg; break;
    case OPT_LINK: return take_size("link", &o->link);
    case OPT_RING: return take_size("ring", &o->ring);
    case 'D': return take_var(o);
    case 'h': return print_usage(stdout);
    case OPT_VERSION: puts("dmi-replay " DMI_VERSION); return REPLAY_OK;
    default: return take_selection(c, &o->wanted);
    }
    return -1;
}

/* ------------------------------------------------------------------------- all of them */

/* Are records left out? */
static bool is_part(const struct wanted *w)
{
    return w->steps.n || w->forwards.n || w->by_rank || !selection_is_all(&w->select);
}

/* Return: what does not go together, NULL: all does. */
static const char *contradiction(const struct options *o)
{
    bool is_file = o->kind == &sink_stdout || o->kind == &sink_file;
    bool is_socket = o->kind == &sink_unix || o->kind == &sink_tcp;
    if (!o->kind->has_bytes && (o->sink.format || o->sink.values || o->sink.names))
        return "--format, --values and --names are for sinks that take bytes";
    if (o->sink.values && o->sink.format != &format_jsonl)
        return "--values is for --format jsonl: the other formats have the values anyhow";
    if (o->sink.names && !is_file)
        return "--names is for --to - and --to file:PATH";
    if (o->sink.names && o->cursor)
        return "--names does not go with --cursor: leave one of them out, or replay as frames";
    if ((o->sink.wait_for || o->sink.lose_s) && !is_socket)
        return "--wait-for and --lose-slow are for --to unix:PATH and --to tcp:HOST:PORT";
    if (o->at_once && !o->kind->per_request)
        return "--at-once is for --to command:CMD";
    if (o->consume && (!o->kind->settle || o->kind == &sink_stdout))
        return "--consume is for sinks that keep what they take: file:PATH, clickhouse://HOST/";
    if (o->consume && is_part(&o->wanted))
        return "--consume does not go with a selection: what is not selected would be deleted, too";
    if (o->follow && selection_needs_last(&o->wanted.select))
        return "--follow does not go with --layers last or middle: a run that grows does not say "
               "how "
               "many layers there are";
    if (o->kind->per_request && o->follow)
        return "--follow does not go with --to command:CMD: start it once the run is closed";
    return NULL;
}

/* Return: what does not go together with --policy, NULL: all does. */
static const char *policy_contradiction(const struct options *o)
{
    if (!o->policy)
        return o->link || o->ring || o->n_vars ? "--link, --ring and -D are for --policy" : NULL;
    if (o->kind || o->cursor || o->follow || o->consume || o->sink.format || o->sink.values ||
        o->sink.names || o->sink.wait_for || o->sink.lose_s || o->at_once)
        return "with --policy records go nowhere: leave out what is for sinks, --cursor, --follow "
               "and --consume";
    if (is_part(&o->wanted))
        return "--policy does not go with a selection: what is left out would have cost, too";
    return o->link ? NULL : "--policy needs --link SIZE: bytes a second from the ring to the host";
}

static int check_policy(struct options *o)
{
    const char *wrong = policy_contradiction(o);
    if (!wrong && o->policy && !o->n_runs)
        wrong = "dmi-replay needs a RUN: a run's folder, or a folder of runs";
    if (!wrong)
        return -1;
    return usage_wrong("%s", wrong);
}

static int check(struct options *o, char **words, int n)
{
    o->runs = words;
    o->n_runs = n;
    int status = check_policy(o);
    if (status >= 0 || o->policy)
        return status;
    if (!o->kind) {
        return usage_wrong("where to is not said: --to -, file:PATH, unix:PATH, tcp:HOST:PORT, "
                           "command:CMD or clickhouse://HOST/");
    }
    if (!n) {
        return usage_wrong("dmi-replay needs a RUN: a run's folder, or a folder of runs");
    }
    const char *wrong = contradiction(o);
    if (wrong) {
        return usage_wrong("%s", wrong);
    }
    if (!o->sink.format)
        o->sink.format = formats[0];
    if (!o->at_once)
        o->at_once = 8;
    return -1;
}

int options_parse(int argc, char **argv, struct options *o)
{
    *o = (struct options){ .wanted = { .ranks = { -1, -1, -1, -1 } } };
    int c;
    while ((c = usage_option(argc, argv, "f:D:h", long_options)) != -1) {
        int status = take_option(c, o);
        if (status >= 0)
            return status;
    }
    return argc == 1 ? print_usage(stderr) : check(o, argv + optind, argc - optind);
}

static void add_slices(struct text *t, const char *name, const struct slices *slices)
{
    if (!slices->n)
        return;
    text_printf(t, " --%s ", name);
    slices_add_text(t, slices);
}

/* Without the password: a cursor is no place for it, and another one is no other place. */
static void add_to(struct text *t, const struct options *o)
{
    const char *end = o->kind == &sink_clickhouse ? strchr(o->to, '@') : NULL;
    const char *colon = end ? memchr(o->sink.where, ':', (size_t)(end - o->sink.where)) : NULL;
    if (!colon)
        end = colon = o->sink.where;
    utf8_add_valid(t, o->to, (size_t)(colon - o->to));
    utf8_add_valid(t, end, strlen(end));
}

char *options_choice(const struct options *o)
{
    const struct wanted *w = &o->wanted;
    struct text t = { 0 };
    text_printf(&t, "--to ");
    add_to(&t, o);
    text_printf(&t, " --format %s%s", o->sink.format->name, o->sink.values ? " --values" : "");
    selection_add_text(&t, &w->select);
    add_slices(&t, "step", &w->steps);
    add_slices(&t, "forward", &w->forwards);
    for (uint32_t axis = 0; w->by_rank && axis < DMI_AXIS_COUNT; axis++)
        text_printf(&t, " %s=%d", dmi_axis_name(axis), (int)w->ranks[axis]);
    if (t.failed)
        text_deinit(&t);
    return t.data;
}
