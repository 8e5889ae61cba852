/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI of <dmi/read.h> over the library's own types. */
#include <dmi/read.h>

#include "core/abi.h"
#include "core/any.h"
#include "core/grow.h"
#include "read/account.h"
#include "read/fill.h"
#include "read/handle.h"
#include "read/record.h"
#include "storage/reader/trace_account.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int view_fill(struct err *err, struct view *v, struct selection *select)
{
    int r = sites_build(v->reader, &v->sites) || requests_build(v->reader, &v->requests) ||
                    requests_add_costs(v->reader, &v->requests) ||
                    seen_add_all(&v->seen, &v->sites, v->reader)
                ? -ENOMEM
                : 0;
    selection_find_last(select, v->reader);
    if (!r)
        r = fill_build(err, v->reader, &v->sites, &v->requests, select, &v->tensors);
    for (size_t i = 0; !r && i < v->tensors.n; i++) {
        const char *key = v->tensors.all[i].key;
        size_t *value = map_at(&v->keys, key, strlen(key));
        if (value)
            *value = i;
        else
            r = -ENOMEM;
    }
    return r ? err_set_errno(err, -r, "cannot join rows and requests") : 0;
}

void view_empty(struct view *v)
{
    edited_deinit(&v->edited);
    v->has_edited = false;
    map_deinit(&v->keys);
    seen_deinit(&v->seen);
    requests_deinit(&v->requests);
    tensors_deinit(&v->tensors);
    sites_deinit(&v->sites);
}

int handle_edited(struct dmi_read *run)
{
    struct view *v = &run->view;
    if (v->has_edited)
        return 0;
    int r = edited_build(v->reader, &v->requests, &v->edited);
    v->has_edited = !r;
    return r ? handle_fail(run, r, "no memory for what edits wrote") : 0;
}

void handle_forget(struct dmi_read *run)
{
    run->raw[0].record = run->raw[1].record = SIZE_MAX;
    memset(&run->cursor, 0, sizeof run->cursor);
}

int handle_fail(struct dmi_read *run, int code, const char *what)
{
    run->err = (struct err){ 0 };
    return err_set(&run->err, code, "%s", what);
}

/* ------------------------------------------------------------------------- opening */

uint32_t dmi_read_version(void)
{
    return DMI_READ_VERSION;
}

int dmi_read_open(const char *path, struct dmi_read **out, char *why, uint64_t n_why)
{
    struct err err = { 0 };
    struct dmi_read *run = calloc(1, sizeof *run);
    int r = run ? 0 : err_set_errno(&err, ENOMEM, "cannot open %s", path);
    if (!r)
        r = reader_open(&err, path, &run->view.reader);
    if (!r)
        r = view_fill(&err, &run->view, &run->select);
    *out = NULL;
    if (r) {
        if (why && n_why)
            snprintf(why, n_why, "%s", err.msg);
        dmi_read_close(run);
        return r;
    }
    handle_forget(run);
    for (int a = 0; a < DMI_AXIS_COUNT; a++)
        run->ranks[a] = -1;
    *out = run;
    return 0;
}

void dmi_read_close(struct dmi_read *run)
{
    if (!run)
        return;
    view_empty(&run->view);
    reader_close(run->view.reader);
    free(run->raw[0].data);
    free(run->raw[1].data);
    selection_deinit(&run->select);
    free(run);
}

int dmi_read_refresh(struct dmi_read *run)
{
    if (run->failed)
        return -EBADF;
    view_empty(&run->view);
    handle_forget(run);
    run->err = (struct err){ 0 };
    int r = reader_refresh(&run->err, run->view.reader);
    if (!r)
        r = view_fill(&run->err, &run->view, &run->select);
    run->failed = r != 0;
    return r;
}

const char *dmi_read_error(const struct dmi_read *run)
{
    return run->err.msg;
}

/* ------------------------------------------------------------------------- structs */

