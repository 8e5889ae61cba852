/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows of a step edits write, and with which coefficients. Pure. */
#include "policy/edit.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "policy/number.h"
#include "policy/tree.h"

#include <dmi/span.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const edit_miss_names[EDIT_MISS_COUNT] = {
    [EDIT_MISS_NOT_RUN] = "not_run",
    [EDIT_MISS_WIDTH] = "width",
    [EDIT_MISS_BAD_TAG] = "bad_tag",
    [EDIT_MISS_NO_STEP] = "no_step",
    [EDIT_MISS_UNSUPPORTED] = "unsupported",
    [EDIT_MISS_BAD_POINTER] = "bad_pointer",
    [EDIT_MISS_DRIVER] = "driver",
    [EDIT_MISS_NO_ROOM] = "no_room",
    [EDIT_MISS_RANK] = "rank",
    [EDIT_MISS_CACHE_SHARED] = "cache_shared",
    [EDIT_MISS_CACHED] = "cached",
};

/* An edit in a span: what it wants there. */
struct want {
    uint32_t edit, counter;
    int64_t from, to; /* positions */
    float coefficients[DMI_EDIT_MAX_OPS];
    bool moves; /* some of them depend on the position */
};

struct builder {
    const struct edits *edits;
    const struct edit_rows_ask *ask;
    struct edit_rows *out;
    struct want *wants; /* of the span under way, in the order of edits */
    uint32_t n_wants;
    uint32_t *pairs, *programs; /* pairs hold offsets within @programs until all are known */
    size_t n_pairs, room_pairs, n_programs, room_programs;
    size_t room_shares;
};

/* ------------------------------------------------------------------------- growing lists */

static int add_pair(struct builder *b, uint32_t row, uint32_t program)
{
    for (int i = 0; i < 2; i++) {
        if (grow((void **)&b->pairs, b->n_pairs, &b->room_pairs, sizeof *b->pairs, 64))
            return -ENOMEM;
        b->pairs[b->n_pairs++] = i ? program : row;
    }
    return 0;
}

static int add_word(struct builder *b, uint32_t word)
{
    if (grow((void **)&b->programs, b->n_programs, &b->room_programs, sizeof *b->programs, 64))
        return -ENOMEM;
    b->programs[b->n_programs++] = word;
    return 0;
}

