/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump verify --against: captured rows against reference activations, or sketches of them. */
#include "core/cleanup.h"
#include "tools/dmi_dump.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SKETCH_COLUMNS 8

/* ------------------------------------------------------------------------- sums */

struct compared {
    const struct st_entry *ref; /* NULL: not in the reference */
    bool sketch, bad_shape;
    uint64_t n_compared, n_beyond; /* rows; rows whose position the reference lacks */
    uint64_t n_cached;      /* rows of the reference that the engine took from a prefix cache */
    double err2, base2;     /* sums over rows; base: the reference, for a sketch the captured row */
    double ref2, cap2, dot; /* for the cosine, of sketches where it is one */
    double worst_row;
    int64_t worst_position;
};

/* Number i*8+j of splitmix64 decides the sign; tests/reference/README.md has the formula. */
static double sign_of(uint64_t n)
{
    uint64_t z = (n + 1) * 0x9E3779B97F4A7C15ull + 0x444d49;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return z >> 63 ? -1.0 : 1.0;
}

struct comparer {
    struct reader *reader;
    const struct tensors *tensors;
    struct requests requests;
    struct compared *results; /* one a tensor */
    double *values, *reference;
    double *signs; /* [width][8] */
    uint64_t n_signs, room;
    uint8_t *raw;
    size_t raw_room;
    uint64_t n_unreadable;
};

static int reserve(struct comparer *c, size_t n_bytes, uint64_t width)
{
    if (n_bytes > c->raw_room) {
        uint8_t *raw = realloc(c->raw, n_bytes);
        if (!raw)
            return -ENOMEM;
        c->raw = raw;
        c->raw_room = n_bytes;
    }
    if (width > c->room) {
        double *v = realloc(c->values, width * sizeof *v);
        c->values = v ? v : c->values;
        double *r = v ? realloc(c->reference, width * sizeof *r) : NULL;
        c->reference = r ? r : c->reference;
        if (!r)
            return -ENOMEM;
        c->room = width;
    }
    if (width > c->n_signs) {
        double *s = realloc(c->signs, width * SKETCH_COLUMNS * sizeof *s);
        if (!s)
            return -ENOMEM;
        for (uint64_t n = c->n_signs * SKETCH_COLUMNS; n < width * SKETCH_COLUMNS; n++)
            s[n] = sign_of(n);
        c->signs = s;
        c->n_signs = width;
    }
    return 0;
}

static void project(const double *signs, const double *x, uint64_t width, double *y)
{
    for (int j = 0; j < SKETCH_COLUMNS; j++)
        y[j] = 0;
    for (uint64_t i = 0; i < width; i++)
        for (int j = 0; j < SKETCH_COLUMNS; j++)
            y[j] += x[i] * signs[i * SKETCH_COLUMNS + (uint64_t)j];
    for (int j = 0; j < SKETCH_COLUMNS; j++)
        y[j] /= sqrt((double)SKETCH_COLUMNS);
}

static void compare_row(struct comparer *c, struct compared *r, uint64_t width, int64_t position)
{
    uint64_t n_ref = r->sketch ? SKETCH_COLUMNS : width;
    uint32_t n_element = dmi_dtype_bytes(r->ref->dtype);
    elements_to_double(r->ref->dtype,
                       (const char *)r->ref->data + (uint64_t)position * n_ref * n_element, n_ref,
                       c->reference);
    double sketch[SKETCH_COLUMNS], norm2 = 0;
    const double *x = c->values;
    if (r->sketch) {
        for (uint64_t i = 0; i < width; i++)
            norm2 += c->values[i] * c->values[i];
        project(c->signs, c->values, width, sketch);
        x = sketch;
    }
    double err2 = 0, ref2 = 0, cap2 = 0, dot = 0;
    for (uint64_t i = 0; i < n_ref; i++) {
        double e = x[i] - c->reference[i];
        err2 += e * e;
        ref2 += c->reference[i] * c->reference[i];
        cap2 += x[i] * x[i];
        dot += x[i] * c->reference[i];
    }
    double base2 = r->sketch ? norm2 : ref2;
    double row = err2 > 0 ? sqrt(err2 / base2) : 0; /* infinite where the base is 0 */
    if (isnan(err2))
        row = INFINITY; /* a NaN on one side is a difference, not a comparison that fails */
    if (!r->n_compared || row > r->worst_row) {
        r->worst_row = row;
        r->worst_position = position;
    }
    r->err2 += isnan(err2) ? INFINITY : err2;
    r->base2 += base2;
    r->ref2 += ref2;
    r->cap2 += cap2;
    r->dot += dot;
    r->n_compared++;
}

