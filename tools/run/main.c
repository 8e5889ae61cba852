/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-run: check a HookSpec, then become the command with libdmi_preload.so in front of it. Whatever
 * hinders the capture is said on stderr, and the command runs all the same, uninstrumented. An edit is what the command is run for:
 * where it cannot be done the command is not run, and dmi-run stays its parent, to say in the end whether it was.
 */
#include "core/cleanup.h"
#include "policy/spec.h"
#include "policy/tap_names.h"
#include "tools/common/command.h"
#include "tools/common/options.h"
#include "tools/common/say.h"
#include "tools/common/watch.h"
#include "tools/run/edits.h"
#include "tools/run/outcome.h"
#include "tools/run/parent.h"
#include "tools/run/sanitizer.h"
#include "tools/run/taps.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXIT_USAGE    2 /* also: what was asked for cannot be, with an edit, --check or --strict */
#define EXIT_NOT_MADE 1 /* the command ended with 0, and an edit was not done */

struct options {
    const char *spec;
    char *only; /* of its sites those that are captured, separated by commas; owned. NULL: all */
    char *only_layers;        /* of these; owned. NULL: all */
    struct taps_options taps; /* in place of @spec where taps_named() */
    struct edits_options edits;
    const char *out;
    const char *log;
    const char *trace; /* the tier; NULL: no trace */
    const char *ring_bytes;
    char ring_number[32]; /* ring_bytes without K, M, G */
    const char *vars[SPEC_MAX_VARS];
    size_t n_vars;
    bool check, strict, control;
    bool has_places; /* the spec has sites into which edits may write */
    bool bad_edits;  /* they have errors, which were said */
    bool bad_words;  /* likewise what options themselves say of taps, layers and variables */
    bool has_out;    /* @out is an option's */
    char **command;  /* NULL-terminated, borrowed from argv */
};

static const char before[] =
    "Usage: dmi-run --spec FILE [OPTION]... [--] COMMAND [ARGUMENT]...\n"
    "       dmi-run --tap NAME[,NAME]... [OPTION]... [--] COMMAND [ARGUMENT]...\n"
    "       dmi-run --steer FILE [--times N] [OPTION]... [--] COMMAND [ARGUMENT]...\n"
    "       dmi-run --edits FILE --spec FILE [OPTION]... [--] COMMAND [ARGUMENT]...\n"
    "       dmi-run --trace [--spec FILE] [OPTION]... [--] COMMAND [ARGUMENT]...\n"
    "Run COMMAND and store the tensors that a HookSpec names, or that COMMAND taps; or edit them; "
    "or\n"
    "store when its steps ran.\n"
    "\n";

static const char after[] =
    "\n"
    "COMMAND inherits everything, and so do its children; each process that launches CUDA "
    "kernels,\n"
    "or taps tensors, makes a folder of its own in DIR. Look into it with dmi-dump. A process "
    "that\n"
    "loads the CUDA driver and is started without the library is named in the log.\n"
    "Exit status: COMMAND's; 126 or 127 if it cannot be run; 2 for wrong usage, for edits that\n"
    "cannot be done, and for a bad spec with edits, --check or --strict; 1 where COMMAND ended "
    "with\n"
    "0 and an edit was not done. Else a bad spec is reported and COMMAND runs without capture.\n";

/* Takes an option that may come several times. */
static int take_list(const struct option_row *row, void *into)
{
    if (taps_add(option_field(row, into), optarg))
        return -1;
    complain("no memory");
    return EXIT_USAGE;
}

static int take_preset(const struct option_row *row, void *into)
{
    const char **preset = option_field(row, into);
    if (*preset) {
        complain("--preset %s beside --preset %s: expected one; --tap names more", optarg, *preset);
        return EXIT_USAGE;
    }
    *preset = optarg;
    return -1;
}

static int take_trace(const struct option_row *row, void *into)
{
    const char **trace = option_field(row, into);
    *trace = optarg ? optarg : "kernels";
    if (!strcmp(*trace, "steps") || !strcmp(*trace, "kernels") || !strcmp(*trace, "full"))
        return -1;
    complain("--trace=%s: expected steps, kernels or full", *trace);
    return EXIT_USAGE;
}

