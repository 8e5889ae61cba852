/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/select.h"

#include "core/cleanup.h"
#include "read/missing.h"
#include "tools/common/say.h"

#include <errno.h>
#include <string.h>

#define MOST_TOLD 20

/* Whether the name is a site's, and not a tensor's; @has_requests: whether all rows of that site may have a request. */
static bool is_site(const struct reader *reader, const char *name, bool *has_requests)
{
    bool found = false;
    *has_requests = true;
    for (size_t i = 0; i < reader_n_sites(reader); i++) {
        const struct dmi_site *site = reader_site(reader, i);
        if (strcmp(site->name, name))
            continue;
        found = true;
        *has_requests &= site->row != DMI_ROW_NONE;
    }
    return found;
}

static bool engine_named_requests(const struct reader *reader)
{
    const struct dmi_counters *c = reader_run(reader)->counters;
    return c && c->steps;
}

static int select_all(struct err *err, struct reader *reader, bool by_window)
{
    const struct reader_query query = { .all_steps = true, .by_window = true };
    return reader_select(err, reader, by_window ? &query : NULL);
}

/* The only name of them, or NULL. */
static const struct selection_name *only(const struct selection_names *names)
{
    return names->n == 1 ? names->all : NULL;
}

/* The only layer that is wanted, or -1. */
static int32_t only_layer(const struct selection *s)
{
    bool one = s->n_layers == 1 && s->layers[0].kind == LAYER_INTERVAL &&
               s->layers[0].first == s->layers[0].last;
    return one ? s->layers[0].first : -1;
}

/* What the index can choose by. */
static struct reader_query query_of(const struct selection *s, bool has_requests)
{
    const struct selection_name *request = only(&s->requests);
    struct reader_query query = { .site = only(&s->sites)->s,
                                  .all_steps =
                                      true, /* ids are shown as what they are only by all */
                                  .by_layer = only_layer(s) >= 0,
                                  .layer = only_layer(s) };
    /* rows of nobody's token belong to every request; ID~2 may be stored as ID */
    if (!request || !has_requests || memchr(request->s, '~', request->n))
        return query;
    query.request = request->s;
    query.n_request = request->n;
    if (s->n_tokens == 1 && s->tokens[0].kind == TOKENS_RANGE) {
        query.first_position = s->tokens[0].slice.first;
        query.end_position = s->tokens[0].slice.end;
    }
    return query;
}

int select_records(struct err *err, struct reader *reader, const struct selection *select,
                   bool by_window)
{
    bool has_requests;
    /* how far a request is, all of its steps say; rows of cached tokens may be any request's */
    if (by_window || !select || !only(&select->sites) || select->fill_cached ||
        selection_needs_requests(select) || selection_needs_last(select) ||
        !engine_named_requests(reader) || !is_site(reader, only(&select->sites)->s, &has_requests))
        return select_all(err, reader, by_window);
    struct reader_query query = query_of(select, has_requests);
    int r = reader_select(err, reader, &query);
    return r || reader_n_records(reader) ? r : select_all(err, reader, false);
}

int select_check(struct err *err, const struct reader *reader, struct selection *select)
{
    _cleanup_(sites_deinit) struct sites sites = { 0 };
    _cleanup_(requests_deinit) struct requests requests = { 0 };
    _cleanup_(seen_deinit) struct seen seen = { 0 };
    if (selection_is_all(select))
        return 0;
    selection_find_last(select, reader);
    /* keys of tensors begin with a request */
    bool by_name = select->requests.n || select->sites.n || selection_needs_requests(select);
    if (sites_build(reader, &sites) || (by_name && requests_build(reader, &requests)) ||
        seen_add_all(&seen, &sites, reader))
        return err_set_errno(err, ENOMEM, "cannot select");
    return missing_check(err, &(struct missing_from){ reader, &sites, &requests, &seen }, select);
}

/* Has one of the names a tensor of the request, or of whatever request? */
static bool names_take(const struct selection_names *names, const struct requests *requests,
                       const struct request *q)
{
    bool takes = !names->n;
    for (size_t i = 0; !takes && i < names->n; i++) {
        const struct selection_name *name = &names->all[i];
        const struct request *of = NULL;
        for (size_t k = 0; !of && k < name->n; k++)
            if (name->s[k] == '/')
                of = requests_find(requests, name->s, k);
        takes = !of || of == q;
    }
    return takes;
}

bool select_tell_unjudged(const struct requests *requests, const struct selection *select)
{
    size_t n = 0;
    bool asked = false;
    for (size_t i = 0; i < select->n_tokens; i++)
        asked |=
            select->tokens[i].kind == TOKENS_PROMPT || select->tokens[i].kind == TOKENS_GENERATED;
    for (size_t i = 0; asked && i < requests->n; i++) {
        const struct request *q = &requests->all[i];
        if (q->n_prompt >= 0 || !q->n_steps || !selection_wants_request(select, q->id, q->n_id) ||
            !names_take(&select->sites, requests, q))
            continue;
        if (n++ < MOST_TOLD)
            complain("--tokens: prompt and response take no row of request '%.*s': no span says "
                     "n_prompt, and no "
                     "step decodes, so it is not known where its generation begins",
                     (int)q->n_id, q->id);
    }
    if (n > MOST_TOLD)
        complain("... and %zu more requests", n - MOST_TOLD);
    return n > 0;
}
