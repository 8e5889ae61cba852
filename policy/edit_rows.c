/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows of a step edits write, and with which coefficients. Pure. */
#include "policy/edit.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "policy/number.h"
#include "policy/tree.h"

#include <dmi/span.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An edit in a span: what it wants there. */
struct want {
    const struct edit_use *use;
    uint32_t edit, counter; /* its number in the table */
    uint32_t donor;         /* of the bank's rows */
    struct dmi_edit_cut cut;
    uint32_t section;
    int64_t from, to; /* positions */
    float coefficients[DMI_EDIT_MAX_OPS];
    bool moves; /* some of them depend on the position */
};

struct builder {
    const struct edit_rows_ask *ask;
    const struct edit_ranks *ranks; /* NULL: not known */
    struct edit_rows *out;
    struct edit_section sections[EDIT_MAX_SECTIONS]; /* of the span under way */
    struct want *wants;                              /* of it, by section, in the order of edits */
    size_t n_wants, room_wants;
    uint32_t *pairs, *programs; /* pairs hold offsets within @programs until all are known */
    size_t n_pairs, room_pairs, n_programs, room_programs;
    size_t room_shares;
};

/* ------------------------------------------------------------------------- growing lists */

static int add_pair(struct builder *b, uint32_t row, uint32_t program)
{
    for (int i = 0; i < 2; i++) {
        if (PUSH(b->pairs, b->n_pairs, b->room_pairs, 64, i ? program : row))
            return -ENOMEM;
    }
    return 0;
}

static int add_word(struct builder *b, uint32_t word)
{
    return PUSH(b->programs, b->n_programs, b->room_programs, 64, word);
}

static int add_share(struct builder *b, struct edit_share share)
{
    struct edit_rows *out = b->out;
    return PUSH(out->shares, out->n_shares, b->room_shares, 16, share);
}

/* ------------------------------------------------------------------------- coefficients */

/* Along the points, by the number of the generated token; tokens of the prompt have the first point's value. */
static float at_point(const struct edit_coefficient *c, int64_t token)
{
    uint32_t i = 0;
    while (i < c->n_points && c->points[i].token <= token)
        i++;
    if (!i)
        return c->points[0].value;
    const struct edit_point *a = &c->points[i - 1];
    if (i == c->n_points)
        return a->value;
    double share = (double)(token - a->token) / (double)(a[1].token - a->token);
    return (float)(a->value + share * ((double)a[1].value - a->value));
}

/* What a request says under a name. */
enum said { SAID_NOTHING, SAID_NO_NUMBER, SAID_NUMBER };

static enum said number_of_tag(const struct tree *tags, const char *key, float *out)
{
    const struct tree_node *root = tags->root;
    for (size_t i = 0; root && root->kind == TREE_MAP && i + 1 < root->n_items; i += 2) {
        const struct tree_node *k = root->items[i], *v = root->items[i + 1];
        double number;
        if (k->kind != TREE_SCALAR || strcmp(k->text, key))
            continue;
        if (v->kind != TREE_SCALAR || !parse_decimal(v->text, &number) || number > 3e38 ||
            number < -3e38)
            return SAID_NO_NUMBER;
        *out = (float)number;
        return SAID_NUMBER;
    }
    return SAID_NOTHING;
}

bool edit_op_has_times(const struct edit_op *op)
{
    return dmi_edit_traits(op->kind) & DMI_EDIT_TIMES;
}

static const struct edit_coefficient *coefficient_of(const struct edit_use *use, uint32_t op)
{
    const struct edit_op *o = &use->edit->ops[op];
    return use->times && edit_op_has_times(o) ? use->times : &o->times;
}

bool edit_times_at(const struct edit_use *use, uint32_t op, const struct tree *tags, int64_t token,
                   float *out)
{
    const struct edit_coefficient *c = coefficient_of(use, op);
    if (c->from == EDIT_TAG)
        return number_of_tag(tags, c->tag, out) == SAID_NUMBER;
    *out = c->from == EDIT_POINTS ? at_point(c, token) : c->number;
    return true;
}

static bool has_bank(const struct edit *edit)
{
    return edit_saves(edit) || edit_takes(edit);
}

/* Has each position of the edit a row of its own? */
static bool has_rows(const struct edit_use *use)
{
    if (has_bank(use->edit))
        return true;
    for (uint32_t k = 0; k < use->edit->n_ops; k++) {
        uint32_t vector = use->edit->ops[k].vector;
        if (vector != EDIT_NO_VECTOR && edit_vector_rows(&use->of->vectors[vector]) > 1)
            return true;
    }
    return false;
}

