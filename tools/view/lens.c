/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of `python -m dmi lens` (docs/analysis.md): which word comes first at each layer and token. Nothing in a file is trusted. */
#include "tools/view/view.h"

#include "core/cleanup.h"
#include "tools/view/answer_file.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 4096 /* in the document, beside arrays and texts */

struct lens {
    struct answer_file file;
    uint64_t n_layers, n_tokens, n_top, n_followed;
    const int64_t *positions;
    const int32_t *layers, *token_ids, *top_ids, *followed, *followed_ids, *followed_ranks;
    const float *top_logits, *logsumexp, *followed_logits;
    struct answer_texts texts;
};

static void lens_deinit(struct lens *l)
{
    answer_file_deinit(&l->file);
}

/* ------------------------------------------------------------------------- a file */

static int take_arrays(struct err *err, struct lens *l)
{
    uint64_t *T = &l->n_tokens, *L = &l->n_layers, *K = &l->n_top, *N = &l->n_followed;
    const struct answer_array all[] = {
        { "layers", DMI_DTYPE_I32, false, { L }, &l->layers },
        { "positions", DMI_DTYPE_I64, false, { T }, &l->positions },
        { "token_ids", DMI_DTYPE_I32, true, { T }, &l->token_ids },
        { "top_ids", DMI_DTYPE_I32, false, { T, L, K }, &l->top_ids },
        { "top_logits", DMI_DTYPE_F32, false, { T, L, K }, &l->top_logits },
        { "logsumexp", DMI_DTYPE_F32, false, { T, L }, &l->logsumexp },
        { "followed", DMI_DTYPE_I32, false, { T }, &l->followed },
        { "followed_ids", DMI_DTYPE_I32, false, { N }, &l->followed_ids },
        { "followed_ranks", DMI_DTYPE_I32, false, { N, L }, &l->followed_ranks },
        { "followed_logits", DMI_DTYPE_F32, false, { N, L }, &l->followed_logits },
    };
    *T = *L = *K = *N = ANSWER_ANY;
    int r = answer_file_arrays(err, &l->file, all, sizeof all / sizeof *all);
    return r ? r : answer_file_texts(err, &l->file, &l->texts);
}

/* What the arrays say of one another. */
static int check_arrays(struct err *err, struct lens *l)
{
    uint64_t n = 0;
    if (!l->n_tokens || !l->n_layers || !l->n_top)
        return err_set(err, -EINVAL, "%s: it has no token, no layer or no word", l->file.path);
    for (uint64_t i = 0; i < l->n_tokens; i++) {
        n += l->followed[i] < 0 ? UINT32_MAX : (uint32_t)l->followed[i];
        if (n > l->n_followed || l->positions[i] < 0 || l->positions[i] > INT32_MAX)
            return err_set(err, -EINVAL, "%s: its numbers of words, or its positions, cannot be",
                           l->file.path);
    }
    return n == l->n_followed
               ? 0
               : err_set(err, -EINVAL, "%s: its numbers of words are not those of its ranks",
                         l->file.path);
}

/* ------------------------------------------------------------------------- the document */

/* So many of the last tokens fit; their words that are followed are the last @n_followed. */
static uint64_t tokens_that_fit(const struct lens *l, uint64_t room, uint64_t *n_followed)
{
    uint64_t n = 0, used = HEAD_BYTES + answer_texts_cost(&l->texts);
    *n_followed = 0;
    while (n < l->n_tokens) {
        uint64_t words = (uint64_t)l->followed[l->n_tokens - 1 - n];
        uint64_t cost =
            document_cost(4 * l->n_layers * (2 * l->n_top + 1 + 2 * words) + 16 + 4 * words);
        if (used + cost > room)
            break;
        used += cost;
        *n_followed += words;
        n++;
    }
    return n;
}

/* The last @n tokens. */
static void lens_add(struct document *d, const struct lens *l, uint64_t n, uint64_t n_followed)
{
    uint64_t first = l->n_tokens - n, cells = l->n_layers, word = l->n_followed - n_followed;
    document_begin(d, NULL, '{');
    answer_file_add_facts(d, &l->file, l->n_tokens);
    document_add(d, "top", value_u64(l->n_top));
    answer_file_add_positions(d, l->positions, first, l->n_tokens);
    document_integers(d, "layers", l->layers, l->n_layers);
    if (l->token_ids)
        document_integers(d, "token_ids", l->token_ids + first, n);
    document_integers(d, "top_ids", l->top_ids + first * cells * l->n_top, n * cells * l->n_top);
    document_floats(d, "top_logits", l->top_logits + first * cells * l->n_top,
                    n * cells * l->n_top);
    document_floats(d, "logsumexp", l->logsumexp + first * cells, n * cells);
    document_integers(d, "followed", l->followed + first, n);
    document_integers(d, "followed_ids", l->followed_ids + word, n_followed);
    document_integers(d, "followed_ranks", l->followed_ranks + word * cells, n_followed * cells);
    document_floats(d, "followed_logits", l->followed_logits + word * cells, n_followed * cells);
    answer_texts_add(d, &l->texts);
    document_end(d, '}');
}

/* Return: 0, also where it is another answer, or -errno with a sentence in @err. */
static int add_answer(struct err *err, struct view_report *report, const char *path)
{
    _cleanup_(lens_deinit) struct lens l = { 0 };
    uint64_t n_followed;
    int r = answer_file_open(err, report, path, &l.file);
    if (r || !answer_file_is(&l.file, "lens"))
        return r;
    r = take_arrays(err, &l);
    if (!r)
        r = check_arrays(err, &l);
    if (r)
        return r;
    uint64_t n = tokens_that_fit(&l, view_room(report) / 2, &n_followed);
    if (n < l.n_tokens)
        view_leave_out(report, "the lens of %s has the last %" PRIu64 " of %" PRIu64 " tokens",
                       l.file.id ? l.file.id : "the run", n, l.n_tokens);
    if (n)
        lens_add(&report->document, &l, n, n_followed);
    return 0;
}

int view_lens(struct err *err, struct view_report *report)
{
    int r = 0;
    document_begin(&report->document, "lens", '[');
    for (size_t i = 0; !r && i < report->n_answers; i++)
        r = add_answer(err, report, report->answers[i].text);
    document_end(&report->document, ']');
    return r;
}
