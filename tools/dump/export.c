/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump export: tensors in their final order and shape, in what others read. Records are decoded in launch order,
 * each once, and their rows go where they belong. What cannot be decoded is left out, and the export begins anew
 * without it.
 */
#include "tools/dump/export.h"

#include "core/cleanup.h"
#include "read/fill.h"
#include "read/record.h"
#include "read/rows.h"
#include "tools/dump/export_mask.h"
#include "tools/dump/export_met.h"
#include "tools/common/select.h"
#include "tools/dump/export_report.h"
#include "tools/dump/dataset.h"
#include "tools/dump/missing.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOLD 20 /* records that cannot be read, by name */

/* What is of all runs. */
struct all {
    struct dump_options options; /* its selection learns of each run how many layers that has */
    const struct format *format;
    struct export_masks masks;
    struct export_met met;
    struct dataset dataset;
    struct export_totals totals;
    char *output;   /* as it is called; NULL: nothing is there yet */
    bool has_lacks; /* a run lacks what the format's files hold */
};

/* Of one run. */
struct job {
    struct all *all;
    struct exporter x;
    struct tensors tensors;
    const struct format *format;
    struct outfile place;
    size_t *target_of;             /* by tensor: index + 1, 0: left out */
    bool *damaged;                 /* by record */
    uint64_t n_damaged, n_missing; /* records; rows of theirs */
    size_t n_mixed, n_emptied;     /* tensors left out: changing shape, no row that can be read */
    size_t n_unfilled;             /* tensors that lack rows of cached tokens yet */
    bool is_written;
    bool is_passed_over; /* it has none of the requests */
};

size_t export_n_sites(const struct dump_options *o)
{
    return o->own.sites.n;
}

const char *export_site(const struct dump_options *o, size_t i)
{
    return i < o->own.sites.n ? o->own.sites.all[i].s : NULL;
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
    uint64_t n_row = record_width(record) * dmi_dtype_bytes(record->at.dtype);
    uint64_t n = t->stretches[rows->stretch].n_rows * n_row;
    if (!n || job->n_damaged) /* begins anew: look only for more that is damaged */
        return 0;
    job->x.stretch = &t->stretches[rows->stretch];
    job->x.record = record;
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
    job->x.n_already = job->x.n_without_loss = 0;
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

/* Of rows that stand alone each has a type and width of its own, but no scale. */
static bool is_left_out(const struct job *job, const struct tensor *t)
{
    return t->mixed && !(job->format->rows_alone && t->mixed == TENSOR_MIXED_TYPE);
}

/* Return: false: it does not fit. */
static bool n_bytes_of(const struct job *job, const struct tensor *t, uint64_t *out)
{
    bool fits = true;
    *out = 0;
    for (size_t i = 0; fits && i < t->n_stretches; i++) {
        const struct reader_record *rec = reader_record(job->x.reader, t->stretches[i].record);
        uint64_t n;
        fits = !__builtin_mul_overflow(t->stretches[i].n_rows,
                                       record_width(rec) * dmi_dtype_bytes(rec->at.dtype), &n) &&
               !__builtin_add_overflow(*out, n, out);
    }
    return fits;
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
        if (is_left_out(job, t) || !t->n_stretches)
            continue;
        struct target target = { .tensor = t };
        if (!n_bytes_of(job, t, &target.n_bytes))
            return -EOVERFLOW;
        job->x.targets[job->x.n_targets++] = target;
    }
    return export_collect_positions(&job->x);
}

