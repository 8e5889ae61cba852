/* SPDX-License-Identifier: Apache-2.0 */
#include "read/fill.h"

#include "core/err.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "read/edit_history.h"
#include "read/prefixes.h"
#include "read/rows.h"
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN   (-1)
#define AT_A_TIME 256u /* ids that are converted together */

/* What adapters and specs say of attention that sees later tokens: a tag, a convention, and what either says otherwise. */
#define ATTENTION_TAG        "dmi.attention"
#define ATTENTION_CONVENTION "attention"
#define CAUSAL               "causal"

/* Of dmi-ctl edit salt: stands in `cache_salt` of a request that may have edits. */
#define EDIT_SALT "dmi-"

/* What else an engine's cache is keyed by beside token ids: the salt as vLLM's API calls it, and what adapters say. */
static const char *const cache_tags[] = { "cache_salt", "dmi.cache" };

/* Tokens that the engine took from its cache, as one span says. */
struct cached {
    uint32_t request;
    int64_t first, end;
    uint64_t sequence; /* of the step */
    const int32_t *ids;
};

/* Of a request. */
struct owner {
    int32_t *ids;  /* from position 0 on */
    int64_t n_ids; /* that are known */
    char *cache;   /* the values of cache_tags, as text; NULL: it has none of them */
    int32_t dp;    /* data parallel rank */
    bool sees_later;
    bool any_step, shares; /* the engine says in each of its steps that it shares cached prefixes */
    bool salted;           /* it has a salt of edits */
    size_t version;        /* of the edits with which it began */
    size_t first_cached, n_cached; /* in struct fill */
};

struct fill {
    struct reader *reader;
    const struct requests *requests;
    const struct selection *select;
    struct tensors *tensors;
    struct owner *owners; /* by request */
    struct cached *cached;
    size_t n_cached, cached_room;
    int64_t most; /* after the last position that a cache had of any request */
    struct prefixes prefixes;
    struct edit_history edits;
    struct stretch *taken; /* for one tensor */
    size_t n_taken, taken_room;
};

static void fill_deinit(struct fill *f)
{
    for (size_t i = 0; f->owners && i < f->requests->n; i++) {
        free(f->owners[i].ids);
        free(f->owners[i].cache);
    }
    free(f->owners);
    free(f->cached);
    free(f->taken);
    prefixes_deinit(&f->prefixes);
    edit_history_deinit(&f->edits);
}

/* ------------------------------------------------------------------------- what the engine said */

static int cached_order(const void *pa, const void *pb)
{
    const struct cached *a = pa, *b = pb;
    ORDER(a, b, request);
    return a->sequence < b->sequence ? -1 : a->sequence > b->sequence;
}

static int take_span(struct fill *f, const struct reader_step *step, uint32_t i, uint32_t request)
{
    const struct dmi_span_entry *span = &step->spans[i];
    struct owner *o = &f->owners[request];
    o->dp = step->entry->ranks[2 * DMI_AXIS_DP];
    if (!o->any_step)
        o->version = edit_history_at(&f->edits, step->entry->sequence);
    o->shares = (o->shares || !o->any_step) && step->entry->flags & DMI_STEP_CACHES_PREFIXES;
    o->any_step = true;
    if (!span->n_cached || span->n_cached > span->first_position)
        return 0;
    if (PUSH(f->cached, f->n_cached, f->cached_room, 64,
             (struct cached){
                 .request = request,
                 .first = span->first_position - (int64_t)span->n_cached,
                 .end = span->first_position,
                 .sequence = step->entry->sequence,
                 .ids = reader_cached_ids(step, i),
             }))
        return -ENOMEM;
    f->most = span->first_position > f->most ? span->first_position : f->most;
    return 0;
}

static int collect_cached(struct fill *f)
{
    const struct requests *q = f->requests;
    for (size_t s = 0; s < reader_n_steps(f->reader); s++) {
        const struct reader_step *step = reader_step(f->reader, s);
        for (uint32_t i = 0; i < step->entry->n_spans; i++) {
            uint32_t request = q->of_span[q->first_span[s] + i];
            if (request != UINT32_MAX && take_span(f, step, i, request))
                return -ENOMEM;
        }
    }
    if (f->n_cached)
        qsort(f->cached, f->n_cached, sizeof *f->cached, cached_order);
    for (size_t i = 0; i < f->n_cached; i++) {
        struct owner *o = &f->owners[f->cached[i].request];
        o->first_cached = o->n_cached++ ? o->first_cached : i;
    }
    return 0;
}

