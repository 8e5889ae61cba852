/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump: look at, check and export a run. See docs/man/dmi-dump.1. */
#include "tools/dmi_dump.h"

#include "core/cleanup.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char usage_text[] =
    "dmi-dump list   RUN                  what was captured: sites, layers, shapes, requests\n"
    "dmi-dump show   SITE RUN             values of a site\n"
    "dmi-dump stats  RUN                  sizes, ratio, and whether captured + dropped = expected\n"
    "dmi-dump verify RUN                  every checksum, every file, the accounting\n"
    "dmi-dump verify RUN --against REF    compare with a safetensors file of reference "
    "activations\n"
    "dmi-dump export RUN --format F -o O  safetensors (a file) or npy (a folder of files)\n"
    "\n"
    "RUN is a run's folder, the --out folder that holds exactly one, or one segment file.\n"
    "\n"
    "  --json              JSON on stdout instead of text\n"
    "  --site NAME         list, export: only this site\n"
    "  --layer N | A:B     show, list, export: only this layer, or layers A to B-1\n"
    "  --step S | A:B      show: the engine's step numbers (without step metadata: forwards)\n"
    "  --forward F | A:B   show: forwards, counted from 0\n"
    "  --rows A:B          show: rows A to B-1 of what is selected (default: the first 4)\n"
    "  --request ID        show, list, export: only this request; verify --against: only this "
    "one,\n"
    "                      or what to call that of a run whose engine gave no request ids\n"
    "  --request ID=NAME   verify --against: request ID, which the reference calls NAME\n"
    "  --all               show: all values of a row\n"
    "  --records           list: every record\n"
    "  --tensors           list: every tensor as export would name it\n"
    "  --requests          list: every request, its tokens computed and cached\n"
    "  --tolerance X       verify: error norm / reference norm of a tensor (default 3e-3)\n"
    "  --row-tolerance X   verify: the same of a single row (default 2e-2)\n"
    "  --format F, -f      export: safetensors (default) or npy\n"
    "  --output PATH, -o   export: where to (default: RUN's name in the current folder)\n"
    "\n"
    "Exit status: 0 all well; 1 damage, a sum that does not hold, or a difference; 2 wrong usage "
    "or\n"
    "nothing readable.\n";

/* ------------------------------------------------------------------------- common */

static const char *state_name(const struct reader_run *run)
{
    return run->state == READER_CLOSED    ? "closed"
           : run->state == READER_RUNNING ? "running"
                                          : "killed";
}

size_t report_findings(const struct reader *reader, struct text *json)
{
    size_t n_damage = 0;
    for (size_t i = 0; i < reader_n_findings(reader); i++) {
        const struct reader_finding *f = reader_finding(reader, i);
        const char *file = f->file ? f->file : "?", *text = f->text ? f->text : "(no memory)";
        n_damage += f->damage;
        if (json) {
            text_printf(json, "%s\n    {\"damage\": %s, \"file\": ", i ? "," : "",
                        f->damage ? "true" : "false");
            text_json(json, file);
            if (f->chunk >= 0)
                text_printf(json, ", \"chunk\": %" PRId64, f->chunk);
            text_printf(json, ", \"offset\": %" PRIu64 ", \"text\": ", f->offset);
            text_json(json, text);
            text_printf(json, "}");
        } else {
            fprintf(stderr, "dmi-dump: %s%s", f->damage ? "DAMAGED: " : "", file);
            if (f->chunk >= 0)
                fprintf(stderr, ", chunk %" PRId64, f->chunk);
            fprintf(stderr, ", offset %" PRIu64 ": %s\n", f->offset, text);
        }
    }
    return n_damage;
}

static int put_json(struct text *t)
{
    if (t->failed) {
        fprintf(stderr, "dmi-dump: no memory\n");
        text_deinit(t);
        return DUMP_USAGE;
    }
    fputs(t->data, stdout);
    putchar('\n');
    text_deinit(t);
    return 0;
}

void put_safe(FILE *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        fputc((unsigned char)s[i] < 0x20 || s[i] == 0x7f ? '?' : s[i], out);
}

static bool in_range(const struct range *r, int64_t v)
{
    return v >= r->first && v < r->end;
}

static bool tensor_wanted(const struct options *o, const struct tensor *t)
{
    return (!o->site || !strcmp(o->site, t->site->name) || !strcmp(o->site, t->name)) &&
           (!o->by_layer || in_range(&o->layers, t->layer)) &&
           (!o->request || !t->request ||
            (strlen(o->request) == t->n_request && !memcmp(o->request, t->request, t->n_request)));
}

static const char *bytes_text(double n, char out[24])
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    int u = 0;
    while (n >= 1024 && u < 4) {
        n /= 1024;
        u++;
    }
    snprintf(out, 24, u ? "%.1f %s" : "%.0f %s", n, units[u]);
    return out;
}

