/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sites of a HookSpec. Their keys stand beside struct spec_site in policy/spec.h. Source: docs/hookspec.md.
 */
#include "policy/spec_load.h"

#include "core/cleanup.h"
#include "core/sorted.h"

#include <dmi/dtype.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define OCCURRENCE_MAX 0xfffffffeu
#define LAYERS_CHECKED 4096 /* occurrences whose layers are computed beforehand */

/* ----------------------------------------------------------------------------------------- dims */

/* One entry of dims:, until the strides that it leaves out are known. */
struct raw_dim {
    struct spec_dim dim;
    const struct tree_node *node;
};

static const struct key slots_keys[] = {
    { "pointer", true, value_place, offsetof(struct spec_slots, pointer), NULL },
    { "dtype", true, value_dtype, offsetof(struct spec_slots, dtype), NULL },
    { "block", false, value_expr, offsetof(struct spec_slots, block), RANGE(1, UINT32_MAX) },
    { "block_stride", false, value_expr, offsetof(struct spec_slots, block_stride),
      RANGE(1, INT64_MAX) },
};

static bool dim_slots(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec_slots *slots = into;
    if (!keys_read(l, node, "slots", slots_keys, N_OF(slots_keys), slots))
        return false;
    if (slots->dtype != DMI_DTYPE_I32 && slots->dtype != DMI_DTYPE_I64) {
        loader_complain(l, keys_value(node, "dtype"),
                        "found %s; expected i32 or i64: numbers of slots",
                        dmi_dtype_info(slots->dtype)->name);
        return false;
    }
    if (!slots->block == !slots->block_stride)
        return true;
    loader_complain(
        l, node,
        "found \"%s\" alone; expected \"block\" and \"block_stride\" where there is a gap "
        "after each page, else neither",
        slots->block ? "block" : "block_stride");
    return false;
}

static const struct key dim_keys[] = {
    { "row", false, value_bool, offsetof(struct spec_dim, is_row), NULL },
    { "count", true, value_expr, offsetof(struct spec_dim, count), RANGE(1, UINT32_MAX) },
    { "stride", false, value_expr, offsetof(struct spec_dim, stride), RANGE(0, INT64_MAX) },
    { "slots", false, dim_slots, offsetof(struct spec_dim, slots), NULL },
};

static bool read_dim(struct loader *l, const struct tree_node *node, struct raw_dim *raw)
{
    raw->node = node;
    return keys_read(l, node, "a dimension", dim_keys, N_OF(dim_keys), &raw->dim);
}

/* The product of @counts and the size of an element. Return: NULL, reported at @node, if there is none. */
static struct expr *packed_bytes(struct loader *l, const struct tree_node *node,
                                 const struct expr *const *counts, size_t n_counts, uint32_t dtype)
{
    struct expr *bytes = NULL;
    int rc = expr_product(counts, n_counts, dmi_dtype_bytes(dtype), &bytes);
    if (rc == EXPR_E_OVERFLOW)
        loader_complain(l, node, "found dimensions whose bytes do not fit in 64 bits");
    else if (rc)
        loader_no_memory(l);
    return bytes;
}

/* @raw has no stride, and needs one: in @loose, a dimension within it, memory has gaps. */
static void complain_of_stride(struct loader *l, const struct raw_dim *raw,
                               const struct raw_dim *loose)
{
    const struct tree_node *stride = keys_value(loose->node, "stride");
    if (stride)
        loader_complain(l, raw->node,
                        "found no \"stride\", though the stride at %u:%u is not the "
                        "packed one; expected \"stride: BYTES\" here too",
                        stride->line, stride->column);
    else
        loader_complain(l, raw->node,
                        "found no \"stride\", though the rows at %u:%u lie in any slots; "
                        "expected \"stride: BYTES\" here too",
                        loose->node->line, loose->node->column);
}