static double relative_error(const struct compared *r)
{
    return r->err2 > 0 ? sqrt(r->err2 / r->base2) : 0;
}

static double cosine(const struct compared *r)
{
    double n = sqrt(r->cap2) * sqrt(r->ref2);
    return n > 0 ? r->dot / n : r->err2 > 0 ? 0 : 1;
}

static int compare_piece(struct comparer *c, const struct tensor *t, struct compared *r,
                         const struct piece *p)
{
    const struct reader_record *rec = reader_record(c->reader, p->record);
    if (reserve(c, rec->at.n_bytes + 1, t->width > SKETCH_COLUMNS ? t->width : SKETCH_COLUMNS))
        return -ENOMEM;
    struct err err = { 0 };
    int res = reader_decode(&err, c->reader, rec, c->raw);
    if (res) {
        c->n_unreadable++;
        fprintf(stderr, "dmi-dump: DAMAGED: %s\n", err.msg);
        return res == -ENOMEM ? res : 0;
    }
    double scale = reader_site(c->reader, rec->at.site)->scale;
    uint64_t n_row = t->width * dmi_dtype_bytes(t->dtype);
    for (uint32_t i = 0; i < p->n_rows; i++) {
        int64_t position = p->position + i;
        if (p->position < 0 || (uint64_t)position >= r->ref->dims[0]) {
            r->n_beyond++;
            continue;
        }
        elements_to_double(t->dtype, c->raw + (p->first_row + i) * n_row, t->width, c->values);
        for (uint64_t k = 0; k < t->width && scale != 1.0 && scale != 0.0; k++)
            c->values[k] /= scale;
        compare_row(c, r, t->width, position);
    }
    return 0;
}

/* A piece of work: pieces in the order of their records, so that each block is decoded once. */
struct work {
    size_t record, tensor, piece;
};

static int work_order(const void *pa, const void *pb)
{
    const struct work *a = pa, *b = pb;
    return a->record < b->record ? -1 : a->record > b->record;
}

static int compare_all(struct comparer *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->tensors->n; i++)
        n += c->results[i].ref && !c->results[i].bad_shape ? c->tensors->all[i].n_pieces : 0;
    _cleanup_(freep) struct work *work = calloc(n + 1, sizeof *work);
    if (!work)
        return -ENOMEM;
    size_t at = 0;
    for (size_t i = 0; i < c->tensors->n; i++)
        for (size_t p = 0;
             c->results[i].ref && !c->results[i].bad_shape && p < c->tensors->all[i].n_pieces; p++)
            work[at++] = (struct work){ c->tensors->all[i].pieces[p].record, i, p };
    qsort(work, n, sizeof *work, work_order);
    for (size_t i = 0; i < n; i++) {
        const struct tensor *t = &c->tensors->all[work[i].tensor];
        int r = compare_piece(c, t, &c->results[work[i].tensor], &t->pieces[work[i].piece]);
        if (r)
            return r;
    }
    return 0;
}

/* ------------------------------------------------------------------------- matching names */

/* The only request that the reference's keys name; NULL if there are none or several. */
static char *only_request(const struct safetensors *st)
{
    const char *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < st->n; i++) {
        const char *slash = strrchr(st->entries[i].key, '/');
        size_t len = slash ? (size_t)(slash - st->entries[i].key) : 0;
        if (first && (len != n || memcmp(first, st->entries[i].key, n)))
            return NULL;
        first = st->entries[i].key;
        n = len;
    }
    return n ? strndup(first, n) : NULL;
}

/* Tokens of a tensor's request that were taken from a prefix cache; rows that are tokens have none for them. */
static uint64_t cached_rows(const struct comparer *c, const struct tensor *t,
                            const struct alias *alias)
{
    if (!t->request || t->site->row != DMI_ROW_TOKEN)
        return 0;
    bool renamed = alias && t->n_request == strlen(alias->name) &&
                   !memcmp(t->request, alias->name, t->n_request);
    const struct request *r = requests_find(&c->requests, renamed ? alias->id : t->request,
                                            renamed ? alias->n_id : t->n_request);
    return r ? r->n_cached : 0;
}