static void json_run(struct text *t, const struct reader_run *run)
{
    text_printf(t, "{\n  \"run\": ");
    text_json(t, run->path);
    text_printf(t, ", \"uuid\": \"%s\", \"state\": \"%s\", \"model\": ", run->uuid,
                state_name(run));
    text_json(t, run->model);
    text_printf(t, ", \"host\": ");
    text_json(t, run->host);
    text_printf(t,
                ", \"pid\": %" PRIu64 ", \"start_realtime_ns\": %" PRIu64
                ", \"segments\": %zu, \"file_bytes\": %" PRIu64 ", \"torn_bytes\": %" PRIu64,
                run->pid, run->start_ns, run->n_segments, run->n_file_bytes, run->n_torn);
}

static void json_pairs(struct text *t, const char *key, const struct reader_pair *pairs, size_t n)
{
    text_printf(t, ",\n  \"%s\": {", key);
    for (size_t i = 0; i < n; i++) {
        text_printf(t, i ? ", " : "");
        text_json(t, pairs[i].key);
        text_printf(t, ": ");
        text_json(t, pairs[i].value);
    }
    text_printf(t, "}");
}

static void json_problems(struct text *t, const struct reader_run *run)
{
    text_printf(t, ",\n  \"problems\": [");
    for (size_t i = 0; i < run->n_problems; i++) {
        const struct reader_problem *p = &run->problems[i];
        text_printf(t, "%s\n    {\"site\": ", i ? "," : "");
        text_json(t, p->site);
        text_printf(t, ", \"reason\": ");
        text_json(t, p->reason);
        text_printf(t, ", \"times\": %" PRIu64 ", \"sentence\": ", p->times);
        text_json(t, p->sentence);
        text_printf(t, "}");
    }
    text_printf(t, "]");
}

static void print_run(const struct reader *reader)
{
    const struct reader_run *run = reader_run(reader);
    char size[24];
    printf("run      %s (%s)\n", run->path, state_name(run));
    if (run->model)
        printf("model    %s\n", run->model);
    printf("files    %zu segment%s, %s\n", run->n_segments, run->n_segments == 1 ? "" : "s",
           bytes_text((double)run->n_file_bytes, size));
    printf("records  %zu", reader_n_records(reader));
    if (run->counters)
        printf(" of %" PRIu64 " forwards", run->counters->forwards);
    printf(", %zu steps told by the engine\n", reader_n_steps(reader));
    for (size_t i = 0; i < run->n_conventions; i++)
        printf("%s %s = %s\n", i ? "        " : "stated  ", run->conventions[i].key,
               run->conventions[i].value);
}

static void print_problems(const struct reader_run *run)
{
    for (size_t i = 0; i < run->n_problems; i++)
        printf("problem: %s%s%s%s: %s (%" PRIu64 "x)\n", run->problems[i].site ? "site " : "",
               run->problems[i].site ? run->problems[i].site : "",
               run->problems[i].site ? ", " : "", run->problems[i].reason,
               run->problems[i].sentence, run->problems[i].times);
}

/* ------------------------------------------------------------------------- layers */

struct layers {
    int32_t *all;
    size_t n, room;
};

static void layers_add(struct layers *l, int32_t layer)
{
    size_t at = 0;
    while (at < l->n && l->all[at] < layer)
        at++;
    if (at < l->n && l->all[at] == layer)
        return;
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        int32_t *grown = realloc(l->all, room * sizeof *grown);
        if (!grown)
            return;
        l->all = grown;
        l->room = room;
    }
    memmove(l->all + at + 1, l->all + at, (l->n - at) * sizeof *l->all);
    l->all[at] = layer;
    l->n++;
}

/* "0-29", "0,3-5", "-" for no layer */
static void layers_text(const struct layers *l, char *out, size_t n_out)
{
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < l->n && used < n_out;) {
        size_t k = i;
        while (k + 1 < l->n && l->all[k + 1] == l->all[k] + 1)
            k++;
        if (l->all[i] == DMI_NO_LAYER && i == k)
            used += (size_t)snprintf(out + used, n_out - used, "%s-", i ? "," : "");
        else if (i == k)
            used += (size_t)snprintf(out + used, n_out - used, "%s%d", i ? "," : "", l->all[i]);
        else
            used += (size_t)snprintf(out + used, n_out - used, "%s%d-%d", i ? "," : "", l->all[i],
                                     l->all[k]);
        i = k + 1;
    }
}

/* Site entries of one name: variants of prefill and decode. */
static size_t first_of_name(const struct reader *reader, size_t site)
{
    for (size_t i = 0; i < site; i++)
        if (!strcmp(reader_site(reader, i)->name, reader_site(reader, site)->name))
            return i;
    return site;
}

/* ------------------------------------------------------------------------- list */

