/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as edits: a text or, if they begin so, the block that tools hand to the library. What loads must be usable and come back
 * from a block as it was; what does not must say why.
 */
#include "policy/edit.h"
#include "tests/unit/edit_uses.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char spec_text[] = "hookspec: 1\n"
                                "convention: {layer_base: 0}\n"
                                "sites:\n"
                                "- {name: m, kernel: k, pointer: 'arg[0]', dtype: f32, dims: "
                                "[{row: true, count: 4}, {count: 4}], layer: occ, write: {}}\n"
                                "- {name: n, kernel: j, pointer: 'arg[0]', dtype: bf16, dims: "
                                "[{row: true, count: 4}, {count: 4}], write: {}}\n";

static void require(bool holds)
{
    if (!holds)
        abort();
}

static uint32_t counter_of(void *arg, const struct edit_use *use, const struct dmi_span *span,
                           int *miss)
{
    (void)arg, (void)span;
    uint32_t edit = (uint32_t)(use->edit - use->of->list);
    *miss = edit % 5 == 4 ? DMI_EDIT_MISS_NO_ROOM : EDIT_NO_MISS;
    return edit;
}

/* Pairs ascend, and every program lies inside. */
static void use_rows(const struct edits *edits, const struct edit_rows *rows)
{
    uint32_t n_pairs = rows->every ? rows->words != NULL : rows->n_rows;
    for (uint32_t i = 0; i < n_pairs; i++) {
        const uint32_t *pair = &rows->words[2 * i];
        require(rows->every || pair[0] < 12);
        require(rows->every || !i || pair[0] > pair[-2]);
        require(pair[1] >= 2 * n_pairs && pair[1] + 2 <= rows->n_words);
        uint32_t at = pair[1] + 2;
        for (uint32_t k = 0; k < rows->words[pair[1] + 1]; k++) {
            require(at + DMI_EDIT_BEFORE_OPS <= rows->n_words &&
                    (rows->words[at] & 0xffff) < edits->n);
            at += DMI_EDIT_BEFORE_OPS + (rows->words[at] >> 16);
        }
        require(at <= rows->n_words);
    }
    for (uint32_t i = 0; i < rows->n_shares; i++)
        require(rows->shares[i].edit < edits->n && rows->shares[i].miss < DMI_EDIT_MISS_COUNT);
}

static void use_steps(const struct edits *edits, const struct spec *spec)
{
    static const struct dmi_span spans[] = {
        { .request_id = "a",
          .tags = "{\"c\": 2, \"k\": \"v\"}",
          .first_position = 2,
          .n_tokens = 5,
          .n_prompt = 4 },
        { .request_id = "b", .tags = "[", .first_position = 9, .first_row = 5, .n_tokens = 1 },
        { .first_row = 6, .n_tokens = 6, .flags = DMI_SPAN_PADDING },
    };
    const struct dmi_step step = {
        .n_rows = 12, .n_spans = 3, .span_size = sizeof *spans, .spans = spans
    };
    const struct edit_rows_ask ask = { .spec = spec,
                                       .sections = whole_section,
                                       .counter = counter_of,
                                       .has_cached = never_cached,
                                       .arg = (void *)(uintptr_t)edits };
    struct edit_rows rows;
    require(!edit_rows_build(&step, &ask, &rows));
    use_rows(edits, &rows);
    edit_rows_deinit(&rows);
    require(!edit_rows_build_every(&ask, &rows));
    use_rows(edits, &rows);
    edit_rows_deinit(&rows);
}

static void use_table(const struct edits *edits, const struct spec *spec)
{
    static const int32_t layers[] = { -1, 0, 1, 7, SPEC_MAX_PLACE_LAYER, INT32_MAX };
    struct edit_table table;
    require(!edit_table_build(uses_of(edits), edits->n, spec, &table));
    for (uint32_t place = 0; place < 3; place++)
        for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
            uint32_t n;
            const struct dmi_edit_part *p = edit_table_parts(&table, place, layers[i], &n);
            for (uint32_t k = 0; k < n; k++)
                require(p[k].edit < edits->n && p[k].n_ops == edits->list[p[k].edit].n_ops &&
                        (!k || p[k].edit > p[k - 1].edit));
        }
    edit_table_deinit(&table);
}

static void use(const struct edits *edits, const struct spec *spec)
{
    struct spec_errors errors;
    struct edits *again = NULL;
    void *block;
    size_t n;
    use_steps(edits, spec);
    use_table(edits, spec);
    require(!edits_pack(edits, &block, &n));
    require(!edits_unpack("f", block, n, spec, &errors, &again));
    require(again->n == edits->n && again->n_numbers == edits->n_numbers &&
            !strcmp(again->text, edits->text));
    edits_free(again);
    free(block);
}

/* Each vector with two numbers, as no file is read here. */
static int add_numbers(struct edits *edits, struct spec_errors *errors)
{
    static const float numbers[] = { 3, 4 };
    for (uint32_t i = 0; i < edits->n_vectors; i++)
        require(!edits_add_numbers(edits, i, i % 2 ? 0 : EDIT_ANY_LAYER, numbers, 2));
    return edits_check_layers(edits, errors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct spec_errors errors;
    struct spec *spec = NULL;
    struct edits *edits = NULL;
    require(!spec_parse("s", spec_text, sizeof spec_text - 1, NULL, 0, &errors, &spec));
    bool is_block = n >= 8 && !memcmp(data, "DMIEDIT1", 8);
    int rc = is_block ? edits_unpack("f", data, n, spec, &errors, &edits)
                      : edits_parse("f", (const char *)data, n, spec, &errors, &edits);
    require(rc == 0 || rc == SPEC_E_INVALID);
    require((rc == 0) == (edits != NULL) && (rc == 0) == (errors.n_lines == 0));
    for (size_t i = 0; i < errors.n_lines; i++)
        for (const char *p = errors.lines[i]; *p; p++)
            require((unsigned char)*p >= ' ');
    spec_errors_deinit(&errors);
    if (edits && (is_block || !add_numbers(edits, &errors)))
        use(edits, spec);
    spec_errors_deinit(&errors);
    edits_free(edits);
    spec_free(spec);
    return 0;
}
