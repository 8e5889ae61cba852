/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace: when steps ran, and whether the trace of it is complete. See docs/man/dmi-trace.1. */
#include "policy/number.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/say.h"
#include "tools/trace/diff.h"
#include "tools/trace/export.h"
#include "tools/trace/kernels.h"
#include "tools/trace/steps.h"
#include "tools/trace/why.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char before[] =
    "Usage: dmi-trace steps RUN... [--each | --slowest N] [--json]\n"
    "       dmi-trace show RUN --step N [--json]\n"
    "       dmi-trace why RUN [--all | --step N] [--json]\n"
    "       dmi-trace kernels RUN... [--steps A:B] [--json]\n"
    "       dmi-trace diff A B [--steps A:B] [--json]\n"
    "       dmi-trace check RUN... [--json]\n"
    "       dmi-trace export --perfetto FILE|--chrome FILE [--steps A:B | --last TIME | --kept] "
    "RUN...\n"
    "When the steps of a run ran, on the host and on the device. RUN: a run's folder, the --out\n"
    "folder of one run or of one command's ranks, or one segment file.\n"
    "\n"
    "  steps            times by phase and rows of the batch: median and 99th percentile\n"
    "  show             all that is known of a step: times, ranges of threads, what the device "
    "ran\n"
    "  why              which turns took too long, from a step's begin to that of the next one, "
    "and where\n"
    "                   the time of these and of usual ones goes; --step: of one turn\n"
    "  kernels          kernels, copies and fills by name, those with the most time first; where "
    "sums\n"
    "                   alone are stored, each step names 16 kernels\n"
    "  diff             what ran in run A and in run B, by name: kernels that are new, gone, or of "
    "which\n"
    "                   template arguments changed, and counts and times of all\n"
    "  check            whether the trace is complete and agrees with itself: steps stored + "
    "released\n"
    "                   + lost = ended, records of what ran stored + summed + lost = delivered, "
    "and\n"
    "                   none is lost\n"
    "  export           steps, ranges and kernels of all runs as one time line for Perfetto\n"
    "\n";

static const char after[] =
    "\n"
    "Exit status: 0; 1: check, and a trace is not complete; diff, and a kernel is new, gone or "
    "changed;\n"
    "why, and a turn is slow; 2: wrong usage, nothing can be read, a run has no trace or none of "
    "the\nsteps asked for; why, and no turn is judged.\n";

#define MOST_STEPS 1000000 /* in memory for --slowest */

struct options {
    bool each, kept, all;
    struct kernels_form form;
    const char *step, *steps, *slowest, *perfetto, *chrome, *last;
};

#define AT(field) offsetof(struct options, field)
static const struct option_row rows[] = {
    { "--each", "steps: a line a step", option_flag, AT(each), "steps" },
    { "--slowest N",
      "steps: a line for each of the N steps that took longest, on the host or on the\n"
      "device",
      option_text, AT(slowest), "steps" },
    { "--step N", "show, why: the step's number, as steps --each has it", option_text, AT(step),
      "show why" },
    { "--all", "why: all slow turns; else the ten with the greatest excess", option_flag, AT(all),
      "why" },
    { "--perfetto FILE", "export: the file, which must not be there", option_text, AT(perfetto),
      "export" },
    { "--chrome FILE",
      "export: one run as JSON in Chrome's format, as PyTorch's profiler writes it, for\n"
      "Holistic Trace Analysis and TensorBoard; the file must not be there",
      option_text, AT(chrome), "export" },
    { "--steps A:B",
      "diff, export, kernels: only steps with a number from A to before B, and ranges\n"
      "that meet them",
      option_text, AT(steps), "diff export kernels" },
    { "--last TIME",
      "export: only steps that ended in the last seconds of each run, as 30s; or 500ms, 2m,\n"
      "1h",
      option_text, AT(last), "export" },
    { "--kept", "export: only steps that dmi-ctl trace keep stored", option_flag, AT(kept),
      "export" },
    { "--full-names",
      "kernels, show, diff: names of kernels as they are; else without namespaces and\n"
      "parameters, and at most 72 characters",
      option_flag, AT(form.full_names), "show kernels diff" },
    { "--json", "a JSON document a run; check: one for all", option_flag, AT(form.json),
      "steps show why kernels diff check" },
    { "--help, --version", "" },
};

static const struct options_table table = {
    .name = "dmi-trace", .before = before, .after = after, .column = 19, OPTIONS_ROWS(rows)
};

static int show(const struct options *o, char **paths)
{
    int64_t number;
    if (paths[1])
        return usage_wrong("show takes one run");
    if (!o->step || !parse_integer(o->step, &number) || number < 0)
        return usage_wrong("show: expected --step and the number of a step");
    return trace_show(*paths, o->form, (uint64_t)number);
}