/* The coefficients that do not depend on the position. Return: the worst that a tag said. */
static enum said take_coefficients(const struct edit_use *use, const struct tree *tags,
                                   struct want *want)
{
    enum said worst = SAID_NUMBER;
    want->moves = has_rows(use);
    for (uint32_t k = 0; k < use->edit->n_ops; k++) {
        const struct edit_coefficient *c = coefficient_of(use, k);
        want->coefficients[k] = c->number;
        want->moves = want->moves || c->from == EDIT_POINTS;
        enum said said =
            c->from == EDIT_TAG ? number_of_tag(tags, c->tag, &want->coefficients[k]) : SAID_NUMBER;
        worst = said < worst ? said : worst;
    }
    return worst;
}

/* ------------------------------------------------------------------------- a span */

bool edit_asks_tags(const struct edit_use *use)
{
    if (use->edit->who.tag)
        return true;
    return ANY(k, use->edit->n_ops, coefficient_of(use, k)->from == EDIT_TAG);
}

/* A span under way. */
struct span_at {
    const struct dmi_span *span; /* NULL: rows of no known request */
    bool is_last;
    struct tree tags;
    bool parsed;
};

static const struct tree *tags_of(struct span_at *at, const struct edit_use *use)
{
    struct tree_error error;
    if (!at->parsed && at->span && at->span->tags && edit_asks_tags(use)) {
        at->parsed = true;
        if (tree_parse(at->span->tags, strlen(at->span->tags), &at->tags, &error))
            at->tags.root = NULL;
    }
    return &at->tags;
}

/* Rows before the span, which the request has from a prefix cache, and which the edit wants. */
static uint32_t n_cached(const struct edit_use *use, const struct dmi_span *span)
{
    /* not a copy: the engine's struct may be an older one */
    struct dmi_span cached = { .first_position = span->first_position - span->n_cached,
                               .n_tokens = span->n_cached,
                               .phase = span->phase,
                               .n_prompt = span->n_prompt };
    int64_t from, to;
    if (!span->n_cached)
        return 0;
    select_positions(&use->edit->who, &cached, false, &from, &to);
    return from < to ? (uint32_t)(to - from) : 0;
}

/* Of a request that is known: does the edit want rows of it? *@cached: of those that lack it, as they came from a prefix cache. */
static bool wants_rows(struct builder *b, const struct edit_use *use, struct span_at *at,
                       struct want *want, uint32_t *cached)
{
    const struct select *who = &use->edit->who;
    if (!select_request_of(who, at->span->request_id, tags_of(at, use)->root))
        return false;
    select_positions(who, at->span, at->is_last, &want->from, &want->to);
    *cached = n_cached(use, at->span);
    if (*cached && b->ask->has_cached(b->ask->arg, use, at->span))
        *cached = 0;
    return want->from < want->to || *cached;
}

static bool patches(const struct edit *edit)
{
    return ANY(k, edit->n_ops, dmi_edit_traits(edit->ops[k].kind) & DMI_EDIT_ROWS);
}

/* A patch at 'A:B' means tokens of a prompt, and B may lie after the end of this one. How many rows of the want do. */
static uint32_t n_generated(const struct want *want, const struct dmi_span *span)
{
    const struct select *who = &want->use->edit->who;
    int64_t from = want->from > span->n_prompt ? want->from : span->n_prompt;
    bool bounded = who->tokens == SELECT_RANGE && !who->of_prompt && who->end < INT64_MAX;
    return span->n_prompt && bounded && patches(want->use->edit) && want->to > from
               ? (uint32_t)(want->to - from)
               : 0;
}

/* Those that came from a cache are missed, and the others are @share. Return: 0 or -ENOMEM. */
static int share_rows(struct builder *b, const struct span_at *at, const struct want *want,
                      uint32_t cached, struct edit_share share)
{
    struct edit_share missed = share;
    missed.miss = DMI_EDIT_MISS_CACHED;
    missed.n_rows = cached;
    int r = cached ? add_share(b, missed) : 0;
    if (at->span) {
        share.n_rows = (uint32_t)(want->to - want->from);
        share.n_generated = n_generated(want, at->span);
    }
    if (!r && share.miss == EDIT_NO_MISS && want->from < want->to) {
        if (PUSH(b->wants, b->n_wants, b->room_wants, 64, *want))
            return -ENOMEM;
    }
    return r || want->from >= want->to ? r : add_share(b, share);
}

