/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sites of one name: readers make one tensor of a request and a layer of all of them. A scale, a meaning of rows and a shard
 * are taken from the entry of each record, so sites that differ in them are only warned of. Rows of several element types or
 * widths are no tensor. Source: docs/hookspec.md, "Sites of one name".
 */
#include "policy/spec_load.h"

#include "core/cleanup.h"
#include "core/sorted.h"
#include "core/words.h"

#include <dmi/dtype.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_TRIED 256  /* of a site whose layers are computed */
#define MOST_PAIRS   8192 /* of sites whose layers are compared */

/* May rows of both be of one tensor? */
enum meeting { APART, PERHAPS, TOGETHER };

/* ------------------------------------------------------------------------- the layers of a site */

struct layers_tried {
    int64_t at[LAYERS_TRIED]; /* ascending */
    size_t n;
    bool all; /* it has no others */
};

static void compute_layers(const struct spec_site *site, struct layers_tried *out)
{
    static const uint32_t zero[3];
    uint64_t last = expr_is_constant(site->layer) ? site->first_occurrence : site->last_occurrence;
    uint64_t occ = site->first_occurrence;
    out->n = 0;
    for (; occ <= last && out->n < LAYERS_TRIED; occ += site->every_occurrence) {
        struct expr_env env = { .grid = zero, .block = zero, .occ = (int64_t)occ };
        if (!expr_eval(site->layer, &env, &out->at[out->n]))
            out->n++;
        else
            break;
    }
    out->all = occ > last;
    qsort(out->at, out->n, sizeof out->at[0], order_i64);
}

static enum meeting layers_in_common(const struct spec_site *a, const struct spec_site *b)
{
    _cleanup_(freep) struct layers_tried *x = malloc(2 * sizeof *x);
    if (!x)
        return PERHAPS;
    struct layers_tried *y = x + 1;
    compute_layers(a, x);
    compute_layers(b, y);
    enum meeting meeting = x->all && y->all ? APART : PERHAPS;
    for (size_t i = 0, k = 0; i < x->n && k < y->n && meeting != TOGETHER;) {
        if (x->at[i] == y->at[k])
            meeting = TOGETHER;
        else if (x->at[i] < y->at[k])
            i++;
        else
            k++;
    }
    return meeting;
}

/* ------------------------------------------------------------------------- two sites */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

/* Do they choose requests alike? Else it may be that no request has rows of both. */
static bool same_requests(const struct spec *spec, const struct spec_site *a,
                          const struct spec_site *b)
{
    static const struct select all;
    const struct select *x = a->select == SPEC_NO_SELECT ? &all : &spec->selects[a->select];
    const struct select *y = b->select == SPEC_NO_SELECT ? &all : &spec->selects[b->select];
    return same_text(x->requests, y->requests) && same_text(x->tag, y->tag);
}

static enum meeting meet(const struct spec *spec, const struct spec_site *a,
                         const struct spec_site *b, size_t *n_pairs)
{
    if (a->about.tap && b->about.tap)
        return layers_meet(&a->layers, &b->layers) ? PERHAPS : APART;
    if (a->about.tap || b->about.tap)
        return PERHAPS; /* a tap says its layer when it is called */
    if (a->about.has_layer != b->about.has_layer)
        return APART;
    enum meeting meeting = TOGETHER;
    if (a->about.has_layer)
        meeting =
            a->layer && b->layer && ++*n_pairs <= MOST_PAIRS ? layers_in_common(a, b) : PERHAPS;
    /* of two kernels a run may launch one alone */
    bool sure = same_kernels(a, b) && same_requests(spec, a, b);
    return meeting == TOGETHER && !sure ? PERHAPS : meeting;
}

/* Elements of a row on this rank; 0: not known before the launch. */
static int64_t row_elements(const struct spec_site *site)
{
    int64_t n = site->n_dims != 0;
    for (uint32_t d = site->n_row_dims; d < site->n_dims; d++)
        if (!expr_is_constant(site->dims[d].count) ||
            __builtin_mul_overflow(n, expr_constant(site->dims[d].count), &n))
            return 0;
    return n;
}

bool spec_same_shard(const struct dmi_site *a, const struct dmi_site *b)
{
    return a->shard == b->shard && a->shard_dim == b->shard_dim && a->shard_axis == b->shard_axis;
}

/* ------------------------------------------------------------------------- what is said of them */

/* What a site says, as the file spells it. */
struct said_value {
    char text[64];
};

static struct said_value scale_said(const struct spec_site *site)
{
    struct said_value s;
    snprintf(s.text, sizeof s.text, "scale %.9g", site->about.scale);
    return s;
}

static struct said_value row_said(const struct spec_site *site)
{
    struct said_value s;
    snprintf(s.text, sizeof s.text, "\"row: %s\"", dmi_row_name(site->about.row));
    return s;
}

static struct said_value shard_said(const struct spec_site *site)
{
    struct said_value s = { "no shard" };
    const char *axis = dmi_axis_name(site->about.shard_axis);
    if (site->about.shard == DMI_SHARD_DIM)
        snprintf(s.text, sizeof s.text, "\"shard: {dim: %u, of: %s}\"", site->about.shard_dim,
                 axis);
    else if (site->about.shard == DMI_SHARD_SUM)
        snprintf(s.text, sizeof s.text, "\"shard: {sum: %s}\"", axis);
    return s;
}

static struct said_value dtype_said(const struct spec_site *site)
{
    struct said_value s;
    snprintf(s.text, sizeof s.text, "dtype %s", dmi_dtype_info(site->about.dtype)->name);
    return s;
}