/* Fills in the strides that are left out. Dimensions stand in the file's order. */
static void pack_dims(struct loader *l, struct raw_dim *raws, size_t n, uint32_t dtype)
{
    const struct expr *counts[SPEC_MAX_DIMS];
    size_t n_counts = 0;
    const struct raw_dim *loose = NULL; /* the last dimension with gaps, as far as is known */
    for (size_t i = n; i-- > 0; n_counts++) {
        struct raw_dim *raw = &raws[i];
        struct expr *packed = packed_bytes(l, raw->node, counts, n_counts, dtype);
        counts[n_counts] = raw->dim.count;
        if (!packed)
            return;
        if (raw->dim.stride) {
            if (!loose && !expr_same(raw->dim.stride, packed))
                loose = raw;
            expr_free(packed);
        } else {
            raw->dim.stride = packed;
            if (loose)
                complain_of_stride(l, raw, loose);
        }
        if (!loose && raw->dim.slots.dtype)
            loose = raw;
    }
    expr_free(packed_bytes(l, raws[0].node, counts, n_counts, dtype));
}

static bool refuse_slots(struct loader *l, const struct tree_node *dim)
{
    loader_complain(l, keys_value(dim, "slots"),
                    "found slots of another dimension than the rows; expected them with row: true, "
                    "which no other dimension may have then");
    return false;
}

/* Reads the entries of dims:. Return: true if all fit; *@n_rows of them have row: true. */
static bool read_dims(struct loader *l, const struct tree_node *node, struct raw_dim *raws,
                      uint32_t *n_rows)
{
    size_t n = node->n_items;
    *n_rows = 0;
    if (!n)
        loader_complain(l, node,
                        "found no dimension; expected one to %d, one of them with row: true",
                        SPEC_MAX_DIMS);
    bool good = n > 0;
    for (size_t i = 0; i < n; i++) {
        good = read_dim(l, node->items[i], &raws[i]) && good;
        if (raws[i].dim.is_row && ++*n_rows == 3)
            loader_complain(l, node->items[i],
                            "found a third dimension with row: true; expected one, or two as "
                            "of [batch][token]");
    }
    for (size_t i = 0; good && i < n; i++)
        if (raws[i].dim.slots.dtype && (!raws[i].dim.is_row || *n_rows > 1))
            good = refuse_slots(l, raws[i].node);
    if (good && !*n_rows)
        loader_complain(l, node,
                        "found no dimension with row: true; expected one: that along which tokens "
                        "or requests lie");
    return good;
}

static bool site_dims(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec_site *site = into;
    struct raw_dim raws[SPEC_MAX_DIMS] = { 0 };
    if (!keys_list(l, node, "a list of one to four {count: N, stride: BYTES}", SPEC_MAX_DIMS))
        return false;
    size_t n = node->n_items;
    bool good = read_dims(l, node, raws, &site->n_row_dims);
    if (good && site->about.dtype)
        pack_dims(l, raws, n, site->about.dtype);
    /* stored order: the rows first, the others as they are */
    site->n_dims = (uint32_t)n;
    for (size_t i = 0, row = 0, other = site->n_row_dims; i < n; i++)
        site->dims[raws[i].dim.is_row ? row++ : other++] = raws[i].dim;
    return good;
}

/* ------------------------------------------------------------------------- occurrences, layer */

static bool occurrences_expect(struct loader *l, const struct tree_node *node, void *into,
                               const void *arg)
{
    struct spec_site *site = into;
    if (!value_integer(l, node, &site->about.expect, arg))
        return false;
    site->last_occurrence = (uint32_t)(site->about.expect - 1);
    return true;
}

/* from: and to:, up to what expect: allows */
static bool occurrence(struct loader *l, const struct tree_node *node, int64_t expect,
                       uint32_t *out)
{
    int64_t n;
    if (!value_integer(l, node, &n, RANGE(0, expect > 0 ? expect - 1 : OCCURRENCE_MAX)))
        return false;
    *out = (uint32_t)n;
    return true;
}

static bool occurrences_from(struct loader *l, const struct tree_node *node, void *into,
                             const void *arg)
{
    (void)arg;
    struct spec_site *site = into;
    return occurrence(l, node, site->about.expect, &site->first_occurrence);
}

static bool occurrences_to(struct loader *l, const struct tree_node *node, void *into,
                           const void *arg)
{
    (void)arg;
    struct spec_site *site = into;
    return occurrence(l, node, site->about.expect, &site->last_occurrence);
}

static bool occurrences_every(struct loader *l, const struct tree_node *node, void *into,
                              const void *arg)
{
    struct spec_site *site = into;
    int64_t n;
    if (!value_integer(l, node, &n, arg))
        return false;
    site->every_occurrence = (uint32_t)n;
    return true;
}

