/* SPDX-License-Identifier: Apache-2.0 */
#include "read/selection.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/comma.h"
#include "core/grow.h"
#include "read/utf8.h"
#include "storage/text.h"

#include <dmi/format.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HINT_BYTES 160

/* ------------------------------------------------------------------------- names */

int selection_add_name(struct selection_names *names, const char *name, size_t n)
{
    if (grow((void **)&names->all, names->n, &names->room, sizeof *names->all, 4))
        return -ENOMEM;
    char *s = malloc(n + 1);
    if (!s)
        return -ENOMEM;
    memcpy(s, name, n);
    s[n] = 0;
    names->all[names->n++] = (struct selection_name){ s, n };
    return 0;
}

void selection_names_deinit(struct selection_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->all[i].s);
    free(names->all);
    *names = (struct selection_names){ 0 };
}

void selection_deinit(struct selection *select)
{
    selection_names_deinit(&select->sites);
    selection_names_deinit(&select->requests);
    *select = (struct selection){ 0 };
}

bool selection_names_have(const struct selection_names *names, const char *name, size_t n)
{
    return ANY(i, names->n, names->all[i].n == n && !memcmp(names->all[i].s, name, n));
}

/* ------------------------------------------------------------------------- lists of words */

/* A list that is read, word by word. */
struct word_list {
    struct err *err;
    const char *what;
    size_t *n; /* words so far, of at most SELECTION_MOST_RANGES */
    void *to;
    bool (*take)(struct word_list *list, const char *word,
                 size_t n); /* Return: false: it is none */
    void (*hint)(const char *word, size_t n, char *buffer, size_t n_buffer);
    const char *expected;
};

static int take_list(struct word_list *l, const char *text)
{
    const char *word;
    size_t n;
    for (const char *at = text; comma_next(&at, &word, &n); ++*l->n) {
        char hint[HINT_BYTES] = "";
        if (*l->n == SELECTION_MOST_RANGES)
            return err_set(l->err, -EINVAL, "%s: more than %d words", l->what,
                           SELECTION_MOST_RANGES);
        if (l->take(l, word, n))
            continue;
        l->hint(word, n, hint, sizeof hint);
        return err_set(l->err, -EINVAL, "%s: '%.*s' is none of %s%s", l->what, (int)n, word,
                       l->expected, hint);
    }
    return 0;
}

static bool take_layer(struct word_list *l, const char *word, size_t n)
{
    return layer_word_parse(word, n, (struct layer_word *)l->to + *l->n);
}

int selection_add_layers(struct err *err, const char *what, const char *text, struct selection *s)
{
    struct word_list list = { .err = err,
                              .what = what,
                              .n = &s->n_layers,
                              .to = s->layers,
                              .take = take_layer,
                              .hint = layer_word_hint,
                              .expected =
                                  "a layer, A-B (B is included), A-last, last, last-N, middle" };
    return take_list(&list, text);
}

/* "prompt", "prompt[-4:]"; @of: whether a part of it has a meaning. */
static bool take_kind(const char *word, size_t n, const char *name, bool of, struct slice *out)
{
    size_t n_name = strlen(name);
    *out = (struct slice){ 0, INT64_MAX };
    if (n < n_name || memcmp(word, name, n_name))
        return false;
    return n == n_name || (of && n > n_name + 2 && word[n_name] == '[' && word[n - 1] == ']' &&
                           slice_parse(word + n_name + 1, n - n_name - 2, out));
}

static bool take_token(struct word_list *l, const char *word, size_t n)
{
    static const struct {
        const char *word;
        enum token_kind kind;
    } words[] = { { "all", TOKENS_ALL },
                  { "prompt", TOKENS_PROMPT },
                  { "generated", TOKENS_GENERATED },
                  { "response", TOKENS_GENERATED },
                  { "last", TOKENS_LAST } };
    struct token_word *to = (struct token_word *)l->to + *l->n;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        to->kind = words[i].kind;
        bool has_parts = to->kind == TOKENS_PROMPT || to->kind == TOKENS_GENERATED;
        if (take_kind(word, n, words[i].word, has_parts, &to->slice))
            return true;
    }
    to->kind = TOKENS_RANGE;
    return slice_parse(word, n, &to->slice);
}

