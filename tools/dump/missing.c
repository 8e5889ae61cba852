/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/missing.h"

#include "core/cleanup.h"
#include "read/account.h"
#include "read/requests.h"
#include "tools/dump/dump.h"
#include "read/layers.h"

#include <stdlib.h>
#include <string.h>

/* The site that a selection names as such or as a tensor; NULL: none. */
static const struct dmi_site *site_of(const struct reader *reader, const char *wanted)
{
    for (size_t i = 0; i < reader_n_sites(reader); i++) {
        const struct dmi_site *site = reader_site(reader, i);
        if (!strcmp(site->name, wanted))
            return site;
    }
    return NULL;
}

/* The site is known: why nothing of it is there. */
static void complain_empty(const struct reader *reader, const struct sites *sites,
                           const struct dmi_site *site)
{
    _cleanup_(accounts_deinit) struct accounts accounts = { 0 };
    struct layers layers = { 0 };
    _cleanup_(text_deinit) struct text t = { 0 };
    uint32_t first = sites->first[site->id];
    for (size_t i = 0; i < reader_n_records(reader); i++) {
        const struct dmi_record *at = &reader_record(reader, i)->at;
        if (sites->first[at->site] == first && layers_add(&layers, at->layer))
            break;
    }
    layers_sort(&layers);
    layers_add_text(&t, &layers);
    if (reader_site(reader, first)->writes) {
        complain("site %s is a place for edits, and is not captured", site->name);
        return;
    }
    char expected[32], dropped[32];
    if (layers.n)
        complain(
            "site %s was captured, but not with that layer, request or tokens: it has layers %s",
            site->name, t.data ? t.data : "?");
    else if (!accounts_build(reader, sites, &accounts) && accounts.sites[first].known)
        complain("no record of site %s can be read: expected %s records, dropped %s", site->name,
                 grouped(accounts.sites[first].expected.records, expected),
                 grouped(accounts.sites[first].dropped.records, dropped));
    else
        complain("no record of site %s can be read", site->name);
    layers_deinit(&layers);
}

/* Whether it can be said of the request where its generation begins, if that is asked; says so where it cannot. */
static bool prompt_is_known(const struct reader *reader, const struct selection *select)
{
    _cleanup_(requests_deinit) struct requests requests = { 0 };
    bool asked = false;
    for (size_t i = 0; i < select->n_tokens; i++)
        asked |=
            select->tokens[i].kind == TOKENS_PROMPT || select->tokens[i].kind == TOKENS_GENERATED;
    if (!asked || !select->requests.n || requests_build(reader, &requests))
        return true;
    const struct selection_name *name = &select->requests.all[0];
    const struct request *r = requests_find(&requests, name->s, name->n);
    if (!r || r->n_prompt >= 0)
        return true;
    complain(
        "where the generation of request '%.*s' begins is not known: no span says n_prompt, and no "
        "step decodes (--tokens A:B)",
        (int)r->n_id, r->id);
    return false;
}

void missing_complain(const struct reader *reader, const struct sites *sites,
                      const struct selection *select)
{
    if (!prompt_is_known(reader, select))
        return;
    const struct dmi_site *site = select->sites.n ? site_of(reader, select->sites.all[0].s) : NULL;
    if (site)
        complain_empty(reader, sites, site);
    else
        complain("nothing was captured with that layer, request or tokens (dmi-dump list)");
}