/* Return: 0 or -ENOMEM. */
static int read_tags(struct owner *o, const struct request *q)
{
    static const size_t n = sizeof cache_tags / sizeof *cache_tags;
    if (!q->tags)
        return 0;
    json_t *tags = json_loadb(q->tags, q->n_tags, 0, NULL), *own = json_array();
    const char *attention = json_string_value(json_object_get(tags, ATTENTION_TAG));
    bool any = false;
    o->sees_later |= attention && strcmp(attention, CAUSAL) != 0;
    for (size_t i = 0; i < n; i++) {
        json_t *value = json_object_get(tags, cache_tags[i]);
        any |= value && !json_is_null(value);
        json_array_append_new(own, value ? json_incref(value) : json_null());
    }
    const char *salt = json_string_value(json_object_get(tags, cache_tags[0]));
    o->salted = salt && strstr(salt, EDIT_SALT);
    o->cache = any ? json_dumps(own, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) : NULL;
    bool failed = !own || json_array_size(own) != n || (any && !o->cache);
    json_decref(own);
    json_decref(tags);
    return failed ? -ENOMEM : 0;
}

/* ------------------------------------------------------------------------- ids */

static bool is_ids(const struct tensor *t)
{
    return t->request && !t->mixed && t->width == 1 && !strcmp(t->site->name, DMI_SITE_IDS) &&
           t->site->row == DMI_ROW_TOKEN && t->dtype >= DMI_DTYPE_I8 && t->dtype <= DMI_DTYPE_U64;
}

static size_t owner_of(const struct fill *f, const struct tensor *t)
{
    const struct request *q = requests_find(f->requests, t->request, t->n_request);
    return q ? (size_t)(q - f->requests->all) : SIZE_MAX;
}

/* Room for as many ids as can be known. */
static int make_ids(struct fill *f)
{
    for (size_t i = 0; i < f->n_cached; i++)
        if (f->cached[i].ids)
            f->owners[f->cached[i].request].n_ids += f->cached[i].end - f->cached[i].first;
    for (size_t i = 0; i < f->tensors->n; i++) {
        const struct tensor *t = &f->tensors->all[i];
        size_t owner = is_ids(t) ? owner_of(f, t) : SIZE_MAX;
        if (owner != SIZE_MAX)
            f->owners[owner].n_ids += (int64_t)t->n_rows;
    }
    for (size_t i = 0; i < f->requests->n; i++) {
        struct owner *o = &f->owners[i];
        o->n_ids = o->n_ids < f->most ? o->n_ids : f->most;
        if (!(o->ids = malloc((size_t)(o->n_ids + 1) * sizeof *o->ids)))
            return -ENOMEM;
        for (int64_t k = 0; k < o->n_ids; k++)
            o->ids[k] = UNKNOWN;
    }
    return 0;
}

static void set_id(struct owner *o, int64_t position, double id)
{
    if (position >= 0 && position < o->n_ids && id >= 0 && id <= INT32_MAX)
        o->ids[position] = (int32_t)id;
}

static bool wants_ids(void *ctx, size_t tensor)
{
    const struct fill *f = ctx;
    return is_ids(&f->tensors->all[tensor]);
}

static int take_ids(void *ctx, const struct rows *rows, const struct reader_record *record,
                    const uint8_t *data)
{
    const struct fill *f = ctx;
    const struct tensor *t = &f->tensors->all[rows->tensor];
    const struct stretch *s = &t->stretches[rows->stretch];
    size_t owner = owner_of(f, t), n_id = dmi_dtype_bytes(t->dtype);
    double ids[AT_A_TIME];
    (void)record;
    for (uint32_t at = 0, n; owner != SIZE_MAX && !s->flags && at < s->n_rows; at += n) {
        n = s->n_rows - at < AT_A_TIME ? s->n_rows - at : AT_A_TIME;
        elements_to_double(t->dtype, data + at * n_id, n, ids);
        for (uint32_t i = 0; i < n; i++)
            set_id(&f->owners[owner], s->position + at + i, ids[i]);
    }
    return 0;
}

/* Ids that cannot be read are not known. */
static int damaged_ids(void *ctx, const struct rows *rows, const struct err *why)
{
    (void)ctx;
    (void)rows;
    (void)why;
    return 0;
}

