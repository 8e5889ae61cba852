/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/rivals.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "tools/replay/position.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- requests */

/* Whether the span has a position before *@end, which then lies after its last one. */
static bool comes_again(const struct reader_step *step, uint32_t span, bool rejected, int64_t *end)
{
    const struct dmi_span_entry *e = &step->spans[span];
    const struct reader_outcome *outcome = reader_outcome_of(step, span);
    bool again = false;
    for (uint32_t t = 0, n; t < e->n_tokens; t += n) {
        bool counts = reader_outcome_has(outcome, t, &n) || rejected;
        n = n < e->n_tokens - t ? n : e->n_tokens - t;
        int64_t first = (int64_t)((uint64_t)e->first_position + t);
        if (!counts)
            continue;
        again |= first < *end;
        *end = first + n > *end ? first + n : *end;
    }
    return again;
}

void rivals_begin(struct rivals *v, const struct reader *reader, const struct sites *sites,
                  const struct selection *select)
{
    *v = (struct rivals){ .reader = reader, .sites = sites, .select = select };
    v->requests.owns_ids = true;
    v->growing = (struct tensors_growing){
        .reader = reader, .sites = sites, .select = select, .out = &v->tensors, .in_part = true
    };
}

/* Room for what is known of each request. */
static int make_room(struct rivals *v, size_t n_before)
{
    for (size_t i = n_before; i < v->requests.n; i++) {
        if (GROW(v->of_request, i, v->of_room) || GROW(v->ends, i, v->ends_room))
            return -ENOMEM;
        v->of_request[i] = false;
        v->ends[i] = 0;
    }
    return 0;
}

int rivals_take(struct rivals *v, const struct reader_steps *steps)
{
    const struct requests *q = &v->requests;
    size_t n_before = q->n;
    if (requests_take(&v->requests, steps) || make_room(v, n_before))
        return -ENOMEM;
    for (size_t s = 0; s < steps->n; s++) {
        const struct reader_step *step = &steps->all[s];
        for (uint32_t k = 0; k < step->entry->n_spans; k++) {
            uint32_t owner = q->of_span[q->first_span[s] + k];
            if (owner != UINT32_MAX && comes_again(step, k, v->select->rejected, &v->ends[owner]))
                v->of_request[owner] = v->any = true;
        }
    }
    return 0;
}

/* ------------------------------------------------------------------------- sites */

static struct rivals_layer *layer_of(const struct rivals *v, const struct reader_record *rec)
{
    const struct rivals_key key = { v->sites->first[rec->at.site], rec->at.layer };
    size_t i = map_get(&v->layers, &key, sizeof key);
    return i == MAP_NONE ? NULL : v->all_layers[i];
}

static struct rivals_layer *add_layer(struct rivals *v, const struct reader_record *rec)
{
    if (grow((void **)&v->all_layers, v->n_layers, &v->layers_room, sizeof *v->all_layers, 64))
        return NULL;
    struct rivals_layer *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->key = (struct rivals_key){ v->sites->first[rec->at.site], rec->at.layer };
    size_t *index = map_at(&v->layers, &l->key, sizeof l->key);
    if (!index) {
        free(l);
        return NULL;
    }
    *index = v->n_layers;
    v->all_layers[v->n_layers++] = l;
    return l;
}

/* Whether the layer had a record of that step before, or may have had. */
static bool had_step(struct rivals_layer *l, uint64_t step)
{
    if (step < l->forgotten_end)
        return true;
    for (size_t i = 0; i < RIVALS_RECENT && i < l->n; i++)
        if (l->recent[i] == step)
            return true;
    uint64_t *slot = &l->recent[l->n % RIVALS_RECENT];
    if (l->n >= RIVALS_RECENT && *slot >= l->forgotten_end)
        l->forgotten_end = *slot + 1;
    *slot = step;
    l->n++;
    return false;
}

int rivals_look(struct rivals *v, const struct reader_record *rec)
{
    if (!rec->step || reader_site(v->reader, rec->at.site)->row == DMI_ROW_NONE)
        return 0;
    struct rivals_layer *l = layer_of(v, rec);
    if (!l && !(l = add_layer(v, rec)))
        return -ENOMEM;
    if (!l->again && had_step(l, rec->at.step))
        l->again = v->any = true;
    return 0;
}

bool rivals_are_needed(const struct rivals *v)
{
    return v->any || v->select->sites.n;
}

bool rivals_has(const struct rivals *v, const struct reader_record *rec, const char *request,
                size_t n_request)
{
    if (!v->any || !request)
        return false;
    const struct rivals_layer *l = layer_of(v, rec);
    const struct request *q = requests_find(&v->requests, request, n_request);
    return (l && l->again) || (q && v->of_request[q - v->requests.all]);
}

/* ------------------------------------------------------------------------- all of them */

/* A record whose rows are handed out. */
struct gathering {
    struct rivals *rivals;
    bool any; /* of its rows have rivals */
};

