/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/check_values.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "storage/elements.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- where */

struct launch_params {
    const struct recording *rec;
    const struct rec_launch *launch;
};

/* An expr_env's `param`. */
static int read_param(void *ctx, struct expr_ref ref, void *dst, size_t n)
{
    const struct launch_params *p = ctx;
    const struct rec_kernel *k = &p->rec->kernels[p->launch->head.kernel];
    uint64_t at = ref.offset, end = p->launch->head.n_params;
    if (ref.arg >= 0) {
        struct dmi_recording_param place;
        if (k->n_params == DMI_RECORDING_NO_LAYOUT || (uint32_t)ref.arg >= k->n_params)
            return -ENOENT;
        memcpy(&place, k->params + ref.arg, sizeof place);
        at += place.offset;
        end = (uint64_t)place.offset + place.size < end ? (uint64_t)place.offset + place.size : end;
    }
    if (at > end || n > end - at)
        return -ENOENT;
    memcpy(dst, p->launch->params + at, n);
    return 0;
}

static bool eval_dims(const struct spec_site *site, const struct expr_env *env, struct extent *e)
{
    e->n_dims = site->n_dims;
    return !ANY(i, site->n_dims,
                expr_eval(site->dims[i].count, env, &e->count[i]) ||
                    expr_eval(site->dims[i].stride, env, &e->stride[i]) || e->count[i] < 0 ||
                    e->count[i] > UINT32_MAX);
}

/* Of a paged cache: where its list of slots lies, and how its pages follow on each other. */
static bool eval_slots(const struct spec_slots *slots, struct expr_env *env, struct extent *e)
{
    struct extent_slots *out = &e->slots;
    *out = (struct extent_slots){ .dtype = slots->dtype };
    if (!slots->dtype)
        return true;
    if (read_param(env->param_ctx, slots->pointer, &out->list, sizeof out->list))
        return false;
    return !slots->block ||
           (!expr_eval(slots->block, env, &out->block) &&
            !expr_eval(slots->block_stride, env, &out->block_stride) && out->block > 0);
}

/* Does all of it, of slots the first, lie in the allocation that @pointer is in? */
static bool is_inside(const struct rec_launch *l, const struct extent *e, uint64_t pointer,
                      uint32_t size)
{
    int64_t low = 0, high = size, reach;
    for (uint32_t d = e->slots.dtype ? 1 : 0; d < e->n_dims; d++)
        if (__builtin_mul_overflow(e->count[d] - 1, e->stride[d], &reach) ||
            __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high))
            return false;
    for (uint32_t i = 0; i < l->head.n_pointers; i++) {
        const struct dmi_recording_pointer *x = &l->pointers[i];
        uint64_t from = e->address + (uint64_t)low - x->base;
        if (x->address == pointer)
            return from < x->n_bytes && (uint64_t)(high - low) <= x->n_bytes - from;
    }
    return false;
}

enum extent_state extent_at(const struct recording *rec, const struct spec_site *site,
                            const struct rec_launch *launch, uint32_t occ, struct extent *out)
{
    struct launch_params params = { rec, launch };
    struct expr_env env = { .grid = launch->head.grid,
                            .block = launch->head.block,
                            .shared_bytes = launch->head.shared_bytes,
                            .occ = occ,
                            .param = read_param,
                            .param_ctx = &params };
    uint64_t pointer;
    int64_t offset = 0;
    if (!eval_dims(site, &env, out) || !eval_slots(&site->dims[0].slots, &env, out) ||
        read_param(&params, site->pointer, &pointer, 8) ||
        (site->offset && expr_eval(site->offset, &env, &offset)))
        return EXTENT_NO_VALUE;
    for (uint32_t d = 0; d < out->n_dims; d++)
        if (!out->count[d])
            return EXTENT_EMPTY;
    out->address = pointer + (uint64_t)offset;
    return is_inside(launch, out, pointer, (uint32_t)dmi_dtype_bytes(site->about.dtype))
               ? EXTENT_GOOD
               : EXTENT_OUTSIDE;
}

