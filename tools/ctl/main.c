/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-ctl: asks running captures, through the control sockets in their folders, to change what they capture. See docs/man/dmi-ctl.1. */
#include "core/cleanup.h"
#include "core/clock.h"
#include "read/runs.h"
#include "read/value.h"
#include "tools/common/say.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define WAIT_S     10 /* for an answer */
#define MAX_ANSWER (4u << 20)
#define MAX_LINE   (16u << 10)

enum { CTL_OK = 0, CTL_REFUSED = 1, CTL_USAGE = 2 };

static const char usage_text[] =
    "dmi-ctl RUN status                       what is in force\n"
    "dmi-ctl RUN sites on|off PATTERN...      switch sites whose names match\n"
    "dmi-ctl RUN overload MAPPING             another overload of the HookSpec\n"
    "\n"
    "RUN is the folder of a run whose process was started with dmi-run --control, or a folder "
    "with\n"
    "several: then each is asked.\n"
    "\n"
    "  --json      answers as they come, a JSON object a line; options may stand anywhere\n"
    "  --version   the version\n"
    "\n"
    "Exit status: 0 done by all; 1 one refused; 2 wrong usage, or a process that cannot be "
    "asked.\n";

/* ------------------------------------------------------------------------- the socket */

static int no_socket(struct err *err, int r)
{
    if (r == -ENOENT)
        return err_set(err, r,
                       "there is no control socket: was it started with dmi-run --control, "
                       "and does it run still?");
    if (r == -ECONNREFUSED)
        return err_set(err, r, "nobody listens at the control socket: its process was killed");
    return err_set_errno(err, -r, "the control socket cannot be used");
}

/* The folder's descriptor stands for its path, which may be longer than an address has room for. Return: a descriptor. */
static int connect_to(struct err *err, const char *run)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    struct timeval wait = { .tv_sec = WAIT_S };
    struct stat st;
    _cleanup_(closep) int folder = open(run, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return err_set_errno(err, errno, "cannot be opened");
    if (fstatat(folder, "control", &st, AT_SYMLINK_NOFOLLOW))
        return no_socket(err, -errno);
    if (!S_ISSOCK(st.st_mode) || st.st_uid != geteuid())
        return err_set(err, -EPERM, "its control socket belongs to another user, or is none");
    snprintf(at.sun_path, sizeof at.sun_path, "/proc/self/fd/%d/control", folder);
    _cleanup_(closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) ||
        connect(fd, (struct sockaddr *)&at, sizeof at))
        return no_socket(err, -errno);
    return steal_fd(&fd);
}

static int send_line(struct err *err, int fd, const struct text *line)
{
    for (size_t sent = 0; sent < line->n;) {
        ssize_t n = send(fd, line->data + sent, line->n - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_errno(err, errno, "cannot be asked");
        sent += (size_t)n;
    }
    return 0;
}

/* Up to the end of the line, which is left out. */
static int receive_line(struct err *err, int fd, struct text *answer)
{
    char buffer[4096];
    while (!answer->n || answer->data[answer->n - 1] != '\n') {
        ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_set(err, -EIO,
                           n && errno == EAGAIN ? "does not answer" : "ended without an answer");
        text_add(answer, buffer, (size_t)n);
        if (answer->failed || answer->n > MAX_ANSWER)
            return err_set(err, -EMSGSIZE, "its answer is too long");
    }
    answer->n--;
    answer->data[answer->n] = 0;
    return 0;
}

static int ask(struct err *err, const char *run, const struct text *line, struct text *answer)
{
    _cleanup_(closep) int fd = connect_to(err, run);
    if (fd < 0)
        return fd;
    int r = send_line(err, fd, line);
    return r ? r : receive_line(err, fd, answer);
}

/* ------------------------------------------------------------------------- answers */

static const char *word_at(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "?";
}

static void print(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void print(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say_formatted(stdout, "", fmt, ap);
    va_end(ap);
}

static uint64_t number_at(const json_t *o, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(o, key));
}

/* The member of an object, which is created where it is not there. */
static json_t *member(json_t *o, const char *key)
{
    if (!json_object_get(o, key))
        json_object_set_new(o, key, json_object());
    return json_object_get(o, key);
}

/* A name may stand for several entries of the HookSpec, one a forward: {name: {state: {forward: {}}}}, in their order. */
static json_t *by_name(const json_t *sites)
{
    json_t *all = json_object(), *site;
    size_t i;
    json_array_foreach(sites, i, site)
    {
        const char *forward = json_string_value(json_object_get(site, "forward"));
        json_t *state = member(member(all, word_at(site, "name")), word_at(site, "state"));
        if (forward)
            member(state, forward);
    }
    return all;
}

/* "site q: on (prefill, decode)" */
static void print_site(const char *name, json_t *states)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    const char *state, *forward;
    json_t *forwards, *ignored;
    json_object_foreach(states, state, forwards)
    {
        size_t n = 0;
        text_printf(&t, "%s%s", t.n ? ", " : "", state);
        json_object_foreach(forwards, forward, ignored)
            text_printf(&t, "%s%s", n++ ? ", " : " (", forward);
        text_printf(&t, "%s", n ? ")" : "");
    }
    print("site %s: %s", name, t.failed ? "?" : t.data);
}

