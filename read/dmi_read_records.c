/* SPDX-License-Identifier: Apache-2.0 */
/* Of the C ABI of <dmi/read.h> what hands out steps, spans and records as they were written. */
#include <dmi/read.h>

#include "read/handle.h"

#include "storage/record_fields.h"

#include <errno.h>
#include <string.h>

int dmi_read_step(struct dmi_read *run, uint64_t index, struct dmi_read_step *out)
{
    if (run->failed)
        return -EBADF;
    if (index >= reader_n_steps(run->view.reader))
        return handle_fail(run, -ENOENT, "no such step");
    const struct dmi_step_entry *e = reader_step(run->view.reader, index)->entry;
    struct dmi_read_step ours = {
        .n_spans = e->n_spans,
        .sequence = e->sequence,
        .step = e->step,
        .time_ns = e->time_ns,
        .n_rows = e->n_rows,
    };
    memcpy(ours.ranks, e->ranks, sizeof ours.ranks);
    return handle_hand_out(run, out, &ours, sizeof ours);
}

int dmi_read_span(struct dmi_read *run, uint64_t step, uint32_t span, struct dmi_read_span *out)
{
    if (run->failed)
        return -EBADF;
    const struct reader_step *s =
        step < reader_n_steps(run->view.reader) ? reader_step(run->view.reader, step) : NULL;
    if (!s || span >= s->entry->n_spans)
        return handle_fail(run, -ENOENT, "no such span");
    const struct dmi_span_entry *e = &s->spans[span];
    size_t n_id;
    const char *id = reader_span_id(s, span, &n_id);
    struct dmi_read_span ours = {
        .phase = e->phase,
        .request = id,
        .request_bytes = n_id,
        .first_position = e->first_position,
        .first_row = e->first_row,
        .n_tokens = e->n_tokens,
        .n_cached = e->n_cached,
        .cached_ids = reader_cached_ids(s, span),
        .n_prompt = e->n_prompt,
        .flags = e->flags,
    };
    return handle_hand_out(run, out, &ours, sizeof ours);
}

int dmi_read_record(struct dmi_read *run, uint64_t index, struct dmi_read_record *out)
{
    if (run->failed)
        return -EBADF;
    if (index >= reader_n_records(run->view.reader))
        return handle_fail(run, -ENOENT, "no such record");
    const struct reader_record *r = reader_record(run->view.reader, index);
    const struct dmi_record *from = &r->at;
    struct dmi_read_record ours = { .n_dims = from->n_dims,
                                    .n_row_dims = from->n_row_dims,
                                    .n_rows = r->n_rows,
                                    .n_kept = from->n_kept,
                                    .step = from->step,
                                    .n_bytes = from->n_bytes,
                                    .stored_bytes = (uint64_t)(r->n_stored + 0.5),
                                    RECORD_FACTS(RECORD_TAKE) };
    memcpy(ours.dims, from->dims, sizeof ours.dims);
    return handle_hand_out(run, out, &ours, sizeof ours);
}
