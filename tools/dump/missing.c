/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/missing.h"

#include "core/cleanup.h"
#include "read/account.h"
#include "read/requests.h"
#include "tools/dump/dump.h"
#include "tools/dump/layers.h"

#include <stdlib.h>
#include <string.h>

#define MOST_NEAREST 4
#define MOST_BYTES   48    /* of a name that is compared */
#define MOST_NAMES   20000 /* that are looked at */

/* ------------------------------------------------------------------------- nearest names */

struct nearest {
    const char *wanted;
    size_t n_wanted, n_seen, n;
    struct {
        const char *name;
        size_t n_name;
        unsigned distance;
    } best[MOST_NEAREST];
};

/* Edits that make one name of the other (Levenshtein), over their first bytes. */
static unsigned distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    unsigned row[MOST_BYTES + 1];
    n_a = n_a < MOST_BYTES ? n_a : MOST_BYTES;
    n_b = n_b < MOST_BYTES ? n_b : MOST_BYTES;
    for (size_t j = 0; j <= n_b; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= n_a; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n_b; j++) {
            unsigned change = diagonal + (a[i - 1] != b[j - 1]);
            unsigned least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            diagonal = row[j];
            row[j] = change < least ? change : least;
        }
    }
    return row[n_b];
}

static void consider(struct nearest *s, const char *name, size_t n_name)
{
    if (s->n_seen++ >= MOST_NAMES)
        return;
    unsigned d = distance(s->wanted, s->n_wanted, name, n_name);
    size_t at = s->n;
    while (at && d < s->best[at - 1].distance)
        at--;
    if (at == MOST_NEAREST)
        return;
    s->n += s->n < MOST_NEAREST;
    memmove(&s->best[at + 1], &s->best[at], (s->n - 1 - at) * sizeof s->best[0]);
    s->best[at].name = name;
    s->best[at].n_name = n_name;
    s->best[at].distance = d;
}

static void complain_nearest(const char *what, const struct nearest *s, const char *where)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    for (size_t i = 0; i < s->n; i++)
        text_printf(&t, "%s%.*s", i ? ", " : "; nearest: ", (int)s->best[i].n_name,
                    s->best[i].name);
    complain("this run has no %s '%s' (%zu in all%s)%s", what, s->wanted, s->n_seen, where,
             t.data ? t.data : "");
}

/* ------------------------------------------------------------------------- what is missing */

bool missing_has_request(const struct reader *reader, const struct selection *select)
{
    _cleanup_(requests_deinit) struct requests requests = { 0 };
    if (!select->request || !reader_n_steps(reader) || requests_build(reader, &requests) ||
        requests_find(&requests, select->request, select->n_request))
        return true;
    struct nearest s = { .wanted = select->request, .n_wanted = select->n_request };
    for (size_t i = 0; i < requests.n; i++)
        consider(&s, requests.all[i].id, requests.all[i].n_id);
    complain_nearest("request", &s, ": list --requests");
    return false;
}

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

static void complain_site(const struct reader *reader, const struct sites *sites,
                          const char *wanted)
{
    struct nearest s = { .wanted = wanted, .n_wanted = strlen(wanted) };
    for (size_t i = 0; i < sites->n; i++)
        if (sites_is_shown(reader, sites, i))
            consider(&s, reader_site(reader, i)->name, strlen(reader_site(reader, i)->name));
    complain_nearest("site or tensor", &s, ": list");
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
    if (!select->request || requests_build(reader, &requests) ||
        (select->tokens != TOKENS_PROMPT && select->tokens != TOKENS_GENERATED))
        return true;
    const struct request *r = requests_find(&requests, select->request, select->n_request);
    if (!r || r->n_prompt >= 0)
        return true;
    complain(
        "where the generation of request '%.*s' begins is not known: no span says n_prompt, and no "
        "step decodes (--tokens A:B)",
        (int)r->n_id, r->id);
    return false;
}

bool missing_is_all(const struct selection *select)
{
    return !select->site && !select->request && !select->by_layer && !select->tokens;
}

void missing_complain(const struct reader *reader, const struct sites *sites,
                      const struct selection *select)
{
    if (!missing_has_request(reader, select) || !prompt_is_known(reader, select))
        return;
    const struct dmi_site *site = select->site ? site_of(reader, select->site) : NULL;
    if (site)
        complain_empty(reader, sites, site);
    else if (select->site)
        complain_site(reader, sites, select->site);
    else
        complain("nothing was captured with that layer, request or tokens (dmi-dump list)");
}
