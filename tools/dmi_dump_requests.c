/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump: whose tokens a run holds, and which were not computed because a prefix cache had them. */
#include "core/cleanup.h"
#include "tools/dmi_dump.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct request *find(struct requests *out, const char *id, size_t n_id)
{
    for (size_t i = out->n; i-- > 0;) /* mostly the last one */
        if (out->all[i].n_id == n_id && !memcmp(out->all[i].id, id, n_id))
            return &out->all[i];
    if (out->n == out->room) {
        size_t room = out->room ? 2 * out->room : 64;
        struct request *grown = realloc(out->all, room * sizeof *grown);
        if (!grown)
            return NULL;
        out->all = grown;
        out->room = room;
    }
    out->all[out->n] = (struct request){ .id = id, .n_id = n_id };
    return &out->all[out->n++];
}

int requests_build(const struct reader *reader, struct requests *out)
{
    *out = (struct requests){ 0 };
    for (size_t s = 0; s < reader_n_steps(reader); s++) {
        const struct reader_step *step = reader_step(reader, s);
        for (uint32_t i = 0; i < step->entry->n_spans; i++) {
            const struct dmi_span_entry *span = &step->spans[i];
            if (span->flags & DMI_SPAN_PADDING)
                continue;
            size_t n_id;
            const char *id = reader_span_id(step, i, &n_id);
            struct request *r = find(out, id, n_id);
            if (!r) {
                requests_deinit(out);
                return -ENOMEM;
            }
            int64_t end = (int64_t)((uint64_t)span->first_position + span->n_tokens);
            r->n_steps++;
            r->n_tokens[span->phase <= DMI_PHASE_DRAFT ? span->phase : DMI_PHASE_UNKNOWN] +=
                span->n_tokens;
            r->n_cached += span->n_cached;
            r->end = end > r->end ? end : r->end;
            out->n_computed += span->n_tokens;
            out->n_cached += span->n_cached;
        }
    }
    return 0;
}

void requests_deinit(struct requests *requests)
{
    free(requests->all);
    *requests = (struct requests){ 0 };
}

const struct request *requests_find(const struct requests *requests, const char *id, size_t n_id)
{
    for (size_t i = 0; i < requests->n; i++)
        if (requests->all[i].n_id == n_id && !memcmp(requests->all[i].id, id, n_id))
            return &requests->all[i];
    return NULL;
}

static uint64_t computed(const struct request *r)
{
    return r->n_tokens[0] + r->n_tokens[1] + r->n_tokens[2] + r->n_tokens[3];
}

void requests_print(const struct requests *requests, struct text *json)
{
    if (json)
        text_printf(json, ",\n  \"requests\": [");
    else
        printf("\n%-32s %8s %8s %9s %8s %8s %8s\n", "REQUEST", "STEPS", "CACHED", "COMPUTED",
               "PREFILL", "DECODE", "OTHER");
    for (size_t i = 0; i < requests->n; i++) {
        const struct request *r = &requests->all[i];
        uint64_t other = r->n_tokens[DMI_PHASE_UNKNOWN] + r->n_tokens[DMI_PHASE_DRAFT];
        if (json) {
            text_printf(json, "%s\n    {\"request\": ", i ? "," : "");
            _cleanup_(freep) char *id = strndup(r->id, r->n_id);
            text_json(json, id);
            text_printf(json,
                        ", \"steps\": %" PRIu64 ", \"cached\": %" PRIu64 ", \"computed\": %" PRIu64
                        ", \"prefill\": %" PRIu64 ", \"decode\": %" PRIu64 ", \"other\": %" PRIu64
                        ", \"end_position\": %" PRId64 "}",
                        r->n_steps, r->n_cached, computed(r), r->n_tokens[DMI_PHASE_PREFILL],
                        r->n_tokens[DMI_PHASE_DECODE], other, r->end);
        } else {
            put_safe(stdout, r->id, r->n_id);
            printf("%*s %8" PRIu64 " %8" PRIu64 " %9" PRIu64 " %8" PRIu64 " %8" PRIu64 " %8" PRIu64
                   "\n",
                   r->n_id < 32 ? (int)(32 - r->n_id) : 0, "", r->n_steps, r->n_cached, computed(r),
                   r->n_tokens[DMI_PHASE_PREFILL], r->n_tokens[DMI_PHASE_DECODE], other);
        }
    }
    if (json)
        text_printf(json, "]");
}

void requests_sentence(const struct requests *requests)
{
    if (!requests->n)
        return;
    printf("%zu request%s: %" PRIu64 " tokens computed, %" PRIu64 " cached", requests->n,
           requests->n == 1 ? "" : "s", requests->n_computed, requests->n_cached);
    printf(requests->n_cached
               ? " (taken over from an earlier request: there was nothing to capture).\n"
               : ".\n");
}
