/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-view: a report of a run, one file for a browser. See docs/man/dmi-view.1. */
#include "core/cleanup.h"
#include "core/grow.h"
#include "core/whole.h"
#include "read/handle.h"
#include "policy/number.h"
#include "tools/common/leftover.h"
#include "tools/common/opened.h"
#include "tools/common/options.h"
#include "tools/common/outfile.h"
#include "tools/common/say.h"
#include "tools/common/select.h"
#include "tools/common/ticker.h"
#include "tools/view/page.h"
#include "tools/view/view.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VIEW_OK = 0, VIEW_DAMAGE = 1, VIEW_USAGE = 2 };

#define MAX_BYTES   (20u << 20)
#define LEAST_BYTES (1u << 18)

/* Words that an option has said so far. */
struct option_words {
    struct dmi_read_name *all;
    size_t n, room;
};

/* Heads that --head names so far. */
struct heads {
    struct dmi_analyze_head *all;
    size_t n, room;
};

struct options {
    const char *run, *other, *output, *config, *tokenizer;
    bool force, json;
    uint64_t max_bytes;
    struct option_words requests, sites, values, answers;
    struct heads heads;
    struct option_words pairs;  /* requests, and what the other run calls them */
    struct text layers, tokens; /* with commas */
};

static const char before[] =
    "Usage: dmi-view RUN [OTHER] [-o FILE] [OPTION]...\n"
    "Write a report of RUN for a browser: one file, which needs nothing else and asks for "
    "nothing.\n"
    "With OTHER also how far the two are apart.\n"
    "\n";

static const char after[] =
    "\n"
    "RUN is a run's folder, the --out folder of one run or of one command's ranks, which are "
    "joined,\n"
    "or one segment file. --request, --site, --values, --head and --with may come\n"
    "several times.\n"
    "Exit status: 0 all well; 1 damage, or --tokens of which a request has none that are known; 2 "
    "wrong usage, a name that the run has not, or nothing "
    "that\n"
    "could be read or written.\n";

/* ------------------------------------------------------------------------- options */

static bool add_name(struct option_words *names, const char *text)
{
    if (PUSH(names->all, names->n, names->room, 64, (struct dmi_read_name){ text, strlen(text) }))
        return false;
    return true;
}

static int take_name(const struct option_row *row, void *into)
{
    return option_taken(add_name(option_field(row, into), optarg));
}

static int take_words(const struct option_row *row, void *into)
{
    struct text *to = option_field(row, into);
    text_printf(to, "%s%s", to->n ? "," : "", optarg);
    return option_taken(!to->failed);
}

/* "2.4" */
static int take_head(const struct option_row *row, void *into)
{
    struct heads *heads = option_field(row, into);
    unsigned layer, head;
    char more;
    if (strspn(optarg, "0123456789.") != strlen(optarg) ||
        sscanf(optarg, "%5u.%5u%c", &layer, &head, &more) != 2)
        return usage_wrong("--%s %s: expected LAYER.HEAD, as 2.4", option_word(row), optarg);
    if (PUSH(heads->all, heads->n, heads->room, 64,
             (struct dmi_analyze_head){ (int32_t)layer, head }))
        return usage_hint();
    return -1;
}

static int take_bytes(const struct option_row *row, void *into)
{
    uint64_t *out = option_field(row, into);
    if (parse_size(optarg, strlen(optarg), out) && *out >= LEAST_BYTES)
        return -1;
    return usage_wrong("--%s %s: expected a size of at least 256K", option_word(row), optarg);
}