static int take_ring(const struct option_row *row, void *into)
{
    struct options *o = into;
    o->ring_bytes = o->ring_number;
    if (command_size(optarg, o->ring_number, sizeof o->ring_number))
        return -1;
    complain("--%s %s: expected a number of bytes, K, M or G may follow it", option_word(row),
             optarg);
    return EXIT_USAGE;
}

static int take_var(const struct option_row *row, void *into)
{
    struct options *o = into;
    (void)row;
    if (o->n_vars == SPEC_MAX_VARS) {
        complain("more than %d -D", SPEC_MAX_VARS);
        return EXIT_USAGE;
    }
    o->vars[o->n_vars++] = optarg;
    return -1;
}

#define AT(field) offsetof(struct options, field)
static const struct option_row rows[] = {
    { "--spec FILE", "the HookSpec (else $DMI_SPEC)", option_text, AT(spec) },
    { "--only SITES",
      "of the HookSpec's sites capture only these: names, or patterns of them,\n"
      "separated by commas; --layers says of which layers",
      take_list, AT(only) },
    { "--tap NAMES",
      "names of taps, or patterns of them, separated by commas, in place of a\n"
      "HookSpec (docs/taps.md)",
      take_list, AT(taps.names) },
    { "--preset NAME", "a group of taps: residuals, attention, mlp, logits, eagle3, all",
      take_preset, AT(taps.preset) },
    { "--layers LIST",
      "of which layers taps, or a HookSpec's sites, are stored, as 3,7-12,last (else\n"
      "all)",
      take_list, AT(taps.layers) },
    { "--attach SITES",
      "COMMAND is a program in Python: models of Hugging Face's are tapped\n"
      "there, by name or module:PATTERN:in|out, and the taps stored; as\n"
      "residuals,gradients: what flows back into them, too",
      take_list, AT(taps.attach) },
    { "--write SITES",
      "edits may write into these taps, as resid_post,mlp_out; without --tap and\n"
      "--preset models of Hugging Face's are tapped there",
      take_list, AT(taps.write) },
    { "--model PATTERN",
      "of models of Hugging Face's that are tapped: those whose class, path, or\n"
      "last part of the path it fits; several may be given. Else all; and a model\n"
      "that drafts for another one is no place for edits",
      take_list, AT(taps.model) },
    { "--edits FILE", "edits that are in force from the first step on (docs/edits.md)", option_text,
      AT(edits.file) },
    { "--steer FILE",
      "add the vector of FILE at the place for edits, in the layers of --layers\n"
      "(else in all that FILE has); without a HookSpec and --write at resid_post\n"
      "of models of Hugging Face's",
      option_text, AT(edits.steer) },
    { "--site NAME", "with --steer: which of several places", option_text, AT(edits.site) },
    { "--times N", "with --steer: N times the vector (else 1)", option_text, AT(edits.times) },
    { "--pass N",
      "with --steer: in pass N of layers that run several times in a forward\n"
      "(from 0; else in each)",
      option_text, AT(edits.pass) },
    { "--lenient",
      "with --edits and --steer, for servers: where edits cannot be done, run\n"
      "COMMAND without them, and end as it does",
      option_flag, AT(edits.lenient) },
    { "--out DIR", "folder for the runs (else $DMI_OUT, else dmi-out); made if missing",
      option_text, AT(out) },
    { "-D NAME=VALUE", "set a variable of the spec's vars:; may be given several times", take_var },
    { "--define NAME=VALUE", NULL, take_var },
    { "--log DEST", "log lines to stderr, none, or a file (else $DMI_LOG, else stderr)",
      option_text, AT(log) },
    { "--ring-bytes N", "size of the ring in device memory; K, M, G may follow N", take_ring },
    { "--trace",
      "store when each step ran, on the host and on the device, and sums of the\n"
      "kernels that ran in it, by CUPTI (docs/trace.md); --trace=steps: steps\n"
      "alone; --trace=full: each kernel",
      take_trace, AT(trace), NULL, 0, true },
    { "--control",
      "dmi-ctl may change what is captured while COMMAND runs; where there are\n"
      "places for edits, and with --trace, it may without this option, too",
      option_flag, AT(control) },
    { "--check", "only check the spec; run nothing", option_flag, AT(check) },
    { "--strict", "do not run COMMAND if the capture cannot work", option_flag, AT(strict) },
    { "--help, --version", "" },
};