static void list_records(const struct reader *reader, const struct options *o, struct text *json)
{
    if (json)
        text_printf(json, ",\n  \"records\": [");
    else
        printf("\n%10s %8s %8s  %-20s %-6s %-18s %6s  %s\n", "LAUNCH", "FORWARD", "STEP", "SITE",
               "DTYPE", "SHAPE", "DEVICE", "TIME_NS");
    bool first = true;
    for (size_t i = 0; i < reader_n_records(reader); i++) {
        const struct reader_record *rec = reader_record(reader, i);
        const struct dmi_site *site = reader_site(reader, rec->at.site);
        if ((o->site && strcmp(o->site, site->name)) ||
            (o->by_layer && !in_range(&o->layers, rec->at.layer)))
            continue;
        char shape[64] = "";
        for (uint32_t d = 0; d < rec->at.n_dims; d++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%u", d ? "," : "",
                     rec->at.dims[d]);
        char step[24] = "-";
        if (rec->step)
            snprintf(step, sizeof step, "%" PRIu64, rec->step->entry->step);
        if (json) {
            text_printf(json,
                        "%s\n    {\"launch\": %" PRIu64 ", \"forward\": %" PRIu64
                        ", \"step\": %s, \"site\": ",
                        first ? "" : ",", rec->at.launch, rec->at.forward,
                        rec->step ? step : "null");
            text_json(json, site->name);
            text_printf(json, ", \"site_id\": %u, \"layer\": ", site->id);
            rec->at.layer == DMI_NO_LAYER ? text_printf(json, "null")
                                          : text_printf(json, "%d", rec->at.layer);
            text_printf(json,
                        ", \"occurrence\": %u, \"dtype\": \"%s\", \"shape\": [%s], "
                        "\"device\": %u, \"time_ns\": %" PRIu64 ", \"bytes\": %" PRIu64 "}",
                        rec->at.occurrence, dmi_dtype_info(rec->at.dtype)->name, shape,
                        rec->at.device, rec->at.time_ns, rec->at.n_bytes);
        } else {
            char name[160];
            rec->at.layer == DMI_NO_LAYER
                ? snprintf(name, sizeof name, "%s", site->name)
                : snprintf(name, sizeof name, "%s.%d", site->name, rec->at.layer);
            printf("%10" PRIu64 " %8" PRIu64 " %8s  %-20s %-6s %-18s %6u  %" PRIu64 "\n",
                   rec->at.launch, rec->at.forward, step, name, dmi_dtype_info(rec->at.dtype)->name,
                   shape, rec->at.device, rec->at.time_ns);
        }
        first = false;
    }
    if (json)
        text_printf(json, "]");
}

static void list_tensors(const struct tensors *ts, const struct options *o, struct text *json)
{
    if (json)
        text_printf(json, ",\n  \"tensors\": [");
    else
        printf("\n%-44s %-6s %10s  %s\n", "TENSOR", "DTYPE", "ROWS", "WIDTH");
    bool first = true;
    for (size_t i = 0; i < ts->n; i++) {
        const struct tensor *t = &ts->all[i];
        if (!tensor_wanted(o, t))
            continue;
        char shape[64];
        print_shape(shape, sizeof shape, t);
        if (json) {
            text_printf(json, "%s\n    {\"key\": ", first ? "" : ",");
            text_json(json, t->key);
            text_printf(json, ", \"dtype\": \"%s\", \"rows\": %" PRIu64 ", \"width\": %" PRIu64 "}",
                        dmi_dtype_info(t->dtype)->name, t->n_rows, t->width);
        } else {
            put_safe(stdout, t->key, strlen(t->key));
            printf("%*s %-6s %10" PRIu64 "  %s%s\n",
                   strlen(t->key) < 44 ? (int)(44 - strlen(t->key)) : 0, "",
                   dmi_dtype_info(t->dtype)->name, t->n_rows, shape,
                   t->mixed ? "  (changes: not one tensor)" : "");
        }
        first = false;
    }
    if (json)
        text_printf(json, "]");
}

static void list_sites(const struct reader *reader, const struct tensors *ts, struct text *json)
{
    if (json)
        text_printf(json, ",\n  \"sites\": [");
    else
        printf("\n%-20s %-10s %-6s %-12s %10s  %-8s %s\n", "SITE", "LAYERS", "DTYPE", "WIDTH",
               "ROWS", "ROW IS", "NOTE");
    bool first = true;
    for (size_t s = 0; s < reader_n_sites(reader); s++) {
        if (first_of_name(reader, s) != s)
            continue;
        const struct dmi_site *site = reader_site(reader, s);
        struct layers layers = { 0 };
        uint64_t n_rows = 0;
        const struct tensor *any = NULL;
        for (size_t i = 0; i < ts->n; i++) {
            if (strcmp(ts->all[i].site->name, site->name))
                continue;
            layers_add(&layers, ts->all[i].layer);
            n_rows += ts->all[i].n_rows;
            any = &ts->all[i];
        }
        char ranges[64], shape[64] = "-";
        layers_text(&layers, ranges, sizeof ranges);
        if (any)
            print_shape(shape, sizeof shape, any);
        const char *dtype = dmi_dtype_info(site->dtype) ? dmi_dtype_info(site->dtype)->name : "?";
        if (json) {
            text_printf(json, "%s\n    {\"site\": ", first ? "" : ",");
            text_json(json, site->name);
            text_printf(json, ", \"layers\": [");
            for (size_t i = 0; i < layers.n; i++)
                if (layers.all[i] != DMI_NO_LAYER)
                    text_printf(json, "%s%d", i && layers.all[0] != DMI_NO_LAYER ? ", " : "",
                                layers.all[i]);
            text_printf(json,
                        "], \"dtype\": \"%s\", \"width\": %" PRIu64 ", \"rows\": %" PRIu64
                        ", \"row\": \"%s\", \"scale\": ",
                        dtype, any ? any->width : 0, n_rows, dmi_row_name(site->row));
            text_json_double(json, site->scale);
            text_printf(json, ", \"note\": ");
            text_json(json, site->note);
            text_printf(json, "}");
        } else {
            printf("%-20s %-10s %-6s %-12s %10" PRIu64 "  %-8s %s\n", site->name,
                   any ? ranges : "nothing", dtype, shape, n_rows, dmi_row_name(site->row),
                   site->note ? site->note : "");
        }
        free(layers.all);
        first = false;
    }
    if (json)
        text_printf(json, "]");
}

