/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/select.h"

#include "core/cleanup.h"
#include "core/sorted.h"
#include "policy/tree.h"

#include <dmi/span.h>

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

static bool same_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

void select_deinit(struct select *s)
{
    free(s->tag);
    free(s->requests);
    *s = (struct select){ 0 };
}

bool select_same(const struct select *a, const struct select *b)
{
    return a->row == b->row && a->tokens == b->tokens && a->first == b->first && a->end == b->end &&
           a->of_prompt == b->of_prompt && same_text(a->tag, b->tag) &&
           same_text(a->requests, b->requests);
}

/* ------------------------------------------------------------------------- requests */

/* The value of @key in an object, NULL: it has none. */
static const struct tree_node *value_of(const struct tree_node *object, const char *key)
{
    if (!object || object->kind != TREE_MAP)
        return NULL;
    for (size_t i = 0; i + 1 < object->n_items; i += 2)
        if (object->items[i]->kind == TREE_SCALAR && !strcmp(object->items[i]->text, key))
            return object->items[i + 1];
    return NULL;
}

/* Bytes of WORD in "*WORD*"; 0: it is another pattern. */
static size_t word_in(const char *pattern)
{
    size_t n = strlen(pattern);
    bool is_word = n > 2 && *pattern == '*' && strcspn(pattern + 1, "*?[\\") == n - 2;
    return is_word && pattern[n - 1] == '*' ? n - 2 : 0;
}

static bool is_letter(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (unsigned char)c >= 0x80;
}

/* Does the text have the word of @n bytes, and not within a longer one? */
static bool has_word(const char *text, const char *word, size_t n)
{
    for (const char *at = text; *at; at++)
        if (!strncmp(at, word, n) && !(at > text && is_letter(at[-1]) && is_letter(*word)) &&
            !(is_letter(at[n]) && is_letter(word[n - 1])))
            return true;
    return false;
}

/* A tag may list words. "*q*" means the word: else it would take a tag that has "q_rot" alone. */
static bool tag_matches(const char *pattern, const struct tree_node *value)
{
    size_t n = word_in(pattern);
    bool matches = false;
    if (value && value->kind == TREE_SCALAR)
        return n ? has_word(value->text, pattern + 1, n) : !fnmatch(pattern, value->text, 0);
    for (size_t i = 0; value && value->kind == TREE_LIST && i < value->n_items; i++)
        matches = matches ||
                  (value->items[i]->kind == TREE_SCALAR && tag_matches(pattern, value->items[i]));
    return matches;
}

bool select_request_of(const struct select *s, const char *id, const struct tree_node *tags)
{
    if (!s->requests)
        return true;
    return s->tag ? tag_matches(s->requests, value_of(tags, s->tag))
                  : id && !fnmatch(s->requests, id, 0);
}

bool select_request(const struct select *s, const char *id, const char *tags)
{
    struct tree tree = { 0 };
    struct tree_error error;
    if (s->tag && tags && tree_parse(tags, strlen(tags), &tree, &error))
        tree.root = NULL;
    bool takes = select_request_of(s, id, tree.root);
    tree_deinit(&tree);
    return takes;
}

/* ------------------------------------------------------------------------- the rows of a step */

/* Positions that are kept of a span whose rows are [at, at + n): a stretch of them. */
struct kept_positions {
    int64_t from, to;
};

static struct kept_positions within(const struct dmi_span *span, int64_t from, int64_t to)
{
    int64_t first = span->first_position, end = first + span->n_tokens;
    struct kept_positions s = { from > first ? from : first, to < end ? to : end };
    if (s.to < s.from)
        s.to = s.from;
    return s;
}

/* Where generation begins, as far as the engine says. */
static int64_t end_of_prompt(const struct dmi_span *span)
{
    if (span->n_prompt)
        return span->n_prompt;
    return span->phase == DMI_PHASE_PREFILL ? INT64_MAX : 0;
}

static bool says_phase(const struct dmi_span *span)
{
    return span->n_prompt || span->phase != DMI_PHASE_UNKNOWN;
}

/* Bounds below 0 count from the end of the prompt; nothing is known of them where the engine does not say where that is. */
static struct kept_positions range_of(const struct select *s, const struct dmi_span *span)
{
    int64_t base = span->n_prompt, end = s->end < 0 ? base + s->end : s->end;
    int64_t most = !s->of_prompt ? INT64_MAX : says_phase(span) ? end_of_prompt(span) : 0;
    if ((s->first < 0 || s->end < 0) && !base)
        return within(span, 0, 0);
    return within(span, s->first < 0 ? base + s->first : s->first, end < most ? end : most);
}

