/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/rehearse_rows.h"

#include "core/grow.h"
#include "read/attribution.h"
#include "read/record.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NOBODY UINT32_MAX

struct building {
    const struct reader *reader;
    struct rehearse_rows *out;
    size_t step; /* of the record under way */
};

static int add_part(void *ctx, const struct part *part)
{
    const struct building *b = ctx;
    struct rehearse_rows *out = b->out;
    if (part->span == UINT32_MAX)
        return 0;
    const struct requests *all = &out->requests;
    uint32_t owner = all->of_span[all->first_span[b->step] + part->span];
    if (owner == NOBODY)
        return 0;
    return PUSH(out->parts, out->n_parts, out->parts_room, 1024,
                (struct rehearse_part){ owner, part->n_rows });
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
    struct rehearse_rows *out = b->out;
    const struct reader_record *rec = reader_record(b->reader, index);
    uint32_t site = site_of(spec, reader_site(b->reader, rec->at.site));
    if (site == spec->n_sites) {
        out->n_elsewhere++;
        return 0;
    }
    b->step = rec->step ? (size_t)(rec->step - reader_step(b->reader, 0)) : REHEARSE_NO_STEP;
    struct rehearse_record *r = &out->records[out->n_records++];
    *r = (struct rehearse_record){
        .index = index,
        .step = b->step,
        .first_part = out->n_parts,
        .n_rows = record_rows(rec),
        .budgets = overload_budgets_of(&spec->overload, site),
        .row_bytes = record_width(rec) * dmi_dtype_bytes(rec->at.dtype),
    };
    int res = rec->step ? attribution_record(attribution, index) : 0;
    r->end = out->n_parts;
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

/* Lists the records of each step, in their order. */
static void list_steps(struct rehearse_rows *out)
{
    size_t *end = out->first_of_step + 1; /* of step i: end[i] */
    for (size_t i = 0; i < out->n_records; i++)
        if (out->records[i].step != REHEARSE_NO_STEP)
            end[out->records[i].step]++;
    for (size_t i = 1; i < out->n_steps; i++)
        end[i] += end[i - 1];
    for (size_t i = out->n_records; i-- > 0;)
        if (out->records[i].step != REHEARSE_NO_STEP)
            out->of_step[--end[out->records[i].step]] = i;
    /* each end[i] is a beginning now */
    memmove(out->first_of_step, end, out->n_steps * sizeof *end);
    size_t n = 0;
    for (size_t i = 0; i < out->n_records; i++)
        n += out->records[i].step != REHEARSE_NO_STEP;
    out->first_of_step[out->n_steps] = n;
}

int rehearse_rows_build(struct err *err, const struct reader *reader, const struct spec *spec,
                        struct rehearse_rows *out)
{
    struct building b = { .reader = reader, .out = out };
    size_t n = reader_n_records(reader) + 1;
    *out = (struct rehearse_rows){ .n_steps = reader_n_steps(reader) };
    out->records = calloc(n, sizeof *out->records);
    out->of_step = calloc(n, sizeof *out->of_step);
    out->first_of_step = calloc(out->n_steps + 1, sizeof *out->first_of_step);
    bool short_of_memory = !out->records || !out->of_step || !out->first_of_step;
    int r = short_of_memory ? -ENOMEM : requests_build(reader, &out->requests);
    if (!r)
        r = add_records(&b, spec);
    if (r)
        return err_set_errno(err, -r, "cannot rehearse");
    if (out->n_elsewhere && !out->n_records)
        return err_set(err, -ENOENT, "the spec has none of the sites that were captured");
    list_steps(out);
    return 0;
}

void rehearse_rows_deinit(struct rehearse_rows *rows)
{
    requests_deinit(&rows->requests);
    free(rows->records);
    free(rows->parts);
    free(rows->first_of_step);
    free(rows->of_step);
}
