/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump export: tensors in their final order and shape, in what others read. Records are decoded in launch order,
 * each once, and their rows go where they belong. What cannot be decoded is left out, and the export begins anew
 * without it.
 */
#include "tools/dump/export.h"

#include "core/cleanup.h"
#include "core/words.h"
#include "read/fill.h"
#include "read/rows.h"
#include "tools/dump/export_place.h"
#include "tools/dump/missing.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOLD 20 /* records that cannot be read, by name */

struct job {
    struct exporter x;
    struct tensors tensors;
    const struct format *format;
    struct place place;
    size_t *target_of;             /* by tensor: index + 1, 0: left out */
    bool *damaged;                 /* by record */
    uint64_t n_damaged, n_missing; /* records; rows of theirs */
    size_t n_mixed, n_emptied;     /* tensors left out: changing shape, no row that can be read */
    size_t n_unfilled;             /* tensors that lack rows of cached tokens yet */
};

int export_write(int fd, const void *data, size_t n, uint64_t at)
{
    while (n) {
        ssize_t w = pwrite(fd, data, n, (off_t)at);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return w < 0 ? -errno : -EIO;
        data = (const char *)data + w;
        n -= (size_t)w;
        at += (uint64_t)w;
    }
    return 0;
}

void export_leave_out(struct exporter *x, enum sample_fault why, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    x->left_out_by[why]++;
    if (x->n_left_out++ < MOST_TOLD)
        text_add(&x->left_out, line, strlen(line) + 1);
}

static void tell_left_out(const struct exporter *x)
{
    for (size_t at = 0; at < x->left_out.n; at += strlen(x->left_out.data + at) + 1)
        complain("%s", x->left_out.data + at);
    if (x->n_left_out > MOST_TOLD)
        complain("... and %" PRIu64 " more", x->n_left_out - MOST_TOLD);
}

/* ------------------------------------------------------------------------- rows */

static bool wants(void *ctx, size_t tensor)
{
    const struct job *job = ctx;
    return job->target_of[tensor] != 0;
}

static int take(void *ctx, const struct rows *rows, const struct reader_record *record,
                const uint8_t *data)
{
    struct job *job = ctx;
    const struct target *target = &job->x.targets[job->target_of[rows->tensor] - 1];
    const struct tensor *t = target->tensor;
    uint64_t n_row = t->width * dmi_dtype_bytes(t->dtype);
    uint64_t n = t->stretches[rows->stretch].n_rows * n_row;
    (void)record;
    if (!n || job->n_damaged) /* begins anew: look only for more that is damaged */
        return 0;
    job->x.stretch = &t->stretches[rows->stretch];
    return job->format->write(&job->x, target, data, n, rows->first * n_row);
}

static int damaged(void *ctx, const struct rows *rows, const struct err *why)
{
    struct job *job = ctx;
    size_t record = job->tensors.all[rows->tensor].stretches[rows->stretch].record;
    if (!job->damaged[record] && job->n_damaged++ < MOST_TOLD)
        complain_undecoded(why);
    job->damaged[record] = true;
    return 0;
}

/* ------------------------------------------------------------------------- what is exported */

static void drop_targets(struct job *job)
{
    for (size_t i = 0; i < job->x.n_targets; i++)
        free(job->x.targets[i].file);
    free(job->x.targets);
    free(job->target_of);
    export_drop_positions(&job->x);
    closep(&job->x.scratch);
    job->x.scratch = -1;
    job->x.at = 0;
    text_deinit(&job->x.left_out);
    job->x.left_out = (struct text){ 0 };
    job->x.n_left_out = 0;
    memset(job->x.left_out_by, 0, sizeof job->x.left_out_by);
    job->x.targets = NULL;
    job->target_of = NULL;
    job->x.n_targets = 0;
    job->x.n_bytes = 0;
}

/* Which tensors go where, and how much that is, once the format has taken its own. */
static void find_targets(struct job *job)
{
    job->x.n_bytes = 0;
    for (size_t i = 0; i < job->x.n_targets; i++) {
        const struct target *t = &job->x.targets[i];
        job->target_of[t->tensor - job->tensors.all] = i + 1;
        job->x.n_bytes += t->n_bytes;
    }
}

