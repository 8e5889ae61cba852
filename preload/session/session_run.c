/* SPDX-License-Identifier: Apache-2.0 */
/* From the session to its run on disk: what the environment says of it, and its creation. */
#include "preload/session/session.h"

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/log.h"
#include "preload/base/cpus.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- environment */

#define MAX_SECONDS 1000000000u /* their nanoseconds are a number of 64 bits */

uint64_t session_env_size(const char *name)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return 0;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    unsigned shift = 0;
    switch (*end) {
    case 'K':
    case 'k':
        shift = 10;
        end++;
        break;
    case 'M':
    case 'm':
        shift = 20;
        end++;
        break;
    case 'G':
    case 'g':
        shift = 30;
        end++;
        break;
    }
    if (errno || *end || end == text || text[0] == '-' || value > (UINT64_MAX >> shift)) {
        log_line("%s=%s is no size (bytes, or a number with K, M or G): ignored", name, text);
        return 0;
    }
    return (uint64_t)value << shift;
}

/* Whole seconds, or milliseconds with "ms", in nanoseconds; 0 where there are none. No locale has a say in it. */
static uint64_t env_seconds(const char *name)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return 0;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    bool ms = !strcmp(end, "ms");
    if (errno || end == text || text[0] == '-' || (*end && !ms) || value > MAX_SECONDS) {
        log_line("%s=%s is no time (seconds, or a number with ms): ignored", name, text);
        return 0;
    }
    return (uint64_t)value * (ms ? 1000000u : 1000000000u);
}

static enum run_durability env_durability(void)
{
    const char *text = getenv("DMI_DURABILITY");
    if (!text || !*text || !strcmp(text, "interval"))
        return RUN_DURABILITY_INTERVAL;
    if (!strcmp(text, "none"))
        return RUN_DURABILITY_NONE;
    if (!strcmp(text, "each"))
        return RUN_DURABILITY_EACH;
    log_line("DMI_DURABILITY=%s is none of none, interval, each: interval is used", text);
    return RUN_DURABILITY_INTERVAL;
}

/* ------------------------------------------------------------------------- the run */

/* Names that are absent, each once: one may be absent in several kinds of forwards. Return: how many. */
static size_t absent_names(const struct spec *spec, struct run_text *out)
{
    size_t n = 0;
    for (size_t i = 0; i < spec->n_absent; i++) {
        bool known = false;
        for (size_t k = 0; k < n && !known; k++)
            known = !strcmp(out[k].key, spec->absent[i].name);
        if (!known)
            out[n++] = (struct run_text){ spec->absent[i].name, spec->absent[i].why };
    }
    return n;
}

/* As the threads of a context (context/workers.c). */
static void in_thread(void)
{
    cpu_set_t cpus;
    session_attach();
    if (cpus_beside(&cpus))
        sched_setaffinity(0, sizeof cpus, &cpus); /* where it fails it stays here */
}

/* What the run says of the spec: its sites, and what they mean. */
struct spec_words {
    struct dmi_site *sites;
    struct run_text *conventions, *absent;
};

static void free_words(struct spec_words *w)
{
    free(w->sites);
    free(w->conventions);
    free(w->absent);
}

/* Return: 0 or -ENOMEM. */
static int add_spec(struct run_options *o, const struct spec *spec, struct spec_words *w)
{
    w->sites = calloc(spec->n_sites + 1, sizeof *w->sites);
    w->conventions = calloc(spec->n_conventions + 1, sizeof *w->conventions);
    w->absent = calloc(spec->n_absent + 1, sizeof *w->absent);
    if (!w->sites || !w->conventions || !w->absent)
        return -ENOMEM;
    for (uint32_t i = 0; i < spec->n_sites; i++)
        w->sites[i] = spec->sites[i].about;
    for (size_t i = 0; i < spec->n_conventions; i++)
        w->conventions[i] =
            (struct run_text){ spec->conventions[i].key, spec->conventions[i].value };
    o->spec_path = spec->path;
    o->spec_text = spec->text;
    o->n_spec_text = spec->n_text;
    o->model = spec->model;
    o->sites = w->sites;
    o->n_sites = spec->n_sites;
    o->conventions = w->conventions;
    o->n_conventions = spec->n_conventions;
    o->absent = w->absent;
    o->n_absent = absent_names(spec, w->absent);
    return 0;
}

static int open_run(struct err *err, struct run **run)
{
    _cleanup_(free_words) struct spec_words words = { 0 };
    const char *out = getenv("DMI_OUT");
    struct run_options options = {
        .out_dir = out && *out ? out : "dmi-out",
        .job = getenv("DMI_JOB"),
        .library_version = DMI_VERSION,
        .segment_bytes = session_env_size("DMI_SEGMENT_BYTES"),
        .segment_ns = env_seconds("DMI_SEGMENT_SECONDS"),
        .keep_bytes = session_env_size("DMI_KEEP_BYTES"),
        .keep_ns = env_seconds("DMI_KEEP_SECONDS"),
        .durability = env_durability(),
        .live = true,
        .latest = true,
        .in_thread = in_thread,
    };
    if (session.spec && add_spec(&options, session.spec, &words))
        return err_set(err, -ENOMEM, "no memory");
    return run_open(err, &options, run);
}

/* Under the session's lock. */
static void create_run(void)
{
    static int registered; /* handlers are inherited by fork */
    struct err err = { 0 };
    struct run *run;
    int r = open_run(&err, &run);
    if (r) {
        log_line("no run can be written, this process runs without capture: %s", err.msg);
        atomic_store_release(&session.armed, 0u);
        return;
    }
    session.counters = run_counters(run);
    session.live = run_live(run);
    /*
     * The driver registered its own handler in cuInit, before this one; they run in reverse order, so the last
     * flush still has a driver.
     */
    if (!registered && !atexit(session.at_exit))
        registered = 1;
    atomic_store_release(&session.run, run); /* to session_run() */
}

struct run *session_run(void)
{
    struct run *run = atomic_load_acquire(&session.run); /* of create_run() */
    if (run || !session_does(SESSION_WRITES))
        return run;
    int saved = errno;
    pthread_mutex_lock(&session.lock);
    if (!session.run && session.armed)
        create_run();
    run = session.run;
    pthread_mutex_unlock(&session.lock);
    errno = saved;
    return run;
}

int session_note_change(const char *what, bool at_once)
{
    return session_note_change_with(what, NULL, at_once);
}

int session_note_change_with(const char *what, const char *more, bool at_once)
{
    struct run *run = session_run();
    const struct run_change change = { .time_ns = clock_real_ns(),
                                       .launch = atomic_load_relaxed(&session.next_launch),
                                       .step = atomic_load_relaxed(&session.next_step),
                                       .what = what,
                                       .more = more };
    int r = !run ? 0 : at_once ? run_change(run, &change) : run_change_later(run, &change);
    if (!r && at_once)
        log_line("changed: %.200s", what);
    return r;
}
