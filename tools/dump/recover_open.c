/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/recover.h"

#include "core/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The spec as it lies in the run; NULL: there is none that can be read. */
static char *load_spec(const struct reader_run *run, size_t *n)
{
    char *path = NULL;
    *n = 0;
    if (asprintf(&path, "%s/spec.yaml", run->path) < 0)
        return NULL;
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    free(path);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > (off_t)DMI_MAX_JSON)
        return NULL;
    char *data = malloc((size_t)st.st_size + 1);
    ssize_t got = data ? pread(fd, data, (size_t)st.st_size, 0) : -1;
    *n = got > 0 ? (size_t)got : 0;
    return data;
}

static struct run_text *texts_of(const struct reader_pair *pairs, size_t n)
{
    struct run_text *out = calloc(n + 1, sizeof *out);
    for (size_t i = 0; out && i < n; i++)
        out[i] = (struct run_text){ pairs[i].key, pairs[i].value };
    return out;
}

/* What the old run says of itself goes along; problems as they stand, however often they came. */
static void copy_problems(struct recovery *x, const struct reader_run *run)
{
    for (size_t i = 0; i < run->n_problems; i++) {
        const struct reader_problem *p = &run->problems[i];
        _cleanup_(text_deinit) struct text t = { 0 };
        text_printf(&t, "%s", p->sentence);
        if (p->times > 1)
            text_printf(&t, " (%" PRIu64 " times)", p->times);
        run_problem(x->run, p->site, p->reason, t.failed ? p->sentence : t.data);
    }
}

static void copy_changes(struct recovery *x, const struct reader_run *run)
{
    for (size_t i = 0; i < run->n_changes; i++) {
        const struct reader_change *c = &run->changes[i];
        _cleanup_(text_deinit) struct text more = { 0 };
        size_t n = c->more ? strlen(c->more) : 0;
        if (n > 2) /* the members alone, as run_change() has them */
            text_printf(&more, ", %.*s", (int)(n - 2), c->more + 1);
        run_change(x->run,
                   &(struct run_change){ .time_ns = c->time_ns,
                                         .launch = c->launch,
                                         .step = c->step,
                                         .what = c->what,
                                         .more = more.n && !more.failed ? more.data : NULL });
    }
}

int recover_open(struct err *err, struct recovery *x, const char *folder)
{
    const struct reader_run *run = reader_run(x->reader);
    size_t n = reader_n_sites(x->reader), n_spec;
    _cleanup_(freep) char *spec = load_spec(run, &n_spec);
    _cleanup_(freep) struct dmi_site *sites = calloc(n + 1, sizeof *sites);
    _cleanup_(freep) struct run_text *stated = texts_of(run->conventions, run->n_conventions);
    _cleanup_(freep) struct run_text *absent = texts_of(run->absent, run->n_absent);
    if (!sites || !stated || !absent)
        return err_set_errno(err, ENOMEM, "cannot recover");
    for (size_t i = 0; i < n; i++)
        sites[i] = *reader_site(x->reader, i);
    const struct run_options options = { .out_dir = folder,
                                         .spec_path = run->spec_path,
                                         .spec_text = spec,
                                         .n_spec_text = n_spec,
                                         .model = run->model,
                                         .job = run->job,
                                         .library_version = run->library_version,
                                         .sites = sites,
                                         .n_sites = (uint32_t)n,
                                         .conventions = stated,
                                         .n_conventions = run->n_conventions,
                                         .absent = absent,
                                         .n_absent = run->n_absent,
                                         .durability = RUN_DURABILITY_INTERVAL };
    int r = run_open(err, &options, &x->run);
    if (!r)
        copy_problems(x, run);
    for (size_t i = 0; !r && i < run->n_about; i++)
        run_describe(x->run, run->about[i].key, run->about[i].value);
    copy_changes(x, run);
    return r;
}

void recover_deinit(struct recovery *x)
{
    if (x->run)
        run_close(x->run);
    x->run = NULL;
    free(x->written);
    free(x->step_written);
    text_deinit(&x->steps);
}
