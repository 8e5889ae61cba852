/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Edits with the numbers of their vectors, as one block of bytes: tools, which read files of vectors, write it; the library reads it.
 * Text and numbers are checked here again, as nobody knows who wrote them.
 */
#include "policy/edit.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "policy/report.h"

#include <emmintrin.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MAGIC "DMIEDIT1"

/* It begins the block; then tensors, numbers and the text. */
struct head {
    char magic[8];
    uint32_t n_tensors;
    uint32_t n_text;
    uint64_t n_numbers;
};

/* ------------------------------------------------------------------------- numbers */

/* The library links no libm: one instruction is enough. */
double edits_length(const float *numbers, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += (double)numbers[i] * numbers[i];
    return _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(sum)));
}

static bool all_finite(const float *numbers, uint64_t n)
{
    return ALL(i, n, isfinite(numbers[i]));
}

/* Does an operation with the vector, or what is said of it, want it at length 1? */
static bool wants_direction(const struct edits *edits, uint32_t vector)
{
    for (uint32_t i = 0; i < edits->n; i++)
        for (uint32_t k = 0; k < edits->list[i].n_ops; k++) {
            const struct edit_op *op = &edits->list[i].ops[k];
            if (op->vector == vector && dmi_edit_traits(op->kind) & DMI_EDIT_DIRECTION)
                return true;
        }
    return edits->vectors[vector].unit;
}

int edits_add_numbers(struct edits *edits, uint32_t vector, int32_t layer, const float *numbers,
                      uint64_t n)
{
    const struct edit_numbers *last =
        edits->n_tensors ? &edits->tensors[edits->n_tensors - 1] : NULL;
    if (vector >= edits->n_vectors || !n || n % edit_vector_rows(&edits->vectors[vector]) ||
        !all_finite(numbers, n) || layer < EDIT_ANY_LAYER || layer > SPEC_MAX_PLACE_LAYER ||
        (last && (last->vector > vector || (last->vector == vector && last->layer >= layer))))
        return -EINVAL;
    double length = edits_length(numbers, n);
    if (wants_direction(edits, vector) && !(length > 0 && isfinite(length)))
        return -EINVAL;
    if (n > EDITS_MAX_NUMBERS - edits->n_numbers)
        return -E2BIG;
    float *all = realloc(edits->numbers, (edits->n_numbers + n) * sizeof *all);
    if (all)
        edits->numbers = all;
    struct edit_numbers *tensors =
        realloc(edits->tensors, (edits->n_tensors + 1) * sizeof *tensors);
    if (tensors)
        edits->tensors = tensors;
    if (!all || !tensors)
        return -ENOMEM;
    memcpy(all + edits->n_numbers, numbers, n * sizeof *all);
    tensors[edits->n_tensors++] = (struct edit_numbers){ vector, layer, edits->n_numbers, n };
    edits->n_numbers += n;
    return 0;
}

const struct edit_numbers *edits_numbers(const struct edits *edits, uint32_t vector, int32_t layer)
{
    return FIRST(i, edits->n_tensors,
                 edits->tensors[i].vector == vector && (edits->tensors[i].layer == layer ||
                                                        edits->tensors[i].layer == EDIT_ANY_LAYER),
                 &edits->tensors[i], NULL);
}

/* All numbers are there. */
static void edits_seal(struct edits *edits)
{
    uint64_t hash = XXH3_64bits(edits->text, edits->n_text);
    if (edits->n_numbers)
        hash =
            XXH3_64bits_withSeed(edits->numbers, edits->n_numbers * sizeof *edits->numbers, hash);
    edits->hash = hash;
}

/* The first layer that the edit names and the vector lacks, -1: none. */
static int32_t missing_layer(const struct edits *edits, const struct edit *edit, uint32_t vector)
{
    for (uint32_t i = 0; i < edit->layers.n; i++)
        for (int32_t l = edit->layers.at[i].first; l <= edit->layers.at[i].last; l++)
            if (!edits_numbers(edits, vector, l))
                return l;
    return -1;
}

static void report_missing(struct text_report *report, const struct edits *edits,
                           const struct edit *edit, uint32_t vector)
{
    int32_t layer = vector == EDIT_NO_VECTOR ? -1 : missing_layer(edits, edit, vector);
    if (layer >= 0)
        report_add(
            report, edit->line, 1,
            "found layer %d in \"layers\" of the edit \"%s\", which the vector \"%s\" lacks; "
            "expected layers that it has",
            layer, edit->name, edits->vectors[vector].name);
}

