/* SPDX-License-Identifier: Apache-2.0 */
/* What ran: the run, its sites with their accounts, its requests, what a reader should know. */
#include "tools/view/view.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "read/account.h"
#include "read/handle.h"
#include "read/value.h"

#include <dmi/counters.h>
#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>

#define BYTES_A_REQUEST 400 /* at most so many in the document, but for a long id or tags */

static const char *state_name(uint32_t state)
{
    static const char *const names[] = { "closed", "running", "killed" };
    return state < sizeof names / sizeof *names ? names[state] : "unknown";
}

static void add_run(struct document *d, const struct dmi_read_run *run)
{
    document_add(
        d, "run",
        VALUE_OBJECT(
            { "path", document_text(run->path) }, { "uuid", document_text(run->uuid) },
            { "state", json_string(state_name(run->state)) },
            { "model", document_text(run->model) }, { "host", document_text(run->host) },
            { "library", document_text(run->library_version) }, { "job", document_text(run->job) },
            { "pid", value_u64(run->pid) }, { "start_ns", value_u64(run->start_realtime_ns) },
            { "runs", value_u64(run->n_runs) }, { "segments", value_u64(run->n_segments) },
            { "file_bytes", value_u64(run->file_bytes) }, { "records", value_u64(run->n_records) },
            { "steps", value_u64(run->n_steps) }, { "forwards", value_u64(run->n_forwards) },
            { "requests", value_u64(run->n_requests) }));
}

/* ------------------------------------------------------------------------- sites */

/* What became of the records of a site, or of all. */
static json_t *account_value(const struct account *a)
{
    struct dmi_tally captured = account_captured(a);
    return VALUE_OBJECT(
        { "expected", value_u64(a->expected.records) }, { "captured", value_u64(captured.records) },
        { "released", value_u64(a->released.records) },
        { "dropped", value_u64(a->dropped.records) }, { "lost", value_u64(a->lost.records) },
        { "reasons", account_reasons(a->dropped_by, false, false) },
        { "rows", value_u64(a->found.rows) }, { "bytes", value_u64(a->found.bytes) },
        { "balances", a->known ? json_boolean(a->balances) : json_null() });
}

/* Taps say it themselves, so the dictionary does not. NULL: nothing of the site is there. */
static const char *dtype_of(const struct view *view, const struct dmi_site *s)
{
    uint32_t dtype = s->dtype ? s->dtype
                              : FIRST(i, view->tensors.n, view->tensors.all[i].site == s,
                                      view->tensors.all[i].dtype, 0);
    const struct dmi_dtype_info *type = dmi_dtype_info(dtype);
    return type ? type->name : NULL;
}

static json_t *site_value(const struct view *view, const struct dmi_site *s,
                          const struct account *a)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "name", document_text(s->name), "dtype",
                     document_text(dtype_of(view, s)), "scale",
                     value_double(s->scale == 0 ? 1 : s->scale), "kind", document_text(s->kind),
                     "note", document_text(s->note), "account", account_value(a));
}

int view_sites(struct err *err, struct document *d, const struct dmi_read *run, const char *key)
{
    const struct view *view = &run->view;
    _cleanup_(accounts_deinit) struct accounts accounts = { 0 };
    if (accounts_build(view->reader, &view->sites, &accounts))
        return err_set_errno(err, ENOMEM, "cannot sum up the sites");
    document_begin(d, key, '[');
    for (size_t i = 0; i < view->sites.n; i++)
        if (sites_is_shown(view->reader, &view->sites, i))
            document_add(d, NULL,
                         site_value(view, reader_site(view->reader, i), &accounts.sites[i]));
    document_end(d, ']');
    document_add(d, "total", account_value(&accounts.total));
    return 0;
}

/* ------------------------------------------------------------------------- requests */

/* What edits wrote in it, in words; NULL: nothing. */
static json_t *edits_value(struct dmi_read *run, uint64_t request)
{
    struct dmi_read_edit e = { .size = sizeof e };
    json_t *list = NULL;
    for (uint64_t i = 0; !dmi_read_edit(run, request, i, &e); i++) {
        list = list ? list : json_array();
        json_array_append_new(list, document_text(e.text));
    }
    return list;
}