static void print_status(const json_t *answer)
{
    const json_t *o = json_object_get(answer, "overload");
    char steps[COUNTED_BYTES], patterns[COUNTED_BYTES], budgets[COUNTED_BYTES];
    json_t *sites = by_name(json_object_get(answer, "sites")), *states;
    const char *name;
    print("process %" PRIu64 ", %s", number_at(answer, "pid"),
          counted(number_at(answer, "steps"), "step", "steps", steps));
    print("overload: %s, %s, %s, %s", word_at(o, "mode"), word_at(o, "strategy"),
          counted(number_at(o, "patterns"), "pattern", "patterns", patterns),
          counted(number_at(o, "budgets"), "budget", "budgets", budgets));
    json_object_foreach(sites, name, states) print_site(name, states);
    json_decref(sites);
}

/* What was done, as the answer says it. */
static void print_done(const json_t *answer)
{
    char sites[COUNTED_BYTES];
    if (json_is_integer(json_object_get(answer, "sites")))
        print("done: %s of the HookSpec",
              counted(number_at(answer, "sites"), "entry", "entries", sites));
    else
        print("done: mode %s", word_at(answer, "mode"));
}

/* Return: an exit status. */
static int show(const char *run, const struct text *answer, bool json)
{
    json_t *o = json_loadb(answer->data, answer->n, 0, NULL);
    bool ok = json_is_true(json_object_get(o, "ok"));
    if (!json_is_object(o)) {
        complain("%s: its answer is no JSON object", run);
    } else if (json) {
        _cleanup_(text_deinit) struct text t = { 0 };
        json_object_set_new(o, "path", value_text(run));
        value_add(&t, o);
        text_add(&t, "\n", 1);
        fwrite(t.data, 1, t.n, stdout);
    } else if (!ok) {
        complain("%s: %s", run, word_at(o, "error"));
    } else {
        print("%s", run);
        if (json_object_get(o, "overload"))
            print_status(o);
        else
            print_done(o);
    }
    json_decref(o);
    return ok ? CTL_OK : CTL_REFUSED;
}

/* ------------------------------------------------------------------------- runs */

static int one_run(const char *run, const struct text *line, bool json)
{
    struct err err = { 0 };
    _cleanup_(text_deinit) struct text answer = { 0 };
    if (!ask(&err, run, line, &answer))
        return show(run, &answer, json);
    complain("%s: %s", run, err.msg);
    return CTL_USAGE;
}

/* Those of a folder that have no socket ended, or are to be left alone; one at least must have it. */
static int each_run(const struct runs *runs, const struct text *line, bool json)
{
    int status = CTL_OK;
    bool any = false;
    for (size_t i = 0; i < runs->n; i++) {
        _cleanup_(text_deinit) struct text path = { 0 };
        text_printf(&path, "%s/control", runs->paths[i]);
        if (path.failed || access(path.data, F_OK))
            continue;
        int s = one_run(runs->paths[i], line, json);
        status = s > status ? s : status;
        any = true;
    }
    if (any)
        return status;
    complain(
        "no run in this folder has a control socket: were they started with dmi-run --control, "
        "and do they run still?");
    return CTL_USAGE;
}

static int ask_all(const char *folder, const struct text *line, bool json)
{
    _cleanup_(runs_deinit) struct runs runs = { 0 };
    struct err ignored = { 0 };
    if (runs_find(&ignored, folder, &runs) || !runs.n)
        return one_run(folder, line, json);
    return each_run(&runs, line, json);
}

/* ------------------------------------------------------------------------- the command line */

static int hint(const char *why)
{
    complain("%s", why);
    complain("try: dmi-ctl --help");
    return CTL_USAGE;
}

/* Return: what is wrong; NULL: nothing. */
static const char *make_line(char **words, int n, struct text *line)
{
    for (int i = 0; i < n; i++) {
        if (strpbrk(words[i], "\n\r"))
            return "a command is one line: leave line ends out";
        text_printf(line, "%s%s", i ? " " : "", words[i]);
    }
    text_add(line, "\n", 1);
    if (line->failed)
        return "no memory";
    return line->n > MAX_LINE ? "a command has at most 16 KiB" : NULL;
}

int main(int argc, char **argv)
{
    static const struct option options[] = { { "json", no_argument, NULL, 'j' },
                                             { "help", no_argument, NULL, 'h' },
                                             { "version", no_argument, NULL, 'v' },
                                             { 0 } };
    _cleanup_(text_deinit) struct text line = { 0 };
    bool json = false;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (c) {
        case 'j': json = true; break;
        case 'h': fputs(usage_text, stdout); return CTL_OK;
        case 'v': puts("dmi-ctl " DMI_VERSION); return CTL_OK;
        default: return hint("unknown option: after -- words may begin with -");
        }
    }
    if (argc - optind < 2) {
        fputs(usage_text, stderr);
        return CTL_USAGE;
    }
    const char *wrong = make_line(argv + optind + 1, argc - optind - 1, &line);
    if (wrong)
        return hint(wrong);
    int status = ask_all(argv[optind], &line, json);
    if (fflush(stdout) || ferror(stdout)) {
        complain("cannot write the output: %s", strerror(errno));
        return CTL_USAGE;
    }
    return status;
}