/* @chosen: only this request, NULL: all. @alias: what it is called in the run, NULL: the same */
static void match(struct comparer *c, const struct safetensors *st, const char *chosen,
                  const struct alias *alias)
{
    for (size_t i = 0; i < c->tensors->n; i++) {
        const struct tensor *t = &c->tensors->all[i];
        struct compared *r = &c->results[i];
        if (chosen && c->tensors->by_request &&
            (t->n_request != strlen(chosen) || memcmp(t->request, chosen, t->n_request)))
            continue;
        r->ref = safetensors_find(st, t->key);
        if (!r->ref)
            continue;
        uint64_t width = 1;
        for (uint32_t d = 1; d < r->ref->n_dims; d++)
            width *= r->ref->dims[d];
        r->sketch = width == SKETCH_COLUMNS && t->width > SKETCH_COLUMNS;
        r->n_cached = cached_rows(c, t, alias);
        r->bad_shape = !r->ref->n_dims || t->mixed || (!r->sketch && width != t->width);
    }
}

/* ------------------------------------------------------------------------- report */

static bool passes(const struct compared *r, const struct options *o)
{
    return !r->bad_shape && r->n_compared && relative_error(r) <= o->tolerance &&
           r->worst_row <= o->row_tolerance;
}

struct site_sum {
    uint64_t n_tensors, n_layers, n_rows, n_ref_rows, n_cached, n_failed;
    double worst, worst_row, least_cosine;
    const struct tensor *worst_at;
    bool sketch;
};

static void sum_site(const struct comparer *c, const struct dmi_site *site, const struct options *o,
                     struct site_sum *s)
{
    *s = (struct site_sum){ .least_cosine = 1 };
    int32_t last_layer = INT32_MIN;
    for (size_t i = 0; i < c->tensors->n; i++) {
        const struct tensor *t = &c->tensors->all[i];
        const struct compared *r = &c->results[i];
        if (t->order != site->id || !r->ref)
            continue;
        s->n_tensors++;
        s->n_failed += !passes(r, o);
        if (t->layer > last_layer) {
            s->n_layers++;
            last_layer = t->layer;
        }
        if (r->bad_shape)
            continue;
        s->n_rows += r->n_compared;
        s->n_ref_rows += r->ref->dims[0];
        s->n_cached += r->n_cached;
        s->sketch = r->sketch;
        if (!r->n_compared)
            continue;
        double e = relative_error(r), cos = cosine(r);
        if (!s->worst_at || e > s->worst || isnan(e)) {
            s->worst = e;
            s->worst_at = t;
        }
        s->worst_row = r->worst_row > s->worst_row ? r->worst_row : s->worst_row;
        s->least_cosine = cos < s->least_cosine ? cos : s->least_cosine;
    }
}

static bool first_entry_of_name(const struct comparer *c, const struct dmi_site *site)
{
    for (uint32_t i = 0; i < site->id; i++)
        if (!strcmp(reader_site(c->reader, i)->name, site->name))
            return false;
    return true;
}

