/* SPDX-License-Identifier: Apache-2.0 */
#include "read/missing.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/grow.h"
#include "read/utf8.h"

#include <dmi/format.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST_NEAREST 4
#define MOST_BYTES   48    /* of a name that is compared */
#define MOST_NAMES   20000 /* that are looked at */

/* ------------------------------------------------------------------------- what there is */

int seen_add(struct seen *s, const struct sites *sites, const struct dmi_record *record)
{
    const struct seen_layer key = { sites->first[record->site], record->layer };
    size_t *at = map_at(&s->index, &key, sizeof key);
    if (!at || (*at == MAP_NONE && grow((void **)&s->all, s->n, &s->room, sizeof *s->all, 64)))
        return -ENOMEM;
    if (*at == MAP_NONE) {
        *at = s->n;
        s->all[s->n++] = key;
    }
    return 0;
}

int seen_add_all(struct seen *s, const struct sites *sites, const struct reader *reader)
{
    int r = 0;
    for (size_t i = 0; !r && i < reader_n_records(reader); i++)
        r = seen_add(s, sites, &reader_record(reader, i)->at);
    return r;
}

void seen_deinit(struct seen *s)
{
    map_deinit(&s->index);
    free(s->all);
    *s = (struct seen){ 0 };
}

/* ------------------------------------------------------------------------- nearest names */

struct nearest {
    const char *wanted;
    size_t n_wanted, n_seen, n;
    struct {
        char name[MOST_BYTES + 1];
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
    n_name = n_name < MOST_BYTES ? n_name : MOST_BYTES;
    memcpy(s->best[at].name, name, n_name);
    s->best[at].name[n_name] = 0;
    s->best[at].distance = d;
}

static void add_nearest(struct text *to, const struct nearest *s)
{
    for (size_t i = 0; i < s->n; i++) {
        text_printf(to, "%s", i ? ", " : "; near it: ");
        utf8_add_printable(to, s->best[i].name, strlen(s->best[i].name));
    }
}

void missing_add_nearest(struct text *to, const char *wanted, size_t n_wanted,
                         const struct name_bytes *names, size_t n)
{
    struct nearest s = { .wanted = wanted, .n_wanted = n_wanted };
    for (size_t i = 0; i < n; i++)
        consider(&s, names[i].at, names[i].n);
    add_nearest(to, &s);
}

static int no_such(struct err *err, const char *what, const struct nearest *s)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    add_nearest(&t, s);
    _cleanup_(text_deinit) struct text wanted = { 0 };
    utf8_add_printable(&wanted, s->wanted, s->n_wanted);
    return err_set(err, -ENOENT, "the run has no %s '%s'%s", what, wanted.data ? wanted.data : "",
                   t.data ? t.data : "");
}

/* ------------------------------------------------------------------------- requests */

static int check_request(struct err *err, const struct missing_from *run,
                         const struct selection_name *name)
{
    if (requests_find(run->requests, name->s, name->n))
        return 0;
    if (!run->requests->n) {
        _cleanup_(text_deinit) struct text wanted = { 0 };
        utf8_add_printable(&wanted, name->s, name->n);
        return err_set(err, -ENOENT,
                       "the run has no request '%s': its engine named none, so no row is of one",
                       wanted.data ? wanted.data : "");
    }
    struct nearest s = { .wanted = name->s, .n_wanted = name->n };
    for (size_t i = 0; i < run->requests->n; i++)
        consider(&s, run->requests->all[i].id, run->requests->all[i].n_id);
    return no_such(err, "request", &s);
}

/* ------------------------------------------------------------------------- sites and tensors */

static bool is_site(const struct missing_from *run, const char *name)
{
    return ANY(i, reader_n_sites(run->reader), !strcmp(reader_site(run->reader, i)->name, name));
}

/* Whether the first bytes of a key are a request's, as keys have them. */
static bool is_request(const struct missing_from *run, const char *key, size_t n)
{
    for (size_t i = 0; i < run->requests->n; i++) {
        _cleanup_(text_deinit) struct text id = { 0 };
        utf8_add_valid(&id, run->requests->all[i].id, run->requests->all[i].n_id);
        if (id.failed || (id.n == n && !memcmp(id.data ? id.data : "", key, n)))
            return true;
    }
    return false;
}

/* Without the "~2" that a key gets whose like another tensor has. */
static size_t without_number(const char *key)
{
    size_t n = strlen(key), at = n;
    while (at && key[at - 1] >= '0' && key[at - 1] <= '9')
        at--;
    return at > 1 && at < n && key[at - 1] == '~' ? at - 1 : n;
}

/* Is @key, of @n bytes, NAME, or the NAME of a request? */
static bool names(const struct missing_from *run, const char *key, size_t n,
                  const struct text *name)
{
    if (n < name->n || memcmp(key + n - name->n, name->data, name->n))
        return false;
    size_t before = n - name->n;
    return !before || (key[before - 1] == '/' && is_request(run, key, before - 1));
}

static bool is_tensor(const struct missing_from *run, const char *key)
{
    size_t n = strlen(key), n_key = without_number(key);
    for (size_t i = 0; i < run->seen->n; i++) {
        const struct seen_layer *at = &run->seen->all[i];
        _cleanup_(text_deinit) struct text name = { 0 };
        tensor_add_name(&name, reader_site(run->reader, at->site)->name, at->layer);
        if (name.failed || names(run, key, n, &name) || names(run, key, n_key, &name))
            return true;
    }
    return false;
}