int handle_hand_out(struct dmi_read *run, void *to, const void *from, uint32_t n_ours)
{
    int r = abi_hand_out(to, from, n_ours);
    return r ? handle_fail(run, r, "the struct's size was not set") : 0;
}

int dmi_read_run(struct dmi_read *run, struct dmi_read_run *out)
{
    if (run->failed)
        return -EBADF;
    const struct view *v = &run->view;
    const struct reader_run *r = reader_run(v->reader);
    struct dmi_read_run ours = {
        .state = r->state,
        .path = r->path,
        .uuid = r->uuid,
        .model = r->model,
        .host = r->host,
        .library_version = r->library_version,
        .pid = r->pid,
        .start_realtime_ns = r->start_ns,
        .n_segments = r->n_segments,
        .file_bytes = r->n_file_bytes,
        .n_sites = reader_n_sites(v->reader),
        .n_records = reader_n_records(v->reader),
        .n_steps = reader_n_steps(v->reader),
        .n_tensors = v->tensors.n,
        .n_requests = v->requests.n,
        .n_findings = reader_n_findings(v->reader),
        .n_forwards = r->counters ? r->counters->forwards : 0,
        .job = r->job,
        .n_runs = r->n_runs,
        .n_beside = r->n_beside,
    };
    return handle_hand_out(run, out, &ours, sizeof ours);
}

const char *dmi_read_about(struct dmi_read *run, const char *key)
{
    const struct reader_run *r = run->failed ? NULL : reader_run(run->view.reader);
    for (size_t i = 0; r && i < r->n_about; i++)
        if (!strcmp(r->about[i].key, key))
            return r->about[i].value;
    return NULL;
}

int dmi_read_site(struct dmi_read *run, uint64_t index, struct dmi_read_site *out)
{
    if (run->failed)
        return -EBADF;
    const struct dmi_site *s = reader_site(run->view.reader, index);
    if (!s)
        return handle_fail(run, -ENOENT, "no such site");
    struct dmi_read_site ours = {
        .dtype = s->dtype,
        .name = s->name,
        .kernel = s->kernel,
        .kind = s->kind,
        .note = s->note,
        .scale = s->scale,
        .expect = s->expect,
        .row = s->row,
        .has_layer = s->has_layer,
        .writes = s->writes,
    };
    return handle_hand_out(run, out, &ours, sizeof ours);
}

static struct dmi_read_tally tally_of(const struct dmi_tally *t)
{
    return (struct dmi_read_tally){ t->records, t->rows, t->bytes };
}

int dmi_read_account(struct dmi_read *run, uint64_t site, struct dmi_read_account *out)
{
    if (run->failed)
        return -EBADF;
    struct account a;
    if (site >= reader_n_sites(run->view.reader))
        return handle_fail(run, -ENOENT, "no such site");
    account_of(run->view.reader, (uint32_t)site, &a);
    struct dmi_read_account ours = {
        .known = a.known,
        .balances = a.balances,
        .expected = tally_of(&a.expected),
        .captured = tally_of(&a.found),
        .dropped = tally_of(&a.dropped),
        .lost = tally_of(&a.lost),
        .launches = a.launches,
        .released = tally_of(&a.released),
    };
    for (size_t d = 0; d < DMI_DROP_ROOM; d++)
        ours.dropped_by[d] = a.dropped_by[d].records;
    return handle_hand_out(run, out, &ours, sizeof ours);
}

int dmi_read_tensor(struct dmi_read *run, uint64_t index, struct dmi_read_tensor *out)
{
    if (run->failed)
        return -EBADF;
    if (index >= run->view.tensors.n)
        return handle_fail(run, -ENOENT, "no such tensor");
    const struct tensor *t = &run->view.tensors.all[index];
    struct dmi_read_tensor ours = {
        .dtype = t->dtype,
        .key = t->key,
        .name = t->name,
        .request = t->request,
        .request_bytes = t->n_request,
        .n_rows = t->n_rows,
        .width = t->width,
        .row_bytes = t->width * dmi_dtype_bytes(t->dtype),
        .site = t->order,
        .layer = t->layer,
        .n_dims = t->n_tail,
        .mixed = t->mixed,
    };
    memcpy(ours.dims, t->tail, t->n_tail * sizeof t->tail[0]);
    return handle_hand_out(run, out, &ours, sizeof ours);
}