static int no_param(void *ctx, struct expr_ref ref, void *dst, size_t n)
{
    (void)ctx, (void)ref, (void)dst, (void)n;
    return -ENOENT;
}

int extent_layer(const struct spec_site *site, uint32_t occ)
{
    static const uint32_t none[3];
    struct expr_env env = { .grid = none, .block = none, .occ = occ, .param = no_param };
    int64_t layer;
    return site->layer && !expr_eval(site->layer, &env, &layer) && layer >= 0 && layer < INT32_MAX
               ? (int)layer
               : REF_NO_LAYER;
}

/* ------------------------------------------------------------------------- what */

/* Elements of dimension @d and those within it, in order. Return: how many, 0 where memory is not known. */
static size_t read_dim(const struct probe *p, uint32_t dtype, const struct extent *e, uint32_t d,
                       uint64_t address, uint64_t time, double *out, size_t room)
{
    size_t size = dmi_dtype_bytes(dtype), n = (size_t)e->count[d], done = 0;
    if (d + 1 == e->n_dims && e->stride[d] == (int64_t)size && n <= room) {
        _cleanup_(freep) uint8_t *raw = malloc(n * size + 1);
        if (!raw || memory_read(p->memory, address, n * size, time, raw, NULL) != n * size)
            return 0;
        elements_to_double(dtype, raw, n, out);
        return n;
    }
    for (size_t i = 0; i < n && d < e->n_dims; i++) {
        uint8_t one[8];
        uint64_t at = address + (uint64_t)(e->stride[d] * (int64_t)i);
        size_t got = 1;
        if (d + 1 < e->n_dims)
            got = read_dim(p, dtype, e, d + 1, at, time, out + done, room - done);
        else if (done == room || memory_read(p->memory, at, size, time, one, NULL) != size)
            got = 0;
        else
            elements_to_double(dtype, one, 1, out + done);
        if (!got)
            return 0;
        done += got;
    }
    return done;
}

/* Return: false where it is in nobody's slot, or memory is not known. */
static bool find_row(const struct probe *p, const struct extent *e, uint32_t row, uint64_t time,
                     uint64_t *at)
{
    const struct extent_slots *s = &e->slots;
    int64_t slot = s->dtype ? layout_slot(p, s->list, s->dtype, row, time) : row, page = 0;
    if (s->block > 0) {
        page = slot / s->block;
        slot %= s->block;
    }
    *at = e->address + (uint64_t)page * (uint64_t)s->block_stride +
          (uint64_t)slot * (uint64_t)e->stride[0];
    return slot >= 0;
}

static bool read_row(const struct probe *p, uint32_t dtype, const struct extent *e, uint32_t row,
                     uint64_t time, double *out, size_t width)
{
    uint64_t at;
    struct extent alone = *e;
    if (!find_row(p, e, row, time, &at))
        return false;
    uint32_t d = 1;
    if (e->n_dims == 1) { /* a row of one element */
        alone.count[0] = 1;
        d = 0;
    }
    return read_dim(p, dtype, &alone, d, at, time, out, width) == width;
}

float extent_error(const struct probe *p, const struct spec_site *site, const struct extent *e,
                   const struct subject *s)
{
    size_t width = p->ref->sites[s->site].width;
    double error = 0, norm = 0;
    bool any = false;
    _cleanup_(freep) double *values = malloc((width + 1) * sizeof *values);
    for (uint32_t r = 0; values && r < s->n_rows; r++) {
        const float *want = activations_row(p->ref, s->site, s->layer, s->rows[r]);
        if (!want)
            continue;
        if ((int64_t)r >= e->count[0] ||
            !read_row(p, site->about.dtype, e, r, s->time, values, width))
            return INFINITY;
        for (size_t i = 0; i < width; i++) {
            double scaled = want[i] * site->about.scale;
            error += (values[i] - scaled) * (values[i] - scaled);
            norm += scaled * scaled;
        }
        any = true;
    }
    return !any ? NAN : norm > 0 ? (float)sqrt(error / norm) : error > 0 ? INFINITY : 0;
}
