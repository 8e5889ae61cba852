/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/select.h"

#include <string.h>

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

int select_records(struct err *err, struct reader *reader, const struct selection *select,
                   bool by_window)
{
    bool has_requests;
    /* how far a request is, all of its steps say; rows of cached tokens may be any request's */
    if (!select || !select->site || select->fill_cached || select->tokens > TOKENS_RANGE ||
        !engine_named_requests(reader) || !is_site(reader, select->site, &has_requests))
        return select_all(err, reader, by_window);
    /* ids are shown as what they are only by all steps */
    struct reader_query query = { .site = select->site, .all_steps = true, .by_window = by_window };
    if (select->by_layer && select->layers.first >= 0 && select->layers.first <= INT32_MAX &&
        select->layers.end == select->layers.first + 1) {
        query.by_layer = true;
        query.layer = (int32_t)select->layers.first;
    }
    /* rows of nobody's token belong to every request; ID~2 may be stored as ID */
    if (select->request && has_requests && !memchr(select->request, '~', select->n_request)) {
        query.request = select->request;
        query.n_request = select->n_request;
        if (select->tokens == TOKENS_RANGE && select->positions.end > select->positions.first) {
            query.first_position = select->positions.first;
            query.end_position = select->positions.end;
        }
    }
    int r = reader_select(err, reader, &query);
    size_t n = by_window ? reader_n_matched(reader) : reader_n_records(reader);
    return r || n ? r : select_all(err, reader, by_window);
}