static int collect_targets(struct job *job)
{
    size_t n = job->tensors.n;
    drop_targets(job);
    job->x.targets = calloc(n + 1, sizeof *job->x.targets);
    job->target_of = calloc(n + 1, sizeof *job->target_of);
    if (!job->x.targets || !job->target_of)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct tensor *t = &job->tensors.all[i];
        if (t->mixed || !t->n_stretches)
            continue;
        struct target target = { .tensor = t };
        if (__builtin_mul_overflow(t->n_rows, t->width * dmi_dtype_bytes(t->dtype),
                                   &target.n_bytes))
            return -EOVERFLOW;
        job->x.targets[job->x.n_targets++] = target;
    }
    return export_collect_positions(&job->x);
}

static int choose(struct err *err, struct job *job)
{
    int r = collect_targets(job);
    if (r)
        return err_set_errno(err, -r, "cannot export");
    if (job->format->arrange)
        r = job->format->arrange(err, &job->x);
    if (!r)
        find_targets(job);
    return r;
}

static void tell_mixed(struct job *job)
{
    for (size_t i = 0; i < job->tensors.n; i++) {
        const struct tensor *t = &job->tensors.all[i];
        if (t->mixed && ++job->n_mixed <= MOST_TOLD)
            complain("%s is left out: it %s (dmi-dump list --records --site %s)", t->key,
                     tensor_mixed_text(t), t->site->name);
    }
    if (job->n_mixed > MOST_TOLD)
        complain("... and %zu more", job->n_mixed - MOST_TOLD);
}

/* Sites with a row a request have no row of most tokens anyway: only who asks for such a site lacks something. */
static void tell_of_requests(struct job *job, const struct tensor *t, bool *told)
{
    if (told[t->order])
        return;
    told[t->order] = true;
    job->n_unfilled += job->x.options->select.site != NULL;
    complain("--fill-cached takes no rows of the site %s: they stand one a request", t->site->name);
}

/* Rows of cached tokens that no other request has; a format of samples leaves their requests out, and says so itself. */
static int tell_unfilled(struct job *job)
{
    _cleanup_(freep) bool *told = calloc(reader_n_sites(job->x.reader) + 1, sizeof *told);
    if (!told)
        return -ENOMEM;
    for (size_t i = 0; !job->format->chooses && i < job->tensors.n; i++) {
        _cleanup_(text_deinit) struct text why = { 0 };
        const struct tensor *t = &job->tensors.all[i];
        fill_add_fault(&why, t);
        if (t->unfilled == FILL_OF_REQUESTS)
            tell_of_requests(job, t, told);
        else if (t->unfilled && ++job->n_unfilled <= MOST_TOLD)
            complain("%s lacks rows of cached tokens%s", t->key, why.data ? why.data : "");
    }
    if (job->n_unfilled > MOST_TOLD)
        complain("... and %zu more", job->n_unfilled - MOST_TOLD);
    return 0;
}

/* Takes the stretches of damaged records out of their tensors. */
static void drop_damaged(struct job *job)
{
    for (size_t i = 0; i < job->tensors.n; i++) {
        struct tensor *t = &job->tensors.all[i];
        size_t kept = 0;
        for (size_t p = 0; p < t->n_stretches; p++) {
            if (!job->damaged[t->stretches[p].record]) {
                t->stretches[kept++] = t->stretches[p];
                continue;
            }
            t->n_rows -= t->stretches[p].n_rows;
            job->n_missing += t->stretches[p].n_rows;
        }
        job->n_emptied += t->n_stretches && !kept;
        t->n_stretches = kept;
    }
}

/* ------------------------------------------------------------------------- writing */

static int write_all(struct err *err, struct job *job)
{
    static const struct rows_visitor visitor = { wants, take, damaged };
    int r = place_open(err, &job->place);
    job->x.fd = job->place.fd;
    if (!r)
        r = job->format->begin(err, &job->x);
    if (!r) {
        r = rows_visit(err, job->x.reader, &job->tensors, &visitor, job);
        if (r < 0)
            err_set_errno(err, -r, "cannot write %s", job->place.path);
    }
    if (!r && !job->n_damaged && job->format->finish)
        r = job->format->finish(err, &job->x);
    return r;
}

/* At most twice: the second time without what cannot be read. */
static int export_job(struct err *err, struct job *job)
{
    int r = choose(err, job);
    if (!r)
        r = write_all(err, job);
    if (!r && job->n_damaged) {
        uint64_t n = job->n_damaged;
        place_discard(&job->place);
        drop_damaged(job);
        job->n_damaged = 0;
        r = choose(err, job);
        if (!r)
            r = write_all(err, job);
        if (!r && job->n_damaged)
            r = err_set(err, -EBADMSG, "the run is damaged while it is read");
        job->n_damaged = n;
    }
    return r ? r : place_keep(err, &job->place);
}