static struct kept_positions kept_positions(const struct select *s, const struct dmi_span *span,
                                            bool is_last)
{
    int64_t end = span->first_position + span->n_tokens;
    switch (s->tokens) {
    case SELECT_ALL: return within(span, 0, INT64_MAX);
    case SELECT_RANGE: return range_of(s, span);
    case SELECT_PROMPT: return within(span, 0, says_phase(span) ? end_of_prompt(span) : 0);
    case SELECT_GENERATED:
        return within(span, says_phase(span) ? end_of_prompt(span) : INT64_MAX, INT64_MAX);
    case SELECT_LAST: return within(span, is_last ? end - 1 : end, end);
    case SELECT_LAST_PROMPT:
        return span->n_prompt ? within(span, (int64_t)span->n_prompt - 1, span->n_prompt)
                              : within(span, 0, 0);
    }
    return within(span, 0, 0);
}

void select_positions(const struct select *s, const struct dmi_span *span, bool is_last,
                      int64_t *from, int64_t *to)
{
    struct kept_positions kept = kept_positions(s, span, is_last);
    *from = kept.from;
    *to = kept.to;
}

static bool is_padding(const struct dmi_span *span)
{
    return span->flags & DMI_SPAN_PADDING;
}

static int by_request(const void *a, const void *b, void *arg)
{
    const struct dmi_step *step = arg;
    const struct dmi_span *x = dmi_span_at(step, *(const uint32_t *)a);
    const struct dmi_span *y = dmi_span_at(step, *(const uint32_t *)b);
    int order = strcmp(x->request_id ? x->request_id : "", y->request_id ? y->request_id : "");
    if (order)
        return order;
    return x->first_position < y->first_position ? -1 : x->first_position > y->first_position;
}

bool *select_find_last(const struct dmi_step *step)
{
    uint32_t n = 0;
    bool *last = calloc(step->n_spans + 1u, sizeof *last);
    _cleanup_(freep) uint32_t *order = calloc(step->n_spans + 1u, sizeof *order);
    if (!last || !order) {
        free(last);
        return NULL;
    }
    for (uint32_t i = 0; i < step->n_spans; i++)
        if (!is_padding(dmi_span_at(step, i)) && dmi_span_at(step, i)->n_tokens)
            order[n++] = i;
    qsort_r(order, n, sizeof *order, by_request, (void *)step);
    for (uint32_t i = 0; i < n; i++) {
        const char *id = dmi_span_at(step, order[i])->request_id;
        last[order[i]] = i + 1 == n || strcmp(id, dmi_span_at(step, order[i + 1])->request_id) != 0;
    }
    return last;
}

/* What of the step's spans is kept. */
struct choosing {
    const struct select *select;
    const struct dmi_step *step;
    const bool *takes; /* NULL: all */
    const bool *last;  /* NULL: nobody asks */
};

static struct kept_positions chosen(const struct choosing *c, uint32_t i)
{
    const struct dmi_span *span = dmi_span_at(c->step, i);
    if (is_padding(span) || (c->takes && !c->takes[i]))
        return (struct kept_positions){ 0, 0 };
    return kept_positions(c->select, span, c->last && c->last[i]);
}

/* Rows by token: those that the spans keep and, in a default selection, those that no span owns. */
static void choose_tokens(const struct choosing *c, uint8_t *keep, struct select_rows *out)
{
    const struct dmi_step *step = c->step;
    bool rest = select_is_default(c->select);
    memset(keep, rest, step->n_rows);
    for (uint32_t i = 0; i < step->n_spans; i++) {
        const struct dmi_span *span = dmi_span_at(step, i);
        struct kept_positions s = chosen(c, i);
        memset(keep + span->first_row, 0, span->n_tokens);
        if (s.to > s.from)
            memset(keep + span->first_row + (s.from - span->first_position), 1,
                   (size_t)(s.to - s.from));
    }
    for (uint32_t r = 0; r < step->n_rows; r++)
        if (keep[r])
            out->rows[out->n++] = r;
    out->n_all = step->n_rows;
    out->all = rest && out->n == step->n_rows;
}