static int dump_list(struct reader *reader, const struct options *o)
{
    struct tensors ts = { 0 };
    struct requests requests;
    if (requests_build(reader, &requests) || tensors_build(reader, NULL, NULL, &ts)) {
        requests_deinit(&requests);
        fprintf(stderr, "dmi-dump: no memory\n");
        return DUMP_USAGE;
    }
    const struct reader_run *run = reader_run(reader);
    struct text json = { 0 }, *to = o->json ? &json : NULL;
    if (o->json) {
        json_run(&json, run);
        json_pairs(&json, "conventions", run->conventions, run->n_conventions);
        json_pairs(&json, "absent", run->absent, run->n_absent);
        json_problems(&json, run);
    } else {
        print_run(reader);
    }
    if (o->records)
        list_records(reader, o, to);
    else if (o->tensors)
        list_tensors(&ts, o, to);
    else if (o->requests)
        requests_print(&requests, to);
    else
        list_sites(reader, &ts, to);
    if (o->json) {
        text_printf(&json, ",\n  \"findings\": [");
    } else {
        for (size_t i = 0; i < run->n_absent; i++)
            printf("%snot in memory: %s: %s\n", i ? "" : "\n", run->absent[i].key,
                   run->absent[i].value);
        if (run->n_problems)
            putchar('\n');
        print_problems(run);
    }
    size_t n_damage = report_findings(reader, to);
    requests_deinit(&requests);
    tensors_deinit(&ts);
    if (o->json) {
        text_printf(&json, "]\n}");
        if (put_json(&json))
            return DUMP_USAGE;
    }
    return n_damage ? DUMP_FAILED : DUMP_OK;
}

/* ------------------------------------------------------------------------- show */

struct shown {
    uint64_t n_rows, n_matching, n_failed;
    bool first;
};

static void show_row(const struct tensor *t, const struct reader_record *rec, const struct piece *p,
                     uint32_t row, const double *v, uint64_t index, const struct options *o,
                     struct text *json, struct shown *shown)
{
    double norm = 0, least = INFINITY, most = -INFINITY;
    uint64_t n_nan = 0;
    for (uint64_t i = 0; i < t->width; i++) {
        norm += v[i] * v[i];
        n_nan += isnan(v[i]);
        least = v[i] < least ? v[i] : least;
        most = v[i] > most ? v[i] : most;
    }
    int64_t position = p->position < 0 ? -1 : p->position + (row - p->first_row);
    if (json) {
        text_printf(json, "%s\n  {\"tensor\": ", shown->first ? "" : ",");
        text_json(json, t->key);
        text_printf(json, ", \"row\": %" PRIu64 ", \"forward\": %" PRIu64, index, rec->at.forward);
        if (rec->step)
            text_printf(json, ", \"step\": %" PRIu64, rec->step->entry->step);
        if (position >= 0)
            text_printf(json, ", \"position\": %" PRId64, position);
        text_printf(json, ", \"launch\": %" PRIu64 ", \"values\": [", rec->at.launch);
        for (uint64_t i = 0; i < t->width; i++) {
            text_printf(json, i ? ", " : "");
            text_json_double(json, v[i]);
        }
        text_printf(json, "]}");
        shown->first = false;
        return;
    }
    put_safe(stdout, t->key, strlen(t->key));
    printf("  row %" PRIu64 ", forward %" PRIu64, index, rec->at.forward);
    if (rec->step)
        printf(", step %" PRIu64, rec->step->entry->step);
    if (position >= 0)
        printf(", position %" PRId64, position);
    printf("; norm %.6g, least %.6g, most %.6g", sqrt(norm), least, most);
    if (n_nan)
        printf(", %" PRIu64 " NaN", n_nan);
    printf("\n   ");
    for (uint64_t i = 0; i < t->width; i++) {
        if (!o->all_values && t->width > 10 && i == 6) {
            printf(" ... (%" PRIu64 " more, --all)", t->width - 8);
            i = t->width - 2;
        }
        if (o->all_values && i && i % 8 == 0)
            printf("\n   ");
        printf(" %12.6g", v[i]);
    }
    printf("\n");
}