static const struct options_table table = { .name = "dmi-run",
                                            .before = before,
                                            .after = after,
                                            .column = 21,
                                            .stops = true,
                                            OPTIONS_ROWS(rows) };

/* --layers beside a HookSpec is of its sites. Return: false: it cannot be, which is said. */
static bool narrowing_complete(struct options *o)
{
    bool has_spec = o->spec && *o->spec;
    if (has_spec && !o->taps.names && !o->taps.preset && !o->taps.attach)
        o->only_layers = steal_ptr(o->taps.layers);
    if (o->only && !has_spec)
        complain("--only without --spec: --tap, --preset and --attach name what is stored");
    else if (o->edits.file && (o->only || o->only_layers))
        complain("%s says what is captured; the edits of %s stay as they are",
                 o->only ? "--only" : "--layers", o->edits.file);
    return !o->only || has_spec;
}

/* What the options leave open comes from the environment. Return: -1, or the status to exit with. */
static int complete_options(struct options *o)
{
    bool taps = o->taps.names || o->taps.preset || o->taps.attach || o->taps.write;
    if (!o->spec && !taps)
        o->spec = getenv("DMI_SPEC");
    bool to_default = o->edits.steer && !(o->spec && *o->spec) && !o->taps.write;
    if (to_default && !taps_add(&o->taps.write, "resid_post")) {
        complain("no memory");
        return EXIT_USAGE;
    }
    if (o->edits.steer) {
        o->edits.layers = o->taps.layers;
        o->taps.layers = NULL;
    }
    if (!edits_complete(&o->edits) || !narrowing_complete(o) ||
        !taps_complete(&o->taps, o->spec && *o->spec))
        return usage_hint();
    if (taps_named(&o->taps))
        o->spec = o->taps.all ? "--tap" : "--write";
    o->has_out = o->out && *o->out;
    if (!o->out)
        o->out = getenv("DMI_OUT");
    if (!o->out || !*o->out)
        o->out = "dmi-out";
    bool has_spec = o->spec && *o->spec;
    if (o->edits.lenient && o->strict) {
        complain("--lenient beside --strict: expected one");
    } else if (!has_spec && (!o->trace || o->check || edits_wanted(&o->edits))) {
        complain("no HookSpec: expected --spec FILE, --tap NAMES, --preset NAME, "
                 "--attach SITES, --write SITES, --steer FILE or --trace");
    } else if (!has_spec && (o->n_vars || o->ring_bytes)) {
        complain("%s with --trace alone: variables are a HookSpec's, and a ring is of what is "
                 "captured",
                 o->n_vars ? "-D" : "--ring-bytes");
    } else if (!*o->command && !o->check) {
        complain("no command: expected dmi-run %s %s -- COMMAND",
                 taps_named(&o->taps) ? o->spec
                 : has_spec           ? "--spec"
                                      : "--trace",
                 o->taps.all     ? o->taps.all
                 : o->taps.write ? o->taps.write
                 : has_spec      ? o->spec
                                 : "");
    } else if (*o->command && o->check) {
        complain("--check runs no command: leave out \"%s\", or --check", *o->command);
    } else {
        return -1;
    }
    return usage_hint();
}

/* The spec that the options name, or stand for. Return: as of spec_load(). */
static int read_spec(const struct options *o, const char *const *vars, size_t n_vars,
                     struct spec_errors *errors, struct spec **spec)
{
    if (!taps_named(&o->taps))
        return spec_load(o->spec, vars, n_vars, errors, spec);
    _cleanup_(freep) char *text = tap_spec(o->taps.all, o->taps.write, o->taps.layers);
    return text ? spec_parse(o->spec, text, strlen(text), vars, n_vars, errors, spec) : -ENOMEM;
}