static int add_share(struct builder *b, struct edit_share share)
{
    struct edit_rows *out = b->out;
    if (grow((void **)&out->shares, out->n_shares, &b->room_shares, sizeof *out->shares, 16))
        return -ENOMEM;
    out->shares[out->n_shares++] = share;
    return 0;
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

/* The coefficients that do not depend on the position. Return: the worst that a tag said. */
static enum said take_coefficients(const struct edit *edit, const struct tree *tags,
                                   struct want *want)
{
    enum said worst = SAID_NUMBER;
    for (uint32_t k = 0; k < edit->n_ops; k++) {
        const struct edit_coefficient *c = &edit->ops[k].times;
        want->coefficients[k] = c->number;
        want->moves = want->moves || c->from == EDIT_POINTS;
        enum said said =
            c->from == EDIT_TAG ? number_of_tag(tags, c->tag, &want->coefficients[k]) : SAID_NUMBER;
        worst = said < worst ? said : worst;
    }
    return worst;
}

/* ------------------------------------------------------------------------- a span */

static bool asks_tags(const struct edit *edit)
{
    if (edit->who.tag)
        return true;
    for (uint32_t k = 0; k < edit->n_ops; k++)
        if (edit->ops[k].times.from == EDIT_TAG)
            return true;
    return false;
}

/* Whether, and where, the edit wants rows of the span: a want or, with a reason, a share alone. */
static int want_edit(struct builder *b, uint32_t number, const struct dmi_span *span, bool is_last,
                     const struct tree *tags)
{
    const struct edit *edit = &b->edits->list[number];
    struct want *want = &b->wants[b->n_wants];
    *want = (struct want){ .edit = number };
    if (!select_request_of(&edit->who, span->request_id, tags->root))
        return 0;
    select_positions(&edit->who, span, is_last, &want->from, &want->to);
    enum said said = take_coefficients(edit, tags, want);
    if (want->from >= want->to || said == SAID_NOTHING)
        return 0;
    int miss = EDIT_NO_MISS;
    want->counter = b->ask->counter(b->ask->arg, number, span, &miss);
    if (miss == EDIT_NO_MISS && said == SAID_NO_NUMBER)
        miss = EDIT_MISS_BAD_TAG;
    b->n_wants += miss == EDIT_NO_MISS;
    return add_share(
        b, (struct edit_share){ number, want->counter, miss, (uint32_t)(want->to - want->from) });
}

static int find_wants(struct builder *b, const struct dmi_span *span, bool is_last)
{
    struct tree tags = { 0 };
    struct tree_error error;
    bool parsed = false;
    int r = 0;
    b->n_wants = 0;
    for (uint32_t i = 0; i < b->edits->n && !r; i++) {
        if (!parsed && span->tags && asks_tags(&b->edits->list[i])) {
            parsed = true;
            if (tree_parse(span->tags, strlen(span->tags), &tags, &error))
                tags.root = NULL;
        }
        r = want_edit(b, i, span, is_last, &tags);
    }
    tree_deinit(&tags);
    return r;
}

static bool takes(const struct want *w, int64_t position)
{
    return position >= w->from && position < w->to;
}

/* Does a row have what the one before it has? */
static bool same_as_before(const struct builder *b, int64_t position)
{
    for (uint32_t i = 0; i < b->n_wants; i++) {
        const struct want *w = &b->wants[i];
        if (takes(w, position) != takes(w, position - 1) || (takes(w, position) && w->moves))
            return false;
    }
    return true;
}

static int add_entry(struct builder *b, const struct want *w, int64_t token)
{
    const struct edit *edit = &b->edits->list[w->edit];
    int r = add_word(b, DMI_EDIT_HEAD(w->edit, edit->n_ops));
    if (!r)
        r = add_word(b, w->counter);
    for (uint32_t k = 0; k < edit->n_ops && !r; k++) {
        const struct edit_coefficient *c = &edit->ops[k].times;
        float value = c->from == EDIT_POINTS ? at_point(c, token) : w->coefficients[k];
        uint32_t word;
        memcpy(&word, &value, sizeof word);
        r = add_word(b, word);
    }
    return r;
}

/* The program of a row. *@program: where it begins; UINT32_MAX: nothing is done there. */
static int add_program(struct builder *b, const struct dmi_span *span, int64_t position,
                       uint32_t *program)
{
    uint32_t n = 0;
    *program = UINT32_MAX;
    for (uint32_t i = 0; i < b->n_wants; i++)
        n += takes(&b->wants[i], position);
    if (!n)
        return 0;
    *program = (uint32_t)b->n_programs;
    int r = add_word(b, b->ask->table);
    if (!r)
        r = add_word(b, n);
    for (uint32_t i = 0; i < b->n_wants && !r; i++)
        if (takes(&b->wants[i], position))
            r = add_entry(b, &b->wants[i], position - (int64_t)span->n_prompt);
    return r;
}

static int add_span(struct builder *b, const struct dmi_span *span, bool is_last)
{
    uint32_t program = UINT32_MAX;
    int r = find_wants(b, span, is_last);
    for (uint32_t i = 0; i < span->n_tokens && b->n_wants && !r; i++) {
        int64_t position = span->first_position + i;
        if (!i || !same_as_before(b, position))
            r = add_program(b, span, position, &program);
        if (!r && program != UINT32_MAX)
            r = add_pair(b, span->first_row + i, program);
    }
    return r;
}

/* ------------------------------------------------------------------------- a step */

static int by_row(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static int by_edit(const void *a, const void *b)
{
    const struct edit_share *x = a, *y = b;
    if (x->edit != y->edit)
        return x->edit < y->edit ? -1 : 1;
    return x->counter < y->counter ? -1 : x->counter > y->counter;
}

/* Pairs, then programs, in one list. */
static int join(struct builder *b)
{
    struct edit_rows *out = b->out;
    size_t n = b->n_pairs + b->n_programs;
    if (b->n_pairs)
        qsort(b->pairs, b->n_pairs / 2, 2 * sizeof *b->pairs, by_row);
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

int edit_rows_build(const struct edits *edits, const struct dmi_step *step,
                    const struct edit_rows_ask *ask, struct edit_rows *out)
{
    *out = (struct edit_rows){ 0 };
    struct builder b = { .edits = edits, .ask = ask, .out = out };
    _cleanup_(freep) bool *last = select_find_last(step);
    b.wants = calloc(edits->n + 1, sizeof *b.wants);
    int r = last && b.wants ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < step->n_spans && !r; i++) {
        const struct dmi_span *span = dmi_span_at(step, i);
        if (!(span->flags & DMI_SPAN_PADDING) && span->n_tokens)
            r = add_span(&b, span, last[i]);
    }
    return finish(&b, r);
}

int edit_rows_build_every(const struct edits *edits, const struct edit_rows_ask *ask,
                          struct edit_rows *out)
{
    static const struct dmi_span nobody;
    const struct tree no_tags = { 0 };
    *out = (struct edit_rows){ .every = true };
    struct builder b = { .edits = edits, .ask = ask, .out = out };
    b.wants = calloc(edits->n + 1, sizeof *b.wants);
    int r = b.wants ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < edits->n && !r; i++) {
        const struct edit *edit = &edits->list[i];
        struct want *want = &b.wants[b.n_wants];
        *want = (struct want){ .edit = i, .to = 1 };
        int miss = EDIT_NO_MISS;
        want->counter = ask->counter(ask->arg, i, NULL, &miss);
        bool known = select_is_default(&edit->who) &&
                     take_coefficients(edit, &no_tags, want) == SAID_NUMBER && !want->moves;
        if (!known)
            miss = EDIT_MISS_NO_STEP;
        b.n_wants += miss == EDIT_NO_MISS;
        r = add_share(&b, (struct edit_share){ i, want->counter, miss, 0 });
    }
    uint32_t program = UINT32_MAX;
    if (!r)
        r = add_program(&b, &nobody, 0, &program);
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
    uint32_t low = 0, high = rows->n_rows;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (rows->words[2 * middle] < n_rows)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