static void print_sites(const struct comparer *c, const struct options *o, struct text *json)
{
    if (json)
        text_printf(json, ",\n  \"sites\": [");
    else
        printf("\n%-16s %7s %8s %15s %8s %11s %11s %12s  %s\n", "SITE", "LAYERS", "TENSORS",
               "ROWS COMPARED", "CACHED", "WORST ERROR", "WORST ROW", "LEAST COSINE",
               "WORST TENSOR");
    bool first = true;
    for (size_t i = 0; i < reader_n_sites(c->reader); i++) {
        const struct dmi_site *site = reader_site(c->reader, i);
        struct site_sum s;
        if (!first_entry_of_name(c, site))
            continue;
        sum_site(c, site, o, &s);
        if (!s.n_tensors)
            continue;
        if (json) {
            text_printf(json, "%s\n    {\"site\": ", first ? "" : ",");
            text_json(json, site->name);
            text_printf(json,
                        ", \"layers\": %" PRIu64 ", \"tensors\": %" PRIu64 ", \"rows\": %" PRIu64
                        ", \"reference_rows\": %" PRIu64 ", \"cached_rows\": %" PRIu64
                        ", \"worst_error\": ",
                        s.n_layers, s.n_tensors, s.n_rows, s.n_ref_rows, s.n_cached);
            text_json_double(json, s.worst);
            text_printf(json, ", \"worst_row\": ");
            text_json_double(json, s.worst_row);
            text_printf(json, ", \"least_cosine\": ");
            text_json_double(json, s.least_cosine);
            text_printf(json, ", \"worst_tensor\": ");
            text_json(json, s.worst_at ? s.worst_at->key : NULL);
            text_printf(json, ", \"sketch\": %s, \"failed\": %" PRIu64 "}",
                        s.sketch ? "true" : "false", s.n_failed);
        } else {
            char rows[48];
            snprintf(rows, sizeof rows, "%" PRIu64 "/%" PRIu64, s.n_rows, s.n_ref_rows);
            printf("%-16s %7" PRIu64 " %8" PRIu64 " %15s %8" PRIu64
                   " %11.2e %11.2e %12.7f  %s%s%s\n",
                   site->name, s.n_layers, s.n_tensors, rows, s.n_cached, s.worst, s.worst_row,
                   s.least_cosine, s.worst_at ? s.worst_at->key : "-", s.sketch ? " (sketch)" : "",
                   s.n_failed ? "  DIFFERS" : "");
        }
        first = false;
    }
    if (json)
        text_printf(json, "]");
}

static void json_tensor(struct text *json, const struct tensor *t, const struct compared *r,
                        bool passed, bool first)
{
    text_printf(json, "%s\n    {\"key\": ", first ? "" : ",");
    text_json(json, t->key);
    text_printf(json, ", \"error\": ");
    text_json_double(json, r->bad_shape ? NAN : relative_error(r));
    text_printf(json, ", \"worst_row\": ");
    text_json_double(json, r->worst_row);
    text_printf(json, ", \"worst_position\": %" PRId64 ", \"cosine\": ", r->worst_position);
    text_json_double(json, r->bad_shape || !r->n_compared ? NAN : cosine(r));
    text_printf(json,
                ", \"rows\": %" PRIu64 ", \"reference_rows\": %" PRIu64
                ", \"cached_rows\": %" PRIu64 ", \"rows_beyond_reference\": %" PRIu64
                ", \"sketch\": %s, \"passes\": %s}",
                r->n_compared, r->ref->n_dims ? r->ref->dims[0] : 0, r->n_cached, r->n_beyond,
                r->sketch ? "true" : "false", passed ? "true" : "false");
}

static uint64_t print_failures(const struct comparer *c, const struct options *o, struct text *json)
{
    uint64_t n_failed = 0, n_told = 0;
    bool first = true;
    if (json)
        text_printf(json, ",\n  \"tensors\": [");
    for (size_t i = 0; i < c->tensors->n; i++) {
        const struct tensor *t = &c->tensors->all[i];
        const struct compared *r = &c->results[i];
        if (!r->ref)
            continue;
        bool passed = passes(r, o);
        n_failed += !passed;
        if (json) {
            json_tensor(json, t, r, passed, first);
            first = false;
        } else if (!passed && n_told++ < 20) {
            if (r->bad_shape)
                printf("DIFFERS %s: captured %" PRIu64 " wide%s, the reference has another shape\n",
                       t->key, t->width, t->mixed ? " (and changing)" : "");
            else if (!r->n_compared)
                printf("DIFFERS %s: no row could be compared (%" PRIu64
                       " rows lie beyond the reference)\n",
                       t->key, r->n_beyond);
            else
                printf("DIFFERS %s: error %.2e of its norm, worst row %.2e at position %" PRId64
                       ", cosine %.7f\n",
                       t->key, relative_error(r), r->worst_row, r->worst_position, cosine(r));
        }
    }
    if (json)
        text_printf(json, "]");
    else if (n_told > 20)
        printf("... and %" PRIu64 " more\n", n_told - 20);
    return n_failed;
}

