/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-analyze focus: all requests of a run, also of one that grows. */
#include "core/cleanup.h"
#include "storage/map.h"
#include "tools/analyze/focus.h"
#include "tools/common/edit_words.h"
#include "tools/common/stop.h"
#include "tools/common/ticker.h"

#include <errno.h>
#include <string.h>

#define LOOK_AGAIN_NS 200000000u

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
            return focus_usage("no memory");
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
            return focus_usage(dmi_read_error(run));
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
