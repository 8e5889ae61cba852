/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-trace: when steps ran, and whether the trace of it is complete. See docs/man/dmi-trace.1. */
#include "policy/number.h"
#include "tools/common/report.h"
#include "tools/common/say.h"
#include "tools/common/usage.h"
#include "tools/trace/diff.h"
#include "tools/trace/export.h"
#include "tools/trace/kernels.h"
#include "tools/trace/steps.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char usage[] =
    "Usage: dmi-trace steps RUN... [--each | --slowest N] [--json]\n"
    "       dmi-trace show RUN --step N [--json]\n"
    "       dmi-trace kernels RUN... [--steps A:B] [--json]\n"
    "       dmi-trace diff A B [--steps A:B] [--json]\n"
    "       dmi-trace check RUN... [--json]\n"
    "       dmi-trace export --perfetto FILE [--steps A:B | --kept] RUN...\n"
    "When the steps of a run ran, on the host and on the device. RUN: a run's folder, the --out\n"
    "folder of one run or of one command's ranks, or one segment file.\n"
    "\n"
    "  steps            times by phase and rows of the batch: median and 99th percentile\n"
    "  show             all that is known of a step: times, ranges of threads, what the device "
    "ran\n"
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
    "\n"
    "  --each           steps: a line a step\n"
    "  --slowest N      steps: a line for each of the N steps that took longest, on the host or on "
    "the\n"
    "                   device\n"
    "  --step N         show: the step's number, as steps --each has it\n"
    "  --perfetto FILE  export: the file, which must not be there\n"
    "  --steps A:B      diff, export, kernels: only steps with a number from A to before B, and "
    "ranges\n"
    "                   that meet them\n"
    "  --kept           export: only steps that dmi-ctl trace keep stored\n"
    "  --json           a JSON document a run; check: one for all\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0; 1: check, and a trace is not complete; diff, and a kernel is new, gone or "
    "changed;\n"
    "2: wrong usage, nothing can be read, or a run has no trace or none of the steps asked for.\n";

#define MOST_STEPS 1000000 /* in memory for --slowest */

struct options {
    bool json, each, kept;
    const char *step, *steps, *slowest, *perfetto;
};

/* Return: -1 to go on, else the status to exit with. */
static int read_options(int argc, char **argv, struct options *o)
{
    enum { EACH = 256, JSON, STEP, STEPS, SLOWEST, KEPT, PERFETTO, VERSION };
    static const struct option longs[] = {
        { "each", no_argument, NULL, EACH },
        { "json", no_argument, NULL, JSON },
        { "step", required_argument, NULL, STEP },
        { "steps", required_argument, NULL, STEPS },
        { "slowest", required_argument, NULL, SLOWEST },
        { "kept", no_argument, NULL, KEPT },
        { "perfetto", required_argument, NULL, PERFETTO },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, VERSION },
        { NULL, 0, NULL, 0 },
    };
    int c;
    while ((c = usage_option(argc, argv, "h", longs)) != -1) {
        switch (c) {
        case EACH: o->each = true; break;
        case JSON: o->json = true; break;
        case STEP: o->step = optarg; break;
        case STEPS: o->steps = optarg; break;
        case SLOWEST: o->slowest = optarg; break;
        case KEPT: o->kept = true; break;
        case PERFETTO: o->perfetto = optarg; break;
        case 'h': fputs(usage, stdout); return 0;
        case VERSION: puts("dmi-trace " DMI_VERSION); return 0;
        default: return REPORT_IMPOSSIBLE;
        }
    }
    return -1;
}

static int show(const struct options *o, char **paths)
{
    int64_t number;
    if (o->each)
        return usage_wrong("show takes no --each");
    if (paths[1])
        return usage_wrong("show takes one run");
    if (!o->step || !parse_integer(o->step, &number) || number < 0)
        return usage_wrong("show: expected --step and the number of a step");
    return trace_show(*paths, o->json, (uint64_t)number);
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

static int export(const struct options *o, char **paths)
{
    struct runs_steps steps;
    if (o->each || o->json || o->step)
        return usage_wrong("export takes --perfetto, and --steps or --kept alone");
    if (o->kept && o->steps)
        return usage_wrong("export: --kept beside --steps: expected one");
    if (!o->perfetto)
        return usage_wrong("export: expected --perfetto FILE");
    if (!steps_asked(o, &steps))
        return REPORT_IMPOSSIBLE;
    return trace_export(paths, o->perfetto, o->kept ? NULL : &steps);
}

static int kernels(const struct options *o, char **paths)
{
    struct runs_steps steps;
    if (o->each || o->step || o->perfetto)
        return usage_wrong("kernels takes --steps and --json alone");
    return steps_asked(o, &steps) ? trace_kernels(paths, o->json, &steps) : REPORT_IMPOSSIBLE;
}

static int diff(const struct options *o, char **paths)
{
    struct runs_steps steps;
    if (o->each || o->step || o->perfetto)
        return usage_wrong("diff takes --steps and --json alone");
    if (!paths[1] || paths[2])
        return usage_wrong("diff: expected two runs");
    return steps_asked(o, &steps) ? trace_diff(paths[0], paths[1], o->json, &steps)
                                  : REPORT_IMPOSSIBLE;
}

static int steps(const struct options *o, char **paths)
{
    int64_t slowest = 0;
    if (o->each && o->slowest)
        return usage_wrong("steps: --each beside --slowest: expected one");
    if (o->slowest && (!parse_integer(o->slowest, &slowest) || slowest < 1 || slowest > MOST_STEPS))
        return usage_wrong("steps: expected --slowest and a number of steps, 1 to %d", MOST_STEPS);
    return trace_steps(paths, o->json, o->each, (size_t)slowest);
}

static bool is_command(const char *word)
{
    static const char *const commands[] = { "steps", "show", "kernels", "diff", "check", "export" };
    for (size_t i = 0; word && i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(word, commands[i]))
            return true;
    return false;
}

static int run(const struct options *o, char **words)
{
    if (!is_command(*words))
        return usage_command(*words, "steps, show, kernels, diff, check or export");
    if (!words[1])
        return usage_wrong("expected a run after the command");
    if (!strcmp(*words, "export"))
        return o->slowest ? usage_wrong("only steps takes --slowest") : export(o, words + 1);
    if (o->kept)
        return usage_wrong("only export takes --kept");
    if (!strcmp(*words, "steps") && !o->perfetto && !o->steps && !o->step)
        return steps(o, words + 1);
    if (o->slowest)
        return usage_wrong("only steps takes --slowest");
    if (!strcmp(*words, "kernels"))
        return kernels(o, words + 1);
    if (!strcmp(*words, "diff"))
        return diff(o, words + 1);
    if (o->perfetto || o->steps)
        return usage_wrong("only export takes --perfetto; it, kernels and diff take --steps");
    if (!strcmp(*words, "show"))
        return show(o, words + 1);
    if (o->step)
        return usage_wrong("only show takes --step");
    return o->each ? usage_wrong("check takes no --each") : trace_check(words + 1, o->json);
}

int main(int argc, char **argv)
{
    struct options o = { 0 };
    int status = read_options(argc, argv, &o);
    if (status < 0)
        status = run(&o, argv + optind);
    if (fflush(stdout) || ferror(stdout)) {
        complain("cannot write the output: %s", strerror(errno));
        return REPORT_IMPOSSIBLE;
    }
    return status;
}