/* "attn_out.0, attn_out.1, ..." by name without layer and request: a line a site. */
static void print_one_sided(const char *title, const char *json_key, char **names,
                            const uint64_t *counts, size_t n, struct text *json)
{
    if (json)
        text_printf(json, ",\n  \"%s\": {", json_key);
    for (size_t i = 0; i < n; i++) {
        if (json) {
            text_printf(json, i ? ", " : "");
            text_json(json, names[i]);
            text_printf(json, ": %" PRIu64, counts[i]);
        } else {
            printf("%s%s (%" PRIu64 ")%s", i ? ", " : title, names[i], counts[i],
                   i + 1 == n ? "\n" : "");
        }
    }
    if (json)
        text_printf(json, "}");
}

struct names {
    char **all;
    uint64_t *counts;
    size_t n, room;
};

static int names_add(struct names *l, const char *name, size_t n_name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strlen(l->all[i]) == n_name && !memcmp(l->all[i], name, n_name)) {
            l->counts[i]++;
            return 0;
        }
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 32;
        char **all = realloc(l->all, room * sizeof *all);
        l->all = all ? all : l->all;
        uint64_t *counts = all ? realloc(l->counts, room * sizeof *counts) : NULL;
        l->counts = counts ? counts : l->counts;
        if (!counts)
            return -ENOMEM;
        l->room = room;
    }
    if (!(l->all[l->n] = strndup(name, n_name)))
        return -ENOMEM;
    l->counts[l->n++] = 1;
    return 0;
}

static void names_deinit(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->all[i]);
    free(l->all);
    free(l->counts);
}

/* SITE of a key REQUEST/SITE.LAYER */
static size_t site_part(const char *key, const char **site)
{
    const char *slash = strrchr(key, '/');
    *site = slash ? slash + 1 : key;
    size_t n = strlen(*site);
    size_t digits = n;
    while (digits && (*site)[digits - 1] >= '0' && (*site)[digits - 1] <= '9')
        digits--;
    return digits && digits < n && (*site)[digits - 1] == '.' ? digits - 1 : n;
}

static int key_pointer_order(const void *pa, const void *pb)
{
    return strcmp(*(const char *const *)pa, *(const char *const *)pb);
}

/* Whether the reference holds anything of a captured request. */
static bool is_known(const struct safetensors *st, const struct tensor *t)
{
    for (size_t i = 0; t->request && i < st->n; i++)
        if (!strncmp(st->entries[i].key, t->key, (size_t)(t->name - t->key)))
            return true;
    return !t->request;
}

/* Whether the run holds anything of the request that a key of the reference begins with. */
static bool is_served(const struct tensors *ts, const char *key, size_t n_request)
{
    if (!n_request)
        return true;
    for (size_t i = 0; i < ts->n; i++)
        if (ts->all[i].request && (size_t)(ts->all[i].name - ts->all[i].key) == n_request + 1 &&
            !memcmp(ts->all[i].key, key, n_request))
            return true;
    return false;
}

static int report_one_sided(const struct comparer *c, const struct safetensors *st,
                            struct text *json)
{
    _cleanup_(names_deinit) struct names absent = { 0 }, extra = { 0 }, unserved = { 0 },
                                         unknown = { 0 };
    _cleanup_(freep) const char **keys = calloc(c->tensors->n + 1, sizeof *keys);
    if (!keys)
        return -ENOMEM;
    int r = 0;
    const char *site;
    for (size_t i = 0; !r && i < c->tensors->n; i++) {
        keys[i] = c->tensors->all[i].key;
        const struct tensor *t = &c->tensors->all[i];
        if (!c->results[i].ref && !is_known(st, t)) {
            r = names_add(&unknown, t->key, (size_t)(t->name - t->key) - 1);
        } else if (!c->results[i].ref) {
            size_t n = site_part(t->key, &site);
            r = names_add(&extra, site, n);
        }
    }
    qsort(keys, c->tensors->n, sizeof *keys, key_pointer_order);
    for (size_t i = 0; !r && i < st->n; i++) {
        const char *key = st->entries[i].key;
        if (c->tensors->n && bsearch(&key, keys, c->tensors->n, sizeof *keys, key_pointer_order))
            continue;
        size_t n = site_part(key, &site);
        size_t n_request = site > key ? (size_t)(site - key - 1) : 0;
        r = is_served(c->tensors, key, n_request) ? names_add(&absent, site, n)
                                                  : names_add(&unserved, key, n_request);
    }
    if (r)
        return r;
    print_one_sided("Requests of the reference that the run does not hold (tensors): ",
                    "requests_not_in_run", unserved.all, unserved.counts, unserved.n, json);
    print_one_sided("Requests of the run that the reference does not hold (tensors): ",
                    "requests_not_in_reference", unknown.all, unknown.counts, unknown.n, json);
    print_one_sided("In the reference, not captured (tensors): ", "not_captured", absent.all,
                    absent.counts, absent.n, json);
    print_one_sided("Captured, not in the reference (tensors): ", "not_in_reference", extra.all,
                    extra.counts, extra.n, json);
    return 0;
}