static struct said_value width_said(const struct spec_site *site)
{
    struct said_value s;
    snprintf(s.text, sizeof s.text, "rows of %lld elements", (long long)row_elements(site));
    return s;
}

static bool scales_differ(const struct spec_site *a, const struct spec_site *b)
{
    return a->about.scale != b->about.scale;
}

static bool rows_differ(const struct spec_site *a, const struct spec_site *b)
{
    return a->about.row != b->about.row;
}

static bool shards_differ(const struct spec_site *a, const struct spec_site *b)
{
    return !spec_same_shard(&a->about, &b->about);
}

static bool dtypes_differ(const struct spec_site *a, const struct spec_site *b)
{
    return a->about.dtype && b->about.dtype && a->about.dtype != b->about.dtype;
}

/* Parts of ranks that are put together in other ways differ rightly. */
static bool widths_differ(const struct spec_site *a, const struct spec_site *b)
{
    int64_t x = row_elements(a), y = row_elements(b);
    return x && y && x != y && spec_same_shard(&a->about, &b->about);
}

#define EACH_BY_ITS_OWN                                                                            \
    "expected one for all sites of a name, or another name: readers take that of each record's "   \
    "own entry, and "
static const struct alike_check {
    bool (*differ)(const struct spec_site *a, const struct spec_site *b);
    struct said_value (*said)(const struct spec_site *site);
    bool is_tensor; /* readers make a tensor of both all the same */
    const char *expected;
} subjects[] = {
    { scales_differ, scale_said, true,
      EACH_BY_ITS_OWN "files that can say only one scale leave the tensor out" },
    { rows_differ, row_said, true, EACH_BY_ITS_OWN "lists show the first entry's" },
    { shards_differ, shard_said, true, EACH_BY_ITS_OWN "lists show the first entry's" },
    { dtypes_differ, dtype_said, false,
      "expected one for a layer, or another name: no reader makes a tensor of both" },
    { widths_differ, width_said, false,
      "expected one for a layer, or another name: no reader makes a tensor of both" },
};

/* The site before @site that differs in the subject, and whose rows may be of one tensor with its; the surest. */
static const struct spec_site *other_of(const struct spec *spec, const struct spec_site *site,
                                        const struct alike_check *subject, enum meeting *surest,
                                        size_t *n_pairs)
{
    const struct spec_site *found = NULL;
    *surest = APART;
    for (const struct spec_site *s = spec->sites; s < site && *surest != TOGETHER; s++) {
        if (!s->about.name || strcmp(s->about.name, site->about.name) || !subject->differ(s, site))
            continue;
        enum meeting meeting = meet(spec, s, site, n_pairs);
        if (meeting <= *surest)
            continue;
        *surest = meeting;
        found = s;
    }
    return found;
}

/* A warning that several sites deserve: the first of them is named. */
struct warning {
    const struct alike_check *subject;
    struct said_value said, other_said;
    const struct spec_site *site, *other;
    size_t n_more;
};

struct warnings {
    struct warning all[REPORT_MAX + 1];
    size_t n;
};

static void add_warning(struct warnings *w, const struct warning *warning)
{
    size_t i = 0;
    while (i < w->n && (w->all[i].subject != warning->subject ||
                        strcmp(w->all[i].said.text, warning->said.text) ||
                        strcmp(w->all[i].other_said.text, warning->other_said.text)))
        i++;
    if (i < w->n)
        w->all[i].n_more++;
    else if (w->n < N_OF(w->all))
        w->all[w->n++] = *warning;
}

static void tell(struct loader *l, const struct tree_node *list, const struct warning *w)
{
    char more[64] = "";
    if (w->n_more)
        snprintf(more, sizeof more, "; so %s %zu more %s", word_for(w->n_more, "does", "do"),
                 w->n_more, word_for(w->n_more, "site", "sites"));
    loader_warn(l, entry_of(list, w->site),
                "found the site \"%s\" with %s, and with %s at line %d%s; %s", w->site->about.name,
                w->said.text, w->other_said.text, w->other->line, more, w->subject->expected);
}

/* One site in one subject. */
static void check_site(struct loader *l, const struct tree_node *list, const struct spec_site *site,
                       const struct alike_check *subject, size_t *n_pairs,
                       struct warnings *warnings)
{
    enum meeting surest;
    const struct spec_site *other = other_of(l->spec, site, subject, &surest, n_pairs);
    if (!other)
        return;
    struct warning w = { subject, subject->said(site), subject->said(other), site, other, 0 };
    if (subject->is_tensor || surest != TOGETHER)
        add_warning(warnings, &w);
    else
        loader_complain(
            l, entry_of(list, site), "found the site \"%s\" with %s, and with %s at line %d; %s",
            site->about.name, w.said.text, w.other_said.text, other->line, subject->expected);
}

void check_alike(struct loader *l, const struct tree_node *list)
{
    const struct spec *spec = l->spec;
    _cleanup_(freep) struct warnings *warnings = NULL;
    size_t n_pairs = 0;
    if (l->report.n_lines)
        return; /* what is wrong was not read */
    if (!(warnings = calloc(1, sizeof *warnings))) {
        loader_no_memory(l);
        return;
    }
    for (uint32_t i = 1; i < spec->n_sites; i++)
        for (size_t k = 0; k < N_OF(subjects); k++)
            check_site(l, list, &spec->sites[i], &subjects[k], &n_pairs, warnings);
    for (size_t i = 0; i < warnings->n; i++)
        tell(l, list, &warnings->all[i]);
}