int edits_check_layers(const struct edits *edits, struct spec_errors *errors)
{
    struct text_report report = { .path = edits->path };
    *errors = (struct spec_errors){ 0 };
    for (uint32_t i = 0; i < edits->n; i++)
        for (uint32_t k = 0; k < edits->list[i].n_ops; k++) {
            const struct edit *edit = &edits->list[i];
            report_missing(&report, edits, edit, edit->ops[k].vector);
            report_missing(&report, edits, edit, edit->ops[k].encoder);
        }
    int r = report_finish(&report, &errors->lines, &errors->n_lines);
    return r ? r : errors->n_lines ? SPEC_E_INVALID : 0;
}

/* ------------------------------------------------------------------------- one block */

int edits_pack(const struct edits *edits, void **out, size_t *n)
{
    const struct head head = { .magic = MAGIC,
                               .n_tensors = edits->n_tensors,
                               .n_text = (uint32_t)edits->n_text,
                               .n_numbers = edits->n_numbers };
    size_t tensors = edits->n_tensors * sizeof *edits->tensors;
    size_t numbers = edits->n_numbers * sizeof *edits->numbers;
    *n = sizeof head + tensors + numbers + edits->n_text;
    char *at = *out = malloc(*n);
    if (!at)
        return -ENOMEM;
    memcpy(at, &head, sizeof head);
    if (tensors)
        memcpy(at + sizeof head, edits->tensors, tensors);
    if (numbers)
        memcpy(at + sizeof head + tensors, edits->numbers, numbers);
    memcpy(at + sizeof head + tensors + numbers, edits->text, edits->n_text);
    return 0;
}

static int not_one(const char *path, struct spec_errors *errors, const char *what)
{
    struct text_report report = { .path = path };
    report_add(&report, 0, 0, "found %s; expected a file that dmi-run or dmi-ctl wrote", what);
    int r = report_finish(&report, &errors->lines, &errors->n_lines);
    return r ? r : SPEC_E_INVALID;
}

/* Where the parts of a block lie. Return: false where its sizes cannot be. */
static bool find_parts(const void *data, size_t n, struct head *head, size_t *numbers, size_t *text)
{
    if (n < sizeof *head)
        return false;
    memcpy(head, data, sizeof *head);
    if (memcmp(head->magic, MAGIC, sizeof head->magic) || head->n_text > EDITS_MAX_BYTES ||
        head->n_numbers > EDITS_MAX_NUMBERS)
        return false;
    *numbers = sizeof *head + (size_t)head->n_tensors * sizeof(struct edit_numbers);
    *text = *numbers + head->n_numbers * sizeof(float);
    return *text + head->n_text == n;
}

static int take_tensors(struct edits *edits, const char *data, const struct head *head,
                        size_t numbers)
{
    int r = 0;
    for (uint32_t i = 0; i < head->n_tensors && !r; i++) {
        struct edit_numbers t;
        memcpy(&t, data + sizeof *head + i * sizeof t, sizeof t);
        if (t.first != edits->n_numbers || t.n > head->n_numbers - t.first)
            return -EINVAL;
        _cleanup_(freep) float *own = malloc(t.n * sizeof *own + 1);
        if (!own)
            return -ENOMEM;
        memcpy(own, data + numbers + t.first * sizeof *own, t.n * sizeof *own);
        r = edits_add_numbers(edits, t.vector, t.layer, own, t.n);
    }
    return r;
}

int edits_unpack(const char *path, const void *data, size_t n, const struct spec *spec,
                 struct spec_errors *errors, struct edits **out)
{
    struct head head;
    size_t numbers, text;
    struct edits *edits = NULL;
    *errors = (struct spec_errors){ 0 };
    if (!find_parts(data, n, &head, &numbers, &text))
        return not_one(path, errors, "no edits");
    TRY(edits_parse(path, (const char *)data + text, head.n_text, spec, errors, &edits));
    int r = take_tensors(edits, data, &head, numbers);
    if (r == -EINVAL || r == -E2BIG)
        r = not_one(path, errors, "numbers that no vector can have");
    if (!r)
        r = edits_check_layers(edits, errors);
    if (r) {
        edits_free(edits);
        return r;
    }
    edits_seal(edits);
    *out = edits;
    return 0;
}