static int report(struct comparer *c, const struct safetensors *st, const struct options *o,
                  struct text *json)
{
    uint64_t n_compared = 0;
    for (size_t i = 0; i < c->tensors->n; i++)
        n_compared += c->results[i].ref != NULL;
    print_sites(c, o, json);
    if (!json)
        putchar('\n');
    uint64_t n_failed = print_failures(c, o, json);
    if (report_one_sided(c, st, json))
        return -ENOMEM;
    bool good = n_compared && !n_failed && !c->n_unreadable && !c->tensors->n_short;
    if (json) {
        text_printf(
            json,
            ",\n  \"compared\": %" PRIu64 ", \"failed\": %" PRIu64 ", \"short_records\": %" PRIu64
            ", \"unreadable_records\": %" PRIu64 ", \"agrees\": %s",
            n_compared, n_failed, c->tensors->n_short, c->n_unreadable, good ? "true" : "false");
        return good ? DUMP_OK : DUMP_FAILED;
    }
    if (c->tensors->n_short)
        printf("%" PRIu64 " records have fewer rows than their forward has tokens: rows are "
               "missing.\n",
               c->tensors->n_short);
    if (!n_compared)
        printf("Nothing could be compared: no tensor of the run has a name that %s knows. %s\n",
               o->against,
               c->tensors->by_request
                   ? "dmi-dump list --tensors shows the names."
                   : "The run has no request ids: say with --request which of the reference's "
                     "requests it is.");
    else if (good)
        printf("All %" PRIu64
               " tensors agree with the reference: error <= %g of the norm, <= %g in "
               "any row.\n",
               n_compared, o->tolerance, o->row_tolerance);
    else
        printf("%" PRIu64 " of %" PRIu64 " tensors differ from the reference (allowed: %g of the "
               "norm, %g in any row).\n",
               n_failed, n_compared, o->tolerance, o->row_tolerance);
    return good ? DUMP_OK : DUMP_FAILED;
}

int dump_compare(struct reader *reader, const struct options *o, struct text *json)
{
    struct err err = { 0 };
    _cleanup_(safetensors_deinit) struct safetensors st = { 0 };
    if (safetensors_open(&err, o->against, &st)) {
        fprintf(stderr, "dmi-dump: %s\n", err.msg);
        return DUMP_USAGE;
    }
    _cleanup_(freep) char *only = only_request(&st);
    _cleanup_(tensors_deinit) struct tensors ts = { 0 };
    struct comparer c = { .reader = reader, .tensors = &ts };
    int status = DUMP_USAGE;
    /* --request ID=NAME */
    const char *equals = o->request ? strchr(o->request, '=') : NULL;
    const char *chosen = equals ? equals + 1 : o->request;
    struct alias alias = { o->request, equals ? (size_t)(equals - o->request) : 0, chosen };
    int r = tensors_build(reader, chosen ? chosen : only, equals ? &alias : NULL, &ts);
    if (!r && !(c.results = calloc(ts.n + 1, sizeof *c.results)))
        r = -ENOMEM;
    if (!r)
        r = requests_build(reader, &c.requests);
    if (!r) {
        match(&c, &st, chosen, equals ? &alias : NULL);
        r = compare_all(&c);
    }
    if (!r)
        status = r = report(&c, &st, o, json);
    if (r < 0)
        fprintf(stderr, "dmi-dump: %s\n", strerror(-r));
    requests_deinit(&c.requests);
    free(c.results);
    free(c.raw);
    free(c.values);
    free(c.reference);
    free(c.signs);
    return r < 0 ? DUMP_USAGE : status;
}