int selection_add_tokens(struct err *err, const char *what, const char *text, struct selection *s)
{
    struct word_list list = { .err = err,
                              .what = what,
                              .n = &s->n_tokens,
                              .to = s->tokens,
                              .take = take_token,
                              .hint = slice_hint,
                              .expected = "a position, A:B (B is left out; below 0 from the end), "
                                          "prompt, response, a part as response[0:16], last, all" };
    return take_list(&list, text);
}

static bool take_slice(struct word_list *l, const char *word, size_t n)
{
    return slice_parse(word, n, (struct slice *)l->to + *l->n);
}

static bool take_from_first(struct word_list *l, const char *word, size_t n)
{
    return take_slice(l, word, n) && !slice_is_from_end(((struct slice *)l->to)[*l->n]);
}

int slices_add(struct err *err, const char *what, const char *text, bool from_end, struct slices *s)
{
    struct word_list list = { .err = err,
                              .what = what,
                              .n = &s->n,
                              .to = s->all,
                              .take = from_end ? take_slice : take_from_first,
                              .hint = slice_hint,
                              .expected =
                                  from_end ? "a number, A:B (B is left out; below 0 from the end)"
                                           : "a number from 0 on, A:B (B is left out)" };
    return take_list(&list, text);
}

/* ------------------------------------------------------------------------- ranges */

static int range_order(const void *pa, const void *pb)
{
    const struct range *a = pa, *b = pb;
    return a->first < b->first ? -1 : a->first > b->first;
}

/* Ascending, those that touch joined, empty ones left out. */
static void settle(struct ranges *r)
{
    size_t kept = 0;
    qsort(r->all, r->n, sizeof r->all[0], range_order);
    for (size_t i = 0; i < r->n; i++) {
        struct range *last = kept ? &r->all[kept - 1] : NULL;
        if (r->all[i].first >= r->all[i].end)
            continue;
        if (last && r->all[i].first <= last->end)
            last->end = r->all[i].end > last->end ? r->all[i].end : last->end;
        else
            r->all[kept++] = r->all[i];
    }
    r->n = kept;
}

static struct range range_of(struct slice s, int64_t n)
{
    if (slice_is_from_end(s))
        s = slice_of(s, n);
    return (struct range){ s.first, s.end };
}

struct ranges slices_of(const struct slices *slices, int64_t n)
{
    struct ranges r = { .n = slices->n };
    for (size_t i = 0; i < slices->n; i++)
        r.all[i] = range_of(slices->all[i], n);
    settle(&r);
    return r;
}

bool slices_have(const struct slices *slices, int64_t v)
{
    return FIRST(i, slices->n, v >= slices->all[i].first && v < slices->all[i].end, true,
                 !slices->n);
}

bool ranges_have(const struct ranges *r, int64_t v)
{
    return ANY(i, r->n, range_has(&r->all[i], v));
}

bool selection_needs_requests(const struct selection *select)
{
    for (size_t i = 0; select && i < select->n_tokens; i++)
        if (select->tokens[i].kind > TOKENS_RANGE || slice_is_from_end(select->tokens[i].slice))
            return true;
    return false;
}

/* Part of the positions that a request has of a kind. */
static struct range part_of(const struct token_word *word, const struct request *q)
{
    struct range all = request_tokens(q, word->kind);
    if (word->slice.first == 0 && word->slice.end == INT64_MAX)
        return all;
    int64_t end = all.end < q->end ? all.end : q->end;
    struct slice part = slice_of(word->slice, end > all.first ? end - all.first : 0);
    return (struct range){ all.first + part.first, all.first + part.end };
}

struct ranges selection_ranges(const struct selection *select, const struct requests *requests,
                               const char *request, size_t n_request, int64_t end)
{
    struct ranges r = { .n = select->n_tokens };
    const struct request *q = request && selection_needs_requests(select)
                                  ? requests_find(requests, request, n_request)
                                  : NULL;
    for (size_t i = 0; i < r.n; i++) {
        const struct token_word *word = &select->tokens[i];
        if (word->kind == TOKENS_RANGE)
            r.all[i] = range_of(word->slice, q ? q->end : end);
        else if (word->kind == TOKENS_ALL)
            r.all[i] = (struct range){ 0, INT64_MAX };
        else
            r.all[i] = q ? part_of(word, q) : (struct range){ 0, 0 };
    }
    settle(&r);
    return r;
}

/* ------------------------------------------------------------------------- what is wanted */