static int add_part(void *ctx, const struct part *part)
{
    struct gathering *g = ctx;
    struct rivals *v = g->rivals;
    if (!selection_wants_request(v->select, part->request, part->n_request) ||
        (part->rejected && !v->select->rejected))
        return 0;
    bool has =
        rivals_has(v, reader_record(v->reader, part->record), part->request, part->n_request);
    g->any |= has;
    if (!has && !v->select->sites.n)
        return 0;
    struct part own = *part; /* steps go, and the ids in them */
    const struct request *q =
        part->request ? requests_find(&v->requests, part->request, part->n_request) : NULL;
    own.request = q ? q->id : part->request;
    return tensors_add(&v->growing, &own, has ? v->n_records : TENSORS_NO_ROWS);
}

int rivals_gather(struct rivals *v, struct attribution *attribution, size_t index)
{
    struct gathering g = { .rivals = v };
    if (grow((void **)&v->records, v->n_records, &v->records_room, sizeof *v->records, 64))
        return -ENOMEM;
    attribution->add = add_part;
    attribution->ctx = &g;
    int r = attribution_record(attribution, index);
    if (g.any)
        v->records[v->n_records++] = *reader_record(v->reader, index);
    return r;
}

static int launch_order(const void *pa, const void *pb, void *arg)
{
    const struct rivals *v = arg;
    return reader_record_order(&v->records[*(const size_t *)pa], &v->records[*(const size_t *)pb]);
}

/* A later record has a higher number: numbers in launch order for those in the recorded one. Return: by new number the old
 * one, the caller's; NULL: no memory. */
static size_t *number_by_launch(struct rivals *v)
{
    size_t n = v->n_records, *old_of = calloc(n + 1, sizeof *old_of);
    _cleanup_(freep) size_t *new_of = calloc(n + 1, sizeof *new_of);
    for (size_t i = 0; old_of && i < n; i++)
        old_of[i] = i;
    if (old_of && new_of) {
        qsort_r(old_of, n, sizeof *old_of, launch_order, v);
        for (size_t i = 0; i < n; i++)
            new_of[old_of[i]] = i;
        for (size_t t = 0; t < v->tensors.n; t++)
            for (size_t p = 0; p < v->tensors.all[t].n_stretches; p++)
                v->tensors.all[t].stretches[p].record =
                    new_of[v->tensors.all[t].stretches[p].record];
        return old_of;
    }
    free(old_of);
    return NULL;
}

/* The rows by record. @old_of: as number_by_launch() returns it. */
static int list_rows(struct rivals *v, const size_t *old_of)
{
    const struct tensors *ts = &v->tensors;
    v->rows = calloc(ts->n_stretches + 1, sizeof *v->rows);
    v->first = calloc(v->n_records + 2, sizeof *v->first);
    if (!v->rows || !v->first)
        return -ENOMEM;
    size_t *end = v->first + 1; /* of record i: end[i], its beginning while rows are put there */
    for (size_t t = 0; t < ts->n; t++)
        for (size_t p = 0; p < ts->all[t].n_stretches; p++)
            end[old_of[ts->all[t].stretches[p].record] + 1]++;
    for (size_t i = 1; i <= v->n_records; i++)
        end[i] += end[i - 1];
    for (size_t t = 0; t < ts->n; t++)
        for (size_t p = 0; p < ts->all[t].n_stretches; p++)
            v->rows[end[old_of[ts->all[t].stretches[p].record]]++] =
                (struct rivals_rows){ (uint32_t)t, (uint32_t)p };
    return 0;
}

int rivals_settle(struct err *err, struct rivals *v, int result)
{
    _cleanup_(freep) size_t *old_of = result ? NULL : number_by_launch(v);
    if (!result && !old_of)
        result = -ENOMEM;
    int r = tensors_end(err, &v->growing, &v->requests, result);
    if (!r && list_rows(v, old_of))
        r = err_set_errno(err, ENOMEM, "cannot join rows and requests");
    return r;
}

/* ------------------------------------------------------------------------- afterwards */

static int place_order(const void *pa, const void *pb)
{
    struct position a = position_of(pa), b = position_of(pb);
    return position_order(&a, &b);
}

size_t rivals_of(const struct rivals *v, const struct reader_record *rec,
                 const struct rivals_rows **out)
{
    if (!v->first || !v->n_records)
        return 0;
    const struct reader_record *found =
        bsearch(rec, v->records, v->n_records, sizeof *rec, place_order);
    if (!found)
        return 0;
    size_t i = (size_t)(found - v->records);
    *out = v->rows + v->first[i];
    return v->first[i + 1] - v->first[i];
}

void rivals_deinit(struct rivals *v)
{
    requests_deinit(&v->requests);
    free(v->of_request);
    free(v->ends);
    map_deinit(&v->layers);
    for (size_t i = 0; i < v->n_layers; i++)
        free(v->all_layers[i]);
    free(v->all_layers);
    tensors_deinit(&v->tensors);
    hashed_deinit(&v->growing.by_hash);
    free(v->records);
    free(v->rows);
    free(v->first);
    *v = (struct rivals){ 0 };
}
