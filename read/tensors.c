/* SPDX-License-Identifier: Apache-2.0 */
#include "read/tensors.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "storage/map.h"
#include "read/record.h"
#include "read/requests.h"
#include "read/utf8.h"
#include "storage/codec/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- names */

static bool names_have(const struct selection_names *names, const char *name)
{
    return selection_names_have(names, name, strlen(name));
}

bool selection_wants(const struct selection *select, const struct tensor *t)
{
    if (!select)
        return true;
    const struct selection_names *sites = &select->sites;
    return selection_wants_layer(select, t->layer) &&
           (!sites->n || names_have(sites, t->site->name) || names_have(sites, t->name) ||
            names_have(sites, t->key)) &&
           selection_wants_request(select, t->request, t->n_request);
}

/* ------------------------------------------------------------------------- finding */

static uint64_t tensor_hash(const char *request, size_t n, uint32_t order, int32_t layer)
{
    uint64_t h = request ? hash_bytes(request, n) + 1 : 0;
    h = (h ^ order) * 0x9E3779B97F4A7C15ull + (uint32_t)layer;
    h *= 0x9E3779B97F4A7C15ull;
    return h ^ h >> 32;
}

static bool is_tensor(const struct tensor *t, const char *request, size_t n, uint32_t order,
                      int32_t layer)
{
    return t->layer == layer && t->order == order && !t->request == !request &&
           (!request || (t->n_request == n && !memcmp(t->request, request, n)));
}

static uint64_t hash_of(const struct tensor *t)
{
    return tensor_hash(t->request, t->n_request, t->order, t->layer);
}

static struct tensor *add_tensor(struct tensors *out, const char *request, size_t n_request,
                                 const struct dmi_site *site, int32_t layer)
{
    if (grow((void **)&out->all, out->n, &out->room, sizeof *out->all, 256))
        return NULL;
    _cleanup_(text_deinit) struct text key = { 0 };
    if (request) {
        utf8_add_valid(&key, request, n_request);
        text_add(&key, "/", 1);
    }
    size_t n_prefix = key.n;
    tensor_add_name(&key, site->name, layer);
    if (key.failed)
        return NULL;
    struct tensor *t = &out->all[out->n++];
    *t = (struct tensor){ .key = steal_ptr(key.data),
                          .request = request,
                          .n_request = n_request,
                          .site = site,
                          .layer = layer };
    t->name = t->key + n_prefix;
    return t;
}

static struct tensor *find_tensor(struct tensors_growing *b, const char *request, size_t n_request,
                                  const struct dmi_site *site, int32_t layer)
{
    if (!HASHED_MAKE_ROOM(&b->by_hash, b->out->n, i, hash_of(&b->out->all[i])))
        return NULL;
    uint32_t order = b->sites->first[site->id];
    uint32_t *place = HASHED_FIND(&b->by_hash, tensor_hash(request, n_request, order, layer), i,
                                  is_tensor(&b->out->all[i], request, n_request, order, layer));
    if (*place)
        return &b->out->all[*place - 1];
    struct tensor *t = add_tensor(b->out, request, n_request, site, layer);
    if (t) {
        t->order = order;
        *place = (uint32_t)b->out->n;
    }
    return t;
}

const char *tensor_mixed_text(const struct tensor *t)
{
    return t->mixed == TENSOR_MIXED_SCALE
               ? "changes its scale from record to record: sites of one name have several"
               : "changes its dtype or width from record to record, so it is not one tensor";
}

static double scale_of(const struct dmi_site *site)
{
    return site->scale != 0 ? site->scale : 1;
}

static void take_shape(struct tensor *t, const struct reader_record *rec,
                       const struct dmi_site *site)
{
    uint64_t width = record_width(rec);
    if (!t->n_stretches) {
        t->dtype = rec->at.dtype;
        t->width = width;
        t->n_tail = rec->at.n_dims - record_row_dims(rec);
        memcpy(t->tail, rec->at.dims + record_row_dims(rec), t->n_tail * sizeof t->tail[0]);
    } else if (t->dtype != rec->at.dtype || t->width != width) {
        t->mixed = TENSOR_MIXED_TYPE;
    } else if (!t->mixed && scale_of(site) != scale_of(t->site)) {
        t->mixed = TENSOR_MIXED_SCALE;
    }
}

