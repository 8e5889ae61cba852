/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-sites: finds where an engine keeps its tensors, and writes the HookSpec that captures them. */
#include "core/cleanup.h"
#include "tools/common/command.h"
#include "tools/common/say.h"
#include "tools/common/options.h"
#include "tools/sites/check.h"
#include "tools/sites/kernels.h"
#include "tools/sites/match.h"
#include "tools/sites/printable.h"
#include "tools/sites/record.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_USAGE 2

static const char before[] =
    "Usage: dmi-sites record --out REC [OPTION]... [--] COMMAND [ARGUMENT]...\n"
    "       dmi-sites match REC --reference REF -o SPEC [--model NAME]\n"
    "       dmi-sites check SPEC REC [--reference REF]\n"
    "       dmi-sites check SPEC --out REC [OPTION]... -- COMMAND [ARGUMENT]...\n"
    "       dmi-sites kernels FILE\n"
    "       dmi-sites reference MODEL --prompt TEXT -o REF\n"
    "Find where an engine keeps the tensors of a model.\n"
    "\n"
    "record runs COMMAND and writes down what every launch of a kernel is given, and writes.\n";

static const char after[] =
    "\n"
    "Exit status: 0; 1 where nothing was found, a site has drifted or a file cannot be read; 2 "
    "for\n"
    "wrong usage; of record, COMMAND's own, and 126 or 127 if it cannot be run.\n";

struct options {
    struct record_options record;
    struct match_options match;
    char budget[32];
};

static int take_forwards(const struct option_row *row, void *into)
{
    if (!*optarg || strspn(optarg, "0123456789") != strlen(optarg))
        return usage_wrong("--%s: expected a number", option_word(row));
    return option_text(row, into);
}

static int take_budget(const struct option_row *row, void *into)
{
    struct options *o = into;
    o->record.budget = o->budget;
    if (command_size(optarg, o->budget, sizeof o->budget))
        return -1;
    return usage_wrong("--%s: expected a number of bytes, K, M or G may follow it",
                       option_word(row));
}

#define AT(field) offsetof(struct options, field)
static const struct option_row rows[] = {
    { "--out REC", "the recording, a new file", option_text, AT(record.out) },
    { "--force", "replace a recording that is there", option_flag, AT(record.force) },
    { "--budget BYTES", "no more of memory's contents than this (K, M, G may follow; 4G)",
      take_budget },
    { "--begin PATTERN", "from the first launch of such a kernel on; it begins a forward",
      option_text, AT(record.begin) },
    { "--forwards N", "with --begin: N forwards, then no more", take_forwards,
      AT(record.forwards) },
    { NULL, "\n"
            "match compares a recording with reference activations, and writes a HookSpec.\n" },
    { "--reference REF", "safetensors: REQUEST/SITE.LAYER, a row a token", option_text,
      AT(match.reference) },
    { "-o SPEC",
      "the HookSpec to write; of one that is there, all but its forwards and\n"
      "sites stays",
      option_text, AT(match.spec) },
    { "--model NAME", "the `model` of a new one", option_text, AT(match.model) },
    { NULL,
      "\n"
      "check compares a HookSpec with a recording: which sites match no launch any more, or "
      "another\n"
      "number, or lie elsewhere. With --reference it compares values too, and prints entries that\n"
      "mend what drifted. With --out it records COMMAND first, as record does.\n"
      "\n"
      "kernels prints names and parameters (bytes, and where) of the kernels in a recording, a "
      "cubin, a\n"
      "fatbin, or a program or library that holds some.\n"
      "\n"
      "reference computes reference activations with Hugging Face's transformers, on the CPU; it "
      "needs\n"
      "python3 with PyTorch. dmi-sites reference --help has its options.\n"
      "\n" },
    { "--help, --version", "" },
};

static const struct options_table table = {
    .name = "dmi-sites", .before = before, .after = after, .column = 21, OPTIONS_ROWS(rows)
};