/* Has the spec no error but for what -D says? */
static bool is_good_without(const struct options *o, const char *const *vars, size_t n_vars)
{
    struct spec_errors errors = { 0 };
    struct spec *spec = NULL;
    bool good = o->n_vars && !read_spec(o, vars, n_vars - o->n_vars, &errors, &spec);
    spec_errors_deinit(&errors);
    spec_free(spec);
    return good;
}

/* Leaves of the spec what --only and --layers say. Return: false: it has not what they ask for, which is said. */
static bool narrow(const struct options *o, struct spec *spec)
{
    struct err err = { 0 };
    if ((!o->only && !o->only_layers) || !spec_narrow(&err, spec, o->only, o->only_layers))
        return true;
    complain("%s%s%s: %s", o->only ? "--only " : "--layers ", o->only ? o->only : o->only_layers,
             o->only && o->only_layers ? " with --layers" : "", err.msg);
    return false;
}

/* Prints what is wrong with the spec, and with the edits that are for it. Return: true if nothing is. */
static bool spec_is_good(struct options *o, const char *const *vars, size_t n_vars)
{
    struct spec_errors errors = { 0 };
    struct spec *spec = NULL;
    if (!o->spec || !*o->spec)
        return true; /* a trace needs none */
    int rc = read_spec(o, vars, n_vars, &errors, &spec);
    for (size_t i = 0; i < errors.n_lines; i++)
        fprintf(stderr, "%s\n", errors.lines[i]);
    bool narrowed = rc || narrow(o, spec);
    for (size_t i = 0; o->check && spec && i < spec->warnings.n_lines; i++)
        fprintf(stderr, "%s\n", spec->warnings.lines[i]);
    if (rc < 0)
        fprintf(stderr, "%s: cannot read the HookSpec: %s\n", o->spec, strerror(-rc));
    else if (rc)
        complain("%s: %zu error%s", o->spec, errors.n_lines, errors.n_lines == 1 ? "" : "s");
    else if (o->check && narrowed)
        printf("%s: HookSpec \"%s\": %u site%s, %u kind%s of forward: no error\n", o->spec,
               spec->name, spec->n_sites, spec->n_sites == 1 ? "" : "s", spec->n_kinds,
               spec->n_kinds == 1 ? "" : "s");
    spec_errors_deinit(&errors);
    rc = narrowed ? rc : SPEC_E_INVALID;
    o->bad_words =
        !narrowed || (rc > 0 && (taps_named(&o->taps) || is_good_without(o, vars, n_vars)));
    if (!rc && edits_wanted(&o->edits))
        o->bad_edits = !edits_read(&o->edits, spec, o->check);
    o->has_places = !rc && spec->n_places;
    spec_free(spec);
    return rc == 0;
}

