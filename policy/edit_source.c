/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where vectors come from, and which edits may have them: rows of a recorded run, and vectors of another site's layers.
 * Grammar: docs/edits.md, "Vectors".
 */
#include "policy/edit_load.h"
#include "policy/interval.h"
#include "policy/report.h"
#include "policy/tap_names.h"

#include <string.h>

#define MAX_ROWS 65536

/* Positions: '5', '2:7', '-1' (the last of the prompt), '-3:'. Their number is known from the words alone. */
bool edit_vector_tokens(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    struct edit_vector *v = into;
    struct slice s;
    char was[128];
    bool good = node->kind == TREE_SCALAR && slice_parse(node->text, node->n_text, &s);
    if (good && s.first < 0 && s.end == INT64_MAX)
        s.end = 0; /* that of the prompt */
    if (good && (s.first < 0) == (s.end <= 0) && s.end > s.first && s.end - s.first <= MAX_ROWS) {
        v->first = s.first;
        v->n_rows = (uint32_t)(s.end - s.first);
        return true;
    }
    loader_complain(l, node,
                    "found %s; expected positions of the donor, as '5', '2:7', '-1' or '-3:'",
                    node_found(node, was, sizeof was));
    return false;
}

bool edit_vector_check(struct loader *l, const struct tree_node *node, const struct edit_vector *v)
{
    if (v->file && !v->run && !v->request && !v->site && !v->n_rows)
        return true;
    if (!v->file && v->run && v->request && v->site && v->n_rows && !v->tensor && !v->layer_is)
        return true;
    loader_complain(
        l, node,
        "found a vector that is neither a file nor rows of a run; expected {file: PATH}, "
        "or {run: DIR, request: ID, site: NAME, tokens: '5'}");
    return false;
}

static uint32_t rows_of(const struct edits *edits, uint32_t vector)
{
    return vector == EDIT_NO_VECTOR ? 1 : edit_vector_rows(&edits->vectors[vector]);
}

bool edit_check_rows(struct loader *l, const struct tree_node *node, const struct edit *edit)
{
    const struct edits *edits = edit_loader_of(l)->edits;
    const struct select *who = &edit->who;
    for (uint32_t k = 0; k < edit->n_ops; k++) {
        uint32_t n = rows_of(edits, edit->ops[k].vector);
        uint32_t n_encoder = rows_of(edits, edit->ops[k].encoder);
        bool to_end = who->of_prompt && who->first < 0 && who->end == INT64_MAX;
        int64_t end = to_end ? 0 : who->end; /* the end of the prompt */
        bool as_many =
            who->tokens == SELECT_RANGE && (who->first < 0) == (end <= 0) && end - who->first == n;
        if (n_encoder == 1 &&
            (n == 1 || (dmi_edit_traits(edit->ops[k].kind) & DMI_EDIT_ROWS && as_many)))
            continue;
        n = n_encoder > 1 ? n_encoder : n;
        loader_complain(l, node,
                        "found a vector of %u rows; expected it in \"patch\", of an edit whose "
                        "\"tokens\" are as many positions, as 'prompt[0:%u]'",
                        n, n);
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------------- whose layers */

static bool is_tap_name(const char *name)
{
    for (size_t i = 0; tap_names[i]; i++)
        if (!strcmp(tap_names[i], name))
            return true;
    return false;
}

bool edits_sites_differ(const char *a, const char *b)
{
    a = tap_canonical(a);
    b = tap_canonical(b);
    return strcmp(a, b) && is_tap_name(a) && is_tap_name(b);
}

/* What is added to the first of a pair is added to the second of the same layer. */
static bool adds_to_same(const char *a, const char *b)
{
    static const char *const sums[][2] = { { "mlp_out", "resid_post" },
                                           { "attn_out", "resid_mid" } };
    for (size_t i = 0; i < N_OF(sums); i++)
        for (int k = 0; k < 2; k++)
            if (!strcmp(sums[i][k], a) && !strcmp(sums[i][!k], b))
                return true;
    return false;
}

/* May an operation at @site have a vector of @layer_is? What enters a layer is what the layer before it returns: tools/common/vectors.c moves it. */
static bool suits(const char *layer_is, const char *site, uint32_t kind)
{
    const char *a = tap_canonical(layer_is), *b = tap_canonical(site);
    return !strcmp(a, b) || (dmi_edit_traits(kind) & DMI_EDIT_ADDS && adds_to_same(a, b)) ||
           (!strcmp(a, "resid_pre") && !strcmp(b, "resid_post"));
}

static void report_site(struct text_report *report, const struct edits *edits,
                        const struct edit *edit, uint32_t vector, uint32_t kind)
{
    const struct edit_vector *v = vector == EDIT_NO_VECTOR ? NULL : &edits->vectors[vector];
    if (!v || !v->layer_is || suits(v->layer_is, edit->site, kind))
        return;
    report_add(
        report, edit->line, 1,
        "found the vector \"%s\", whose layers are those of %s, in the edit \"%s\" at %s; "
        "expected an edit at %s%s",
        v->name, v->layer_is, edit->name, edit->site, v->layer_is,
        is_tap_name(tap_canonical(edit->site))
            ? ""
            : ", or the site's own name in \"layer_is\" of the vector where it is that tensor");
}

int edits_check_sites(const struct edits *edits, struct spec_errors *errors)
{
    struct text_report report = { .path = edits->path };
    *errors = (struct spec_errors){ 0 };
    for (uint32_t i = 0; i < edits->n; i++)
        for (uint32_t k = 0; k < edits->list[i].n_ops; k++) {
            const struct edit_op *op = &edits->list[i].ops[k];
            report_site(&report, edits, &edits->list[i], op->vector, op->kind);
            report_site(&report, edits, &edits->list[i], op->encoder, op->kind);
        }
    int r = report_finish(&report, &errors->lines, &errors->n_lines);
    return r ? r : errors->n_lines ? SPEC_E_INVALID : 0;
}
