/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/options.h"

#include "policy/number.h"
#include "read/utf8.h"
#include "tools/common/choice.h"
#include "tools/common/usage.h"
#include "tools/replay/pace.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char before[] =
    "dmi-replay RUN... --to SINK [OPTION]...    records again, in the recorded order\n"
    "dmi-replay RUN... --policy SPEC --link SIZE [--ring SIZE] [--speed S] [-D NAME=VALUE]... "
    "[--json]\n"
    "                                           what a HookSpec's overload would have kept\n"
    "\n"
    "RUN is a run's folder, or a folder with several runs (of ranks), which go together by time.\n"
    "\n";

static const char after[] =
    "\n"
    "Exit status: 0 all was replayed; 1 damage, records that cannot be decoded, accounting that "
    "does not\n"
    "balance, a command or a reader that failed, nothing found, stopped before the end; 2 wrong "
    "usage, nothing\n"
    "readable, a sink that fails. With --follow a signal is a good end.\n";

static int take_to(const struct option_row *row, void *into)
{
    struct replay_options *o = into;
    o->to = optarg;
    o->kind = sink_find(optarg, &o->sink.where);
    if (o->kind)
        return -1;
    return usage_wrong(
        "--%s: '%s' is no sink: write -, file:PATH, unix:PATH, tcp:HOST:PORT, command:CMD or "
        "clickhouse://HOST/",
        option_word(row), optarg);
}

static int take_format(const struct option_row *row, void *into)
{
    struct replay_options *o = into;
    o->sink.format = format_find(optarg);
    if (o->sink.format)
        return -1;
    return usage_wrong("--%s: '%s' is no format: write frames, jsonl or npy", option_word(row),
                       optarg);
}

static int take_speed(const struct option_row *row, void *into)
{
    if (pace_parse(optarg, option_field(row, into)))
        return -1;
    return usage_wrong("--%s: '%s' is no speed: write max, 1, 0.5 or 10x", option_word(row),
                       optarg);
}

static int take_size(const struct option_row *row, void *into)
{
    uint64_t *out = option_field(row, into);
    if (parse_size(optarg, strlen(optarg), out) && *out)
        return -1;
    return usage_wrong("--%s: '%s' is no size: write a number above 0, K, M or G may follow it",
                       option_word(row), optarg);
}

static int take_var(const struct option_row *row, void *into)
{
    struct replay_options *o = into;
    (void)row;
    if (strchr(optarg, '=') && o->n_vars < SPEC_MAX_VARS) {
        o->vars[o->n_vars++] = optarg;
        return -1;
    }
    return usage_wrong("-D: '%s': write NAME=VALUE, at most %d times", optarg, SPEC_MAX_VARS);
}

static int take_rank(const struct option_row *row, void *into)
{
    struct source_wanted *w = &((struct replay_options *)into)->wanted;
    (void)row;
    w->by_rank = true;
    return option_taken(choice_ranks(optarg, w->ranks));
}

