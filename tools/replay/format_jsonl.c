/* SPDX-License-Identifier: Apache-2.0 */
/* JSON lines: an object an item; of records statistics, and their values if these are wanted. */
#include "tools/replay/format.h"

#include "read/value.h"
#include "storage/elements.h"
#include "tools/common/element.h"
#include "tools/common/statistics.h"

#include <dmi/dtype.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void add_statistics(struct text *to, const struct statistics *s)
{
    double none = s->n ? 0 : NAN; /* printed as null */
    text_printf(to, ",\"least\":");
    text_json_double(to, s->least + none);
    text_printf(to, ",\"most\":");
    text_json_double(to, s->most + none);
    text_printf(to, ",\"mean\":");
    text_json_double(to, statistics_mean(s) + none);
    text_printf(to, ",\"norm\":");
    text_json_double(to, sqrt(s->squares));
    text_printf(to, ",\"nan\":%" PRIu64 ",\"infinite\":%" PRIu64, s->n_nan, s->n_infinite);
}

/* All elements, row by row; @to: NULL: only the sums. */
static void walk(const struct item *item, struct text *to, struct statistics *sums)
{
    double v[STATISTICS_AT_A_TIME];
    uint32_t dtype = item->record->at.dtype, n_element = dmi_dtype_bytes(dtype);
    uint64_t total = item->n_rows * item->width;
    for (uint64_t i = 0, n; i < total; i += n) {
        n = total - i < STATISTICS_AT_A_TIME ? total - i : STATISTICS_AT_A_TIME;
        elements_to_double(dtype, item->data + i * n_element, n, v);
        statistics_add(sums, v, n);
        for (uint64_t k = 0; to && k < n; k++) {
            bool first = (i + k) % item->width == 0;
            const char *before = !first ? "," : i + k ? "],[" : "[";
            text_add(to, before, strlen(before));
            element_add_json(to, dtype, item->data + (i + k) * n_element, v[k]);
        }
    }
    if (to && total)
        text_printf(to, "]");
}

static void encode(const struct item *item, bool values, struct coded *out)
{
    struct text *t = &out->text;
    struct statistics sums = { 0 };
    value_add(t, item->facts);
    if (item->kind == ITEM_RECORD && !t->failed) {
        t->n--; /* its last brace */
        if (values)
            text_printf(t, ",\"values\":[");
        walk(item, values ? t : NULL, &sums);
        if (values)
            text_printf(t, "]");
        add_statistics(t, &sums);
        text_printf(t, "}");
    }
    text_add(t, "\n", 1);
}

const struct frame_format format_jsonl = {
    .name = "jsonl",
    .what = "a JSON object a line; with --values their values as exact decimals",
    .encode = encode,
};
