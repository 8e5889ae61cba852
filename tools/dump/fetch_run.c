/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cleanup.h"
#include "core/err.h"
#include "core/grow.h"
#include "read/requests.h"
#include "storage/object.h"
#include "tools/dump/fetch_private.h"

#include <dmi/dmi.h>
#include <dmi/dtype.h>
#include <dmi/format.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An integer from @least to @most; null where that is below 0 stands for it. Anything else: 0, and @bad. */
static int64_t number_of(const json_t *o, const char *key, int64_t least, int64_t most, bool *bad)
{
    const json_t *value = json_object_get(o, key);
    int64_t n = json_is_null(value) && least < 0 ? least : json_integer_value(value);
    bool good = (json_is_integer(value) || (json_is_null(value) && least < 0)) && n >= least;
    *bad |= !good || n > most;
    return good && n <= most ? n : 0;
}

static int wrong_fact(struct err *err)
{
    return err_set(err, -EBADMSG, "a fact of the table contradicts what a fact may say");
}

static int no_room(struct err *err)
{
    return err_set_errno(err, ENOMEM, "cannot fetch a run");
}

/* ------------------------------------------------------------------------- the run */

/* Borrows strings from the JSON. */
static struct dmi_site site_of(const json_t *o)
{
    const char *dtype = object_text(o, "dtype"), *row = object_text(o, "row");
    double scale = json_number_value(json_object_get(o, "scale"));
    return (struct dmi_site){ .name = object_text(o, "name") ? object_text(o, "name") : "",
                              .kernel = object_text(o, "kernel"),
                              .tap = object_text(o, "tap"),
                              .note = object_text(o, "note"),
                              .dtype = dtype ? dmi_dtype_from_name(dtype) : 0,
                              .row = row ? dmi_row_from_name(row) : 0,
                              .scale = scale != 0 ? scale : 1,
                              .expect = -1,
                              .has_layer = object_flag(o, "has_layer") };
}

int fetch_begin(struct err *err, struct fetched *x, const char *folder)
{
    const json_t *sites = json_object_get(x->about, "sites");
    size_t n = json_array_size(sites);
    if (!n || n > DMI_MAX_SITES)
        return err_set(err, -EBADMSG, "the table has no sites of the run");
    if (!(x->sites = calloc(n, sizeof *x->sites)))
        return no_room(err);
    x->n_sites = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *name = json_object_get(json_array_get(sites, i), "name");
        x->sites[i] = site_of(json_array_get(sites, i));
        if (!*x->sites[i].name || strlen(x->sites[i].name) != json_string_length(name))
            return wrong_fact(err);
    }
    const struct run_options options = { .out_dir = folder,
                                         .model = object_text(x->about, "model"),
                                         .job = object_text(x->about, "job"),
                                         .library_version = DMI_VERSION,
                                         .sites = x->sites,
                                         .n_sites = x->n_sites };
    int r = run_open(err, &options, &x->run);
    if (!r)
        run_problem(x->run, NULL, "fetched",
                    "from tables: what was expected, dropped and not sent to them is not known");
    return r;
}

/* ------------------------------------------------------------------------- steps */

/* The number up to @last that @name_of calls so; 0: none, or no name. */
static uint32_t number_named(const char *name, const char *(*name_of)(uint32_t), uint32_t last)
{
    for (uint32_t i = 1; name && i <= last; i++)
        if (!strcmp(name, name_of(i)))
            return i;
    return 0;
}

/* An id's bytes where it is no UTF-8; @out has room for them. */
static const char *id_of(const json_t *span, char out[DMI_MAX_ID + 1])
{
    const char *hex = object_text(span, "request_hex"), *id = object_text(span, "request");
    size_t n = hex ? strlen(hex) / 2 : 0;
    if (!hex || n > DMI_MAX_ID)
        return id;
    for (size_t i = 0; i < n; i++) {
        const char two[3] = { hex[2 * i], hex[2 * i + 1] };
        out[i] = (char)strtoul(two, NULL, 16);
    }
    out[n] = 0;
    return out;
}

static struct dmi_span span_of(const json_t *o, char id[DMI_MAX_ID + 1], bool *bad)
{
    bool has_prompt = json_is_integer(json_object_get(o, "prompt"));
    return (struct dmi_span){
        .request_id = id_of(o, id),
        .first_position = number_of(o, "position", -1, INT64_MAX, bad),
        .first_row = (uint32_t)number_of(o, "first_row", 0, UINT32_MAX, bad),
        .n_tokens = (uint32_t)number_of(o, "tokens", 0, UINT32_MAX, bad),
        .n_cached = (uint32_t)number_of(o, "cached", 0, UINT32_MAX, bad),
        .n_prompt = has_prompt ? (uint32_t)number_of(o, "prompt", 0, UINT32_MAX, bad) : 0,
        .phase = number_named(object_text(o, "phase"), request_phase_name, DMI_PHASE_DRAFT),
        .flags = (object_flag(o, "padding") ? DMI_SPAN_PADDING : 0) |
                 (object_flag(o, "last") ? DMI_SPAN_LAST : 0) |
                 (object_flag(o, "part") ? DMI_SPAN_PART : 0)
    };
}