#define AT(field) offsetof(struct options, field)
static const struct option_row rows[] = {
    { "--output FILE, -o", "where to (default: RUN's name with .html in the current folder)",
      option_text, AT(output) },
    { "--force", "replace a file that is there", option_flag, AT(force) },
    { "--request ID",
      "only this request (default: the first 20); with OTHER: ID=NAME, as it calls\n"
      "the request",
      take_name, AT(requests) },
    { "--site NAME", "only this site or tensor", take_name, AT(sites) },
    { "--layers LIST", "only these layers: 0,3-7,last", take_words, AT(layers) },
    { "--tokens LIST", "only these tokens of each request: 5, A:B, -2:, prompt, response, last",
      take_words, AT(tokens) },
    { "--values NAME",
      "all rows of this site or tensor on the page Values (default: the last row\n"
      "of each tensor, cut to 64 elements)",
      take_name, AT(values) },
    { "--head LAYER.HEAD",
      "this head at full resolution, too (default: the best four of each kind)", take_head,
      AT(heads) },
    { "--config FILE",
      "a model's config.json or GGUF, of which attention needs what the run does not\n"
      "say",
      option_text, AT(config) },
    { "--with FILE", "an answer of `python -m dmi lens` or `dla` on a page of its own", take_name,
      AT(answers) },
    { "--tokenizer FILE",
      "texts of tokens, from a tokenizer.json, the folder that has it, or a GGUF", option_text,
      AT(tokenizer) },
    { "--max-bytes N",
      "of the report, K, M or G may follow (default: 20M); what is left out is\n"
      "said on the page and here",
      take_bytes, AT(max_bytes) },
    { "--json", "what the report holds as JSON on stdout, in place of the report", option_flag,
      AT(json) },
    { "--version", "the version" },
};

static const struct options_table table = {
    .name = "dmi-view", .before = before, .after = after, .column = 21, OPTIONS_ROWS(rows)
};

/* Return: -1 to go on, else the status to exit with. */
static int read_options(int argc, char **argv, struct options *o)
{
    int status = options_read(&table, argc, argv, o, NULL);
    if (status >= 0)
        return status;
    if (argc - optind != 1 && argc - optind != 2) {
        return usage_wrong("expected one run, or two");
    }
    o->run = argv[optind];
    o->other = argv[optind + 1];
    return -1;
}

static void options_deinit(struct options *o)
{
    free(o->requests.all);
    free(o->sites.all);
    free(o->values.all);
    free(o->answers.all);
    free(o->heads.all);
    free(o->pairs.all);
    text_deinit(&o->layers);
    text_deinit(&o->tokens);
}

/* ------------------------------------------------------------------------- the report */

/* The first requests, where none is named. Return: 0 or -ENOMEM. */
static int choose_requests(struct view_report *report, struct option_words *names)
{
    struct dmi_read_run run = { .size = sizeof run };
    struct dmi_read_request r = { .size = sizeof r };
    if (names->n || dmi_read_run(report->run, &run) || run.n_requests <= VIEW_REQUESTS)
        return 0;
    view_leave_out(report, "tensors of the first %d of %llu requests are in the report",
                   VIEW_REQUESTS, (unsigned long long)run.n_requests);
    for (uint64_t i = 0; i < VIEW_REQUESTS && !dmi_read_request(report->run, i, &r); i++) {
        if (PUSH(names->all, names->n, names->room, 64, (struct dmi_read_name){ r.id, r.id_bytes }))
            return -ENOMEM;
    }
    return 0;
}

/* The run's own names of requests, and those that are chosen for it, beside what the other run calls them. Return: 0 or -ENOMEM. */
static int pair_requests(struct options *o)
{
    for (size_t i = 0; o->other && i < o->requests.n; i++) {
        struct dmi_read_name *own = &o->requests.all[i];
        const char *equals = memchr(own->text, '=', own->bytes);
        if (PUSH(o->pairs.all, o->pairs.n, o->pairs.room, 64, *own))
            return -ENOMEM;
        own->bytes = equals ? (uint64_t)(equals - own->text) : own->bytes;
    }
    return 0;
}

