/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-ctl: asks running captures, through the control sockets in their folders, to change what they capture. See docs/man/dmi-ctl.1. */
#include "core/cleanup.h"
#include "read/runs.h"
#include "read/value.h"
#include "tools/common/say.h"
#include "tools/common/options.h"
#include "tools/ctl/edits.h"

#include <errno.h>
#include <fcntl.h>
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

static const char before[] =
    "dmi-ctl RUN status                       what is in force\n"
    "dmi-ctl RUN sites on|off PATTERN...      switch sites whose names match\n"
    "dmi-ctl RUN overload MAPPING             another overload of the HookSpec\n"
    "dmi-ctl RUN edit add|check FILE          edits (docs/edits.md) that come into force, or only "
    "checked\n"
    "dmi-ctl RUN edit set NAME times=NUMBER   another coefficient\n"
    "dmi-ctl RUN edit on|off|remove NAME      switch an edit, or take it out\n"
    "dmi-ctl RUN edit list                    what is in force, and what became of its rows\n"
    "dmi-ctl RUN edit salt ID [TAGS]          what the tag cache_salt of a request is to hold\n"
    "dmi-ctl RUN bank list                    requests of which edits have saved rows\n"
    "dmi-ctl RUN bank drop NAME               forget the rows that were saved under the name\n"
    "dmi-ctl RUN trace keep [N]               store each kernel of the last N steps, or of all in "
    "memory\n"
    "\n"
    "RUN is the folder of a run whose process was started with dmi-run --control or --trace, or a\n"
    "folder with several: then each is asked.\n"
    "\n";

static const char after[] =
    "\n"
    "Exit status: 0 done by all; 1 one refused; 2 wrong usage, or a process that cannot be "
    "asked.\n";

/* ------------------------------------------------------------------------- the socket */