static const struct key occurrence_keys[] = {
    { "expect", false, occurrences_expect, 0, RANGE(1, OCCURRENCE_MAX) },
    { "from", false, occurrences_from, 0, NULL },
    { "to", false, occurrences_to, 0, NULL },
    { "every", false, occurrences_every, 0, RANGE(1, OCCURRENCE_MAX) },
};

static bool site_occurrences(struct loader *l, const struct tree_node *node, void *into,
                             const void *arg)
{
    (void)arg;
    struct spec_site *site = into;
    bool good = keys_read(l, node, "occurrences", occurrence_keys, N_OF(occurrence_keys), site);
    if (site->first_occurrence <= site->last_occurrence)
        return good;
    loader_complain(l, keys_value(node, "to"), "found \"to\" below \"from\"; expected %u or more",
                    site->first_occurrence);
    return false;
}

/* Return: how many layers can be computed beforehand, 0: none. */
static size_t n_known_layers(const struct spec_site *site)
{
    size_t n = 1;
    if (site->last_occurrence <= OCCURRENCE_MAX)
        n += (site->last_occurrence - site->first_occurrence) / site->every_occurrence;
    else if (!expr_is_constant(site->layer))
        return 0;
    return n <= LAYERS_CHECKED ? n : 0;
}

/* Return: true if *@layer is that of @occurrence; reports otherwise. */
static bool compute_layer(struct loader *l, const struct tree_node *node, const struct expr *e,
                          int64_t occurrence, int64_t *layer)
{
    static const uint32_t zero[3];
    struct expr_env env = { .grid = zero, .block = zero, .occ = occurrence };
    int rc = expr_eval(e, &env, layer);
    if (rc)
        loader_complain(
            l, node, "found no layer for occurrence %lld: %s; expected a value for each",
            (long long)occurrence, rc == EXPR_E_DIVIDE ? "division by zero" : "overflow");
    else if (*layer < 0 || *layer > INT32_MAX)
        loader_complain(l, node, "found layer %lld for occurrence %lld; expected 0 to %d",
                        (long long)*layer, (long long)occurrence, INT32_MAX);
    return !rc && *layer >= 0 && *layer <= INT32_MAX;
}

/* The layer, if it is a constant, and all layers of a site whose occurrences are known. */
static bool check_layers(struct loader *l, const struct tree_node *node,
                         const struct spec_site *site)
{
    size_t n = n_known_layers(site);
    _cleanup_(freep) int64_t *layers = calloc(n + 1, sizeof *layers);
    if (!layers)
        return loader_no_memory(l);
    for (size_t i = 0; i < n; i++)
        if (!compute_layer(l, node, site->layer,
                           site->first_occurrence + (int64_t)i * site->every_occurrence,
                           &layers[i]))
            return false;
    qsort(layers, n, sizeof *layers, order_i64);
    for (size_t i = 1; i < n; i++)
        if (layers[i] == layers[i - 1]) {
            loader_complain(l, node,
                            "found layer %lld for several occurrences; expected a layer of its own "
                            "for each of %u to %u",
                            (long long)layers[i], site->first_occurrence, site->last_occurrence);
            return false;
        }
    return true;
}

static bool site_layer(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct spec_site *site = into;
    site->about.has_layer = true;
    if (nvtx_layer(node, site))
        return true;
    if (!value_expr(l, node, &site->layer, arg))
        return false;
    if (!(expr_uses(site->layer) & EXPR_USES_LAUNCH))
        return check_layers(l, node, site);
    loader_complain(l, node,
                    "found a layer that depends on the launch; expected an expression of occ "
                    "and variables");
    return false;
}

/* ---------------------------------------------------------------------------------------- sites */

static bool site_kernel(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec_site *site = into;
    struct regexes *all = l->spec->regexes;
    char *kernel = NULL;
    bool good = regexes_add(l, node, &kernel, &all->of_site[site->about.id]);
    site->about.kernel = kernel;
    return good;
}