static int show_piece(struct reader *reader, const struct tensor *t, const struct piece *p,
                      uint64_t *index, const struct options *o, struct text *json,
                      struct shown *shown)
{
    const struct reader_record *rec = reader_record(reader, p->record);
    int64_t step = (int64_t)(rec->step ? rec->step->entry->step : rec->at.forward);
    if ((o->by_step && !in_range(&o->steps, step)) ||
        (o->by_forward && !in_range(&o->forwards, (int64_t)rec->at.forward)))
        return 0;
    uint64_t first = *index;
    *index += p->n_rows;
    shown->n_matching += p->n_rows;
    if ((int64_t)first >= o->rows.end || (int64_t)*index <= o->rows.first)
        return 0;
    uint64_t width = 1;
    for (uint32_t d = 1; d < rec->at.n_dims; d++)
        width *= rec->at.dims[d];
    _cleanup_(freep) uint8_t *raw = malloc(rec->at.n_bytes + 1);
    _cleanup_(freep) double *values = calloc(width + 1, sizeof *values);
    if (!raw || !values)
        return -ENOMEM;
    struct err err = { 0 };
    if (reader_decode(&err, reader, rec, raw)) {
        fprintf(stderr, "dmi-dump: DAMAGED: %s\n", err.msg);
        shown->n_failed++;
        return 0;
    }
    double scale = reader_site(reader, rec->at.site)->scale;
    size_t n_row = width * dmi_dtype_bytes(rec->at.dtype);
    struct tensor as_is = *t;
    as_is.width = width;
    for (uint32_t i = 0; i < p->n_rows; i++) {
        if (!in_range(&o->rows, (int64_t)(first + i)))
            continue;
        elements_to_double(rec->at.dtype, raw + (p->first_row + i) * n_row, width, values);
        for (uint64_t k = 0; k < width && scale != 1.0 && scale != 0.0; k++)
            values[k] /= scale;
        show_row(&as_is, rec, p, p->first_row + i, values, first + i, o, json, shown);
        shown->n_rows++;
    }
    return 0;
}

static int dump_show(struct reader *reader, const struct options *given)
{
    struct options o = *given;
    if (!o.by_rows)
        o.rows = (struct range){ 0, 4 };
    struct tensors ts;
    int r = tensors_build(reader, NULL, NULL, &ts);
    struct text json = { 0 };
    struct shown shown = { .first = true };
    bool any = false;
    if (o.json)
        text_printf(&json, "[");
    for (size_t i = 0; !r && i < ts.n; i++) {
        const struct tensor *t = &ts.all[i];
        if (!tensor_wanted(&o, t))
            continue;
        any = true;
        uint64_t index = 0, before = shown.n_rows;
        for (size_t p = 0; !r && p < t->n_pieces; p++)
            r = show_piece(reader, t, &t->pieces[p], &index, &o, o.json ? &json : NULL, &shown);
        if (!o.json && !o.by_rows && index > shown.n_rows - before)
            printf("  ... %" PRIu64 " more rows (--rows A:B)\n", index - (shown.n_rows - before));
    }
    if (r) {
        fprintf(stderr, "dmi-dump: no memory\n");
        text_deinit(&json);
        return DUMP_USAGE;
    }
    tensors_deinit(&ts);
    if (o.json) {
        text_printf(&json, "\n]");
        if (put_json(&json))
            return DUMP_USAGE;
    }
    if (!any) {
        fprintf(stderr, "dmi-dump: nothing was captured under the name %s%s; this run has:", o.site,
                o.by_layer || o.request ? " with that layer and request" : "");
        for (size_t s = 0; s < reader_n_sites(reader); s++)
            if (first_of_name(reader, s) == s)
                fprintf(stderr, " %s", reader_site(reader, s)->name);
        fputc('\n', stderr);
        return DUMP_FAILED;
    }
    if (!shown.n_rows)
        fprintf(stderr,
                "dmi-dump: no row fits --step, --forward and --rows (%" PRIu64
                " rows before --rows)\n",
                shown.n_matching);
    return shown.n_failed || !shown.n_rows ? DUMP_FAILED : DUMP_OK;
}

/* ------------------------------------------------------------------------- stats */

struct site_stats {
    struct layers layers;
    struct reader_account sum;
    uint64_t dropped[DMI_DROP_ROOM]; /* records */
    double stored;
    bool have, holds;
};

static void add_tally(struct dmi_tally *to, const struct dmi_tally *t)
{
    to->records += t->records;
    to->rows += t->rows;
    to->bytes += t->bytes;
}

