/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/activations.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "storage/elements.h"
#include "tools/sites/printable.h"

#include <dmi/dtype.h>

#include <math.h>
#include <string.h>

#define MAX_WIDTH (1u << 22)
#define MAX_ROWS  (1u << 20)

static int no_memory(struct err *err)
{
    return err_set(err, -ENOMEM, "no memory");
}

/* ------------------------------------------------------------------------- keys */

/* REQUEST/SITE.LAYER in its parts; @key is cut. Return: false if it is no such key. */
static bool split_key(char *key, const char **request, const char **site, int *layer)
{
    char *slash = strrchr(key, '/');
    *request = slash ? key : "";
    *site = slash ? slash + 1 : key;
    *layer = REF_NO_LAYER;
    if (slash)
        *slash = 0;
    char *dot = strrchr((char *)*site, '.');
    if (dot && dot[1] && strspn(dot + 1, "0123456789") == strlen(dot + 1) && strlen(dot + 1) < 6) {
        *layer = atoi(dot + 1);
        *dot = 0;
    }
    return **site != 0;
}

static bool is_whole(uint32_t dtype)
{
    return dtype >= DMI_DTYPE_I8 && dtype <= DMI_DTYPE_U64;
}

static int site_of(struct err *err, struct activations *ref, const char *name, uint32_t width,
                   bool whole, uint32_t *out)
{
    for (*out = 0; *out < ref->n_sites; (*out)++)
        if (!strcmp(ref->sites[*out].name, name))
            return ref->sites[*out].width == width
                       ? 0
                       : err_set(err, -EINVAL, "%s has rows of %u and of %u elements", name,
                                 ref->sites[*out].width, width);
    char *own = strdup(name);
    if (!own ||
        grow((void **)&ref->sites, ref->n_sites, &ref->room_sites, sizeof *ref->sites, 32)) {
        free(own);
        return no_memory(err);
    }
    ref->sites[ref->n_sites++] = (struct ref_site){ .name = own, .width = width, .whole = whole };
    return 0;
}

static int request_of(struct err *err, struct activations *ref, const char *name, uint32_t *out)
{
    for (*out = 0; *out < ref->n_requests; (*out)++)
        if (!strcmp(ref->requests[*out].name, name))
            return 0;
    char *own = strdup(name);
    if (!own || grow((void **)&ref->requests, ref->n_requests, &ref->room_requests,
                     sizeof *ref->requests, 8)) {
        free(own);
        return no_memory(err);
    }
    ref->requests[ref->n_requests++] = (struct ref_request){ .name = own };
    return 0;
}

/* ------------------------------------------------------------------------- tensors */

static float *values_of(const struct st_entry *e, size_t n)
{
    _cleanup_(freep) double *wide = malloc((n + 1) * sizeof *wide);
    float *values = malloc((n + 1) * sizeof *values);
    if (!wide || !values) {
        free(values);
        return NULL;
    }
    elements_to_double(e->dtype, e->data, n, wide);
    for (size_t i = 0; i < n; i++)
        values[i] = (float)wide[i];
    return values;
}

static int add_tensor(struct err *err, struct activations *ref, const struct st_entry *e)
{
    _cleanup_(freep) char *key = printable_name(strdup(e->key));
    const char *request, *site;
    struct ref_tensor t = { .width = 1 };
    if (!key)
        return no_memory(err);
    uint64_t n_rows = e->n_dims ? e->dims[0] : 0, width = 1;
    for (uint32_t d = 1; d < e->n_dims; d++)
        width *= e->dims[d] < MAX_WIDTH ? e->dims[d] : MAX_WIDTH;
    if (!split_key(key, &request, &site, &t.layer) || !n_rows || n_rows > MAX_ROWS || !width ||
        width > MAX_WIDTH)
        return err_set(err, -EINVAL,
                       "%s: expected REQUEST/SITE.LAYER, of shape [tokens, ...], at most %u by %u",
                       e->key, MAX_ROWS, MAX_WIDTH);
    t.n_rows = (uint32_t)n_rows;
    t.width = (uint32_t)width;
    int r = site_of(err, ref, site, t.width, is_whole(e->dtype), &t.site);
    if (!r)
        r = request_of(err, ref, request, &t.request);
    if (!r &&
        grow((void **)&ref->tensors, ref->n_tensors, &ref->room_tensors, sizeof *ref->tensors, 256))
        r = no_memory(err);
    if (!r && !(t.values = values_of(e, (size_t)n_rows * t.width)))
        r = no_memory(err);
    if (r)
        return r;
    struct ref_site *s = &ref->sites[t.site];
    struct ref_request *q = &ref->requests[t.request];
    s->n_layers = t.layer >= s->n_layers ? t.layer + 1 : s->n_layers;
    q->n_rows = t.n_rows > q->n_rows ? t.n_rows : q->n_rows;
    ref->tensors[ref->n_tensors++] = t;
    return 0;
}