/* Requests of which nothing is exported because of the tokens that are asked for: no tensor is theirs. */
static void tell_without_tokens(struct job *job)
{
    const struct selection *select = &job->all->options.select;
    bool by_prompt = false;
    for (size_t i = 0; i < select->n_tokens; i++)
        by_prompt |=
            select->tokens[i].kind == TOKENS_PROMPT || select->tokens[i].kind == TOKENS_GENERATED;
    _cleanup_(text_deinit) struct text tokens = { 0 };
    export_add_tokens(&tokens, select);
    for (size_t i = 0; by_prompt && i < job->x.requests.n; i++) {
        const struct request *q = &job->x.requests.all[i];
        const struct ranges ranges =
            selection_ranges(select, &job->x.requests, q->id, q->n_id, q->end);
        if (!selection_wants_request(select, q->id, q->n_id) ||
            (ranges.n && ranges.all[0].first < q->end))
            continue;
        if (q->n_prompt < 0)
            export_leave_out(&job->x, SAMPLE_NO_PROMPT,
                             "request '%.*s' is left out: it is not known where its generation "
                             "begins: no span says n_prompt, and no step decodes",
                             (int)q->n_id, q->id);
        else
            export_leave_out(&job->x, SAMPLE_NO_TOKENS,
                             "request '%.*s' is left out: none of its tokens is in %s",
                             (int)q->n_id, q->id, tokens.failed ? "?" : tokens.data);
    }
}

static int choose(struct err *err, struct job *job)
{
    int r = collect_targets(job);
    if (!r)
        r = dataset_rewind(&job->all->dataset);
    if (r)
        return err_set_errno(err, -r, "cannot export");
    if (job->format->arrange)
        r = job->format->arrange(err, &job->x);
    if (!r)
        find_targets(job);
    if (!r || r == -ENODATA)
        tell_without_tokens(job);
    return r;
}

