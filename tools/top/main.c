/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-top: what runs capture at this moment, from the files that they keep up to date. It only reads. */
#include "core/cleanup.h"
#include "core/clock.h"
#include "storage/file.h"
#include "tools/common/options.h"
#include "tools/common/say.h"
#include "tools/common/stop.h"
#include "tools/top/serve.h"
#include "tools/top/show.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { TOP_OK = 0, TOP_FAILED = 1 };

#define MAX_INTERVAL_S 3600

struct options {
    const char *path; /* NULL: not said */
    const char *prometheus;
    uint64_t interval_ns;
    bool once, json;
};

static const char before[] =
    "Usage: dmi-top [OPTION]... [RUN | DIR]\n"
    "Show what is captured at this moment: of RUN, or of all runs in DIR that are being written.\n"
    "\n";

static const char after[] =
    "\n"
    "Without RUN and DIR: $DMI_OUT, else dmi-out, else the current folder. Several runs have a\n"
    "block each, and their sum comes first. Only the owner of a run can look at it.\n"
    "Exit status: 1 if no run is being written, or a file of one is refused; 2 for wrong usage.\n";

/* ------------------------------------------------------------------------- options */

static int take_interval(const struct option_row *row, void *into)
{
    char *end;
    double s = strtod(optarg, &end);
    if (end == optarg || *end || !(s >= 0.01) || s > MAX_INTERVAL_S)
        return usage_wrong("--%s %s: expected seconds, from 0.01 to %d", option_word(row), optarg,
                           MAX_INTERVAL_S);
    *(uint64_t *)option_field(row, into) = (uint64_t)(s * 1e9);
    return -1;
}

#define AT(field) offsetof(struct options, field)
static const struct option_row rows[] = {
    { "--interval S", "seconds between two views (1)", take_interval, AT(interval_ns) },
    { "--once", "one view, after one interval", option_flag, AT(once) },
    { "--json", "as JSON, an object a line", option_flag, AT(json) },
    { "--prometheus FILE",
      "write a page for Prometheus each interval, in place of a view; or\n"
      "unix:PATH: serve it over HTTP on a socket that only you can open",
      option_text, AT(prometheus) },
    { "--help, --version", "" },
};

static const struct options_table table = {
    .name = "dmi-top", .before = before, .after = after, .column = 21, OPTIONS_ROWS(rows)
};

/* Return: -1 to go on, else the status to exit with. */
static int read_options(int argc, char **argv, struct options *o)
{
    int status = options_read(&table, argc, argv, o, NULL);
    if (status >= 0)
        return status;
    if (argc - optind > 1 || (o->json && o->prometheus)) {
        return usage_wrong(o->json && o->prometheus ? "--json or --prometheus, not both"
                                                    : "expected one run, or one folder");
    }
    o->path = argv[optind];
    return -1;
}

static const char *socket_path(const struct options *o)
{
    return o->prometheus && !strncmp(o->prometheus, "unix:", 5) ? o->prometheus + 5 : NULL;
}

/* ------------------------------------------------------------------------- a picture */

struct picture {
    struct top_view *views; /* of each run that is shown */
    size_t n;
    struct top_view sum;
};

static void picture_deinit(struct picture *p)
{
    for (size_t i = 0; i < p->n; i++)
        view_deinit(&p->views[i]);
    free(p->views);
    view_deinit(&p->sum);
}

/* Return: 0 or -ENOMEM; picture_deinit() in any case. */
static int picture_take(const struct top_runs *runs, struct picture *p)
{
    int r = view_sum(runs, &p->sum);
    p->views = calloc(runs->n + 1, sizeof *p->views);
    for (size_t i = 0; !r && p->views && i < runs->n; i++)
        if (runs->list[i]->shown && runs->list[i]->now.counters)
            r = view_of(runs->list[i], &p->views[p->n++]);
    return p->views ? r : -ENOMEM;
}

/* ------------------------------------------------------------------------- a terminal */

#define HOME  "\033[H"
#define CLEAR "\033[2J"
#define REST  "\033[K" /* of the line */
#define BELOW "\033[J"

/* Lines as they are: show_text() has taken out what a terminal would act on. Cut to the window. */
static void draw(const struct text *lines)
{
    struct winsize size = { 0 };
    bool window = !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_row > 1;
    struct text out = { 0 };
    const char *at = lines->data, *end = at + lines->n;
    text_printf(&out, HOME);
    for (unsigned row = 1; at < end && (!window || row < size.ws_row); row++) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        size_t n = next ? (size_t)(next - at) : (size_t)(end - at), columns = 0, kept = 0;
        while (kept < n &&
               (!window || columns < size.ws_col || ((unsigned char)at[kept] & 0xc0) == 0x80))
            columns += ((unsigned char)at[kept++] & 0xc0) != 0x80;
        text_add(&out, at, kept);
        text_printf(&out, REST "\n");
        at = next ? next + 1 : end;
    }
    text_printf(&out, BELOW);
    fwrite(out.data, 1, out.n, stdout);
    text_deinit(&out);
}