int dmi_read_request(struct dmi_read *run, uint64_t index, struct dmi_read_request *out)
{
    if (run->failed)
        return -EBADF;
    if (index >= run->view.requests.n)
        return handle_fail(run, -ENOENT, "no such request");
    const struct request *q = &run->view.requests.all[index];
    struct dmi_read_request ours = {
        .id = q->id,
        .id_bytes = q->n_id,
        .n_steps = q->n_steps,
        .n_cached = q->n_cached,
        .n_prefill = q->n_tokens[DMI_PHASE_PREFILL],
        .n_decode = q->n_tokens[DMI_PHASE_DECODE],
        .n_draft = q->n_tokens[DMI_PHASE_DRAFT],
        .n_other = q->n_tokens[DMI_PHASE_UNKNOWN],
        .end_position = q->end,
        .state = q->state,
        .reason = q->reason,
        .n_prompt = q->n_prompt,
        .n_generated = request_generated(q),
        .n_rejected = q->n_rejected,
        .n_preemptions = q->n_preemptions,
        .n_records = q->n_records,
        .n_rows = q->n_rows,
        .raw_bytes = q->n_bytes,
        .stored_bytes = (uint64_t)(q->n_stored + 0.5),
        .shed_step = q->shed ? (int64_t)q->shed_step : -1,
        .tags = q->tags,
        .tags_bytes = q->n_tags,
    };
    return handle_hand_out(run, out, &ours, sizeof ours);
}

int dmi_read_finding(struct dmi_read *run, uint64_t index, struct dmi_read_finding *out)
{
    if (run->failed)
        return -EBADF;
    const struct reader_finding *f = reader_finding(run->view.reader, index);
    if (!f)
        return handle_fail(run, -ENOENT, "no such finding");
    struct dmi_read_finding ours = {
        .damage = f->damage,
        .file = f->file,
        .chunk = f->chunk,
        .offset = f->offset,
        .text = f->text,
    };
    return handle_hand_out(run, out, &ours, sizeof ours);
}

int dmi_read_problem(struct dmi_read *run, uint64_t index, struct dmi_read_problem *out)
{
    if (run->failed)
        return -EBADF;
    const struct reader_run *said = reader_run(run->view.reader);
    if (index >= said->n_problems)
        return handle_fail(run, -ENOENT, "no such problem");
    const struct reader_problem *p = &said->problems[index];
    struct dmi_read_problem ours = {
        .site = p->site, .reason = p->reason, .sentence = p->sentence, .times = p->times
    };
    return handle_hand_out(run, out, &ours, sizeof ours);
}

int64_t dmi_read_find(struct dmi_read *run, const char *key)
{
    if (run->failed)
        return -EBADF;
    size_t i = map_get(&run->view.keys, key, strlen(key));
    return i == MAP_NONE ? handle_fail(run, -ENOENT, "no tensor has that key") : (int64_t)i;
}

/* ------------------------------------------------------------------------- rows */

/* Decodes a record, unless it is one of the two decoded last. @out: its bytes, until two others are decoded */
static int load(struct dmi_read *run, size_t index, const uint8_t **out)
{
    const struct reader_record *rec = reader_record(run->view.reader, index);
    unsigned slot = run->raw[!run->older].record == index ? !run->older : run->older;
    run->older = !slot;
    *out = run->raw[slot].data;
    if (run->raw[slot].record == index)
        return 0;
    run->raw[slot].record = SIZE_MAX;
    if (RESERVE(run->raw[slot].data, rec->at.n_bytes, run->raw[slot].n_data))
        return handle_fail(run, -ENOMEM, "no memory for a record");
    *out = run->raw[slot].data;
    run->err = (struct err){ 0 };
    int r = reader_decode(&run->err, run->view.reader, rec, run->raw[slot].data);
    if (!r)
        run->raw[slot].record = index;
    return r;
}