static int run_record(struct options *o, char **rest)
{
    o->record.command = rest;
    if (!o->record.out)
        return usage_wrong("no recording: expected --out FILE");
    if (!*rest)
        return usage_wrong("no command: expected dmi-sites record --out FILE -- COMMAND");
    if (o->record.forwards && !o->record.begin)
        return usage_wrong("--forwards counts launches of --begin PATTERN: expected both");
    return record(&o->record);
}

static int run_match(struct options *o, char **rest)
{
    struct err err = { 0 };
    if (!*rest || rest[1])
        return usage_wrong("expected one recording: dmi-sites match REC --reference REF -o SPEC");
    if (!o->match.reference || !o->match.spec)
        return usage_wrong("expected --reference REF and -o SPEC");
    o->match.recording = *rest;
    if (!match(&err, &o->match))
        return 0;
    complain("%s", err.msg);
    return 1;
}

/* Runs the command, recorded; what it answers is for the user to see. Return: false: said why. */
static bool record_first(struct options *o, char **command)
{
    int status = 0;
    o->record.command = command;
    pid_t child = fork();
    if (!child)
        exit(record(&o->record));
    if (child < 0 || waitpid(child, &status, 0) != child) {
        complain("%s cannot be run", *command);
        return false;
    }
    if (status)
        complain("%s did not end well (status %#x)", *command, (unsigned)status);
    return true;
}

static int run_check(struct options *o, char **rest)
{
    struct err err = { 0 };
    bool good = false, runs = o->record.out != NULL;
    if (!rest[0] || !rest[1] || (rest[2] && !runs))
        return usage_wrong("expected a HookSpec and a recording: dmi-sites check SPEC REC, or "
                           "dmi-sites check SPEC --out REC -- COMMAND");
    if (runs && !record_first(o, rest + 1))
        return EXIT_USAGE;
    struct check_options options = { rest[0], runs ? o->record.out : rest[1], o->match.reference };
    if (check(&err, &options, &good))
        complain("%s", err.msg);
    return !good;
}

static int run_kernels(char **rest)
{
    struct err err = { 0 };
    if (!rest[0] || rest[1])
        return usage_wrong("expected one file: dmi-sites kernels FILE");
    if (!kernels(&err, rest[0]))
        return 0;
    complain("%s", err.msg);
    return 1;
}

/* Becomes Python, which knows Hugging Face's models. */
static int run_reference(char **rest, size_t n)
{
    static char *const head[] = { "python3", "-m", "dmi.torch.reference" };
    const char *old = getenv("PYTHONPATH");
    _cleanup_(freep) char *python = command_python();
    _cleanup_(freep) char *path = NULL;
    _cleanup_(freep) char **command = calloc(3 + n + 1, sizeof *command);
    if (!python || !command ||
        asprintf(&path, "%s%s%s", python, old && *old ? ":" : "", old ? old : "") < 0 ||
        !command_set("PYTHONPATH", path))
        return 1;
    memcpy(command, head, sizeof head);
    memcpy(command + 3, rest, n * sizeof *rest);
    return command_become(command);
}

int main(int argc, char **argv)
{
    struct options o = { 0 };
    struct options_table taken = table;
    printable_install();
    const char *what = argc > 1 && *argv[1] != '-' ? argv[1] : "";
    if (!strcmp(what, "reference"))
        return run_reference(argv + 2, (size_t)argc - 2);
    /* options after its first word belong to the command of record; files of others come before and after options */
    taken.stops = !strcmp(what, "record");
    optind = *what ? 2 : 1;
    int status = options_read(&taken, argc, argv, &o, NULL);
    if (status >= 0)
        return status;
    if (!strcmp(what, "record"))
        return run_record(&o, argv + optind);
    if (!strcmp(what, "match"))
        return run_match(&o, argv + optind);
    if (!strcmp(what, "check"))
        return run_check(&o, argv + optind);
    if (!strcmp(what, "kernels"))
        return run_kernels(argv + optind);
    return usage_command(what, "record, match, check, kernels or reference");
}