/* Something is there of what the options name. */
static int check_chosen(struct err *err, struct view_report *report, const struct options *o)
{
    const struct dmi_read_selection values = { .size = sizeof values,
                                               .sites = o->values.all,
                                               .n_sites = o->values.n };
    struct dmi_read_run run = { .size = sizeof run };
    bool selects = o->requests.n || o->sites.n || o->layers.n || o->tokens.n;
    int64_t n_values = o->values.n ? dmi_read_match(report->run, &values, NULL, 0) : 1;
    if (n_values < 0)
        return err_set(err, (int)n_values, "--values: %s", dmi_read_error(report->run));
    int r = dmi_read_run(report->run, &run);
    if (!r && selects && !run.n_tensors)
        return err_set(err, -ENODATA,
                       "nothing was captured with that site, layer, request or tokens (dmi-dump "
                       "list)");
    if (!r && select_tell_unjudged(&report->run->view.requests, &report->run->select))
        report->is_partial = true;
    if (!r && !n_values)
        return err_set(err, -ENODATA,
                       "--values: nothing of it was captured with that site, layer, request or "
                       "tokens");
    return r;
}

static int choose(struct err *err, struct view_report *report, const struct options *o)
{
    report->selection = (struct dmi_read_selection){
        .size = sizeof report->selection,
        .requests = o->requests.all,
        .n_requests = o->requests.n,
        .sites = o->sites.all,
        .n_sites = o->sites.n,
        .layers = o->layers.n ? o->layers.data : NULL,
        .positions = o->tokens.n ? o->tokens.data : NULL,
    };
    int r = dmi_read_select(report->run, &report->selection);
    return r ? err_set(err, r, "%s", dmi_read_error(report->run)) : check_chosen(err, report, o);
}

static int build(struct err *err, struct view_report *report, const struct options *o)
{
    struct document *d = &report->document;
    document_begin(d, NULL, '{');
    document_add(d, "tool", json_string("dmi-view " DMI_VERSION));
    int r = view_tokens(err, report);
    if (!r)
        r = choose(err, report, o);
    if (!r)
        r = view_overview(err, report);
    if (!r)
        r = view_values(err, report);
    if (!r)
        r = view_lens(err, report);
    if (!r)
        r = view_dla(err, report);
    if (!r)
        r = view_attention(err, report);
    if (!r)
        r = view_maps(err, report, report->run, "maps",
                      view_room(report) / (report->other ? 3 : 1));
    if (!r && report->other)
        r = view_other_maps(err, report);
    if (!r && report->other)
        r = view_diff(err, report);
    if (!report->other)
        document_add(d, "diff", json_null());
    document_add(d, "damaged_rows", value_u64(report->n_damaged));
    document_add(d, "left_out", json_incref(report->left_out));
    document_end(d, '}');
    int e = r ? 0 : document_finish(d);
    return e ? err_set_errno(err, -e, "cannot write the report") : r;
}

static uint64_t bytes_of(const char *begin, const char *end)
{
    return (uint64_t)(end - begin);
}

static int write_document(void *arg, const void *data, size_t n, uint64_t at)
{
    const struct outfile *place = arg;
    return whole_write(place->fd, data, n, bytes_of(view_page_before, view_page_before_end) + at);
}

/* The page's own pieces lie around the document, which is written as it is built. */
static int keep(struct err *err, struct view_report *report, const struct options *o,
                struct outfile *place)
{
    struct document *d = &report->document;
    uint64_t n_before = bytes_of(view_page_before, view_page_before_end),
             n_after = bytes_of(view_page_after, view_page_after_end);
    char size[24];
    int r = outfile_open(err, place);
    if (r)
        return r;
    d->write = write_document;
    d->arg = place;
    int e = whole_write(place->fd, view_page_before, n_before, 0);
    if (!e && (r = build(err, report, o)))
        return r;
    if (!e)
        e = whole_write(place->fd, view_page_after, n_after, n_before + document_bytes_so_far(d));
    if (e)
        return err_set_errno(err, -e, "cannot write the report");
    ticker_stop();
    r = outfile_keep(err, place);
    if (!r)
        printf("report   %s, %s\n", place->path,
               bytes_text((double)(report->n_around + document_bytes_so_far(d)), size));
    return r;
}

