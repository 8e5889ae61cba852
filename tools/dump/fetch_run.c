/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cleanup.h"
#include "read/requests.h"
#include "tools/dump/fetch_private.h"

#include <dmi/counters.h>
#include <dmi/dmi.h>
#include <dmi/dtype.h>
#include <dmi/format.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static int64_t number_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static bool flag_of(const json_t *o, const char *key)
{
    return json_is_true(json_object_get(o, key));
}

static int no_room(struct err *err)
{
    return err_set_errno(err, ENOMEM, "cannot fetch a run");
}

/* ------------------------------------------------------------------------- the run */

/* Borrows strings from the JSON. */
static struct dmi_site site_of(const json_t *o)
{
    const char *dtype = text_of(o, "dtype"), *row = text_of(o, "row");
    double scale = json_number_value(json_object_get(o, "scale"));
    return (struct dmi_site){ .name = text_of(o, "name") ? text_of(o, "name") : "",
                              .kernel = text_of(o, "kernel"),
                              .tap = text_of(o, "tap"),
                              .note = text_of(o, "note"),
                              .dtype = dtype ? dmi_dtype_from_name(dtype) : 0,
                              .row = row ? dmi_row_from_name(row) : 0,
                              .scale = scale != 0 ? scale : 1,
                              .expect = -1,
                              .has_layer = flag_of(o, "has_layer") };
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
    for (size_t i = 0; i < n; i++)
        x->sites[i] = site_of(json_array_get(sites, i));
    const struct run_options options = { .out_dir = folder,
                                         .model = text_of(x->about, "model"),
                                         .job = text_of(x->about, "job"),
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
    const char *hex = text_of(span, "request_hex"), *id = text_of(span, "request");
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

static struct dmi_span span_of(const json_t *o, char id[DMI_MAX_ID + 1])
{
    return (struct dmi_span){ .request_id = id_of(o, id),
                              .first_position = number_of(o, "position"),
                              .first_row = (uint32_t)number_of(o, "first_row"),
                              .n_tokens = (uint32_t)number_of(o, "tokens"),
                              .n_cached = (uint32_t)number_of(o, "cached"),
                              .n_prompt = (uint32_t)number_of(o, "prompt"),
                              .phase = number_named(text_of(o, "phase"), request_phase_name,
                                                    DMI_PHASE_DRAFT),
                              .flags = (flag_of(o, "padding") ? DMI_SPAN_PADDING : 0) |
                                       (flag_of(o, "last") ? DMI_SPAN_LAST : 0) };
}

static int add_step(struct err *err, struct fetched *x, const json_t *o)
{
    const json_t *list = json_object_get(o, "spans"), *rank = json_object_get(o, "rank");
    size_t n = json_array_size(list);
    _cleanup_(freep) struct dmi_span *spans = calloc(n + 1, sizeof *spans);
    _cleanup_(freep) char(*ids)[DMI_MAX_ID + 1] = calloc(n + 1, sizeof *ids);
    if (!spans || !ids)
        return no_room(err);
    for (size_t i = 0; i < n; i++)
        spans[i] = span_of(json_array_get(list, i), ids[i]);
    const struct dmi_step step = { .size = sizeof step,
                                   .version = DMI_STEP_VERSION,
                                   .step = (uint64_t)number_of(o, "step"),
                                   .n_rows = (uint32_t)number_of(o, "rows"),
                                   .n_spans = (uint32_t)n,
                                   .span_size = sizeof *spans,
                                   .spans = spans,
                                   .tp_rank = (int32_t)number_of(rank, "tp"),
                                   .pp_rank = (int32_t)number_of(rank, "pp"),
                                   .dp_rank = (int32_t)number_of(rank, "dp"),
                                   .ep_rank = (int32_t)number_of(rank, "ep") };
    int r = run_step(x->run, (uint64_t)number_of(o, "step_sequence"), &step);
    return r == -ENOMEM ? no_room(err)
                        : 0; /* one that is refused stands among the run's problems */
}

static int add_end(struct err *err, struct fetched *x, const json_t *o)
{
    const char *ended = text_of(o, "ended");
    char id[DMI_MAX_ID + 1];
    uint32_t reason = number_named(ended, request_reason_name, DMI_END_ABORTED);
    const json_t *shed = json_object_get(o, "shed");
    int r = ended ? run_request_end(x->run, id_of(o, id), reason)
            : json_is_integer(shed)
                ? run_request_shed(x->run, id_of(o, id), (uint64_t)json_integer_value(shed))
                : 0;
    return r == -ENOMEM ? no_room(err) : 0;
}

static int sequence_order(const void *pa, const void *pb)
{
    int64_t a = number_of(*(json_t *const *)pa, "step_sequence");
    int64_t b = number_of(*(json_t *const *)pb, "step_sequence");
    return a < b ? -1 : a > b;
}

int fetch_steps(struct err *err, struct fetched *x, json_t *facts)
{
    size_t n = json_array_size(facts), n_steps = 0, i;
    _cleanup_(freep) json_t **steps = calloc(n + 1, sizeof *steps);
    const json_t *one;
    int r = steps ? 0 : no_room(err);
    json_array_foreach(facts, i, one) if (steps && text_of(one, "type") &&
                                          !strcmp(text_of(one, "type"), "step")) steps[n_steps++] =
        json_array_get(facts, i);
    if (n_steps)
        qsort(steps, n_steps, sizeof *steps, sequence_order);
    /* a resumed replay says the step in force again */
    for (i = 0; !r && i < n_steps; i++)
        if (!i || sequence_order(&steps[i - 1], &steps[i]))
            r = add_step(err, x, steps[i]);
    json_array_foreach(facts, i, one) if (!r) r = add_end(err, x, one);
    return r;
}