static int no_socket(struct err *err, int r)
{
    if (r == -ENOENT)
        return err_set(err, r,
                       "there is no control socket: was it started with dmi-run --control or "
                       "--trace, and does it run still?");
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

/* What is asked: a line and, with `edit add`, a file whose edits go along. */
struct question {
    struct text line;
    const char *file; /* NULL: none */
};

static void question_deinit(struct question *q)
{
    text_deinit(&q->line);
}

/* The first bytes of the line bring the descriptor, if there is one. */
static ssize_t send_some(int fd, const char *data, size_t n, int given)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = { .bytes = { 0 } };
    struct iovec at = { (void *)(uintptr_t)data, n };
    struct msghdr message = { .msg_iov = &at, .msg_iovlen = 1 };
    if (given >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *h = CMSG_FIRSTHDR(&message);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof given);
        memcpy(CMSG_DATA(h), &given, sizeof given);
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

static int send_line(struct err *err, int fd, const struct text *line, int given)
{
    for (size_t sent = 0; sent < line->n;) {
        ssize_t n = send_some(fd, line->data + sent, line->n - sent, sent ? -1 : given);
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

static int ask(struct err *err, const char *run, const struct question *q, struct text *answer)
{
    _cleanup_(closep) int given = q->file ? edits_memory(err, run, q->file) : -1;
    if (q->file && given < 0)
        return given;
    _cleanup_(closep) int fd = connect_to(err, run);
    if (fd < 0)
        return fd;
    int r = send_line(err, fd, &q->line, given);
    return r ? r : receive_line(err, fd, answer);
}

/* ------------------------------------------------------------------------- answers */

static void print(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void print(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say_formatted(stdout, "", fmt, ap);
    va_end(ap);
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
        json_t *state = member(member(all, object_text_or(site, "name", "?")),
                               object_text_or(site, "state", "?"));
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
    print("process %" PRIu64 ", %s", object_number(answer, "pid"),
          counted(object_number(answer, "steps"), "step", "steps", steps));
    print("overload: %s, %s, %s, %s", object_text_or(o, "mode", "?"),
          object_text_or(o, "strategy", "?"),
          counted(object_number(o, "patterns"), "pattern", "patterns", patterns),
          counted(object_number(o, "budgets"), "budget", "budgets", budgets));
    json_object_foreach(sites, name, states) print_site(name, states);
    json_decref(sites);
}

/* "edit calm at mlp_out: on, 480 rows due, 480 written" */
static void print_edit(const json_t *edit)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    const char *reason;
    json_t *n;
    if (json_object_get(edit, "times"))
        text_printf(&t, ", times %g", json_number_value(json_object_get(edit, "times")));
    text_printf(&t, ", %" PRIu64 " rows due, %" PRIu64 " written", object_number(edit, "due"),
                object_number(edit, "written"));
    json_object_foreach(json_object_get(edit, "missed"), reason, n)
        text_printf(&t, ", %" PRIu64 " missed (%s)", (uint64_t)json_integer_value(n), reason);
    print("edit %s at %s: %s%s", object_text_or(edit, "name", "?"),
          object_text_or(edit, "site", "?"),
          json_is_true(json_object_get(edit, "on")) ? "on" : "off", t.failed ? "" : t.data);
}

static void print_edits(const json_t *answer)
{
    const json_t *edits = json_object_get(answer, "edits"), *edit;
    size_t i;
    if (!json_array_size(edits))
        print("no edit is in force");
    json_array_foreach(edits, i, edit) print_edit(edit);
}

/* "clean: rows of request r1, kept, which has ended" */
static void print_bank(const json_t *answer)
{
    const json_t *bank = json_object_get(answer, "bank"), *donor;
    size_t i;
    if (!json_array_size(bank))
        print("no request has saved rows");
    json_array_foreach(bank, i, donor)
        print("%s: rows of request %s%s%s", object_text_or(donor, "name", "?"),
              object_text_or(donor, "request", "?"),
              json_is_true(json_object_get(donor, "keep")) ? ", kept" : "",
              json_is_true(json_object_get(donor, "ended")) ? ", which has ended" : "");
    if (object_number(answer, "more"))
        print("and %" PRIu64 " more", object_number(answer, "more"));
}

/* "done: steps 90 to 99 are stored, 16,000 kernels, copies and fills" */
static void print_kept(const json_t *answer)
{
    const json_t *kept = json_object_get(answer, "kept");
    uint64_t first = object_number(kept, "first"), end = object_number(kept, "end");
    char steps[COUNTED_BYTES], records[COUNTED_BYTES];
    if (first == end)
        print("done: no step of those asked for is in memory");
    else
        print("done: %s stored, from number %" PRIu64 " to before %" PRIu64 "; %s",
              counted(end - first, "step is", "steps are", steps), first, end,
              counted(object_number(answer, "records"),
                      "kernel, copy or fill of them was not stored before",
                      "kernels, copies and fills of them were not stored before", records));
    if (object_number(answer, "gone"))
        print("%s not in memory any more",
              counted(object_number(answer, "gone"), "step before them is", "steps before them are",
                      steps));
}

/* What was done, as the answer says it. */
static void print_done(const json_t *answer)
{
    char sites[COUNTED_BYTES];
    if (json_is_integer(json_object_get(answer, "sites")))
        print("done: %s of the HookSpec",
              counted(object_number(answer, "sites"), "entry", "entries", sites));
    else
        print("done: mode %s", object_text_or(answer, "mode", "?"));
}

/* Return: an exit status. */
static int show(const char *run, const struct text *answer, bool json)
{
    json_t *o = object_parse(answer->data, answer->n);
    bool ok = json_is_true(json_object_get(o, "ok"));
    if (!o) {
        complain("%s: its answer is no JSON object", run);
    } else if (json) {
        _cleanup_(text_deinit) struct text t = { 0 };
        json_object_set_new(o, "path", value_text(run));
        value_add(&t, o);
        text_add(&t, "\n", 1);
        fwrite(t.data, 1, t.n, stdout);
    } else if (!ok) {
        complain("%s: %s", run, object_text_or(o, "error", "?"));
    } else {
        print("%s", run);
        if (json_object_get(o, "overload"))
            print_status(o);
        else if (json_object_get(o, "edits"))
            print_edits(o);
        else if (json_object_get(o, "bank"))
            print_bank(o);
        else if (json_object_get(o, "kept"))
            print_kept(o);
        else if (json_object_get(o, "dropped"))
            print("done: rows of %s are forgotten",
                  counted(object_number(o, "dropped"), "request", "requests",
                          (char[COUNTED_BYTES]){ 0 }));
        else if (json_object_get(o, "salt"))
            print("salt: %s", object_text_or(o, "salt", "?"));
        else if (json_object_get(o, "step"))
            print("done: from step %" PRIu64 " on", object_number(o, "step"));
        else if (json_object_get(o, "checked"))
            print("no error");
        else
            print_done(o);
    }
    json_decref(o);
    return ok ? CTL_OK : CTL_REFUSED;
}

/* ------------------------------------------------------------------------- runs */

static int one_run(const char *run, const struct question *q, bool json)
{
    struct err err = { 0 };
    _cleanup_(text_deinit) struct text answer = { 0 };
    if (!ask(&err, run, q, &answer))
        return show(run, &answer, json);
    complain("%s: %s", run, err.msg);
    return CTL_USAGE;
}

/* Those of a folder that have no socket ended, or are to be left alone; one at least must have it. */
static int each_run(const struct runs *runs, const struct question *q, bool json)
{
    int status = CTL_OK;
    bool any = false;
    for (size_t i = 0; i < runs->n; i++) {
        _cleanup_(text_deinit) struct text path = { 0 };
        text_printf(&path, "%s/control", runs->paths[i]);
        if (path.failed || access(path.data, F_OK))
            continue;
        int s = one_run(runs->paths[i], q, json);
        status = s > status ? s : status;
        any = true;
    }
    if (any)
        return status;
    complain("no run in this folder has a control socket: were they started with dmi-run --control "
             "or --trace, and do they run still?");
    return CTL_USAGE;
}

static int ask_all(const char *folder, const struct question *q, bool json)
{
    _cleanup_(runs_deinit) struct runs runs = { 0 };
    struct err ignored = { 0 };
    if (runs_find(&ignored, folder, &runs) || !runs.n)
        return one_run(folder, q, json);
    return each_run(&runs, q, json);
}

/* ------------------------------------------------------------------------- the command line */

/* Return: what is wrong; NULL: nothing. */
static const char *make_line(char **words, int n, struct question *q)
{
    struct text *line = &q->line;
    if (n == 3 && !strcmp(words[0], "edit") &&
        (!strcmp(words[1], "add") || !strcmp(words[1], "check")))
        q->file = words[--n];
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

static const struct option_row rows[] = {
    { "--json", "answers as they come, a JSON object a line; options may stand anywhere",
      option_flag },
    { "--version", "the version" },
};

static const struct options_table table = {
    .name = "dmi-ctl", .before = before, .after = after, .column = 14, OPTIONS_ROWS(rows)
};

int main(int argc, char **argv)
{
    _cleanup_(question_deinit) struct question q = { .file = NULL };
    bool json = false;
    int status = options_read(&table, argc, argv, &json, NULL);
    if (status == USAGE_WRONG)
        complain("after -- words may begin with -");
    if (status >= 0)
        return status;
    if (argc == 1)
        return options_help(&table, stderr);
    if (argc - optind < 2)
        return usage_wrong("expected a run and a command: dmi-ctl RUN status");
    const char *wrong = make_line(argv + optind + 1, argc - optind - 1, &q);
    if (wrong)
        return usage_wrong("%s", wrong);
    status = ask_all(argv[optind], &q, json);
    return say_flush(status, CTL_USAGE);
}