static int tensor_order(const void *pa, const void *pb)
{
    const struct ref_tensor *a = pa, *b = pb;
    ORDER(a, b, site);
    ORDER(a, b, layer);
    return a->request < b->request ? -1 : a->request > b->request;
}

static const struct ref_tensor *find(const struct activations *ref, uint32_t site, int layer,
                                     uint32_t request)
{
    struct ref_tensor key = { .site = site, .layer = layer, .request = request };
    return bsearch(&key, ref->tensors, ref->n_tensors, sizeof key, tensor_order);
}

const struct ref_request *activations_request(const struct activations *ref, uint32_t row)
{
    size_t i = ref->n_requests - 1;
    while (i && ref->requests[i].first_row > row)
        i--;
    return &ref->requests[i];
}

const struct ref_tensor *activations_tensor(const struct activations *ref, uint32_t site, int layer,
                                            uint32_t row)
{
    const struct ref_request *q = activations_request(ref, row);
    const struct ref_tensor *t = find(ref, site, layer, (uint32_t)(q - ref->requests));
    uint32_t at = row - q->first_row;
    return t && at < t->n_rows && !isnan(t->values[(size_t)at * t->width]) ? t : NULL;
}

const float *activations_row(const struct activations *ref, uint32_t site, int layer, uint32_t row)
{
    const struct ref_tensor *t = activations_tensor(ref, site, layer, row);
    uint32_t at = row - activations_request(ref, row)->first_row;
    return t ? t->values + (size_t)at * t->width : NULL;
}

/* ------------------------------------------------------------------------- rows that are the same */

static bool alike(const float *a, const float *b, uint32_t n)
{
    double error = 0, norm = 0;
    for (uint32_t i = 0; i < n; i++) {
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)a[i] * a[i];
    }
    return error <= 1e-10 * norm;
}

/* Does every tensor that has both rows hold the same in them? */
static bool same_rows(const struct activations *ref, uint32_t a, uint32_t b)
{
    bool any = false;
    for (size_t i = 0; i < ref->n_tensors; i++) {
        const struct ref_tensor *t = &ref->tensors[i];
        if (i && t->site == t[-1].site && t->layer == t[-1].layer)
            continue;
        const float *x = activations_row(ref, t->site, t->layer, a);
        const float *y = activations_row(ref, t->site, t->layer, b);
        if (x && y && !alike(x, y, t->width))
            return false;
        any = any || (x && y);
    }
    return any;
}

static int find_same(struct err *err, struct activations *ref)
{
    for (size_t i = 0; i < ref->n_requests; i++) {
        ref->requests[i].first_row = ref->n_rows;
        ref->n_rows += ref->requests[i].n_rows;
    }
    ref->same_as = malloc((ref->n_rows + 1) * sizeof *ref->same_as);
    if (!ref->same_as)
        return no_memory(err);
    for (size_t i = 0; i < ref->n_requests; i++)
        for (uint32_t t = 0; t < ref->requests[i].n_rows; t++) {
            uint32_t row = ref->requests[i].first_row + t;
            ref->same_as[row] = row;
            for (size_t j = 0; j < i && ref->same_as[row] == row; j++)
                if (t < ref->requests[j].n_rows &&
                    same_rows(ref, ref->requests[j].first_row + t, row))
                    ref->same_as[row] = ref->same_as[ref->requests[j].first_row + t];
        }
    return 0;
}

int activations_open(struct err *err, const char *path, struct activations *ref)
{
    struct safetensors st = { 0 };
    *ref = (struct activations){ 0 };
    int r = safetensors_open(err, path, &st);
    for (size_t i = 0; !r && i < st.n; i++)
        r = add_tensor(err, ref, &st.entries[i]);
    if (!r && !ref->n_tensors)
        r = err_set(err, -EINVAL, "%s holds no tensor", path);
    if (ref->n_tensors)
        qsort(ref->tensors, ref->n_tensors, sizeof *ref->tensors, tensor_order);
    if (!r)
        r = find_same(err, ref);
    safetensors_deinit(&st);
    if (r)
        activations_deinit(ref);
    return r;
}

void activations_deinit(struct activations *ref)
{
    for (size_t i = 0; i < ref->n_sites; i++)
        free(ref->sites[i].name);
    for (size_t i = 0; i < ref->n_requests; i++)
        free(ref->requests[i].name);
    for (size_t i = 0; i < ref->n_tensors; i++)
        free(ref->tensors[i].values);
    free(ref->sites);
    free(ref->requests);
    free(ref->tensors);
    free(ref->same_as);
    *ref = (struct activations){ 0 };
}