/* Whether, and where, the edit wants rows of the span: a want or, with a reason, a share alone. */
static int want_edit(struct builder *b, uint32_t section, uint32_t number, struct span_at *at)
{
    const struct edit_section *s = &b->sections[section];
    const struct edit_use *use = &s->uses[number];
    struct want want = { .use = use, .edit = number, .section = section, .to = 1 };
    int miss = EDIT_NO_MISS;
    uint32_t cached = 0;
    if (use->off || !(use->edit->live ? s->live : s->settled) ||
        (at->span && !wants_rows(b, use, at, &want, &cached)))
        return 0;
    enum said said = take_coefficients(use, tags_of(at, use), &want);
    if (at->span && said == SAID_NOTHING)
        return 0;
    enum edit_by_rank rank = edit_by_rank(use->edit, b->ask->spec, b->ranks, &want.cut, NULL, 0);
    if (rank == EDIT_RANK_LEAVES)
        return 0;
    want.counter = b->ask->counter(b->ask->arg, use, at->span, &miss);
    if (miss == EDIT_NO_MISS && rank == EDIT_RANK_CANNOT)
        miss = DMI_EDIT_MISS_RANK;
    if (at->span && want.from < want.to && miss == EDIT_NO_MISS && has_bank(use->edit))
        want.donor = b->ask->donor(b->ask->arg, use, at->span, want.counter, &miss);
    if (!at->span && (!select_is_default(&use->edit->who) || said != SAID_NUMBER || want.moves))
        miss = DMI_EDIT_MISS_NO_STEP;
    else if (miss == EDIT_NO_MISS && said == SAID_NO_NUMBER)
        miss = DMI_EDIT_MISS_BAD_TAG;
    const struct edit_share share = { s->owner, number, want.counter, miss, want.cut, 0, 0 };
    return share_rows(b, at, &want, cached, share);
}

static int find_wants(struct builder *b, const struct dmi_span *span, bool is_last)
{
    struct span_at at = { .span = span, .is_last = is_last };
    uint32_t n = b->ask->sections(b->ask->arg, span, b->sections);
    int r = 0;
    b->n_wants = 0;
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t i = 0; i < b->sections[s].n && !r; i++)
            r = want_edit(b, s, i, &at);
    tree_deinit(&at.tags);
    return r;
}

static bool takes(const struct want *w, int64_t position)
{
    return position >= w->from && position < w->to;
}

/* Does a row have what the one before it has? */
static bool same_as_before(const struct builder *b, int64_t position)
{
    for (size_t i = 0; i < b->n_wants; i++) {
        const struct want *w = &b->wants[i];
        if (takes(w, position) != takes(w, position - 1) || (takes(w, position) && w->moves))
            return false;
    }
    return true;
}

/*
 * Which row of its vectors, or of the bank, a position has. Vectors have as many as the edit has positions. Rows of the bank are counted
 * from the edit's first position, where its `tokens` say one.
 */
static uint32_t row_of(const struct want *w, int64_t position, int64_t n_prompt)
{
    const struct select *who = &w->use->edit->who;
    if (!has_rows(w->use) || who->tokens == SELECT_LAST_PROMPT)
        return 0;
    if (who->tokens != SELECT_RANGE)
        return (uint32_t)position;
    return (uint32_t)(position - who->first - (who->first < 0 ? n_prompt : 0));
}

static int add_entry(struct builder *b, const struct want *w, int64_t position, int64_t n_prompt)
{
    int64_t token = position - n_prompt;
    uint32_t n_ops = w->use->edit->n_ops;
    const uint32_t cut[] = { w->cut.first, w->cut.own, w->cut.all };
    int r = add_word(b, DMI_EDIT_HEAD(w->edit, n_ops));
    if (!r)
        r = add_word(b, w->counter);
    if (!r)
        r = add_word(b, row_of(w, position, n_prompt));
    if (!r)
        r = add_word(b, w->donor);
    for (uint32_t i = 0; i < sizeof cut / sizeof *cut && !r; i++)
        r = add_word(b, cut[i]);
    for (uint32_t k = 0; k < n_ops && !r; k++) {
        const struct edit_coefficient *c = coefficient_of(w->use, k);
        float value = c->from == EDIT_POINTS ? at_point(c, token) : w->coefficients[k];
        uint32_t word;
        memcpy(&word, &value, sizeof word);
        r = add_word(b, word);
    }
    return r;
}

/* Those of one section that take the position. */
static int add_section(struct builder *b, uint32_t section, int64_t position, int64_t n_prompt)
{
    uint32_t n = 0;
    for (size_t i = 0; i < b->n_wants; i++)
        n += b->wants[i].section == section && takes(&b->wants[i], position);
    if (!n)
        return 0;
    int r = add_word(b, b->sections[section].table);
    if (!r)
        r = add_word(b, n);
    for (size_t i = 0; i < b->n_wants && !r; i++)
        if (b->wants[i].section == section && takes(&b->wants[i], position))
            r = add_entry(b, &b->wants[i], position, n_prompt);
    return r;
}