static int why(const struct options *o, char **paths)
{
    int64_t number = 0;
    if (paths[1])
        return usage_wrong("why takes one run");
    if (o->step && (!parse_integer(o->step, &number) || number < 0))
        return usage_wrong("why: expected --step and the number of a step");
    if (o->all && o->step)
        return usage_wrong("why: --all beside --step: expected one");
    return trace_why(*paths, o->form.json, o->all, o->step ? (uint64_t)number : WHY_ALL);
}

/* All of them where none are named. Return: false, which is said. */
static bool steps_asked(const struct options *o, struct runs_steps *steps)
{
    *steps = (struct runs_steps){ .end = UINT64_MAX };
    if (!o->steps || runs_read_steps(o->steps, steps))
        return true;
    usage_wrong(
        "--steps: expected A:B, the numbers of the first step and of the one after the last, "
        "as 100:200");
    return false;
}

/* A number of seconds, or of what its last letters say. Return: false: it is none above 0. */
static bool read_time(const char *text, uint64_t *ns)
{
    static const struct {
        const char *unit;
        double ns;
    } units[] = { { "ms", 1e6 }, { "s", 1e9 }, { "m", 60e9 }, { "h", 3600e9 }, { "", 1e9 } };
    char number[32];
    double value;
    size_t n = strcspn(text, "msh"), i = 0;
    while (i < sizeof units / sizeof *units && strcmp(text + n, units[i].unit) != 0)
        i++;
    if (i == sizeof units / sizeof *units || !n || n >= sizeof number)
        return false;
    snprintf(number, sizeof number, "%.*s", (int)n, text);
    if (!parse_decimal(number, &value) || !(value > 0) || value * units[i].ns > 1e18)
        return false;
    *ns = (uint64_t)(value * units[i].ns);
    return *ns > 0;
}

static int export(const struct options *o, char **paths)
{
    struct runs_steps steps;
    uint64_t last_ns = 0;
    if ((o->kept && o->steps) || (o->last && (o->kept || o->steps)))
        return usage_wrong("export: of --steps, --last and --kept one was expected");
    if (o->last && !read_time(o->last, &last_ns))
        return usage_wrong("--last: expected a time, as 30s, 500ms, 2m or 1h");
    if (!o->perfetto == !o->chrome)
        return usage_wrong("export: expected --perfetto FILE or --chrome FILE");
    if (!steps_asked(o, &steps))
        return REPORT_IMPOSSIBLE;
    const struct export_asked asked = { o->kept ? NULL : &steps, last_ns };
    return o->chrome ? trace_export_chrome(paths, o->chrome, &asked)
                     : trace_export(paths, o->perfetto, &asked);
}

static int kernels(const struct options *o, char **paths)
{
    struct runs_steps steps;
    return steps_asked(o, &steps) ? trace_kernels(paths, o->form, &steps) : REPORT_IMPOSSIBLE;
}

static int diff(const struct options *o, char **paths)
{
    struct runs_steps steps;
    if (!paths[1] || paths[2])
        return usage_wrong("diff: expected two runs");
    return steps_asked(o, &steps) ? trace_diff(paths[0], paths[1], o->form, &steps)
                                  : REPORT_IMPOSSIBLE;
}

static int steps(const struct options *o, char **paths)
{
    int64_t slowest = 0;
    if (o->each && o->slowest)
        return usage_wrong("steps: --each beside --slowest: expected one");
    if (o->slowest && (!parse_integer(o->slowest, &slowest) || slowest < 1 || slowest > MOST_STEPS))
        return usage_wrong("steps: expected --slowest and a number of steps, 1 to %d", MOST_STEPS);
    return trace_steps(paths, o->form.json, o->each, (size_t)slowest);
}

static bool is_command(const char *word)
{
    static const char *const commands[] = { "steps", "show",  "why",   "kernels",
                                            "diff",  "check", "export" };
    for (size_t i = 0; word && i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(word, commands[i]))
            return true;
    return false;
}

static int run(const struct options *o, uint64_t given, char **words)
{
    if (!is_command(*words))
        return usage_command(*words, "steps, show, why, kernels, diff, check or export");
    if (!words[1])
        return usage_wrong("expected a run after the command");
    if (!options_fit(&table, *words, given))
        return usage_hint();
    if (!strcmp(*words, "export"))
        return export(o, words + 1);
    if (!strcmp(*words, "steps"))
        return steps(o, words + 1);
    if (!strcmp(*words, "kernels"))
        return kernels(o, words + 1);
    if (!strcmp(*words, "diff"))
        return diff(o, words + 1);
    if (!strcmp(*words, "why"))
        return why(o, words + 1);
    return !strcmp(*words, "show") ? show(o, words + 1) : trace_check(words + 1, o->form.json);
}

int main(int argc, char **argv)
{
    struct options o = { 0 };
    uint64_t given = 0;
    int status = options_read(&table, argc, argv, &o, &given);
    if (status < 0)
        status = run(&o, given, argv + optind);
    return say_flush(status, REPORT_IMPOSSIBLE);
}