#define KEY(name, required, reader, field, arg)                                                    \
    { name, required, value_##reader, offsetof(struct spec_site, field), arg },
#define PART(name, required, reader) { name, required, site_##reader, 0, NULL },
static const struct key site_keys[] = { SPEC_SITE_KEYS(KEY, PART) };
static const struct key tap_keys[] = { SPEC_TAP_KEYS(KEY, PART) };
#undef KEY
#undef PART
static_assert(N_OF(site_keys) <= KEYS_MAX && N_OF(tap_keys) <= KEYS_MAX,
              "keys_read() has room for them");

static void read_tap(struct loader *l, const struct tree_node *node, struct spec_site *site)
{
    keys_read(l, node, "a tap", tap_keys, N_OF(tap_keys), site);
    if (!site->about.name && site->about.tap && !(site->about.name = strdup(site->about.tap)))
        loader_no_memory(l);
}

static void read_site(struct loader *l, const struct tree_node *node, struct spec_site *site)
{
    site->line = (int)node->line;
    if (node->kind == TREE_MAP && keys_value(node, "tap"))
        read_tap(l, node, site);
    else
        keys_read(l, node, "a site", site_keys, N_OF(site_keys), site);
    select_settle(l, node, site);
    nvtx_settle(l, node, site);
    write_settle(l, node, site);
    if (site->about.name && strstr(site->about.name, "{layer}") && !site->about.has_layer)
        loader_complain(l, keys_value(node, "name"),
                        "found \"{layer}\" in the name of a site without \"layer\"; "
                        "expected \"layer: EXPRESSION\" too");
    site->about.kind = site->kind >= 0 ? l->spec->kinds[site->kind].name : NULL;
}

static void read_one(struct loader *l, const struct tree_node *node)
{
    struct spec *spec = l->spec;
    struct spec_site *site = &spec->sites[spec->n_sites++];
    *site = (struct spec_site){
        .about = { .id = (uint32_t)(site - spec->sites), .expect = -1, .scale = 1 },
        .kind = -1,
        .steps = { .every = 1 },
        .n_row_dims = 1,
        .last_occurrence = UINT32_MAX,
        .every_occurrence = 1,
    };
    ((struct regexes *)spec->regexes)->of_site[site->about.id] = NO_PATTERN;
    read_site(l, node, site);
    check_site_is_new(l, node);
    spec->has_taps = spec->has_taps || site->about.tap;
    spec->has_kernels = spec->has_kernels || site->about.kernel || site->nvtx.pattern;
}

/* Once, or as a place for edits and as what is captured besides. */
static void read_readings(struct loader *l, const struct tree_node *node)
{
    size_t before = l->report.n_lines;
    uint32_t as[WRITE_READINGS];
    size_t n = write_readings(l->spec, node, as);
    for (size_t i = 0; i < n && l->report.n_lines == before; i++) {
        l->reading = as[i];
        read_one(l, node);
    }
    l->reading = SPEC_CAPTURE;
}

/* The sites of an entry, for which there is room: a pattern of taps is one of each. */
static void read_entry(struct loader *l, const struct tree_node *list, const struct tree_node *node)
{
    size_t before = l->report.n_lines;
    bool taps = taps_of(list, node, l->taps, &l->n_taps);
    if (!taps)
        l->n_taps = 0; /* what is wrong is complained of when it is read */
    l->tap = 0;
    if (!taps)
        read_readings(l, node);
    /* one after the other, the first errors are enough */
    for (; l->tap < l->n_taps && l->report.n_lines == before; l->tap++)
        read_readings(l, node);
}

/* How many sites an entry stands for. */
static size_t n_sites_of(const struct spec *spec, const struct tree_node *list,
                         const struct tree_node *node)
{
    const char *taps[TAP_NAMES_MAX];
    uint32_t as[WRITE_READINGS];
    size_t n;
    return (taps_of(list, node, taps, &n) ? n : 1) * write_readings(spec, node, as);
}

bool section_sites(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct spec *spec = into;
    size_t n = 0;
    if (!keys_list(l, node, "a list of sites", SPEC_MAX_SITES))
        return false;
    if (!node->n_items)
        loader_complain(l, node, "found no site; expected one or more");
    for (size_t i = 0; i < node->n_items; i++)
        n += n_sites_of(spec, node, node->items[i]);
    if (n > SPEC_MAX_SITES) {
        loader_complain(l, node, "found %zu sites with those of patterns; expected at most %d", n,
                        SPEC_MAX_SITES);
        return false;
    }
    spec->sites = calloc(n + 1, sizeof *spec->sites);
    if (!spec->sites)
        return loader_no_memory(l);
    for (size_t i = 0; i < node->n_items; i++)
        read_entry(l, node, node->items[i]);
    check_crowd(l, node);
    write_check(l, node);
    check_alike(l, node);
    check_counted_layers(l, node);
    return true;
}