static void gather_stats(const struct reader *reader, struct site_stats *stats)
{
    const struct dmi_counters *c = reader_run(reader)->counters;
    for (size_t s = 0; s < reader_n_sites(reader); s++) {
        struct site_stats *to = &stats[first_of_name(reader, s)];
        struct reader_account a;
        bool have = reader_account(reader, (uint32_t)s, &a);
        add_tally(&to->sum.found, &a.found);
        add_tally(&to->sum.expected, &a.expected);
        add_tally(&to->sum.counted, &a.counted);
        add_tally(&to->sum.dropped, &a.dropped);
        add_tally(&to->sum.lost, &a.lost);
        to->sum.launches += a.launches;
        to->holds = (!to->have || to->holds) && have && a.holds;
        to->have = true;
        for (uint32_t d = 0; have && d < DMI_DROP_ROOM; d++)
            to->dropped[d] += c->sites[s].dropped[d].records;
    }
    for (size_t i = 0; i < reader_n_records(reader); i++) {
        const struct reader_record *rec = reader_record(reader, i);
        struct site_stats *to = &stats[first_of_name(reader, rec->at.site)];
        layers_add(&to->layers, rec->at.layer);
        to->stored += reader_stored_bytes(reader, rec);
    }
}

static void json_tally(struct text *t, const char *key, const struct dmi_tally *v)
{
    text_printf(
        t, ", \"%s\": {\"records\": %" PRIu64 ", \"rows\": %" PRIu64 ", \"bytes\": %" PRIu64 "}",
        key, v->records, v->rows, v->bytes);
}

static void stats_json(struct text *t, const char *name, const struct site_stats *s,
                       const char *lost_name)
{
    text_printf(t, "{\"site\": ");
    text_json(t, name);
    text_printf(t,
                ", \"layers\": %zu, \"records\": %" PRIu64 ", \"rows\": %" PRIu64
                ", \"raw_bytes\": %" PRIu64 ", \"stored_bytes\": %.0f, \"ratio\": ",
                s->layers.n, s->sum.found.records, s->sum.found.rows, s->sum.found.bytes,
                s->stored);
    text_json_double(t, s->stored > 0 ? (double)s->sum.found.bytes / s->stored : 1.0);
    json_tally(t, "expected", &s->sum.expected);
    json_tally(t, "captured", &s->sum.found);
    json_tally(t, "dropped", &s->sum.dropped);
    json_tally(t, lost_name, &s->sum.lost);
    text_printf(t, ", \"dropped_by_reason\": {");
    bool first = true;
    for (uint32_t d = 0; d < DMI_DROP_ROOM; d++) {
        if (!s->dropped[d])
            continue;
        text_printf(t, "%s\"%s\": %" PRIu64, first ? "" : ", ", dmi_drop_name(d), s->dropped[d]);
        first = false;
    }
    text_printf(t, "}, \"launches\": %" PRIu64 ", \"holds\": %s}", s->sum.launches,
                s->holds ? "true" : "false");
}

static void stats_line(const char *name, const struct site_stats *s)
{
    char raw[24], stored[24], ranges[64];
    layers_text(&s->layers, ranges, sizeof ranges);
    printf("%-18s %-9s %8" PRIu64 " %9" PRIu64 " %10s %10s %6.3f %9" PRIu64 " %8" PRIu64, name,
           ranges, s->sum.found.records, s->sum.found.rows,
           bytes_text((double)s->sum.found.bytes, raw), bytes_text(s->stored, stored),
           s->stored > 0 ? (double)s->sum.found.bytes / s->stored : 1.0, s->sum.expected.records,
           s->sum.dropped.records);
    for (uint32_t d = 0; d < DMI_DROP_ROOM; d++)
        if (s->dropped[d])
            printf(" %s=%" PRIu64, dmi_drop_name(d), s->dropped[d]);
    if (!s->holds)
        printf(" DOES NOT ADD UP");
    putchar('\n');
}