/* Records as they are: what is said of tensors and their rows does not hold for them. */
static int copy_job(struct err *err, struct job *job)
{
    tensors_deinit(&job->tensors);
    int r = place_open(err, &job->place);
    job->x.fd = job->place.fd;
    if (!r)
        r = job->format->copy(err, &job->x);
    job->n_damaged = job->n_emptied = job->x.n_damaged;
    job->n_missing = job->x.n_missing;
    return r ? r : place_keep(err, &job->place);
}

/* ------------------------------------------------------------------------- the command */

/* How many samples there are, and why there are no more. */
static void report_samples(struct report *report, const struct exporter *x)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    size_t n = x->n_group ? x->n_targets / x->n_group : 0, n_filled = export_n_filled(x);
    json_t *by = json_object();
    for (int f = SAMPLE_OF_NOBODY; f < SAMPLE_N_FAULTS; f++) {
        if (!x->left_out_by[f])
            continue;
        json_object_set_new(by, sample_fault_name(f), value_u64(x->left_out_by[f]));
        text_printf(&t, "%s%" PRIu64 " %s", t.n ? ", " : " (", x->left_out_by[f],
                    sample_fault_name(f));
    }
    report_member(report, "samples", value_u64(n));
    report_member(report, "samples_filled", value_u64(n_filled));
    report_member(report, "requests_left_out", value_u64(x->n_left_out));
    report_member(report, "left_out_by", by);
    _cleanup_(text_deinit) struct text filled = { 0 };
    if (n_filled)
        text_printf(&filled, " (%zu with rows of other requests)", n_filled);
    report_line(report, "samples: %zu written%s, %" PRIu64 " left out%s%s", n,
                filled.data ? filled.data : "", x->n_left_out, t.data ? t.data : "",
                t.n ? ")" : "");
}

/* Which requests got rows of which others. */
static void report_filled(struct report *report, const struct exporter *x)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    json_t *all = json_object();
    uint64_t n_rows = export_filled(x, all);
    report_member(report, "filled_rows", value_u64(n_rows));
    const char *id;
    json_t *donors, *donor;
    size_t i, n_told = 0, n = json_object_size(all);
    json_object_foreach(all, id, donors)
    {
        if (n_told++ == MOST_TOLD)
            break;
        t.n = 0;
        json_array_foreach(donors, i, donor)
            text_printf(&t, "%s'%s'", i ? ", " : "", json_string_value(donor));
        report_line(report, "cached tokens of '%s' have rows of %s", id, t.data ? t.data : "");
    }
    if (n > MOST_TOLD)
        report_line(report, "... and those of %zu more requests", n - MOST_TOLD);
    report_member(report, "filled", all);
}

static int report_job(const struct job *job, const struct options *o)
{
    struct report report = { .json = o->json };
    const struct exporter *x = &job->x;
    uint64_t n = x->n_files + x->n_targets;
    report_member(&report, "output", value_text(job->place.path));
    report_member(&report, "format", value_text(job->format->name));
    report_member(&report, "tensors", value_u64(n));
    report_member(&report, "bytes", value_u64(x->n_bytes));
    report_member(&report, "left_out", value_u64(job->n_mixed + job->n_emptied));
    report_member(&report, "damaged_records", value_u64(job->n_damaged));
    report_member(&report, "missing_rows", value_u64(job->n_missing));
    report_member(&report, "superseded_rows", value_u64(job->tensors.n_superseded));
    report_member(&report, "rejected_rows", value_u64(job->tensors.n_rejected));
    report_member(&report, "rows_of_nobody", value_u64(job->tensors.n_nobody));
    report_line(&report, "%" PRIu64 " %s, %" PRIu64 " %s, to %s", n,
                word_for(n, "tensor", "tensors"), x->n_bytes, word_for(x->n_bytes, "byte", "bytes"),
                job->place.path);
    if (job->n_damaged)
        report_line(&report,
                    "%" PRIu64 " records cannot be read: %" PRIu64 " rows of theirs are left out, "
                    "and with them %zu tensors altogether",
                    job->n_damaged, job->n_missing, job->n_emptied);
    if (job->tensors.n_rejected && !o->select.rejected)
        report_line(&report, "%" PRIu64 " rows are left out because their drafts were rejected",
                    job->tensors.n_rejected);
    if (job->tensors.n_superseded && !o->select.superseded)
        report_line(&report,
                    "%" PRIu64 " rows are left out because a later launch computed their position "
                    "again",
                    job->tensors.n_superseded);
    if (job->tensors.n_nobody)
        report_line(&report, "%" PRIu64 " rows belong to no request (padding) and are left out",
                    job->tensors.n_nobody);
    if (o->select.fill_cached)
        report_filled(&report, x);
    if (job->format->chooses)
        report_samples(&report, x);
    return report_end(&report, DUMP_OK);
}