static int32_t rank_of(const json_t *ranks, const char *axis, bool *bad)
{
    return json_is_object(ranks) ? (int32_t)number_of(ranks, axis, -1, INT32_MAX, bad) : 0;
}

static int add_step(struct err *err, struct fetched *x, const json_t *o)
{
    const json_t *list = json_object_get(o, "spans"), *rank = json_object_get(o, "rank");
    size_t n = json_array_size(list);
    _cleanup_(freep) struct dmi_span *spans = calloc(n + 1, sizeof *spans);
    _cleanup_(freep) char(*ids)[DMI_MAX_ID + 1] = calloc(n + 1, sizeof *ids);
    if (!spans || !ids)
        return no_room(err);
    bool bad = false;
    for (size_t i = 0; i < n; i++)
        spans[i] = span_of(json_array_get(list, i), ids[i], &bad);
    uint64_t sequence = (uint64_t)number_of(o, "step_sequence", 0, INT64_MAX, &bad);
    const struct dmi_step step = { .size = sizeof step,
                                   .version = DMI_STEP_VERSION,
                                   .step = (uint64_t)number_of(o, "step", 0, INT64_MAX, &bad),
                                   .n_rows = (uint32_t)number_of(o, "rows", 0, UINT32_MAX, &bad),
                                   .n_spans = (uint32_t)n,
                                   .span_size = sizeof *spans,
                                   .spans = spans,
                                   .tp_rank = rank_of(rank, "tp", &bad),
                                   .pp_rank = rank_of(rank, "pp", &bad),
                                   .dp_rank = rank_of(rank, "dp", &bad),
                                   .ep_rank = rank_of(rank, "ep", &bad) };
    if (bad)
        return wrong_fact(err);
    int r = run_step(x->run, sequence, &step);
    x->n_steps_refused += r && r != -ENOMEM;
    return r == -ENOMEM ? no_room(err)
                        : 0; /* one that is refused stands among the run's problems */
}

static int add_end(struct err *err, struct fetched *x, const json_t *o)
{
    const char *ended = object_text(o, "ended");
    char id[DMI_MAX_ID + 1];
    uint32_t reason = number_named(ended, request_reason_name, DMI_END_ABORTED);
    const json_t *shed = json_object_get(o, "shed");
    int r = ended ? run_request_end(x->run, id_of(o, id), reason)
            : json_is_integer(shed)
                ? run_request_shed(x->run, id_of(o, id), (uint64_t)json_integer_value(shed))
                : 0;
    return r == -ENOMEM ? no_room(err) : 0;
}

/* ------------------------------------------------------------------------- facts, a line each */

/* A step's line, and where the step stands. */
struct line {
    int64_t sequence;
    const char *at;
    size_t n;
};

int fetch_fact(struct err *err, const char *line, size_t n, json_t **out)
{
    *out = object_parse(line, n);
    return *out ? 0 : err_set(err, -EBADMSG, "a fact of the table is no JSON object");
}

/* Takes each line of the answer. Return: 0 or what @take returned. */
static int each_line(struct err *err, const struct text *answer, void *arg,
                     int (*take)(struct err *err, void *arg, const char *line, size_t n))
{
    const char *at = answer->data, *end = answer->n ? at + answer->n : at;
    int r = 0;
    while (!r && at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        r = take(err, arg, at, (size_t)(stop - at));
        at = stop + 1;
    }
    return r;
}

struct lines {
    struct line *all;
    size_t n, room;
};

static int note_line(struct err *err, void *arg, const char *line, size_t n)
{
    struct lines *lines = arg;
    json_t *fact;
    bool bad = false;
    TRY(fetch_fact(err, line, n, &fact));
    int64_t sequence = number_of(fact, "step_sequence", 0, INT64_MAX, &bad);
    json_decref(fact);
    if (bad)
        return wrong_fact(err);
    if (PUSH(lines->all, lines->n, lines->room, 64, (struct line){ sequence, line, n }))
        return no_room(err);
    return 0;
}

static int line_order(const void *pa, const void *pb)
{
    const struct line *a = pa, *b = pb;
    return a->sequence < b->sequence ? -1 : a->sequence > b->sequence;
}

int fetch_steps(struct err *err, struct fetched *x)
{
    struct lines lines = { 0 };
    json_t *fact;
    int r = each_line(err, &x->answer, &lines, note_line);
    if (lines.n)
        qsort(lines.all, lines.n, sizeof *lines.all, line_order);
    for (size_t i = 0; !r && i < lines.n; i++) {
        if (i && lines.all[i - 1].sequence == lines.all[i].sequence)
            continue; /* a resumed replay says the step in force again */
        r = fetch_fact(err, lines.all[i].at, lines.all[i].n, &fact);
        if (!r)
            r = add_step(err, x, fact);
        json_decref(fact);
    }
    free(lines.all);
    return r;
}

static int take_end(struct err *err, void *arg, const char *line, size_t n)
{
    json_t *fact;
    int r = fetch_fact(err, line, n, &fact);
    if (!r)
        r = add_end(err, arg, fact);
    json_decref(fact);
    return r;
}

int fetch_ends(struct err *err, struct fetched *x)
{
    return each_line(err, &x->answer, x, take_end);
}