/* The ids of each request, from position 0 to the first one that is not known. */
static int collect_ids(struct err *err, struct fill *f)
{
    static const struct rows_visitor visitor = { wants_ids, take_ids, damaged_ids };
    if (make_ids(f))
        return err_set_errno(err, ENOMEM, "cannot compare token ids");
    for (size_t i = 0; i < f->n_cached; i++) {
        const struct cached *c = &f->cached[i];
        for (int64_t k = c->first; c->ids && k < c->end; k++)
            set_id(&f->owners[c->request], k, c->ids[k - c->first]);
    }
    int r = rows_visit(err, f->reader, f->tensors, &visitor, f);
    for (size_t i = 0; !r && i < f->requests->n; i++) {
        struct owner *o = &f->owners[i];
        int64_t n = 0;
        while (n < o->n_ids && o->ids[n] != UNKNOWN)
            n++;
        o->n_ids = n;
    }
    return r;
}

/* Requests as donors: of rows after what they had from a cache themselves. */
static int plant(struct fill *f)
{
    int r = prefixes_init(&f->prefixes);
    for (size_t i = 0; !r && i < f->requests->n; i++) {
        const struct owner *o = &f->owners[i];
        r = prefixes_add(&f->prefixes, (uint32_t)i, o->ids, o->n_ids,
                         f->requests->all[i].cached_end);
    }
    return r;
}

/* ------------------------------------------------------------------------- donors */

/*
 * Did edits write the same in both, if their salts are equal? Without a salt of edits no edit writes in a request of
 * an engine that shares prefixes, unless it says `cache: ignore` or writes the same in all of them. With one all edits do that it stands
 * for, or none, as the edits are with which the request begins. docs/edits.md, "Prefix caches".
 */
static bool same_edits(const struct fill *f, const struct owner *a, const struct owner *b)
{
    if (!f->edits.any)
        return true;
    if (f->edits.unsalted || !a->shares || !b->shares)
        return false;
    return !b->salted || (a->version == b->version && !f->edits.live);
}

/* May rows of @donor stand for those of @receiver, once their ids agree? Whoever gives rows another origin says so here. */
static bool shares_cache(const struct fill *f, size_t receiver, size_t donor)
{
    const struct owner *a = &f->owners[receiver], *b = &f->owners[donor];
    if (receiver == donor || a->dp != b->dp || f->requests->all[donor].has_beams || b->sees_later ||
        !same_edits(f, a, b))
        return false;
    return a->cache && b->cache ? !strcmp(a->cache, b->cache) : a->cache == b->cache;
}

static double scale_of(const struct dmi_site *site)
{
    return site->scale != 0 ? site->scale : 1;
}

static bool same_rows(const struct tensor *a, const struct tensor *b)
{
    return !b->mixed && a->dtype == b->dtype && a->width == b->width && a->n_tail == b->n_tail &&
           !memcmp(a->tail, b->tail, a->n_tail * sizeof a->tail[0]) &&
           scale_of(a->site) == scale_of(b->site);
}

static int64_t end_of(const struct stretch *s)
{
    return s->position + (int64_t)s->n_rows;
}

/* The first row that counts of a tensor's own, at or after a position, of a step up to @sequence; NULL: none. */
static const struct stretch *own_rows(const struct fill *f, const struct tensor *t, int64_t at,
                                      uint64_t sequence)
{
    size_t i;
    SEARCH(i, t->n_stretches, end_of(&t->stretches[i]) <= at);
    for (; i < t->n_stretches; i++) {
        const struct stretch *s = &t->stretches[i];
        const struct reader_record *rec = reader_record(f->reader, s->record);
        if (!s->flags && s->donor == STRETCH_OWN && rec->step &&
            rec->step->entry->sequence <= sequence &&
            reader_site(f->reader, rec->at.site)->row == DMI_ROW_TOKEN)
            return s;
    }
    return NULL;
}

/* Positions that are wanted of a tensor, and how far one donor has them. */
struct donor_search {
    const struct tensor *tensor;
    size_t receiver;
    const struct cached *cached;
    int64_t at, end;
    int64_t next; /* where a donor has rows again, if none has that of @at */
};

static int take_rows(struct fill *f, const struct donor_search *q, const struct stretch *from,
                     uint32_t donor)
{
    int64_t end = end_of(from) < q->end ? end_of(from) : q->end;
    struct stretch *last = f->n_taken ? &f->taken[f->n_taken - 1] : NULL;
    if (last && last->record == from->record && last->donor == 1 + donor && end_of(last) == q->at &&
        last->first_row + last->n_rows == from->first_row + (uint64_t)(q->at - from->position)) {
        last->n_rows += (uint32_t)(end - q->at);
        return 0;
    }
    return PUSH(f->taken, f->n_taken, f->taken_room, 64,
                (struct stretch){ from->record,
                                  from->first_row + (uint32_t)(q->at - from->position),
                                  (uint32_t)(end - q->at), q->at, 0, 1 + donor });
}