/* Where rows go, and which of them. */
struct rows_wanted {
    uint64_t first, n; /* rows of the tensor */
    uint64_t n_row;    /* bytes */
    uint8_t *data;     /* NULL: not wanted */
    uint8_t *rows;     /* NULL: not wanted */
    uint64_t row_size;
    uint64_t tensor;
};

/* Did an edit write the row? @donor: as of struct stretch */
static bool is_edited(const struct dmi_read *run, const struct rows_wanted *w, uint32_t site,
                      int64_t position, uint32_t donor)
{
    const struct view *v = &run->view;
    const struct tensor *t = &v->tensors.all[w->tensor];
    struct edited *edits;
    if (!v->has_edited || !v->edited.n || !edited_is_shown(v->reader, site))
        return false;
    const struct request *q =
        t->request ? requests_find(&v->requests, t->request, t->n_request) : NULL;
    size_t request = donor ? donor - 1 : q ? (size_t)(q - v->requests.all) : EDITED_NOBODY;
    size_t n = edited_of(&v->edited, request, &edits);
    return ANY(i, n,
               (!edits[i].name || !strcmp(edits[i].site, t->site->name)) &&
                   edited_wrote(&edits[i], t->layer, position));
}

static void hand_row(const struct rows_wanted *w, uint64_t index, const struct dmi_read_row *row)
{
    uint8_t *to = w->rows + index * w->row_size;
    memset(to, 0, w->row_size);
    memcpy(to, row, w->row_size < sizeof *row ? w->row_size : sizeof *row);
}

/* The part of one stretch that is wanted; @at: row of the tensor where the stretch begins. Return: 0, -EBADMSG, -errno. */
static int take_stretch(struct dmi_read *run, const struct rows_wanted *w, const struct stretch *p,
                        uint64_t at)
{
    const struct reader_record *rec = reader_record(run->view.reader, p->record);
    uint32_t n_row_dims = record_row_dims(rec);
    uint64_t from = w->first > at ? w->first - at : 0;
    uint64_t end = w->first + w->n - at < p->n_rows ? w->first + w->n - at : p->n_rows;
    const uint8_t *data = NULL;
    int r = w->data ? load(run, p->record, &data) : 0;
    if (r == -ENOMEM)
        return r;
    uint8_t *to = w->data ? w->data + (at + from - w->first) * w->n_row : NULL;
    if (to && w->n_row)
        r ? memset(to, 0, (end - from) * w->n_row)
          : memcpy(to, data + (p->first_row + from) * w->n_row, (end - from) * w->n_row);
    struct dmi_read_row row = {
        .launch = rec->at.launch,
        .forward = rec->at.forward,
        .step = rec->step ? rec->step->entry->step : UINT64_MAX,
        .time_ns = rec->at.time_ns,
        .device = rec->at.device,
        .site = rec->at.site,
        .dtype = rec->at.dtype,
        .n_dims = rec->at.n_dims - n_row_dims,
        .flags = (r ? DMI_READ_ROW_DAMAGED : 0u) |
                 (p->flags & STRETCH_REJECTED ? DMI_READ_ROW_REJECTED : 0u) |
                 (p->flags & STRETCH_SUPERSEDED ? DMI_READ_ROW_SUPERSEDED : 0u),
        .donor = p->donor,
    };
    memcpy(row.dims, rec->at.dims + n_row_dims, row.n_dims * sizeof *row.dims);
    uint32_t flags = row.flags;
    for (uint64_t i = from; w->rows && i < end; i++) {
        row.position = p->position < 0 ? -1 : p->position + (int64_t)i;
        row.row = (uint32_t)(p->first_row + i);
        row.flags =
            flags |
            (is_edited(run, w, rec->at.site, row.position, p->donor) ? DMI_READ_ROW_EDITED : 0u);
        hand_row(w, at + i - w->first, &row);
    }
    return r;
}

