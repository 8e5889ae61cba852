/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of `python -m dmi dla` (docs/analysis.md): what embedding, heads and MLPs add to the difference of two logits. */
#include "tools/view/view.h"

#include "core/cleanup.h"
#include "tools/view/answer_file.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>

#define HEAD_BYTES 4096 /* in the document, beside arrays */

struct dla {
    struct answer_file file;
    uint64_t n_tokens, n_layers, n_heads;
    const int64_t *positions;
    const int32_t *token_ids;
    uint64_t n_edits;
    const double *embedding, *heads, *mlps, *biases, *constant, *sum, *difference, *edits;
    struct answer_texts texts;
};

static void dla_deinit(struct dla *a)
{
    answer_file_deinit(&a->file);
}

static int take_arrays(struct err *err, struct dla *a)
{
    uint64_t *T = &a->n_tokens, *L = &a->n_layers, *H = &a->n_heads, *E = &a->n_edits;
    const struct answer_array all[] = {
        { "positions", DMI_DTYPE_I64, false, { T }, &a->positions },
        { "token_ids", DMI_DTYPE_I32, true, { T }, &a->token_ids },
        { "embedding", DMI_DTYPE_F64, false, { T }, &a->embedding },
        { "heads", DMI_DTYPE_F64, false, { T, L, H }, &a->heads },
        { "mlps", DMI_DTYPE_F64, false, { T, L }, &a->mlps },
        { "biases", DMI_DTYPE_F64, false, { T, L }, &a->biases },
        { "constant", DMI_DTYPE_F64, false, { T }, &a->constant },
        { "sum", DMI_DTYPE_F64, false, { T }, &a->sum },
        { "difference", DMI_DTYPE_F64, false, { T }, &a->difference },
        { "edits", DMI_DTYPE_F64, true, { T, E }, &a->edits },
    };
    *T = *L = *H = *E = ANSWER_ANY;
    int r = answer_file_arrays(err, &a->file, all, sizeof all / sizeof *all);
    a->n_edits = !r && a->edits ? a->n_edits : 0;
    if (!r)
        r = answer_file_texts(err, &a->file, &a->texts);
    if (!r && (!a->n_tokens || !a->n_layers || !a->n_heads))
        r = err_set(err, -EINVAL, "%s: it has no token, no layer or no head", a->file.path);
    for (uint64_t i = 0; !r && i < a->n_tokens; i++)
        if (a->positions[i] < 0 || a->positions[i] > INT32_MAX)
            r = err_set(err, -EINVAL, "%s: its positions cannot be", a->file.path);
    return r;
}

/* So many of the last tokens fit. */
static uint64_t tokens_that_fit(const struct dla *a, uint64_t room)
{
    uint64_t used = HEAD_BYTES + 8 * document_cost(0) + answer_texts_cost(&a->texts);
    uint64_t cost = document_cost(8 * (a->n_layers * (a->n_heads + 2) + 4 + a->n_edits) + 4) + 16;
    uint64_t n = room > used ? (room - used) / cost : 0;
    return n < a->n_tokens ? n : a->n_tokens;
}

/* The last @n tokens. */
static void dla_add(struct document *d, const struct dla *a, uint64_t n)
{
    uint64_t first = a->n_tokens - n, L = a->n_layers, cells = L * a->n_heads;
    document_begin(d, NULL, '{');
    answer_file_add_facts(d, &a->file, a->n_tokens);
    document_add(d, "layers", value_u64(L));
    document_add(d, "n_heads", value_u64(a->n_heads));
    answer_file_add_positions(d, a->positions, first, a->n_tokens);
    if (a->token_ids)
        document_integers(d, "token_ids", a->token_ids + first, n);
    document_doubles(d, "embedding", a->embedding + first, n);
    document_doubles(d, "heads", a->heads + first * cells, n * cells);
    document_doubles(d, "mlps", a->mlps + first * L, n * L);
    document_doubles(d, "biases", a->biases + first * L, n * L);
    document_doubles(d, "constant", a->constant + first, n);
    if (a->n_edits)
        document_doubles(d, "of_edits", a->edits + first * a->n_edits, n * a->n_edits);
    document_doubles(d, "sum", a->sum + first, n);
    document_doubles(d, "difference", a->difference + first, n);
    answer_texts_add(d, &a->texts);
    document_end(d, '}');
}

/* Return: 0, also where it is another answer, or -errno with a sentence in @err. */
static int add_answer(struct err *err, struct view_report *report, const char *path)
{
    _cleanup_(dla_deinit) struct dla a = { 0 };
    int r = answer_file_open(err, report, path, &a.file);
    if (r || !answer_file_is(&a.file, "dla") || (r = take_arrays(err, &a)))
        return r;
    uint64_t n = tokens_that_fit(&a, view_room(report) / 2);
    if (n < a.n_tokens)
        view_leave_out(report,
                       "the attribution of %s has the last %" PRIu64 " of %" PRIu64 " tokens",
                       a.file.id ? a.file.id : "the run", n, a.n_tokens);
    if (n)
        dla_add(&report->document, &a, n);
    return 0;
}

int view_dla(struct err *err, struct view_report *report)
{
    int r = 0;
    document_begin(&report->document, "dla", '[');
    for (size_t i = 0; !r && i < report->n_answers; i++)
        r = add_answer(err, report, report->answers[i].text);
    document_end(&report->document, ']');
    return r;
}
