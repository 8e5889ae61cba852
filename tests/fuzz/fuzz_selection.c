/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as layers, tokens and rows: what is taken means something, in order and within bounds; what is not is said in one line. */
#include "read/selection.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define N 10

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_layers(const char *text)
{
    struct selection s = { .n_of_model = N };
    struct err err = { 0 };
    int r = selection_add_layers(&err, "--layers", text, &s);
    require((r != 0) == (err.msg[0] != 0) && s.n_layers <= SELECTION_MOST_RANGES);
    for (size_t i = 0; i < s.n_layers; i++) {
        const struct layer_word *w = &s.layers[i];
        require(w->first >= 0 && w->last >= 0);
        require(w->kind == LAYER_FROM_END ? w->last <= w->first : w->first <= w->last);
        require(w->kind != LAYER_FROM_END || w->first <= LAYER_MOST_BACK);
    }
}

static void check_ranges(const struct ranges *r, int64_t n)
{
    for (size_t i = 0; i < r->n; i++) {
        require(r->all[i].first >= 0 && r->all[i].first < r->all[i].end);
        require(!i || r->all[i - 1].end < r->all[i].first);
        require(n < INT64_MAX || r->all[i].end <= n);
    }
}

static void check_slices(const char *text)
{
    struct slices from_end = { 0 }, from_first = { 0 };
    struct err err = { 0 }, other = { 0 };
    int r = slices_add(&err, "--rows", text, true, &from_end);
    int strict = slices_add(&other, "--step", text, false, &from_first);
    require(!r || strict);
    for (size_t i = 0; !strict && i < from_first.n; i++)
        require(!slice_is_from_end(from_first.all[i]));
    struct ranges ranges = slices_of(&from_end, N);
    check_ranges(&ranges, N);
}

static void check_tokens(const char *text)
{
    struct selection s = { 0 };
    struct err err = { 0 };
    int r = selection_add_tokens(&err, "--tokens", text, &s);
    require((r != 0) == (err.msg[0] != 0) && s.n_tokens <= SELECTION_MOST_RANGES);
    struct ranges ranges = selection_ranges(&s, NULL, NULL, 0, N);
    check_ranges(&ranges, N);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1);
    require(text);
    memcpy(text, data, n);
    text[n] = 0;
    check_layers(text);
    check_slices(text);
    check_tokens(text);
    free(text);
    return 0;
}