static int take_rows(struct dmi_read *run, uint64_t tensor, const struct rows_wanted *w)
{
    const struct tensor *t = &run->view.tensors.all[tensor];
    bool on = run->cursor.tensor == tensor && run->cursor.first <= w->first;
    uint64_t stretch = on ? run->cursor.stretch : 0, at = on ? run->cursor.first : 0;
    bool damaged = false;
    for (; stretch < t->n_stretches && at < w->first + w->n; stretch++) {
        const struct stretch *p = &t->stretches[stretch];
        if (at + p->n_rows > w->first) {
            int r = take_stretch(run, w, p, at);
            if (r == -ENOMEM)
                return r;
            damaged |= r != 0;
        }
        run->cursor.tensor = tensor;
        run->cursor.stretch = stretch;
        run->cursor.first = at;
        at += p->n_rows;
    }
    return damaged ? -EBADMSG : 0;
}

/* Whether the rows that are wanted of a mixed tensor are of one type and width; then w->n_row is theirs. */
static bool one_size(const struct dmi_read *run, const struct tensor *t, struct rows_wanted *w)
{
    const struct reader_record *first = NULL;
    uint64_t at = 0;
    for (size_t i = 0; i < t->n_stretches && at < w->first + w->n; at += t->stretches[i++].n_rows) {
        const struct reader_record *rec = reader_record(run->view.reader, t->stretches[i].record);
        if (at + t->stretches[i].n_rows <= w->first)
            continue;
        first = first ? first : rec;
        if (rec->at.dtype != first->at.dtype || record_width(rec) != record_width(first))
            return false;
    }
    w->n_row = first ? record_width(first) * dmi_dtype_bytes(first->at.dtype) : w->n_row;
    return true;
}

int dmi_read_rows(struct dmi_read *run, uint64_t tensor, uint64_t first, uint64_t n_rows,
                  void *data, uint64_t n_data, struct dmi_read_row *rows, uint64_t row_size)
{
    if (run->failed)
        return -EBADF;
    if (tensor >= run->view.tensors.n)
        return handle_fail(run, -ENOENT, "no such tensor");
    const struct tensor *t = &run->view.tensors.all[tensor];
    if (first > t->n_rows || n_rows > t->n_rows - first)
        return handle_fail(run, -ERANGE, "the tensor has fewer rows");
    struct rows_wanted w = { .first = first,
                             .n = n_rows,
                             .n_row = t->width * dmi_dtype_bytes(t->dtype),
                             .data = data,
                             .rows = (uint8_t *)rows,
                             .row_size = row_size,
                             .tensor = tensor };
    uint64_t need;
    if (data && t->mixed == TENSOR_MIXED_TYPE && !one_size(run, t, &w))
        return handle_fail(run, -EINVAL, tensor_mixed_text(t));
    if (data && (__builtin_mul_overflow(n_rows, w.n_row, &need) || need > n_data))
        return handle_fail(run, -ENOSPC, "the buffer is too small for these rows");
    int r = rows && edit_history_has_places(run->view.reader) ? handle_edited(run) : 0;
    return r ? r : take_rows(run, tensor, &w);
}

int64_t dmi_read_verify(struct dmi_read *run)
{
    if (run->failed)
        return -EBADF;
    int64_t n_damage = 0;
    struct err err = { 0 };
    int r = reader_verify(run->view.reader);
    if (r)
        return handle_fail(run, r, strerror(-r));
    r = trace_note_findings(&err, run->view.reader);
    if (r)
        return handle_fail(run, r, err.msg);
    for (size_t i = 0; i < reader_n_findings(run->view.reader); i++)
        n_damage += reader_finding(run->view.reader, i)->damage;
    return n_damage;
}