/* Of a run in which nothing was captured there is nothing to export: a file without tensors says so. */
static bool nothing_selected(const struct job *job, const struct options *o)
{
    return !job->tensors.n && !missing_is_all(&o->select);
}

static int build(struct err *err, struct job *job, const struct options *o)
{
    _cleanup_(sites_deinit) struct sites sites = { 0 };
    if (sites_build(job->x.reader, &sites))
        return err_set_errno(err, ENOMEM, "cannot export");
    bool asks = job->format->chooses || o->select.fill_cached;
    if (asks && requests_build(job->x.reader, &job->x.requests))
        return err_set_errno(err, ENOMEM, "cannot export");
    int r = fill_build(err, job->x.reader, &sites, &job->x.requests, &o->select, &job->tensors);
    if (!r && !missing_has_request(job->x.reader, &o->select))
        tensors_deinit(&job->tensors);
    else if (!r && nothing_selected(job, o))
        missing_complain(job->x.reader, &sites, &o->select);
    if (!r && !(job->damaged = calloc(reader_n_records(job->x.reader) + 1, 1)))
        r = err_set_errno(err, ENOMEM, "cannot export");
    return r;
}

/* Return: 1: nothing is selected; 0; -errno with a sentence in @err. */
static int export_selected(struct err *err, struct job *job, const struct options *o)
{
    if (nothing_selected(job, o))
        return 1;
    if (job->format->copy)
        return copy_job(err, job);
    tell_mixed(job);
    if (tell_unfilled(job))
        return err_set_errno(err, ENOMEM, "cannot export");
    return export_job(err, job);
}

static int run_job(struct job *job, const struct options *o)
{
    struct report quiet = { 0 };
    struct err err = { 0 };
    int r = place_choose(&err, &job->place, o->output, reader_run(job->x.reader),
                         job->format->suffix, job->format->is_folder, o->force);
    if (!r)
        r = build(&err, job, o);
    if (!r) {
        job->x.tensors = &job->tensors;
        job->x.output = job->place.path;
        r = export_selected(&err, job, o);
    }
    tell_left_out(&job->x);
    if (r < 0)
        complain("%s", err.msg);
    size_t n_damage = facts_findings(&quiet, job->x.reader);
    if (r == -ENODATA && job->format->chooses) {
        struct report none = { .json = o->json };
        job->x.n_targets = 0;
        report_samples(&none, &job->x);
        return report_end(&none, DUMP_FAILED);
    }
    if (r == -ENODATA || r == 1)
        return DUMP_FAILED;
    if (r || report_job(job, o))
        return DUMP_USAGE;
    return job->n_mixed || job->n_damaged || job->n_unfilled || n_damage || job->x.n_left_out
               ? DUMP_FAILED
               : DUMP_OK;
}

int dump_export(struct reader *reader, const struct options *o)
{
    struct job job = { .x = { .reader = reader, .options = o, .fd = -1, .scratch = -1 },
                       .format = formats_find(o->format),
                       .place = { .fd = -1 } };
    if (!job.format) {
        _cleanup_(text_deinit) struct text names = { 0 };
        for (size_t i = 0; formats[i]; i++)
            text_printf(&names, "%s%s", i ? ", " : "", formats[i]->name);
        complain("--format: no format '%s': %s; by `python -m dmi`: " FORMATS_ELSEWHERE, o->format,
                 names.data ? names.data : "");
        return DUMP_USAGE;
    }
    int status = run_job(&job, o);
    drop_targets(&job);
    tensors_deinit(&job.tensors);
    requests_deinit(&job.x.requests);
    place_deinit(&job.place);
    free(job.damaged);
    return status;
}