static int dump_stats(struct reader *reader, const struct options *o)
{
    const struct reader_run *run = reader_run(reader);
    size_t n = reader_n_sites(reader);
    struct site_stats *stats = calloc(n + 1, sizeof *stats);
    struct requests requests = { 0 };
    if (!stats || requests_build(reader, &requests)) {
        free(stats);
        fprintf(stderr, "dmi-dump: no memory\n");
        return DUMP_USAGE;
    }
    gather_stats(reader, stats);
    const char *lost_name = run->state == READER_RUNNING ? "in_flight" : "lost_at_kill";
    struct site_stats total = { .holds = true };
    struct text json = { 0 };
    if (o->json) {
        json_run(&json, run);
        text_printf(&json,
                    ",\n  \"forwards\": %" PRIu64 ", \"launches_matched\": %" PRIu64
                    ", \"steps\": %" PRIu64 ",\n  \"sites\": [",
                    run->counters ? run->counters->forwards : 0,
                    run->counters ? run->counters->launches_matched : 0,
                    run->counters ? run->counters->steps : 0);
    } else {
        print_run(reader);
        printf("\n%-18s %-9s %8s %9s %10s %10s %6s %9s %8s\n", "SITE", "LAYERS", "RECORDS", "ROWS",
               "RAW", "STORED", "RATIO", "EXPECTED", "DROPPED");
    }
    bool first = true;
    for (size_t s = 0; s < n; s++) {
        if (first_of_name(reader, s) != s)
            continue;
        if (o->json) {
            text_printf(&json, "%s\n    ", first ? "" : ",");
            stats_json(&json, reader_site(reader, s)->name, &stats[s], lost_name);
        } else {
            stats_line(reader_site(reader, s)->name, &stats[s]);
        }
        first = false;
        add_tally(&total.sum.found, &stats[s].sum.found);
        add_tally(&total.sum.expected, &stats[s].sum.expected);
        add_tally(&total.sum.dropped, &stats[s].sum.dropped);
        add_tally(&total.sum.lost, &stats[s].sum.lost);
        total.stored += stats[s].stored;
        total.holds = total.holds && stats[s].holds;
        for (uint32_t d = 0; d < DMI_DROP_ROOM; d++)
            total.dropped[d] += stats[s].dropped[d];
        free(stats[s].layers.all);
    }
    free(stats);
    if (o->json) {
        text_printf(&json, "],\n  \"total\": ");
        stats_json(&json, "total", &total, lost_name);
        requests_print(&requests, &json);
        json_problems(&json, run);
        text_printf(&json, ",\n  \"holds\": %s,\n  \"findings\": [",
                    total.holds ? "true" : "false");
    } else {
        stats_line("total", &total);
        putchar('\n');
        const struct dmi_tally *f = &total.sum.found;
        if (!run->counters)
            printf("The counters cannot be read: nobody knows what was expected.\n");
        else if (total.holds && run->state == READER_CLOSED)
            printf("captured %" PRIu64 " + dropped %" PRIu64 " = expected %" PRIu64
                   " records, and so in rows and bytes: the account is whole.\n",
                   f->records, total.sum.dropped.records, total.sum.expected.records);
        else if (total.holds)
            printf("captured %" PRIu64 " + dropped %" PRIu64 " + %s %" PRIu64 " = expected %" PRIu64
                   " records: the process %s.\n",
                   f->records, total.sum.dropped.records, lost_name, total.sum.lost.records,
                   total.sum.expected.records,
                   run->state == READER_RUNNING ? "is still running" : "ended without closing");
        else
            printf("captured %" PRIu64 " + dropped %" PRIu64 " IS NOT expected %" PRIu64
                   " (records, rows or bytes): see the lines above and dmi-dump verify.\n",
                   f->records, total.sum.dropped.records, total.sum.expected.records);
        requests_sentence(&requests);
        print_problems(run);
    }
    requests_deinit(&requests);
    size_t n_damage = report_findings(reader, o->json ? &json : NULL);
    if (o->json) {
        text_printf(&json, "]\n}");
        if (put_json(&json))
            return DUMP_USAGE;
    }
    return n_damage || !total.holds ? DUMP_FAILED : DUMP_OK;
}

/* ------------------------------------------------------------------------- verify */

static int dump_verify(struct reader *reader, const struct options *o)
{
    struct text json = { 0 }, *to = o->json ? &json : NULL;
    if (o->json)
        json_run(&json, reader_run(reader));
    if (reader_verify(reader)) {
        fprintf(stderr, "dmi-dump: no memory\n");
        text_deinit(&json);
        return DUMP_USAGE;
    }
    if (o->json)
        text_printf(&json, ",\n  \"findings\": [");
    size_t n_damage = report_findings(reader, to);
    int status = n_damage ? DUMP_FAILED : DUMP_OK;
    if (o->json)
        text_printf(&json, "],\n  \"intact\": %s", n_damage ? "false" : "true");
    else if (n_damage)
        printf("%zu thing%s wrong with %s\n", n_damage, n_damage == 1 ? " is" : "s are",
               reader_run(reader)->path);
    else
        printf("%s: %zu segments, %zu records, all checksums right, the account %s\n",
               reader_run(reader)->path, reader_run(reader)->n_segments, reader_n_records(reader),
               reader_run(reader)->state == READER_CLOSED ? "whole" : "holds (not closed)");
    if (o->against) {
        int compared = dump_compare(reader, o, to);
        status = compared > status ? compared : status;
    }
    if (o->json) {
        text_printf(&json, "\n}");
        if (put_json(&json))
            return DUMP_USAGE;
    }
    return status;
}

/* ------------------------------------------------------------------------- arguments */

static bool parse_range(const char *s, struct range *out)
{
    char *end;
    errno = 0;
    *out = (struct range){ 0, INT64_MAX };
    if (*s != ':') {
        out->first = strtoll(s, &end, 10);
        if (end == s || errno)
            return false;
        if (!*end) {
            out->end = out->first + 1;
            return out->first < INT64_MAX;
        }
        if (*end != ':')
            return false;
        s = end;
    }
    if (!s[1])
        return true;
    out->end = strtoll(s + 1, &end, 10);
    return end != s + 1 && !*end && !errno && out->end >= out->first;
}

enum {
    OPT_JSON = 256,
    OPT_SITE,
    OPT_LAYER,
    OPT_STEP,
    OPT_FORWARD,
    OPT_ROWS,
    OPT_REQUEST,
    OPT_ALL,
    OPT_RECORDS,
    OPT_TENSORS,
    OPT_REQUESTS,
    OPT_AGAINST,
    OPT_TOLERANCE,
    OPT_ROW_TOLERANCE
};

