/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/view.h"

#include "core/cleanup.h"
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>

uint8_t *view_changes(const struct memory *memory, const struct rec_run *run)
{
    uint8_t before[4096], known[4096];
    uint8_t *changed = malloc(run->n_bytes + 1);
    for (uint64_t at = 0; changed && at < run->n_bytes; at += sizeof before) {
        size_t n = run->n_bytes - at < sizeof before ? (size_t)(run->n_bytes - at) : sizeof before;
        memory_read(memory, run->address + at, n, run->time - 1, before, known);
        for (size_t i = 0; i < n; i++)
            changed[at + i] = !known[i] || before[i] != run->data[at + i];
    }
    return changed;
}

/* Of one byte each: there are 256 values. */
static void convert_bytes(uint32_t dtype, const uint8_t *data, size_t n, float *out)
{
    uint8_t all[256];
    double wide[256];
    for (uint32_t i = 0; i < 256; i++)
        all[i] = (uint8_t)i;
    elements_to_double(dtype, all, 256, wide);
    for (size_t i = 0; i < n; i++)
        out[i] = (float)wide[data[i]];
}

static int convert(uint32_t dtype, const uint8_t *data, size_t n, float *out)
{
    _cleanup_(freep) double *wide = malloc((n + 1) * sizeof *wide);
    if (!wide)
        return -ENOMEM;
    elements_to_double(dtype, data, n, wide);
    for (size_t i = 0; i < n; i++)
        out[i] = (float)wide[i];
    return 0;
}

int view_open(const struct rec_run *run, const uint8_t *changed, uint32_t dtype,
              struct memory_view *v)
{
    int r = 0;
    *v = (struct memory_view){ .dtype = dtype,
                               .size = dmi_dtype_bytes(dtype),
                               .address = run->address };
    v->n = run->n_bytes / v->size;
    v->values = malloc((v->n + 1) * sizeof *v->values);
    v->fresh = calloc(v->n + 1, 1);
    if (!v->values || !v->fresh)
        return -ENOMEM;
    if (v->size == 1)
        convert_bytes(dtype, run->data, v->n, v->values);
    else
        r = convert(dtype, run->data, v->n, v->values);
    for (size_t i = 0; i < v->n * v->size; i++)
        v->fresh[i / v->size] |= changed[i];
    return r;
}

void view_deinit(struct memory_view *v)
{
    free(v->values);
    free(v->fresh);
}

float view_rounding(uint32_t dtype)
{
    switch (dtype) {
    case DMI_DTYPE_F16: return 0.0005f;
    case DMI_DTYPE_BF16: return 0.004f;
    case DMI_DTYPE_F8E4M3: return 0.04f; /* 2^-4 at most, 0.026 over values of all sizes */
    case DMI_DTYPE_F8E5M2: return 0.08f; /* 2^-3 and 0.052 */
    default: return 0;
    }
}