/* As JSON, once all of it is there. */
static int print(struct err *err, struct view_report *report, const struct options *o)
{
    int r = build(err, report, o);
    ticker_stop();
    if (!r)
        printf("%s\n", report->document.out.data);
    return r;
}

static uint64_t count_damage(struct dmi_read *run)
{
    struct dmi_read_finding f = { .size = sizeof f };
    uint64_t n = 0;
    for (uint64_t i = 0; run && !dmi_read_finding(run, i, &f); i++)
        n += f.damage != 0;
    return n;
}

/* Says it. Return: whether there is any. */
static bool say_damage(const struct view_report *report)
{
    uint64_t n = count_damage(report->run) + count_damage(report->other);
    char counts[COUNTED_BYTES];
    if (n)
        complain("%s of damage; the page lists them", counted(n, "finding", "findings", counts));
    if (report->n_damaged)
        complain("%s", counted(report->n_damaged, "row is damaged", "rows are damaged", counts));
    return n || report->n_damaged;
}

static int report_of(struct err *err, struct view_report *report, struct options *o)
{
    _cleanup_(outfile_deinit) struct outfile place = { .force = o->force, .fd = -1 };
    struct dmi_read_run run = { .size = sizeof run };
    int r = dmi_read_run(report->run, &run);
    if (!r && !o->json)
        r = outfile_choose(err, &place, o->output, run.path, ".html", false);
    if (!r && (choose_requests(report, &o->requests) || pair_requests(o)))
        r = err_set_errno(err, ENOMEM, "cannot choose requests");
    report->requests = o->requests.all;
    report->n_requests = o->requests.n;
    report->pairs = o->pairs.all;
    report->n_pairs = o->pairs.n;
    if (!r)
        r = o->json ? print(err, report, o) : keep(err, report, o, &place);
    return r;
}

static int view(struct options *o)
{
    struct err err = { 0 };
    char why[512] = "";
    struct view_report report = { .values = o->values.all,
                                  .n_values = o->values.n,
                                  .answers = o->answers.all,
                                  .n_answers = o->answers.n,
                                  .tokenizer = o->tokenizer,
                                  .heads = o->heads.all,
                                  .n_heads = o->heads.n,
                                  .path = o->run,
                                  .other_path = o->other,
                                  .max_bytes = o->max_bytes,
                                  .document = { .in_page = !o->json } };
    report.n_around = bytes_of(view_page_before, view_page_before_end) +
                      bytes_of(view_page_after, view_page_after_end);
    if ((o->config && dmi_analyze_model_open(o->config, &report.model, why, sizeof why)) ||
        opened_run(o->run, &report.run, why, sizeof why)) {
        complain("%s", why);
        dmi_analyze_model_close(report.model);
        return VIEW_USAGE;
    }
    report.left_out = json_array();
    ticker_start(0);
    int r = report.left_out ? 0 : err_set_errno(&err, ENOMEM, "no report");
    if (!r && o->other)
        r = view_other_open(&err, &report);
    if (!r)
        r = report_of(&err, &report, o);
    ticker_stop();
    int status = r ? VIEW_USAGE : say_damage(&report) || report.is_partial ? VIEW_DAMAGE : VIEW_OK;
    if (r)
        complain("%s", err.msg);
    text_deinit(&report.document.out);
    json_decref(report.left_out);
    dmi_read_close(report.run);
    dmi_analyze_model_close(report.model);
    dmi_read_close(report.other);
    return status;
}

int main(int argc, char **argv)
{
    leftover_install();
    struct options o = { .max_bytes = MAX_BYTES };
    int status = read_options(argc, argv, &o);
    if (status < 0)
        status = view(&o);
    options_deinit(&o);
    return say_flush(status, VIEW_USAGE);
}
