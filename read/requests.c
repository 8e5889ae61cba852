/* SPDX-License-Identifier: Apache-2.0 */
#include "read/requests.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct request *find(struct requests *out, const char *id, size_t n_id)
{
    size_t *index = map_at(&out->by_id, id, n_id);
    if (!index)
        return NULL;
    if (*index != MAP_NONE)
        return &out->all[*index];
    if (out->n == out->room) {
        size_t room = out->room ? 2 * out->room : 64;
        struct request *grown = realloc(out->all, room * sizeof *grown);
        if (!grown)
            return NULL;
        out->all = grown;
        out->room = room;
    }
    *index = out->n;
    out->all[out->n] = (struct request){ .id = id, .n_id = n_id };
    return &out->all[out->n++];
}

static int take_span(struct requests *out, const struct reader_step *step, uint32_t i)
{
    const struct dmi_span_entry *span = &step->spans[i];
    if (span->flags & DMI_SPAN_PADDING)
        return 0;
    size_t n_id;
    const char *id = reader_span_id(step, i, &n_id);
    struct request *r = find(out, id, n_id);
    if (!r)
        return -ENOMEM;
    int64_t end;
    if (__builtin_add_overflow(span->first_position, (int64_t)span->n_tokens, &end))
        end = INT64_MAX;
    r->n_steps++;
    r->n_tokens[span->phase <= DMI_PHASE_DRAFT ? span->phase : DMI_PHASE_UNKNOWN] += span->n_tokens;
    r->n_cached += span->n_cached;
    r->end = end > r->end ? end : r->end;
    out->n_computed += span->n_tokens;
    out->n_cached += span->n_cached;
    return 0;
}

int requests_build(const struct reader *reader, struct requests *out)
{
    *out = (struct requests){ 0 };
    for (size_t s = 0; s < reader_n_steps(reader); s++) {
        const struct reader_step *step = reader_step(reader, s);
        for (uint32_t i = 0; i < step->entry->n_spans; i++)
            if (take_span(out, step, i)) {
                requests_deinit(out);
                return -ENOMEM;
            }
    }
    return 0;
}

void requests_deinit(struct requests *requests)
{
    free(requests->all);
    map_deinit(&requests->by_id);
    *requests = (struct requests){ 0 };
}

const struct request *requests_find(const struct requests *requests, const char *id, size_t n_id)
{
    size_t i = map_get(&requests->by_id, id, n_id);
    return i == MAP_NONE ? NULL : &requests->all[i];
}

uint64_t request_computed(const struct request *r)
{
    uint64_t n = 0;
    for (size_t phase = 0; phase <= DMI_PHASE_DRAFT; phase++)
        n += r->n_tokens[phase];
    return n;
}