/* Rows from @q->at on of the first request of a node that has them. Return: 1: none has; 0; -ENOMEM. */
static int ask_node(struct fill *f, struct donor_search *q, const struct prefixes_node *node)
{
    q->next = q->end;
    for (size_t i = node->head; i; i = f->prefixes.links[i - 1].next) {
        uint32_t donor = f->prefixes.links[i - 1].request;
        const struct request *d = &f->requests->all[donor];
        if (!shares_cache(f, q->receiver, donor))
            continue;
        const struct tensor *t =
            tensors_find(f->tensors, d->id, d->n_id, q->tensor->order, q->tensor->layer);
        const struct stretch *s =
            t && same_rows(q->tensor, t) ? own_rows(f, t, q->at, q->cached->sequence) : NULL;
        if (s && s->position <= q->at)
            return take_rows(f, q, s, donor);
        q->next = s && s->position < q->next ? s->position : q->next;
    }
    return 1;
}

static void lacks(struct tensor *t, enum fill_fault why, int64_t first, int64_t end)
{
    if (t->unfilled == why && t->unfilled_range.end == first)
        t->unfilled_range.end = end;
    if (t->unfilled)
        return;
    t->unfilled = why;
    t->unfilled_range = (struct range){ first, end };
}

/* Positions @first to before @end of a tensor, along the receiver's way through the tree. */
static int fill_gap(struct fill *f, struct tensor *t, size_t receiver, const struct cached *c,
                    int64_t first, int64_t end)
{
    const struct owner *o = &f->owners[receiver];
    int64_t known = o->n_ids < end ? o->n_ids : end, at = first;
    int r = 0;
    for (size_t node = 0; r >= 0 && at < known;) {
        node = prefixes_next(&f->prefixes, node, o->ids[f->prefixes.nodes[node].end]);
        const struct prefixes_node *n = &f->prefixes.nodes[node];
        int64_t node_end = n->end < known ? n->end : known;
        while (r >= 0 && at < node_end) {
            struct donor_search q = { t, receiver, c, at, node_end, 0 };
            r = ask_node(f, &q, n);
            int64_t next = r ? q.next : end_of(&f->taken[f->n_taken - 1]);
            if (r > 0)
                lacks(t, FILL_NO_DONOR, at, next);
            at = next;
        }
    }
    if (r >= 0 && at < end)
        lacks(t, FILL_NO_IDS, at, end);
    return r < 0 ? r : 0;
}

/* What a tensor has no row of, of the tokens that one span said. */
static int fill_range(struct fill *f, struct tensor *t, size_t receiver, const struct cached *c)
{
    int64_t at = c->first;
    int r = 0;
    for (size_t i = 0; !r && i < t->n_stretches && at < c->end; i++) {
        const struct stretch *s = &t->stretches[i];
        if (s->flags)
            continue;
        if (s->position > at)
            r = fill_gap(f, t, receiver, c, at, s->position < c->end ? s->position : c->end);
        at = end_of(s) > at ? end_of(s) : at;
    }
    return !r && at < c->end ? fill_gap(f, t, receiver, c, at, c->end) : r;
}

/* ------------------------------------------------------------------------- all of it */

static int add_taken(struct fill *f, struct tensor *t)
{
    if (f->tensors->n_stretches + f->n_taken > TENSORS_MAX_STRETCHES)
        return -E2BIG;
    for (size_t i = 0; i < f->n_taken; i++) {
        if (PUSH(t->stretches, t->n_stretches, t->room, 1, f->taken[i]))
            return -ENOMEM;
        t->n_rows += f->taken[i].n_rows;
        f->tensors->n_filled += f->taken[i].n_rows;
    }
    f->tensors->n_stretches += f->n_taken;
    if (f->n_taken)
        stretches_sort(t->stretches, t->n_stretches);
    return 0;
}