/* The program of a row. *@program: where it begins; UINT32_MAX: nothing is done there. */
static int add_program(struct builder *b, int64_t position, int64_t n_prompt, uint32_t *program)
{
    uint32_t at = (uint32_t)b->n_programs;
    int r = 0;
    for (uint32_t s = 0; s < EDIT_MAX_SECTIONS && !r; s++)
        r = add_section(b, s, position, n_prompt);
    *program = b->n_programs > at ? at : UINT32_MAX;
    if (!r && *program != UINT32_MAX)
        r = add_word(b, 0); /* no table lies there: the end */
    return r;
}

static int add_span(struct builder *b, const struct dmi_span *span, bool is_last)
{
    uint32_t program = UINT32_MAX;
    int r = find_wants(b, span, is_last);
    for (uint32_t i = 0; i < span->n_tokens && b->n_wants && !r; i++) {
        int64_t position = span->first_position + i;
        if (!i || !same_as_before(b, position))
            r = add_program(b, position, span->n_prompt, &program);
        if (!r && program != UINT32_MAX)
            r = add_pair(b, span->first_row + i, program);
    }
    return r;
}

/* ------------------------------------------------------------------------- a step */

static int by_edit(const void *a, const void *b)
{
    const struct edit_share *x = a, *y = b;
    ORDER(x, y, owner);
    ORDER(x, y, edit);
    ORDER(x, y, counter);
    return 0;
}

/* Pairs, then programs, in one list. */
static int join(struct builder *b)
{
    struct edit_rows *out = b->out;
    size_t n = b->n_pairs + b->n_programs;
    if (b->n_pairs)
        qsort(b->pairs, b->n_pairs / 2, 2 * sizeof *b->pairs, order_u32);
    if (out->n_shares)
        qsort(out->shares, out->n_shares, sizeof *out->shares, by_edit);
    if (!b->n_pairs)
        return 0;
    out->words = malloc(n * sizeof *out->words);
    if (!out->words || n > UINT32_MAX)
        return -ENOMEM;
    memcpy(out->words, b->pairs, b->n_pairs * sizeof *b->pairs);
    memcpy(out->words + b->n_pairs, b->programs, b->n_programs * sizeof *b->programs);
    for (size_t i = 1; i < b->n_pairs; i += 2)
        out->words[i] += (uint32_t)b->n_pairs;
    out->n_words = (uint32_t)n;
    out->n_rows = out->every ? 0 : (uint32_t)(b->n_pairs / 2);
    return 0;
}

static int finish(struct builder *b, int r)
{
    if (!r)
        r = join(b);
    free(b->wants);
    free(b->pairs);
    free(b->programs);
    if (r)
        edit_rows_deinit(b->out);
    return r;
}

int edit_rows_build(const struct dmi_step *step, const struct edit_rows_ask *ask,
                    struct edit_rows *out)
{
    *out = (struct edit_rows){ 0 };
    const struct edit_ranks ranks = edit_ranks_of(step);
    struct builder b = { .ask = ask, .ranks = &ranks, .out = out };
    _cleanup_(freep) bool *last = select_find_last(step);
    int r = last ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < step->n_spans && !r; i++) {
        const struct dmi_span *span = dmi_span_at(step, i);
        if (!(span->flags & DMI_SPAN_PADDING) && span->n_tokens)
            r = add_span(&b, span, last[i]);
    }
    return finish(&b, r);
}

int edit_rows_build_every(const struct edit_rows_ask *ask, struct edit_rows *out)
{
    *out = (struct edit_rows){ .every = true };
    struct builder b = { .ask = ask, .out = out };
    uint32_t program = UINT32_MAX;
    int r = find_wants(&b, NULL, false);
    if (!r)
        r = add_program(&b, 0, 0, &program);
    if (!r && program != UINT32_MAX)
        r = add_pair(&b, DMI_EDIT_EVERY, program);
    return finish(&b, r);
}

void edit_rows_deinit(struct edit_rows *rows)
{
    free(rows->words);
    free(rows->shares);
    *rows = (struct edit_rows){ 0 };
}

uint32_t edit_rows_below(const struct edit_rows *rows, uint32_t n_rows)
{
    uint32_t i;
    SEARCH(i, rows->n_rows, rows->words[2 * i] < n_rows);
    return i;
}