static bool draws(const struct options *o)
{
    return !o->once && !o->json && !o->prometheus && isatty(STDOUT_FILENO);
}

/* ------------------------------------------------------------------------- output */

static int write_page(const struct options *o, const struct text *page)
{
    int r = file_replace(o->prometheus, page->data, page->n, 0);
    if (r)
        complain("cannot write %s: %s", o->prometheus, strerror(-r));
    return r ? TOP_FAILED : TOP_OK;
}

static int add_text(const char *data, size_t n, void *to)
{
    text_add(to, data, n);
    return 0;
}

/* On one line; ASCII alone, as a terminal acts on more than that. Takes @value over. */
static void add_json(struct text *to, json_t *value)
{
    if (!value || json_dump_callback(value, add_text, to, JSON_ENSURE_ASCII))
        to->failed = 1;
    text_add(to, "\n", 1);
    json_decref(value);
}

/* Return: the text that is shown, or the page; failed without memory. */
static struct text render(const struct options *o, const struct top_runs *runs,
                          const struct picture *p)
{
    struct text out = { 0 };
    if (o->prometheus)
        show_prometheus(&out, p->views, p->n);
    else if (o->json)
        add_json(&out, show_json(runs, p->views, p->n, &p->sum));
    else
        show_text(&out, runs, p->views, p->n, &p->sum);
    return out;
}

/* Return: a status. @page: gets the page where it is served, else it is empty. */
static int show(const struct options *o, const struct top_runs *runs, struct text *page)
{
    _cleanup_(picture_deinit) struct picture p = { 0 };
    if (picture_take(runs, &p)) {
        complain("no memory");
        return TOP_FAILED;
    }
    _cleanup_(text_deinit) struct text out = render(o, runs, &p);
    int status = out.failed ? TOP_FAILED : TOP_OK;
    if (socket_path(o)) {
        text_deinit(page);
        *page = out;
        out = (struct text){ 0 };
    } else if (o->prometheus) {
        status = write_page(o, &out);
    } else if (draws(o)) {
        draw(&out);
    } else {
        fwrite(out.data, 1, out.n, stdout);
    }
    if (fflush(stdout) || ferror(stdout))
        status = TOP_FAILED;
    return status;
}

/* Each is said once for as long as it lasts; on a terminal it stands in the picture. */
static bool say_refusals(struct top_runs *runs)
{
    bool any = false;
    for (size_t i = 0; i < runs->n; i++) {
        struct top_run *run = runs->list[i];
        const struct err *err = run->refused.code ? &run->refused : &run->live_refused;
        if (run->shown && err->code && !run->said)
            complain("%s", err->msg);
        run->said = err->code != 0;
        any = any || (run->shown && err->code);
    }
    return any;
}

/* ------------------------------------------------------------------------- main */

static int run_loop(const struct options *o, struct top_runs *runs, struct serve *serve)
{
    _cleanup_(text_deinit) struct text page = { 0 };
    struct err err = { 0 };
    int status = serve && !o->once ? show(o, runs, &page) : TOP_OK;
    if (draws(o))
        fputs(CLEAR, stdout);
    while (!stop_asked()) {
        uint64_t end = clock_mono_ns() + o->interval_ns;
        if (serve)
            serve_until(serve, &page, end);
        for (uint64_t now; !serve && (now = clock_mono_ns()) < end && !stop_asked();)
            stop_sleep(end - now);
        if (stop_asked())
            break;
        if (runs_refresh(&err, runs)) {
            complain("%s", err.msg);
            return TOP_FAILED;
        }
        int failed = show(o, runs, &page);
        bool refused = !draws(o) && say_refusals(runs);
        status = failed || refused ? TOP_FAILED : TOP_OK;
        if (o->once || (failed && !serve) || !(o->prometheus || runs_any_running(runs)))
            break;
    }
    return status;
}

int main(int argc, char **argv)
{
    struct options o = { .interval_ns = 1000000000u };
    struct err err = { 0 };
    struct top_runs runs = { 0 };
    struct serve *serve = NULL;
    int status = read_options(argc, argv, &o);
    if (status >= 0)
        return status;
    status = TOP_FAILED;
    stop_install();
    int r = runs_open(&err, o.path, &runs);
    bool waits = r == -ENOENT && !runs.one && o.prometheus && !o.once; /* runs may begin later */
    if (waits)
        err = (struct err){ 0 };
    if ((!r || waits) && (!socket_path(&o) || (serve = serve_new(&err, socket_path(&o)))))
        status = run_loop(&o, &runs, serve);
    else
        complain("%s", err.msg);
    serve_free(serve);
    runs_deinit(&runs);
    return status;
}
