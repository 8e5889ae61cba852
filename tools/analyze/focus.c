/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/focus.h"

#include "core/cleanup.h"
#include "tools/analyze/heads_file.h"
#include "tools/analyze/passage.h"
#include "tools/common/say.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- opening */

int focus_usage(const char *what)
{
    complain("%s", what);
    return ANALYZE_USAGE;
}

int focus_open(const struct analyze_options *o, struct focus *f)
{
    *f = (struct focus){ .options = o };
    if (!o->spans)
        return focus_usage(
            "focus needs --spans FILE: where instruction and data lie in each prompt");
    if (!o->heads_file && !o->find)
        return focus_usage(
            "focus needs --heads FILE: the heads that look at the instruction (--find finds them)");
    if (!(f->spans = json_file(o->spans)))
        return ANALYZE_USAGE;
    int status = asked_several(o, &f->asked);
    if (!status && o->heads_file &&
        heads_file_read(o->heads_file, &f->asked.heads, &f->asked.n_heads))
        status = ANALYZE_USAGE;
    f->asked.queries = calloc(1, sizeof *f->asked.queries);
    f->asked.n_queries = 1;
    return status || f->asked.queries ? status : focus_usage("no memory");
}

void focus_close(struct focus *f)
{
    json_decref(f->spans);
    free(f->by_head);
    asked_close(&f->asked);
}

/* ------------------------------------------------------------------------- one request */

/* Ids of the prompt, where a span of the entry is looked for among them; to be freed. NULL: there are none. */
static int64_t *ids_of(struct focus *f, const struct dmi_read_request *q, const json_t *entry)
{
    bool looks = passage_is_looked_for(json_object_get(entry, "instruction")) ||
                 passage_is_looked_for(json_object_get(entry, "data"));
    return looks ? asked_ids(&f->asked, q->id, q->id_bytes, q->n_prompt) : NULL;
}

/* The request's entry of the file, or the one of all: "*". */
static int find_spans(struct focus *f, const struct dmi_read_request *q,
                      struct dmi_analyze_span out[2])
{
    json_t *entry = json_object_getn(f->spans, q->id, q->id_bytes);
    entry = entry ? entry : json_object_get(f->spans, "*");
    if (!json_is_object(entry)) {
        complain("%s has no entry of request %.*s, and none of \"*\"", f->options->spans,
                 (int)q->id_bytes, q->id);
        return ANALYZE_USAGE;
    }
    _cleanup_(freep) int64_t *ids = ids_of(f, q, entry);
    _cleanup_(prompt_deinit) struct prompt prompt = { 0 };
    if (prompt_init(&prompt, q->n_prompt, ids, asked_vocabulary(&f->asked)))
        return focus_usage("no memory");
    bool good =
        !passage_find(json_object_get(entry, "instruction"), "instruction", &prompt, &out[0]) &&
        !passage_find(json_object_get(entry, "data"), "data", &prompt, &out[1]);
    return good ? ANALYZE_OK : ANALYZE_USAGE;
}

static int compute(struct focus *f, const struct dmi_analyze_span spans[2])
{
    struct asked *a = &f->asked;
    struct dmi_analyze_shape shape = { .size = sizeof shape };
    dmi_analyze_shape(a->answer, &shape);
    free(f->by_head);
    size_t room = (size_t)shape.n_layers * shape.n_heads;
    f->by_head = calloc(room + 1, sizeof *f->by_head);
    f->n_heads = f->by_head ? dmi_analyze_focus(a->answer, spans, f->options->measure, f->by_head,
                                                room, &f->score)
                            : -1;
    if (f->n_heads >= 0)
        return asked_judge(f->options, a);
    complain("%s", f->by_head ? dmi_analyze_error(a->answer) : "no memory");
    return ANALYZE_FAILED;
}

int focus_of(struct focus *f, const struct dmi_read_request *q, char *why, uint64_t n_why)
{
    struct dmi_analyze_span spans[2];
    struct asked *a = &f->asked;
    if (q->n_prompt < 1) {
        snprintf(why, n_why, "the run does not say where its prompt ends");
        return -1;
    }
    int status = find_spans(f, q, spans);
    if (status)
        return status;
    a->request = q->id;
    a->request_bytes = q->id_bytes;
    a->queries[0] = q->n_prompt - 1;
    int r = asked_next(f->options, a, why, n_why);
    if (r == -ENODATA || r == -ENOENT)
        return -1;
    if (r) {
        complain("%s", why);
        return ANALYZE_USAGE;
    }
    return compute(f, spans);
}