static json_t *request_value(const struct dmi_read_request *r)
{
    json_t *prompt = r->n_prompt < 0 ? json_null() : json_integer(r->n_prompt);
    json_t *shed = r->shed_step < 0 ? json_null() : json_integer(r->shed_step);
    json_t *tags = r->tags ? document_bytes(r->tags, r->tags_bytes) : json_null();
    return VALUE_OBJECT(
        { "id", document_bytes(r->id, r->id_bytes) },
        { "state", json_string(request_state_name(r->state)) },
        { "tokens", json_integer(r->end_position) }, { "prompt", prompt },
        { "generated", value_u64(r->n_generated) }, { "cached", value_u64(r->n_cached) },
        { "prefill", value_u64(r->n_prefill) }, { "decode", value_u64(r->n_decode) },
        { "draft", value_u64(r->n_draft) }, { "rejected", value_u64(r->n_rejected) },
        { "steps", value_u64(r->n_steps) }, { "rows", value_u64(r->n_rows) },
        { "bytes", value_u64(r->raw_bytes) }, { "shed", shed }, { "tags", tags });
}

static void add_requests(struct view_report *report, uint64_t n)
{
    struct document *d = &report->document;
    struct dmi_read_request r = { .size = sizeof r };
    uint64_t i = 0, room = view_room(report) / 4 + document_bytes_so_far(d);
    document_begin(d, "requests", '[');
    for (;
         document_bytes_so_far(d) + BYTES_A_REQUEST < room && !dmi_read_request(report->run, i, &r);
         i++) {
        json_t *value = request_value(&r), *edits = edits_value(report->run, i);
        if (edits)
            json_object_set_new(value, "edits", edits);
        document_add(d, NULL, value);
    }
    document_end(d, ']');
    json_t *nobody = edits_value(report->run, DMI_READ_NOBODY);
    document_add(d, "edits_of_nobody", n || !nobody ? json_array() : json_incref(nobody));
    json_decref(nobody);
    if (n > i)
        view_leave_out(report, "the table of requests has the first %" PRIu64 " of %" PRIu64, i, n);
}

/* ------------------------------------------------------------------------- what a reader should know */

void view_findings(struct document *d, struct dmi_read *run)
{
    struct dmi_read_finding f = { .size = sizeof f };
    document_begin(d, "findings", '[');
    for (uint64_t i = 0; !dmi_read_finding(run, i, &f); i++)
        document_add(d, NULL,
                     json_pack("{s:b, s:o, s:o, s:o, s:o}", "damage", f.damage != 0, "file",
                               document_text(f.file), "chunk",
                               f.chunk < 0 ? json_null() : json_integer(f.chunk), "offset",
                               value_u64(f.offset), "text", document_text(f.text)));
    document_end(d, ']');
}

static void add_problems(struct document *d, const struct reader_run *run)
{
    document_begin(d, "problems", '[');
    for (size_t i = 0; i < run->n_problems; i++) {
        const struct reader_problem *p = &run->problems[i];
        document_add(d, NULL,
                     json_pack("{s:o, s:o, s:o, s:o}", "site", document_text(p->site), "reason",
                               document_text(p->reason), "sentence", document_text(p->sentence),
                               "times", value_u64(p->times)));
    }
    document_end(d, ']');
    document_begin(d, "changes", '[');
    for (size_t i = 0; i < run->n_changes; i++) {
        const struct reader_change *c = &run->changes[i];
        document_add(d, NULL,
                     json_pack("{s:o, s:o, s:o}", "launch", value_u64(c->launch), "step",
                               value_u64(c->step), "what", document_text(c->what)));
    }
    document_end(d, ']');
}

int view_overview(struct err *err, struct view_report *report)
{
    struct dmi_read_run run = { .size = sizeof run };
    int r = dmi_read_run(report->run, &run);
    if (r)
        return err_set(err, r, "%s", dmi_read_error(report->run));
    add_run(&report->document, &run);
    TRY(view_sites(err, &report->document, report->run, "sites"));
    add_requests(report, run.n_requests);
    view_findings(&report->document, report->run);
    add_problems(&report->document, reader_run(report->run->view.reader));
    return 0;
}