static const struct option long_options[] = {
    { "json", no_argument, NULL, OPT_JSON },
    { "site", required_argument, NULL, OPT_SITE },
    { "layer", required_argument, NULL, OPT_LAYER },
    { "layers", required_argument, NULL, OPT_LAYER },
    { "step", required_argument, NULL, OPT_STEP },
    { "forward", required_argument, NULL, OPT_FORWARD },
    { "rows", required_argument, NULL, OPT_ROWS },
    { "request", required_argument, NULL, OPT_REQUEST },
    { "all", no_argument, NULL, OPT_ALL },
    { "records", no_argument, NULL, OPT_RECORDS },
    { "tensors", no_argument, NULL, OPT_TENSORS },
    { "requests", no_argument, NULL, OPT_REQUESTS },
    { "against", required_argument, NULL, OPT_AGAINST },
    { "tolerance", required_argument, NULL, OPT_TOLERANCE },
    { "row-tolerance", required_argument, NULL, OPT_ROW_TOLERANCE },
    { "format", required_argument, NULL, 'f' },
    { "output", required_argument, NULL, 'o' },
    { "help", no_argument, NULL, 'h' },
    { 0 },
};

static int usage(const char *fmt, const char *what)
{
    fprintf(stderr, "dmi-dump: ");
    fprintf(stderr, fmt, what);
    fprintf(stderr, "\nTry: dmi-dump --help\n");
    return DUMP_USAGE;
}

static bool parse_double(const char *s, double *out)
{
    char *end;
    *out = strtod(s, &end);
    return end != s && !*end && *out >= 0;
}

/* Return: -1 to go on, else an exit status. */
static int parse_arguments(int argc, char **argv, struct options *o)
{
    int c;
    while ((c = getopt_long(argc, argv, "f:o:h", long_options, NULL)) != -1) {
        bool ok = true;
        switch (c) {
        case OPT_JSON: o->json = true; break;
        case OPT_SITE: o->site = optarg; break;
        case OPT_LAYER: ok = o->by_layer = parse_range(optarg, &o->layers); break;
        case OPT_STEP: ok = o->by_step = parse_range(optarg, &o->steps); break;
        case OPT_FORWARD: ok = o->by_forward = parse_range(optarg, &o->forwards); break;
        case OPT_ROWS: ok = o->by_rows = parse_range(optarg, &o->rows); break;
        case OPT_REQUEST: o->request = optarg; break;
        case OPT_ALL: o->all_values = true; break;
        case OPT_RECORDS: o->records = true; break;
        case OPT_TENSORS: o->tensors = true; break;
        case OPT_REQUESTS: o->requests = true; break;
        case OPT_AGAINST: o->against = optarg; break;
        case OPT_TOLERANCE: ok = parse_double(optarg, &o->tolerance); break;
        case OPT_ROW_TOLERANCE: ok = parse_double(optarg, &o->row_tolerance); break;
        case 'f': o->format = optarg; break;
        case 'o': o->output = optarg; break;
        case 'h': fputs(usage_text, stdout); return DUMP_OK;
        default: return usage("unknown option, or one that lacks its value%s", "");
        }
        if (!ok)
            return usage("'%s' is neither a number, nor a range A:B, nor a tolerance", optarg);
    }
    return -1;
}

static const struct command {
    const char *name;
    int (*run)(struct reader *, const struct options *);
    bool takes_site;
} commands[] = {
    { "list", dump_list, false },     { "show", dump_show, true },
    { "stats", dump_stats, false },   { "verify", dump_verify, false },
    { "export", dump_export, false },
};

int main(int argc, char **argv)
{
    struct options o = { .layers = { 0, INT64_MAX },
                         .steps = { 0, INT64_MAX },
                         .forwards = { 0, INT64_MAX },
                         .rows = { 0, INT64_MAX },
                         .format = "safetensors",
                         .tolerance = 3e-3,
                         .row_tolerance = 2e-2 };
    int status = parse_arguments(argc, argv, &o);
    if (status >= 0)
        return status;
    if (optind == argc) {
        fputs(usage_text, stderr);
        return DUMP_USAGE;
    }
    const struct command *command = NULL;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (!strcmp(argv[optind], commands[i].name))
            command = &commands[i];
    if (!command)
        return usage("'%s' is no command: list, show, stats, verify, export", argv[optind]);
    optind++;
    if (command->takes_site) {
        if (optind == argc)
            return usage("%s needs a SITE (dmi-dump list names them) and a RUN", command->name);
        o.site = argv[optind++];
    }
    if (optind == argc)
        return usage("%s needs a RUN: a run's folder, or the --out folder of one run",
                     command->name);
    o.run = argv[optind++];
    if (optind < argc)
        return usage("'%s' is one argument too many", argv[optind]);
    struct err err = { 0 };
    _cleanup_(reader_closep) struct reader *reader = NULL;
    if (reader_open(&err, o.run, &reader)) {
        fprintf(stderr, "dmi-dump: %s\n", err.msg);
        return DUMP_USAGE;
    }
    status = command->run(reader, &o);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "dmi-dump: cannot write the output: %s\n", strerror(errno));
        return DUMP_USAGE;
    }
    return status;
}