int tensors_add(struct tensors_growing *b, const struct part *part, size_t number)
{
    if (b->out->n > TENSORS_MAX || b->out->n_stretches > TENSORS_MAX_STRETCHES)
        return -E2BIG;
    const struct reader_record *rec = reader_record(b->reader, part->record);
    const struct dmi_site *site = reader_site(b->reader, rec->at.site);
    struct tensor *t = find_tensor(b, part->request, part->n_request, site, rec->at.layer);
    if (!t)
        return -ENOMEM;
    if (number == TENSORS_NO_ROWS)
        return 0;
    take_shape(t, rec, site);
    if (PUSH(t->stretches, t->n_stretches, t->room, 1,
             (struct stretch){ number, part->first_row, part->n_rows, part->position,
                               part->rejected ? STRETCH_REJECTED : 0, STRETCH_OWN }))
        return -ENOMEM;
    t->n_rows += part->n_rows;
    b->out->n_stretches++;
    return 0;
}

/* Adds rows to the tensor of their request. */
static int add_part(void *ctx, const struct part *part)
{
    struct tensors_growing *b = ctx;
    const struct selection *select = b->select;
    if (!selection_wants_request(select, part->request, part->n_request))
        return 0;
    b->out->n_rejected += part->rejected ? part->n_rows : 0;
    if (part->rejected && (!select || !select->rejected))
        return 0;
    return tensors_add(b, part, part->record);
}

/* ------------------------------------------------------------------------- order */

static int tensor_order(const void *pa, const void *pb)
{
    const struct tensor *a = pa, *b = pb;
    size_t n = a->n_request < b->n_request ? a->n_request : b->n_request;
    int c = n ? memcmp(a->request, b->request, n) : 0;
    if (c || a->n_request != b->n_request)
        return c ? c : a->n_request < b->n_request ? -1 : 1;
    if (!a->request != !b->request)
        return a->request ? 1 : -1;
    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    return a->layer < b->layer ? -1 : a->layer > b->layer;
}

/* Gives a tensor a key that no other has: KEY~2, KEY~3, ... @number: of the last one tried. */
static int rename_tensor(struct map *keys, struct tensor *t, size_t index, size_t *number)
{
    size_t n_prefix = (size_t)(t->name - t->key);
    for (;;) {
        _cleanup_(freep) char *key = NULL;
        if (asprintf(&key, "%s~%zu", t->key, ++*number) < 0) {
            key = NULL;
            return -ENOMEM;
        }
        size_t *value = map_at(keys, key, strlen(key));
        if (!value)
            return -ENOMEM;
        if (*value != MAP_NONE)
            continue;
        *value = index;
        free(t->key);
        t->key = steal_ptr(key);
        t->name = t->key + n_prefix;
        return 0;
    }
}

/* What safetensors files keep for themselves. */
static const char reserved_key[] = "__metadata__";
#define RESERVED (MAP_NONE - 1)

/* Renames the tensors whose key another one has. @last: by key, the last number that a renamed one got. */
static int rename_doubles(struct tensors *out, struct map *keys, struct map *last)
{
    for (size_t i = 0; i < out->n; i++) {
        struct tensor *t = &out->all[i];
        size_t owner = map_get(keys, t->key, strlen(t->key));
        if (owner == i)
            continue;
        const char *key = owner == RESERVED ? reserved_key : out->all[owner].key;
        size_t *number = map_at(last, key, strlen(key));
        if (!number)
            return -ENOMEM;
        *number = *number == MAP_NONE ? 1 : *number;
        if (rename_tensor(keys, t, i, number))
            return -ENOMEM;
    }
    return 0;
}

/* Ids that differ only in bytes that are no UTF-8, or in templates, would share a key. */
static int make_unique(struct tensors *out)
{
    struct map keys = { 0 }, last = { 0 };
    size_t *reserved = map_at(&keys, reserved_key, strlen(reserved_key));
    int r = reserved ? 0 : -ENOMEM;
    if (reserved)
        *reserved = RESERVED;
    for (size_t i = 0; !r && i < out->n; i++) {
        size_t *value = map_at(&keys, out->all[i].key, strlen(out->all[i].key));
        if (!value)
            r = -ENOMEM;
        else if (*value == MAP_NONE)
            *value = i;
    }
    if (!r)
        r = rename_doubles(out, &keys, &last);
    map_deinit(&keys);
    map_deinit(&last);
    return r;
}

/* The selection by site let through what only ends like it. @also_empty: and what has no rows. */
static void drop_unwanted(struct tensors *out, const struct selection *select, bool also_empty)
{
    size_t kept = 0;
    for (size_t i = 0; i < out->n; i++) {
        bool empty = also_empty && !out->all[i].n_stretches;
        if (!empty && selection_wants(select, &out->all[i])) {
            out->all[kept++] = out->all[i];
            continue;
        }
        out->n_stretches -= out->all[i].n_stretches;
        free(out->all[i].key);
        free(out->all[i].stretches);
    }
    out->n = kept;
}

static int arrange(struct tensors *out, struct tensor *t, const struct selection *select)
{
    size_t n = t->n_stretches;
    int r = stretches_arrange(&t->stretches, &t->n_stretches, TENSORS_MAX_STRETCHES,
                              select && select->superseded, &out->n_superseded);
    out->n_stretches += t->n_stretches - n;
    t->room = t->n_stretches;
    t->n_rows = stretches_rows(t->stretches, t->n_stretches);
    return r;
}