bool selection_is_all(const struct selection *s)
{
    return !s->sites.n && !s->requests.n && !s->n_layers && !s->n_tokens;
}

bool selection_needs_last(const struct selection *select)
{
    return ANY(i, select->n_layers, select->layers[i].kind != LAYER_INTERVAL);
}

void selection_find_last(struct selection *select, const struct reader *reader)
{
    for (size_t i = 0; i < reader_n_records(reader); i++) {
        int32_t layer = reader_record(reader, i)->at.layer;
        if (layer >= select->n_of_model && layer < INT32_MAX)
            select->n_of_model = layer + 1;
    }
}

bool selection_wants_layer(const struct selection *select, int32_t layer)
{
    return FIRST(i, select->n_layers, layer_word_has(&select->layers[i], layer, select->n_of_model),
                 true, !select->n_layers);
}

bool selection_wants_request(const struct selection *select, const char *request, size_t n_request)
{
    return !select || !select->requests.n || !request ||
           selection_names_have(&select->requests, request, n_request);
}

void tensor_add_name(struct text *to, const char *site, int32_t layer)
{
    const char *hole = strstr(site, "{layer}");
    if (layer == DMI_NO_LAYER) {
        utf8_add_valid(to, site, strlen(site));
    } else if (hole) {
        utf8_add_valid(to, site, (size_t)(hole - site));
        text_printf(to, "%d", layer);
        utf8_add_valid(to, hole + 7, strlen(hole + 7));
    } else {
        utf8_add_valid(to, site, strlen(site));
        text_printf(to, ".%d", layer);
    }
}

static bool ends_with_part(const char *s, const char *end)
{
    size_t n = strlen(s), n_end = strlen(end);
    return n > n_end && s[n - n_end - 1] == '/' && !strcmp(s + n - n_end, end);
}

bool selection_wants_record(const struct selection *select, const struct dmi_site *site,
                            int32_t layer)
{
    if (!select)
        return true;
    if (!selection_wants_layer(select, layer))
        return false;
    if (!select->sites.n || selection_names_have(&select->sites, site->name, strlen(site->name)))
        return true;
    _cleanup_(text_deinit) struct text name = { 0 };
    tensor_add_name(&name, site->name, layer);
    for (size_t i = 0; !name.failed && i < select->sites.n; i++)
        if (!strcmp(select->sites.all[i].s, name.data) ||
            ends_with_part(select->sites.all[i].s, name.data))
            return true;
    return name.failed;
}

/* ------------------------------------------------------------------------- in words */

static void add_names(struct text *to, const char *option, const struct selection_names *names)
{
    for (size_t i = 0; i < names->n; i++) {
        text_printf(to, " --%s ", option);
        utf8_add_valid(to, names->all[i].s, names->all[i].n);
    }
}

static void add_slice(struct text *to, struct slice s)
{
    text_printf(to, "%" PRId64 ":", s.first);
    if (s.end != INT64_MAX)
        text_printf(to, "%" PRId64, s.end);
}

void slices_add_text(struct text *to, const struct slices *slices)
{
    for (size_t i = 0; i < slices->n; i++) {
        text_printf(to, "%s", i ? "," : "");
        add_slice(to, slices->all[i]);
    }
}

void selection_add_text(struct text *to, const struct selection *s)
{
    static const char *const kinds[] = { "all", "", "prompt", "generated", "last" };
    add_names(to, "site", &s->sites);
    add_names(to, "request", &s->requests);
    for (size_t i = 0; i < s->n_layers; i++) {
        const struct layer_word *w = &s->layers[i];
        text_printf(to, "%s", i ? "," : " --layers ");
        if (w->kind == LAYER_INTERVAL)
            text_printf(to, "%d-%d", w->first, w->last);
        else
            text_printf(to, w->kind == LAYER_MIDDLE ? "middle" : "last-%d%s", w->first,
                        w->last < w->first ? "-last" : "");
    }
    for (size_t i = 0; i < s->n_tokens; i++) {
        bool range = s->tokens[i].kind == TOKENS_RANGE;
        text_printf(to, "%s%s%s", i ? "," : " --tokens ", kinds[s->tokens[i].kind],
                    range ? "" : "[");
        add_slice(to, s->tokens[i].slice);
        text_printf(to, "%s", range ? "" : "]");
    }
    text_printf(to, "%s%s", s->rejected ? " --rejected" : "", s->superseded ? " --superseded" : "");
}
