/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/focus.h"

#include "core/cleanup.h"
#include "storage/map.h"
#include "tools/analyze/heads_file.h"
#include "tools/analyze/passage.h"
#include "tools/common/edit_words.h"
#include "tools/common/report.h"
#include "tools/common/stop.h"
#include "tools/common/ticker.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_AGAIN_NS 200000000u

/* ------------------------------------------------------------------------- opening */

static int usage(const char *what)
{
    complain("%s", what);
    return ANALYZE_USAGE;
}

int focus_open(const struct analyze_options *o, struct focus *f)
{
    *f = (struct focus){ .options = o };
    if (!o->spans)
        return usage("focus needs --spans FILE: where instruction and data lie in each prompt");
    if (!o->heads_file && !o->find)
        return usage(
            "focus needs --heads FILE: the heads that look at the instruction (--find finds them)");
    if (!(f->spans = json_file(o->spans)))
        return ANALYZE_USAGE;
    int status = asked_several(o, &f->asked);
    if (!status && o->heads_file &&
        heads_file_read(o->heads_file, &f->asked.heads, &f->asked.n_heads))
        status = ANALYZE_USAGE;
    f->asked.queries = calloc(1, sizeof *f->asked.queries);
    f->asked.n_queries = 1;
    return status || f->asked.queries ? status : usage("no memory");
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
        return usage("no memory");
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

/* ------------------------------------------------------------------------- all requests */

struct focus_search {
    struct focus *focus;
    struct map done; /* requests that have their line */
    json_t *ids;     /* that the map borrows */
    bool any, below, refused;
};

static int is_done(struct focus_search *l, const struct dmi_read_request *q, bool *done)
{
    json_t *id = json_stringn_nocheck(q->id, q->id_bytes);
    size_t *value = id ? map_at(&l->done, json_string_value(id), q->id_bytes) : NULL;
    *done = value && *value != MAP_NONE;
    if (id && value && !*done && !json_array_append(l->ids, id))
        *value = 0;
    json_decref(id);
    return value ? 0 : -ENOMEM;
}

static void say(struct focus_search *l, const struct dmi_read_request *q, uint64_t index)
{
    const struct analyze_options *o = l->focus->options;
    double score = l->focus->score;
    bool below = o->below >= 0 && !(score >= o->below);
    json_t *edits = edit_words_value(l->focus->asked.run, index);
    l->any = true;
    l->below |= below;
    ticker_stop();
    if (o->json) {
        _cleanup_(text_deinit) struct text t = { 0 };
        json_t *row = json_pack("{s:o, s:o, s:b}", "request", value_bytes(q->id, q->id_bytes),
                                "focus", value_double(score), "below", below);
        if (edits)
            json_object_set(row, "edits", edits);
        value_add_new(&t, row);
        printf("%s\n", t.failed ? "" : t.data);
    } else {
        char line[400];
        int n = snprintf(line, sizeof line, "%-28.*s %.4f%s%s", (int)q->id_bytes, q->id, score,
                         below ? "  below" : "", edits ? "  edited" : "");
        say_line(stdout, "", line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
    }
    json_decref(edits);
    fflush(stdout);
}

/* Requests whose prompt is complete. @last: the run has ended. Return: ANALYZE_OK or an exit status. */
static int look(struct focus_search *l, bool last)
{
    struct dmi_read_request q = { .size = sizeof q };
    char why[512];
    for (uint64_t i = 0; !dmi_read_request(l->focus->asked.run, i, &q); i++) {
        bool done, wanted = !l->focus->options->request ||
                            (strlen(l->focus->options->request) == q.id_bytes &&
                             !memcmp(l->focus->options->request, q.id, q.id_bytes));
        size_t known = map_get(&l->done, q.id, q.id_bytes);
        if (!wanted || known != MAP_NONE || (!last && q.end_position < q.n_prompt))
            continue;
        int status = focus_of(l->focus, &q, why, sizeof why);
        if (status == -1 && last)
            complain("request %.*s: %s", (int)q.id_bytes, q.id, why);
        if (status == -1)
            continue;
        if (status == ANALYZE_REFUSED)
            l->refused = true;
        else if (status)
            return status;
        if (is_done(l, &q, &done))
            return usage("no memory");
        if (status == ANALYZE_OK)
            say(l, &q, i);
    }
    return ANALYZE_OK;
}

static int follow(struct focus_search *l)
{
    struct dmi_read *run = l->focus->asked.run;
    int status = ANALYZE_OK;
    bool on = l->focus->options->follow && asked_goes_on(&l->focus->asked);
    while (on && !status && !stop_asked()) {
        status = look(l, false);
        dmi_analyze_close(l->focus->asked.answer);
        l->focus->asked.answer = NULL;
        stop_sleep(LOOK_AGAIN_NS);
        if (!status && dmi_read_refresh(run))
            return usage(dmi_read_error(run));
        on = asked_goes_on(&l->focus->asked);
    }
    return status ? status : look(l, true);
}

int analyze_focus(const struct analyze_options *o)
{
    struct focus f;
    struct focus_search l = { .focus = &f, .ids = json_array() };
    int status = focus_open(o, &f);
    if (!status && o->find)
        status = focus_find(&f);
    else if (!status) {
        if (o->follow)
            stop_install();
        status = follow(&l);
        if (!status)
            status = l.below     ? ANALYZE_BELOW
                     : l.refused ? ANALYZE_REFUSED
                     : l.any     ? ANALYZE_OK
                                 : ANALYZE_FAILED;
    }
    map_deinit(&l.done);
    json_decref(l.ids);
    focus_close(&f);
    return status;
}