/* Makes @path and what is missing above it. Return: 0 or -errno. */
static int make_folder(const char *path)
{
    _cleanup_(freep) char *part = strdup(path);
    if (!part)
        return -ENOMEM;
    for (char *p = part + 1; *p; p++)
        if (*p == '/' && p[-1] != '/') {
            *p = 0;
            if (mkdir(part, 0777) && errno != EEXIST)
                return -errno;
            *p = '/';
        }
    /* what engines compute may tell what users wrote: for the user's eyes only */
    if (mkdir(part, 0700) && errno != EEXIST)
        return -errno;
    struct stat st;
    if (stat(part, &st))
        return -errno;
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

static bool make_out(const struct options *o)
{
    int rc = make_folder(o->out);
    if (rc)
        complain("%s: cannot make the folder for the runs: %s", o->out, strerror(-rc));
    return !rc;
}

static bool is_file(const char *log)
{
    return log && *log && strcmp(log, "stderr") && strcmp(log, "none");
}

/* Can what the options name be written? Return: false: said why. */
static bool can_write(const struct options *o)
{
    _cleanup_(closep) int fd = -1;
    if (o->has_out && !make_out(o))
        return false;
    if (is_file(o->log))
        fd = open(o->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
    if (!is_file(o->log) || fd >= 0 || errno == ENXIO) /* a FIFO that has no reader yet */
        return true;
    complain("--log %s: %s", o->log, strerror(errno));
    return false;
}

static bool set_vars(const char *const *vars, size_t n_vars)
{
    size_t n = 1;
    for (size_t i = 0; i < n_vars; i++)
        n += strlen(vars[i]) + 1;
    _cleanup_(freep) char *all = calloc(1, n);
    if (!all)
        return false;
    for (size_t i = 0; i < n_vars; i++) {
        strcat(all, i ? "," : "");
        strcat(all, vars[i]);
    }
    return !n_vars || command_set("DMI_VARS", all);
}

/* One id for all processes of the command, unless the caller gave one for several commands. */
static bool set_job(void)
{
    const char *given = getenv("DMI_JOB");
    uint8_t id[16];
    char text[37] = "";
    if (given && *given)
        return true;
    if (getrandom(id, sizeof id, 0) != sizeof id) {
        complain("cannot draw an id for the job: %s", strerror(errno));
        return false;
    }
    id[6] = (uint8_t)((id[6] & 0x0f) | 0x40); /* RFC 4122, version 4 */
    id[8] = (uint8_t)((id[8] & 0x3f) | 0x80);
    for (size_t i = 0; i < sizeof id; i++)
        sprintf(text + strlen(text), i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                id[i]);
    return command_set("DMI_JOB", text);
}

/* May dmi-ctl ask the processes for something? */
static bool listens(const struct options *o)
{
    return o->control || o->has_places || (o->trace && !strcmp(o->trace, "kernels"));
}

/* The command, and what it is to be run with. */
struct command {
    char **words;
    char *library, *out; /* absolute; owned */
    struct holder holder;
    bool parent; /* of the command, which says what was written */
};

/* Prepares the environment for a capture. Return: false where that is impossible (and said). */
static bool arm(const struct options *o, const char *const *vars, size_t n_vars,
                struct command *command)
{
    if (!make_out(o))
        return false;
    _cleanup_(freep) char *library = command_library();
    if (!library)
        return false;
    /* the command may change its folder before it starts CUDA */
    bool no_file = taps_named(&o->taps) || !o->spec || !*o->spec;
    _cleanup_(freep) char *spec = no_file ? strdup("") : realpath(o->spec, NULL);
    _cleanup_(freep) char *out = realpath(o->out, NULL);
    if (!spec || !out) {
        complain("%s: %s", spec ? o->out : o->spec, strerror(errno));
        return false;
    }
    const char *to = o->log ? o->log : getenv("DMI_LOG");
    _cleanup_(freep) char *here = is_file(to) && *to != '/' ? getcwd(NULL, 0) : NULL;
    _cleanup_(freep) char *log = NULL;
    if (here && asprintf(&log, "%s/%s", here, to) < 0)
        return false;
    if (!command_set("DMI_SPEC", spec) || !command_set("DMI_ONLY", o->only ? o->only : "") ||
        !command_set("DMI_ONLY_LAYERS", o->only_layers ? o->only_layers : "") ||
        !taps_set(&o->taps) || !command_set("DMI_OUT", out) || !set_vars(vars, n_vars) ||
        !command_set("DMI_LOG", log ? log : o->log) ||
        !command_set("DMI_RING_BYTES", o->ring_bytes) || !command_set("DMI_TRACE", o->trace) ||
        !set_job() || !command_set("DMI_CONTROL", listens(o) ? "1" : NULL) ||
        !command_preload(library))
        return false;
    command->library = steal_ptr(library);
    command->out = steal_ptr(out);
    return true;
}

static const char *library_name(const struct command *command)
{
    return strrchr(command->library, '/') + 1;
}

/* Return: only where that failed: the status to exit with. */
static int become(void *arg)
{
    struct command *c = arg;
    if (c->library)
        watch_start(library_name(c), getenv("DMI_LOG"), c->out, !c->parent);
    return command_become(c->words);
}

/* Runs the command with its edits, as its parent. Return: the status to exit with. */
static int run_edited(struct options *o, struct command *c, char **argv)
{
    struct parent parent;
    _cleanup_(outcome_deinit) struct outcome outcome = { 0 };
    bool ran = false;
    parent_begin(&parent);
    if (!outcome_begin(&outcome, o->edits.read, c->out)) {
        complain("no memory");
        return EXIT_USAGE;
    }
    if (!edits_hold(&o->edits, &c->holder, argv)) {
        if (!o->edits.lenient)
            return EXIT_USAGE;
        complain("running \"%s\" without edits", *c->words);
        parent_give_up(&parent);
        return become(c);
    }
    edits_deinit(&o->edits); /* vectors may be large, and the command may run for long */
    c->parent = true;
    int ended = parent_run(&parent, &c->holder, become, c, &ran);
    if (ended < 0) {
        complain("no process for \"%s\": %s", *c->words, strerror(errno));
        return EXIT_USAGE;
    }
    parent_may_end(&parent);
    bool made = !ran || outcome_made(&outcome, getenv("DMI_JOB"), &c->holder, library_name(c));
    holder_leave(&c->holder);
    int status = parent_status(ended);
    return status || made || o->edits.lenient ? status : EXIT_NOT_MADE;
}

static void command_deinit(struct command *c)
{
    free(c->library);
    free(c->out);
}

static void options_deinit(struct options *o)
{
    free(o->only);
    free(o->only_layers);
    taps_deinit(&o->taps);
    edits_deinit(&o->edits);
}

/* @good: the HookSpec is. Return: the status to exit with. */
static int run(struct options *o, bool good, const char *const *vars, size_t n_vars, char **argv)
{
    _cleanup_(command_deinit) struct command c = { .words = o->command };
    bool edited = edits_wanted(&o->edits), must = edited && !o->edits.lenient;
    if (must && o->bad_edits) {
        complain("not running \"%s\": its edits cannot be done (--lenient runs it without them)",
                 *o->command);
        return EXIT_USAGE;
    }
    if (!good || !arm(o, vars, n_vars, &c)) {
        if (must || o->strict) {
            complain("not running \"%s\"%s", *o->command,
                     o->strict ? " (--strict)"
                               : ": its edits cannot be done (--lenient runs it without them)");
            return EXIT_USAGE;
        }
        complain("running \"%s\" without capture%s", *o->command,
                 edited ? " and without edits" : "");
    } else if (o->bad_edits) {
        complain("running \"%s\" without edits", *o->command);
    }
    sanitizer_say(*o->command);
    return o->edits.read && c.library ? run_edited(o, &c, argv) : become(&c);
}

int main(int argc, char **argv)
{
    _cleanup_(options_deinit) struct options o = { 0 };
    int status = options_read(&table, argc, argv, &o, NULL);
    o.command = o.edits.command = argv + optind;
    if (status < 0)
        status = complete_options(&o);
    if (status >= 0)
        return status;

    /* -D after DMI_VARS: the later one counts */
    const char *vars[2 * SPEC_MAX_VARS];
    _cleanup_(freep) char *from_env = strdup(getenv("DMI_VARS") ? getenv("DMI_VARS") : "");
    size_t n_vars = from_env ? spec_split_vars(from_env, vars, SPEC_MAX_VARS) : SIZE_MAX;
    if (n_vars == SIZE_MAX) {
        complain("DMI_VARS holds more than %d variables", SPEC_MAX_VARS);
        n_vars = 0;
    }
    memcpy(vars + n_vars, o.vars, o.n_vars * sizeof *vars);
    n_vars += o.n_vars;

    bool good = spec_is_good(&o, vars, n_vars);
    if (o.check)
        return good && !o.bad_edits ? 0 : EXIT_USAGE;
    if (o.bad_words || !can_write(&o)) {
        complain("not running \"%s\": an option cannot be honoured", *o.command);
        return EXIT_USAGE;
    }
    return run(&o, good, vars, n_vars, argv);
}