#define AT(field) offsetof(struct replay_options, field)
static const struct option_row rows[] = {
    { "--to SINK", "where to: one of the sinks below", take_to },
    { "--format F, -f", "one of the formats below", take_format },
    { "--values", "jsonl: with the values of records", option_flag, AT(sink.values) },
    { "--names FILE",
      "also a JSON object an item, a line each, to FILE (for npy, which has no names)", option_text,
      AT(sink.names) },
    { "--speed S", "max (the default), 1 as recorded, 0.5 at half of that speed, 10x", take_speed,
      AT(speed) },
    { "--cursor FILE", "go on after what the sink has taken, as FILE says, and write it there",
      option_text, AT(cursor) },
    { "--consume",
      "delete segments that the sink has taken (of a run that is written its process does)",
      option_flag, AT(consume) },
    { "--follow", "read on in a run that grows, until its process ends", option_flag, AT(follow) },
    { "--wait-for N", "unix, tcp: begin when N readers are there (default: 1)", option_number,
      AT(sink.wait_for), NULL, 1000000 },
    { "--lose-slow S", "unix, tcp: give up a reader that takes nothing for S seconds",
      option_number, AT(sink.lose_s), NULL, 1000000 },
    { "--at-once N", "command: at most N at a time (default: 8)", option_number, AT(at_once), NULL,
      1000000 },
    { "--site NAME", "only this site or tensor", choice_take_name, AT(wanted.select.sites) },
    { "--layers LIST", "only these layers: 0,3-7,last (3-7: 7 is included)", choice_take_layers,
      AT(wanted.select) },
    { "--layer LIST", NULL, choice_take_layers, AT(wanted.select) },
    { "--request ID", "only rows of this request", choice_take_name, AT(wanted.select.requests) },
    { "--tokens LIST",
      "only these tokens of each request: positions 5 or A:B, which -2: counts from the\n"
      "end, prompt, response, response[0:16], last, all",
      choice_take_tokens, AT(wanted.select) },
    { "--step A:B", "the engine's step numbers (without step metadata: forwards), A to B-1",
      choice_take_numbers, AT(wanted.steps) },
    { "--forward A:B",
      "forwards, counted from 0. These options may come several times: all of it is wanted",
      choice_take_numbers, AT(wanted.forwards) },
    { "--rejected", "also rows whose drafts were rejected", option_flag,
      AT(wanted.select.rejected) },
    { "--superseded", "also rows whose position was computed again", option_flag,
      AT(wanted.select.superseded) },
    { "--rank R | tp=R,...",
      "only the runs of tensor parallel rank R, or with these ranks of tp, pp, dp, ep", take_rank },
    { "--policy SPEC", "records go nowhere: try the overload of this HookSpec on them", option_text,
      AT(policy) },
    { "--link SIZE", "policy: bytes a second from the ring to the host; K, M or G may follow",
      take_size, AT(link) },
    { "--ring SIZE", "policy: bytes of the ring (default: the HookSpec's ring)", take_size,
      AT(ring) },
    { "-D NAME=VALUE", "policy: a variable of the HookSpec", take_var },
    { "--json", "the summary as JSON on stdout, or on stderr where stdout is the sink", option_flag,
      AT(json) },
    { "--version", "the version" },
};

static void print_choices(FILE *to)
{
    fputs("\nSinks:\n", to);
    for (size_t i = 0; sinks[i]; i++)
        fprintf(to, "  %s%-*s %s\n", sinks[i]->prefix, 20 - (int)strlen(sinks[i]->prefix),
                sinks[i]->where, sinks[i]->what);
    fputs("\nFormats, the default first:\n", to);
    for (size_t i = 0; formats[i]; i++)
        fprintf(to, "  %-19s %s\n", formats[i]->name, formats[i]->what);
}

static const struct options_table table = {
    .name = "dmi-replay",
    .before = before,
    .after = after,
    .more = print_choices,
    .column = 22,
    OPTIONS_ROWS(rows),
};

/* ------------------------------------------------------------------------- all of them */

/* Are records left out? */
static bool is_part(const struct source_wanted *w)
{
    return w->steps.n || w->forwards.n || w->by_rank || !selection_is_all(&w->select);
}

/* Return: what does not go together, NULL: all does. */
static const char *contradiction(const struct replay_options *o)
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
static const char *policy_contradiction(const struct replay_options *o)
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

static int check_policy(struct replay_options *o)
{
    const char *wrong = policy_contradiction(o);
    if (!wrong && o->policy && !o->n_runs)
        wrong = "dmi-replay needs a RUN: a run's folder, or a folder of runs";
    if (!wrong)
        return -1;
    return usage_wrong("%s", wrong);
}

static int check(struct replay_options *o, char **words, int n)
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

int options_parse(int argc, char **argv, struct replay_options *o)
{
    *o = (struct replay_options){ .wanted = { .ranks = { -1, -1, -1, -1 } } };
    int status = options_read(&table, argc, argv, o, NULL);
    if (status >= 0)
        return status;
    return argc == 1 ? options_help(&table, stderr) : check(o, argv + optind, argc - optind);
}

static void add_slices(struct text *t, const char *name, const struct slices *slices)
{
    if (!slices->n)
        return;
    text_printf(t, " --%s ", name);
    slices_add_text(t, slices);
}

/* Without the password: a cursor is no place for it, and another one is no other place. */
static void add_to(struct text *t, const struct replay_options *o)
{
    const char *end = o->kind == &sink_clickhouse ? strchr(o->to, '@') : NULL;
    const char *colon = end ? memchr(o->sink.where, ':', (size_t)(end - o->sink.where)) : NULL;
    if (!colon)
        end = colon = o->sink.where;
    utf8_add_valid(t, o->to, (size_t)(colon - o->to));
    utf8_add_valid(t, end, strlen(end));
}

char *options_choice(const struct replay_options *o)
{
    const struct source_wanted *w = &o->wanted;
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