static void tell_mixed(struct job *job)
{
    for (size_t i = 0; i < job->tensors.n; i++) {
        const struct tensor *t = &job->tensors.all[i];
        if (is_left_out(job, t) && ++job->n_mixed <= MOST_TOLD)
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
    job->n_unfilled += job->x.options->select.sites.n != 0;
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
    int r = outfile_open(err, &job->place);
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

/* What was written gets its name. */
static int keep(struct err *err, struct job *job)
{
    int r = outfile_keep(err, &job->place);
    job->is_written = !r;
    return r || !job->format->is_dataset ? r
                                         : dataset_keep(err, &job->all->dataset, job->place.path);
}

/* At most twice: the second time without what cannot be read. */
static int export_job(struct err *err, struct job *job)
{
    int r = choose(err, job);
    if (!r && !job->x.n_targets && job->x.n_already)
        return 0;
    if (!r)
        r = write_all(err, job);
    if (!r && job->n_damaged) {
        uint64_t n = job->n_damaged;
        outfile_discard(&job->place);
        drop_damaged(job);
        job->n_damaged = 0;
        r = choose(err, job);
        if (!r)
            r = write_all(err, job);
        if (!r && job->n_damaged)
            r = err_set(err, -EBADMSG, "the run is damaged while it is read");
        job->n_damaged = n;
    }
    return r ? r : keep(err, job);
}

/* Records as they are: what is said of tensors and their rows does not hold for them. */
static int copy_job(struct err *err, struct job *job)
{
    tensors_deinit(&job->tensors);
    int r = outfile_open(err, &job->place);
    job->x.fd = job->place.fd;
    if (!r)
        r = job->format->copy(err, &job->x);
    job->n_damaged = job->n_emptied = job->x.n_damaged;
    job->n_missing = job->x.n_missing;
    return r ? r : keep(err, job);
}

/* ------------------------------------------------------------------------- a run */

/* Of a run in which nothing was captured there is nothing to export: a file without tensors says so. */
static bool nothing_selected(const struct job *job, const struct dump_options *o)
{
    return !job->tensors.n && !selection_is_all(&o->select);
}

static int build(struct err *err, struct job *job, const struct dump_options *o)
{
    struct selection own = { .sites = o->own.sites };
    _cleanup_(sites_deinit) struct sites sites = { 0 };
    if (sites_build(job->x.reader, &sites))
        return err_set_errno(err, ENOMEM, "cannot export");
    int r = select_check(err, job->x.reader, &own);
    bool needs_requests = job->format->chooses || o->select.fill_cached ||
                          selection_needs_requests(&o->select) ||
                          edit_history_has_places(job->x.reader);
    if (!r && needs_requests && requests_build(job->x.reader, &job->x.requests))
        r = err_set_errno(err, ENOMEM, "cannot export");
    if (!r && edit_history_has_places(job->x.reader) &&
        edited_build(job->x.reader, &job->x.requests, &job->x.edited))
        r = err_set_errno(err, ENOMEM, "cannot export");
    if (!r && o->n_runs > 1)
        r = export_met_note(&job->all->met, &o->select, &job->x.requests, &job->is_passed_over);
    if (r || job->is_passed_over)
        return r;
    r = fill_build(err, job->x.reader, &sites, &job->x.requests, &o->select, &job->tensors);
    if (!r && job->x.masks)
        r = export_masks_match(err, &job->all->masks, &job->x.requests);
    if (!r && nothing_selected(job, o)) {
        tell_without_tokens(job);
        if (!job->x.n_left_out)
            missing_complain(job->x.reader, &sites, &o->select);
    }
    if (!r && !(job->damaged = calloc(reader_n_records(job->x.reader) + 1, 1)))
        r = err_set_errno(err, ENOMEM, "cannot export");
    return r;
}

/* Return: 1: nothing is selected; 0; -errno with a sentence in @err. */
static int export_selected(struct err *err, struct job *job, const struct dump_options *o)
{
    if (nothing_selected(job, o) && !job->x.n_left_out)
        return 1;
    if (nothing_selected(job, o))
        return err_set(err, -ENODATA, "no request has the tokens that are asked for");
    if (job->format->copy)
        return copy_job(err, job);
    tell_mixed(job);
    if (tell_unfilled(job))
        return err_set_errno(err, ENOMEM, "cannot export");
    return export_job(err, job);
}

/* After the first run that is written the others go on with it. */
static int choose_place(struct err *err, struct job *job)
{
    const struct all *all = job->all;
    const struct dump_options *o = &all->options;
    bool goes_on = all->totals.n_written > 0;
    job->place.force = o->force && !goes_on;
    job->place.append = o->append || goes_on;
    int r = outfile_choose(err, &job->place, all->output ? all->output : o->output,
                           reader_run(job->x.reader)->path, job->format->suffix,
                           job->format->is_folder);
    if (!r && job->place.goes_on && all->dataset.fd < 0)
        r = dataset_open(err, &job->all->dataset, job->place.path);
    return r;
}

static void add_totals(const struct job *job, size_t n_targets)
{
    struct export_totals *t = &job->all->totals;
    const struct exporter *x = &job->x;
    t->n_written += job->is_written;
    t->tensors += x->n_files + n_targets;
    t->bytes += n_targets || x->n_files ? x->n_bytes : 0;
    t->mixed += job->n_mixed;
    t->emptied += job->n_emptied;
    t->damaged += job->n_damaged;
    t->missing += job->n_missing;
    t->superseded += job->tensors.n_superseded;
    t->rejected += job->tensors.n_rejected;
    t->of_nobody += job->tensors.n_nobody;
    t->samples += x->n_group ? n_targets / x->n_group : 0;
    t->there_already += x->n_already;
    t->without_loss += n_targets ? x->n_without_loss : 0;
    t->samples_filled += n_targets ? export_n_filled(x) : 0;
    t->filled_rows += n_targets ? export_filled(x, t->filled) : 0;
    export_edited(x, t->edited);
    t->left_out += x->n_left_out;
    for (int f = 0; f < SAMPLE_N_FAULTS; f++)
        t->left_out_by[f] += x->left_out_by[f];
}

/* Return: an exit status. */
static int run_job(struct job *job)
{
    struct all *all = job->all;
    struct report quiet = { 0 };
    struct err err = { 0 };
    int r = choose_place(&err, job);
    if (!r)
        r = build(&err, job, &all->options);
    if (!r && job->is_passed_over)
        return DUMP_OK;
    if (!r) {
        job->x.tensors = &job->tensors;
        job->x.output = job->place.path;
        r = export_selected(&err, job, &all->options);
    }
    tell_left_out(&job->x);
    if (r < 0)
        complain("%s", err.msg);
    size_t n_damage = facts_findings(&quiet, job->x.reader);
    if (!r || (r == -ENODATA && job->format->chooses))
        add_totals(job, r ? 0 : job->x.n_targets);
    all->has_lacks |= r == -ENODATA && job->format->chooses;
    if (!r && !all->output)
        all->output = steal_ptr(job->place.path);
    if (r)
        return r == -ENODATA || r == 1 ? DUMP_FAILED : DUMP_USAGE;
    return job->n_mixed || job->n_damaged || job->n_unfilled || n_damage || job->x.n_left_out
               ? DUMP_FAILED
               : DUMP_OK;
}

static int export_run(struct all *all, struct reader *reader)
{
    struct job job = { .all = all,
                       .x = { .reader = reader,
                              .options = &all->options,
                              .masks = all->options.loss_mask ? &all->masks.masks : NULL,
                              .dataset = &all->dataset,
                              .fd = -1,
                              .scratch = -1 },
                       .format = all->format,
                       .place = { .fd = -1 } };
    int status = run_job(&job);
    drop_targets(&job);
    tensors_deinit(&job.tensors);
    edited_deinit(&job.x.edited);
    requests_deinit(&job.x.requests);
    outfile_deinit(&job.place);
    free(job.damaged);
    return status;
}

/* ------------------------------------------------------------------------- the command */

/* Before the first run is written: what would only be found wanting after it. Return: an exit status. */
static int check_all(struct all *all)
{
    const struct dump_options *o = &all->options;
    struct err err = { 0 };
    for (size_t i = 1; i < o->n_runs; i++)
        if (access(o->runs[i], F_OK)) {
            complain("cannot read %s: %s", o->runs[i], strerror(errno));
            return DUMP_USAGE;
        }
    if (!o->loss_mask || !masks_read(&err, o->loss_mask, &all->masks.masks))
        return DUMP_OK;
    complain("%s", err.msg);
    return DUMP_USAGE;
}

static int export_other(struct all *all, const char *path)
{
    struct err err = { 0 };
    _cleanup_(reader_closep) struct reader *reader = NULL;
    all->options.select.n_of_model = 0;
    if (!dump_open(&err, &all->options, path, &reader))
        return export_run(all, reader);
    complain("%s: %s", path, err.msg);
    return DUMP_USAGE;
}

static int export_all(struct all *all, struct reader *reader)
{
    const struct dump_options *o = &all->options;
    int status = check_all(all);
    if (status)
        return status;
    status = export_run(all, reader);
    for (size_t i = 1; i < o->n_runs && status != DUMP_USAGE; i++) {
        int other = export_other(all, o->runs[i]);
        status = other > status ? other : status;
    }
    if (status != DUMP_USAGE)
        export_masks_complain(&all->masks);
    if (status != DUMP_USAGE && export_met_complain(&all->met, &o->select))
        status = DUMP_FAILED;
    bool says = all->output || (all->has_lacks && status != DUMP_USAGE);
    int printed = says ? export_report(&all->totals, all->format, o, all->output) : DUMP_OK;
    return printed ? printed : status;
}

int dump_export(struct reader *reader, const struct dump_options *o)
{
    struct all all = { .options = *o, .format = formats_find(o->format), .dataset = { .fd = -1 } };
    if (!all.format) {
        _cleanup_(text_deinit) struct text names = { 0 };
        for (size_t i = 0; formats[i]; i++)
            text_printf(&names, "%s%s", i ? ", " : "", formats[i]->name);
        complain("--format: no format '%s': %s; by `python -m dmi`: " FORMATS_ELSEWHERE, o->format,
                 names.data ? names.data : "");
        return DUMP_USAGE;
    }
    all.totals.filled = json_object();
    all.totals.edited = json_object();
    int status = export_all(&all, reader);
    export_masks_deinit(&all.masks);
    export_met_deinit(&all.met);
    dataset_deinit(&all.dataset);
    json_decref(all.totals.filled);
    json_decref(all.totals.edited);
    free(all.output);
    return status;
}
