/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/rehearse.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "read/attribution.h"
#include "read/record.h"
#include "read/requests.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct building {
    const struct reader *reader;
    struct requests requests;
    struct rehearsal_run run;
    size_t n_parts, parts_room, n_ended;
    struct rehearsal *out;
    size_t step; /* of the record under way */
};

/* ------------------------------------------------------------------------- records */

static int add_part(void *ctx, const struct part *part)
{
    struct building *b = ctx;
    if (part->span == UINT32_MAX)
        return 0;
    uint32_t owner = b->requests.of_span[b->requests.first_span[b->step] + part->span];
    if (owner == REHEARSAL_NOBODY)
        return 0;
    return PUSH(b->run.parts, b->n_parts, b->parts_room, 1024,
                (struct rehearsal_part){ owner, part->n_rows });
}

/* Return: index of the spec's site of that name; n_sites: none. */
static uint32_t site_of(const struct spec *spec, const struct dmi_site *site)
{
    uint32_t i = 0;
    while (i < spec->n_sites && strcmp(spec->sites[i].about.name, site->name))
        i++;
    return i;
}

static int add_record(struct building *b, struct attribution *attribution, const struct spec *spec,
                      size_t index)
{
    const struct reader_record *rec = reader_record(b->reader, index);
    uint32_t site = site_of(spec, reader_site(b->reader, rec->at.site));
    if (site == spec->n_sites) {
        b->out->n_elsewhere++;
        return 0;
    }
    b->step = rec->step ? (size_t)(rec->step - reader_step(b->reader, 0)) : REHEARSAL_NO_STEP;
    struct rehearsal_record *r = &b->run.records[b->run.n_records++];
    *r = (struct rehearsal_record){
        .step = b->step,
        .first_part = b->n_parts,
        .n_rows = record_rows(rec),
        .budgets = overload_budgets_of(&spec->overload, site),
        .row_bytes = record_width(rec) * dmi_dtype_bytes(rec->at.dtype),
        .launch = rec->at.launch,
        .time_ns = rec->at.time_ns,
    };
    int res = rec->step ? attribution_record(attribution, index) : 0;
    r->end = b->n_parts;
    return res;
}

static int add_records(struct building *b, const struct spec *spec)
{
    struct attribution attribution = {
        .reader = b->reader, .by_request = true, .add = add_part, .ctx = b
    };
    int r = attribution_init(&attribution);
    for (size_t i = 0; !r && i < reader_n_records(b->reader); i++)
        r = add_record(b, &attribution, spec, i);
    attribution_deinit(&attribution);
    return r;
}

/* ------------------------------------------------------------------------- steps */

/* Lists the records of each step, in their order. */
static void list_records(struct rehearsal_run *run)
{
    for (size_t i = 0; i < run->n_records; i++)
        if (run->records[i].step != REHEARSAL_NO_STEP)
            run->steps[run->records[i].step].end_record++;
    for (size_t i = 0, n = 0; i < run->n_steps; i++) {
        n += run->steps[i].end_record;
        run->steps[i].first_record = run->steps[i].end_record = n;
    }
    for (size_t i = run->n_records; i-- > 0;)
        if (run->records[i].step != REHEARSAL_NO_STEP)
            run->of_step[--run->steps[run->records[i].step].first_record] = i;
}

static bool is_prompt(const struct dmi_span_entry *span)
{
    return span->n_prompt ? span->first_position < (int64_t)span->n_prompt
                          : span->phase == DMI_PHASE_PREFILL;
}

static struct rehearsal_span span_of(const struct building *b, const struct reader_step *s,
                                     uint32_t i, size_t at)
{
    const struct dmi_span_entry *span = &s->spans[i];
    return (struct rehearsal_span){
        .request = b->requests.of_span[at],
        .n_rows = span->n_tokens,
        .is_prompt = is_prompt(span),
        .is_last = span->flags & DMI_SPAN_LAST,
        .tags = span->tags_bytes ? (const char *)s->entry + span->tags_offset : NULL,
        .n_tags = span->tags_bytes,
    };
}