/* Has the request a row where a row is a request's? */
static bool has_own_row(const struct dmi_span *span)
{
    return !(span->flags & (DMI_SPAN_PADDING | DMI_SPAN_PART));
}

/* Rows by request: those of spans whose last token is kept. */
static void choose_requests(const struct choosing *c, struct select_rows *out)
{
    uint32_t n_real = 0;
    for (uint32_t i = 0; i < c->step->n_spans; i++) {
        const struct dmi_span *span = dmi_span_at(c->step, i);
        struct kept_positions s = chosen(c, i);
        if (!span->n_tokens)
            continue;
        if (has_own_row(span) && s.to > s.from && s.to == span->first_position + span->n_tokens) {
            out->rows[out->n] = out->n_all;
            out->last[out->n] = span->first_row + span->n_tokens - 1;
            out->own[out->n++] = n_real;
        }
        out->n_all++;
        n_real += has_own_row(span);
    }
    out->all = !out->n_all && select_is_default(c->select); /* nobody said whose the rows are */
}

static int choose(const struct select *s, const struct dmi_step *step, const bool *takes,
                  bool by_token, struct select_rows *out)
{
    bool asks_last = s->tokens == SELECT_LAST;
    uint32_t n = by_token ? step->n_rows : step->n_spans;
    *out = (struct select_rows){ .rows = calloc(3 * (size_t)n + 1, sizeof *out->rows) };
    _cleanup_(freep) uint8_t *keep = by_token ? calloc(n + 1u, 1) : NULL;
    _cleanup_(freep) bool *last = asks_last ? select_find_last(step) : NULL;
    if (!out->rows || (by_token && !keep) || (asks_last && !last))
        return -ENOMEM;
    out->own = out->rows + n;
    out->last = out->own + n;
    struct choosing c = { .select = s, .step = step, .takes = takes, .last = last };
    if (by_token)
        choose_tokens(&c, keep, out);
    else
        choose_requests(&c, out);
    return 0;
}

int select_rows(const struct select *s, const struct dmi_step *step, const bool *takes,
                struct select_rows *out)
{
    return choose(s, step, takes, s->row == DMI_ROW_TOKEN, out);
}

int select_last_rows(const struct select *s, const struct dmi_step *step, const bool *takes,
                     struct select_rows *out)
{
    return choose(s, step, takes, false, out);
}

void select_rows_deinit(struct select_rows *rows)
{
    free(rows->rows);
    *rows = (struct select_rows){ 0 };
}

/* ------------------------------------------------------------------------- the rows of a tensor */

/* Entries below @n; they ascend. */
static uint32_t n_below(const uint32_t *list, uint32_t n_list, uint32_t n)
{
    uint32_t i;
    SEARCH(i, n_list, list[i] < n);
    return i;
}

uint32_t select_rows_between(const struct select_rows *rows, uint32_t from, uint32_t to)
{
    if (rows->all)
        return to - from;
    return n_below(rows->rows, rows->n, to) - n_below(rows->rows, rows->n, from);
}

/* A list that ascends is the first numbers if its last entry is. */
static bool is_first(const uint32_t *list, uint32_t n)
{
    return !n || list[n - 1] == n - 1;
}

struct select_pick select_pick(const struct select *s, const struct select_rows *rows,
                               uint32_t n_rows)
{
    struct select_pick all = { .all = true, .n = n_rows };
    if (rows->all || (select_is_default(s) && s->row == DMI_ROW_TOKEN && n_rows > rows->n_all))
        return all;
    /* a tensor with fewer rows than spans has none for padding: docs/format.md 8 */
    const uint32_t *list =
        s->row == DMI_ROW_REQUEST && n_rows < rows->n_all ? rows->own : rows->rows;
    uint32_t n = n_below(list, rows->n, n_rows);
    if (is_first(list, n))
        return n == n_rows ? all : (struct select_pick){ .n = n };
    return (struct select_pick){ .n = n, .rows = list, .n_list = rows->n, .kept = rows->rows };
}

struct select_pick select_pick_last(const struct select_rows *last, uint32_t n_rows)
{
    if (last->all)
        return (struct select_pick){ .all = true, .n = n_rows };
    const uint32_t *list = n_rows < last->n_all ? last->own : last->rows;
    return (struct select_pick){
        .n = n_below(list, last->n, n_rows), .rows = list, .n_list = last->n, .kept = last->last
    };
}