/* Leaves the tokens that are selected. */
static int clip(struct tensors *out, struct tensor *t, const struct requests *requests,
                const struct selection *select)
{
    int64_t end = 0;
    for (size_t i = 0; i < t->n_stretches; i++) {
        const struct stretch *s = &t->stretches[i];
        if (s->position >= 0 && s->position + (int64_t)s->n_rows > end)
            end = s->position + (int64_t)s->n_rows;
    }
    struct ranges ranges = selection_ranges(select, requests, t->request, t->n_request, end);
    size_t n = t->n_stretches;
    int r = stretches_clip(&t->stretches, &t->n_stretches, ranges.all, ranges.n);
    t->room = t->n_stretches;
    t->n_rows = stretches_rows(t->stretches, t->n_stretches);
    out->n_stretches += t->n_stretches - n;
    return r;
}

static int narrow(struct tensors *out, const struct requests *requests,
                  const struct selection *select, bool in_part)
{
    bool clips = select && select->n_tokens;
    int r = 0;
    for (size_t i = 0; !r && clips && i < out->n; i++)
        r = clip(out, &out->all[i], requests, select);
    drop_unwanted(out, select, clips && !in_part);
    return r;
}

int tensors_narrow(struct tensors *out, const struct requests *requests,
                   const struct selection *select)
{
    return narrow(out, requests, select, false);
}

static int put_in_order(struct tensors_growing *b, const struct requests *requests)
{
    struct tensors *out = b->out;
    int r = 0;
    for (size_t i = 0; !r && i < out->n; i++)
        if (out->all[i].request)
            r = arrange(out, &out->all[i], b->select);
    if (out->n)
        qsort(out->all, out->n, sizeof *out->all, tensor_order);
    if (!r)
        r = make_unique(out);
    if (!r)
        r = narrow(out, requests, b->select, b->in_part);
    return r;
}

/* The rows of all records that are wanted, to their tensors. */
static int attribute_all(struct attribution *j, struct tensors_growing *b)
{
    int r = attribution_init(j);
    for (size_t i = 0; !r && i < reader_n_records(b->reader); i++) {
        const struct dmi_record *at = &reader_record(b->reader, i)->at;
        if (selection_wants_record(b->select, reader_site(b->reader, at->site), at->layer))
            r = attribution_record(j, i);
    }
    b->out->n_short = j->n_short;
    b->out->n_nobody = j->n_nobody;
    attribution_deinit(j);
    return r;
}

int tensors_end(struct err *err, struct tensors_growing *b, const struct requests *requests, int r)
{
    if (!r)
        r = put_in_order(b, requests);
    hashed_deinit(&b->by_hash);
    if (r)
        tensors_deinit(b->out);
    if (r == -E2BIG)
        return err_set(
            err, r,
            "this run has more than %u tensors, or %u stretches of them: choose some with "
            "--site, --layers or --request",
            TENSORS_MAX, TENSORS_MAX_STRETCHES);
    return r ? err_set_errno(err, -r, "cannot join rows and requests") : 0;
}

int tensors_build(struct err *err, const struct reader *reader, const struct sites *sites,
                  const struct tensors_query *query, struct tensors *out)
{
    const struct selection *select = query->select;
    *out = (struct tensors){ .by_request = attribution_is_by_request(reader) };
    struct tensors_growing b = { .reader = reader, .sites = sites, .select = select, .out = out };
    struct attribution j = { .reader = reader,
                             .by_request = out->by_request,
                             .implied = query->implied,
                             .aliases = query->aliases,
                             .n_aliases = query->n_aliases,
                             .add = add_part,
                             .ctx = &b };
    _cleanup_(requests_deinit) struct requests requests = { 0 };
    int r = 0;
    if (selection_needs_requests(select))
        r = requests_build(reader, &requests);
    if (!r)
        r = attribute_all(&j, &b);
    return tensors_end(err, &b, &requests, r);
}

const struct tensor *tensors_find(const struct tensors *tensors, const char *request,
                                  size_t n_request, uint32_t order, int32_t layer)
{
    const struct tensor key = {
        .request = request, .n_request = n_request, .order = order, .layer = layer
    };
    return tensors->n ? bsearch(&key, tensors->all, tensors->n, sizeof key, tensor_order) : NULL;
}

void tensors_deinit(struct tensors *tensors)
{
    for (size_t i = 0; i < tensors->n; i++) {
        free(tensors->all[i].key);
        free(tensors->all[i].stretches);
    }
    free(tensors->all);
    *tensors = (struct tensors){ 0 };
}