/* The part of what one span said that lies in a range of positions that are wanted. */
static int fill_part(struct fill *f, struct tensor *t, size_t receiver, const struct cached *c,
                     const struct range *wanted, enum fill_fault fault)
{
    struct cached part = *c;
    part.first = c->first > wanted->first ? c->first : wanted->first;
    part.end = c->end < wanted->end ? c->end : wanted->end;
    if (part.first >= part.end)
        return 0;
    if (fault) {
        lacks(t, fault, part.first, part.end);
        return 0;
    }
    f->n_taken = 0;
    int r = fill_range(f, t, receiver, &part);
    return r ? r : add_taken(f, t);
}

static int fill_tensor(struct fill *f, struct tensor *t, size_t receiver, bool spec_sees_later)
{
    const struct owner *o = &f->owners[receiver];
    enum fill_fault fault = t->site->row == DMI_ROW_REQUEST    ? FILL_OF_REQUESTS
                            : o->sees_later || spec_sees_later ? FILL_SEES_LATER
                                                               : FILL_NONE;
    struct ranges wanted = { .all = { { 0, INT64_MAX } }, .n = 1 };
    if (f->select->n_tokens)
        wanted = selection_ranges(f->select, f->requests, t->request, t->n_request,
                                  f->requests->all[receiver].end);
    int r = 0;
    for (size_t i = 0; !r && i < o->n_cached; i++)
        for (size_t k = 0; !r && k < wanted.n; k++)
            r = fill_part(f, t, receiver, &f->cached[o->first_cached + i], &wanted.all[k], fault);
    return r;
}

static int fill_all(struct fill *f)
{
    const char *said = reader_convention(f->reader, ATTENTION_CONVENTION);
    bool sees_later = said && strcmp(said, CAUSAL) != 0;
    int r = 0;
    for (size_t i = 0; !r && i < f->tensors->n; i++) {
        struct tensor *t = &f->tensors->all[i];
        size_t receiver = t->request ? owner_of(f, t) : SIZE_MAX;
        if (receiver == SIZE_MAX || t->mixed || !t->n_stretches || t->site->row == DMI_ROW_NONE ||
            !f->owners[receiver].n_cached || f->requests->all[receiver].has_beams)
            continue;
        r = fill_tensor(f, t, receiver, sees_later);
    }
    return r;
}

static int fill(struct err *err, struct fill *f)
{
    if (!(f->owners = calloc(f->requests->n + 1, sizeof *f->owners)) ||
        edit_history_build(f->reader, &f->edits) || collect_cached(f))
        return err_set_errno(err, ENOMEM, "cannot look for rows of cached tokens");
    if (!f->n_cached)
        return 0;
    for (size_t i = 0; i < f->requests->n; i++)
        if (read_tags(&f->owners[i], &f->requests->all[i]))
            return err_set_errno(err, ENOMEM, "cannot look for rows of cached tokens");
    TRY(collect_ids(err, f));
    int r = plant(f);
    if (!r)
        r = fill_all(f);
    return r ? err_set_errno(err, -r, "cannot look for rows of cached tokens") : 0;
}

int fill_build(struct err *err, struct reader *reader, const struct sites *sites,
               const struct requests *requests, const struct selection *select, struct tensors *out)
{
    if (!select || !select->fill_cached) {
        const struct tensors_query query = { .select = select };
        return tensors_build(err, reader, sites, &query, out);
    }
    const struct selection all = { .rejected = select->rejected, .superseded = select->superseded };
    const struct tensors_query query = { .select = &all };
    TRY(tensors_build(err, reader, sites, &query, out));
    struct fill f = { .reader = reader, .requests = requests, .select = select, .tensors = out };
    int r = fill(err, &f);
    fill_deinit(&f);
    if (!r && tensors_narrow(out, requests, select))
        r = err_set_errno(err, ENOMEM, "cannot look for rows of cached tokens");
    if (r)
        tensors_deinit(out);
    return r;
}

void fill_add_fault(struct text *to, const struct tensor *t)
{
    switch (t->unfilled) {
    case FILL_NONE: return;
    case FILL_OF_REQUESTS:
        text_printf(to, "; its rows stand one a request, and no other request has them");
        return;
    case FILL_SEES_LATER:
        text_printf(to,
                    "; attention sees later tokens, so rows of another request are not its own");
        return;
    case FILL_NO_IDS:
        text_printf(to, "; the ids of its tokens from position %" PRId64 " on are not known",
                    t->unfilled_range.first);
        return;
    case FILL_NO_DONOR:
        text_printf(to,
                    "; positions %" PRId64 " to %" PRId64 " are in no request with the same tokens",
                    t->unfilled_range.first, t->unfilled_range.end - 1);
        return;
    }
}