static int check_site(struct err *err, const struct missing_from *run,
                      const struct selection_name *name)
{
    if (is_site(run, name->s) || is_tensor(run, name->s))
        return 0;
    struct nearest s = { .wanted = name->s, .n_wanted = name->n };
    for (size_t i = 0; i < run->sites->n; i++)
        if (sites_is_shown(run->reader, run->sites, i))
            consider(&s, reader_site(run->reader, i)->name,
                     strlen(reader_site(run->reader, i)->name));
    for (size_t i = 0; strpbrk(name->s, "./") && i < run->seen->n; i++) {
        const struct seen_layer *at = &run->seen->all[i];
        _cleanup_(text_deinit) struct text t = { 0 };
        tensor_add_name(&t, reader_site(run->reader, at->site)->name, at->layer);
        if (!t.failed && at->layer != DMI_NO_LAYER)
            consider(&s, t.data, t.n);
    }
    return no_such(err, "site or tensor", &s);
}

/* ------------------------------------------------------------------------- layers */

int missing_layer(struct err *err, const char *site, const struct layer_word *w,
                  const struct layers *have)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    char word[48];
    layers_add_text(&t, have);
    if (w->kind == LAYER_MIDDLE)
        snprintf(word, sizeof word, "'middle'");
    else if (w->kind == LAYER_FROM_END && !w->first)
        snprintf(word, sizeof word, "'last'");
    else if (w->kind == LAYER_FROM_END)
        snprintf(word, sizeof word, "'last-%d%s'", w->first, w->last < w->first ? "-last" : "");
    else if (w->last == w->first)
        snprintf(word, sizeof word, "%d", w->first);
    else
        snprintf(word, sizeof word, w->last == INT32_MAX ? "%d-last" : "%d-%d", w->first, w->last);
    return err_set(err, -ENOENT, "%s%s has no layer %s; there is %s", site ? "site " : "the run",
                   site ? site : "", word, t.data ? t.data : "none");
}

static int check_layers(struct err *err, const struct missing_from *run,
                        const struct selection *select)
{
    struct selection any = *select; /* of these sites: borrowed */
    _cleanup_(layers_deinit) struct layers have = { 0 };
    bool there = false;
    any.n_layers = 0;
    for (size_t i = 0; i < run->seen->n; i++) {
        const struct seen_layer *at = &run->seen->all[i];
        if (!selection_wants_record(&any, reader_site(run->reader, at->site), at->layer))
            continue;
        there = true;
        if (at->layer != DMI_NO_LAYER && layers_add(&have, at->layer))
            return err_set_errno(err, ENOMEM, "cannot select");
    }
    layers_sort(&have);
    for (size_t w = 0; there && w < select->n_layers; w++) {
        bool found = false;
        for (size_t i = 0; i < have.n; i++)
            found |= layer_word_has(&select->layers[w], have.all[i], select->n_of_model);
        if (!found)
            return missing_layer(err, select->sites.n ? select->sites.all[0].s : NULL,
                                 &select->layers[w], &have);
    }
    return 0;
}

/* Words that go by what the engine says of requests. */
static int check_tokens(struct err *err, const struct missing_from *run,
                        const struct selection *select)
{
    for (size_t i = 0; !run->requests->n && i < select->n_tokens; i++)
        if (select->tokens[i].kind > TOKENS_RANGE)
            return err_set(err, -ENOENT,
                           "tokens: the run's engine named no requests, so it is not known which "
                           "tokens are a prompt's, a response's, or the last one");
    return 0;
}

int missing_check(struct err *err, const struct missing_from *run, const struct selection *select)
{
    int r = check_tokens(err, run, select);
    for (size_t i = 0; !r && i < select->requests.n; i++)
        r = check_request(err, run, &select->requests.all[i]);
    for (size_t i = 0; !r && i < select->sites.n; i++)
        r = check_site(err, run, &select->sites.all[i]);
    return r ? r : select->n_layers ? check_layers(err, run, select) : 0;
}

/* ------------------------------------------------------------------------- ranks */

static void add_ranks(struct text *to, const int32_t *ranks, size_t apart)
{
    const char *comma = "";
    for (uint32_t axis = 0; axis < DMI_AXIS_COUNT; axis++) {
        if (ranks[apart * axis] < 0)
            continue;
        text_printf(to, "%s%s=%d", comma, dmi_axis_name(axis), (int)ranks[apart * axis]);
        comma = ",";
    }
}

int missing_ranks(struct err *err, struct reader *reader, const int32_t ranks[DMI_AXIS_COUNT])
{
    static const int32_t any[DMI_AXIS_COUNT] = { -1, -1, -1, -1 };
    const struct reader_run *run = reader_run(reader);
    if (reader_only_ranks(reader, ranks))
        return 0;
    reader_only_ranks(reader, any);
    _cleanup_(text_deinit) struct text wanted = { 0 }, have = { 0 };
    add_ranks(&wanted, ranks, 1);
    for (size_t i = 0; run->ranks && i < run->n_runs && have.n < MOST_BYTES; i++) {
        text_printf(&have, "%s", i ? "; " : "; there is ");
        add_ranks(&have, run->ranks[i].ranks, 2);
    }
    return err_set(err, -ENOENT, "the run has no rank %s%s", wanted.data ? wanted.data : "?",
                   have.data ? have.data : "");
}