/* Requests that a call ended before the step. */
static void add_ends(struct building *b, size_t step, size_t *next)
{
    for (; *next < reader_n_ends(b->reader) && reader_end(b->reader, *next)->after <= step;
         ++*next) {
        const struct reader_end *end = reader_end(b->reader, *next);
        const struct request *q =
            end->shed ? NULL : requests_find(&b->requests, end->id, end->n_id);
        if (q)
            b->run.ended[b->n_ended++] = (uint32_t)(q - b->requests.all);
    }
    b->run.steps[step].end_end = b->n_ended;
}

static int add_steps(struct building *b)
{
    struct rehearsal_run *run = &b->run;
    size_t n_spans = 0, next = 0;
    for (size_t i = 0; i < run->n_steps; i++)
        n_spans += reader_step(b->reader, i)->entry->n_spans;
    run->spans = calloc(n_spans + 1, sizeof *run->spans);
    if (!run->spans)
        return -ENOMEM;
    for (size_t i = 0, at = 0; i < run->n_steps; i++) {
        const struct reader_step *s = reader_step(b->reader, i);
        run->steps[i] = (struct rehearsal_step){ .number = s->entry->step,
                                                 .time_ns = s->entry->time_ns,
                                                 .first_span = at,
                                                 .end_span = at + s->entry->n_spans };
        for (uint32_t k = 0; k < s->entry->n_spans; k++, at++)
            run->spans[at] = span_of(b, s, k, b->requests.first_span[i] + k);
        add_ends(b, i, &next);
    }
    list_records(run);
    return 0;
}

/* ------------------------------------------------------------------------- all of it */

static int name_requests(struct building *b)
{
    const struct requests *all = &b->requests;
    b->out->requests = calloc(all->n + 1, sizeof *b->out->requests);
    if (!b->out->requests)
        return -ENOMEM;
    for (size_t i = 0; i < all->n; i++, b->out->n_requests++)
        if (!(b->out->requests[i].id = strndup(all->all[i].id, all->all[i].n_id)))
            return -ENOMEM;
    for (size_t i = 0; i < b->run.n_records; i++) {
        const struct rehearsal_record *rec = &b->run.records[i];
        for (size_t k = rec->first_part; k < rec->end; k++) {
            struct rehearsal_request *q = &b->out->requests[b->run.parts[k].request];
            q->n_rows += b->run.parts[k].n_rows;
            q->n_bytes += b->run.parts[k].n_rows * rec->row_bytes;
        }
    }
    return 0;
}

/* Return: 0 or -errno. */
static int build(struct building *b, const struct spec *spec)
{
    struct rehearsal_run *run = &b->run;
    size_t n = reader_n_records(b->reader) + 1;
    run->n_steps = reader_n_steps(b->reader);
    run->records = calloc(n, sizeof *run->records);
    run->of_step = calloc(n, sizeof *run->of_step);
    run->steps = calloc(run->n_steps + 1, sizeof *run->steps);
    run->ended = calloc(reader_n_ends(b->reader) + 1, sizeof *run->ended);
    if (!run->records || !run->of_step || !run->steps || !run->ended)
        return -ENOMEM;
    TRY(requests_build(b->reader, &b->requests));
    TRY(add_records(b, spec));
    TRY(add_steps(b));
    return name_requests(b);
}

static void building_deinit(struct building *b)
{
    requests_deinit(&b->requests);
    free(b->run.records);
    free(b->run.parts);
    free(b->run.steps);
    free(b->run.spans);
    free(b->run.of_step);
    free(b->run.ended);
}

int rehearse_run(struct err *err, const struct reader *reader, const struct rehearsal_terms *terms,
                 struct rehearsal *out)
{
    _cleanup_(building_deinit) struct building b = { .reader = reader, .out = out };
    *out = (struct rehearsal){ 0 };
    int r = build(&b, terms->spec);
    if (!r && out->n_elsewhere && !b.run.n_records)
        return err_set(err, -ENOENT, "the spec has none of the sites that were captured");
    r = r ? r : rehearse(&b.run, terms, out);
    return r ? err_set_errno(err, -r, "cannot rehearse") : 0;
}
