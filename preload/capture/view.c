/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/view.h"

#include <dmi/dtype.h>

#include <stdbool.h>
#include <string.h>

struct shape {
    uint32_t n, n_row_dims; /* rows come first */
    int64_t count[SPEC_MAX_DIMS];
    int64_t stride[SPEC_MAX_DIMS]; /* bytes */
    bool in_slots;                 /* rows lie where a list says */
};

static int eval(const struct expr *e, const struct expr_env *env, int64_t *out)
{
    int r = expr_eval(e, env, out);
    return r == EXPR_E_PARAM ? VIEW_E_PARAM : r ? VIEW_E_EXPR : 0;
}

static int eval_shape(const struct spec_site *site, const struct expr_env *env, struct shape *shape)
{
    shape->n = site->n_dims;
    shape->n_row_dims = site->n_row_dims;
    for (uint32_t i = 0; i < site->n_dims; i++) {
        int r = eval(site->dims[i].count, env, &shape->count[i]);
        if (!r)
            r = eval(site->dims[i].stride, env, &shape->stride[i]);
        if (r)
            return r;
        if (shape->count[i] < 0 || shape->count[i] > UINT32_MAX)
            return VIEW_E_EXPR;
    }
    return 0;
}

/* Lowest and highest byte offset that the gather reads, of slots in the first. Return: false on overflow. */
static bool extent(const struct shape *shape, uint32_t elem, int64_t *low, int64_t *high)
{
    *low = 0;
    *high = elem;
    for (uint32_t i = shape->in_slots; i < shape->n; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(shape->count[i] - 1, shape->stride[i], &reach) ||
            __builtin_add_overflow(reach < 0 ? *low : *high, reach, reach < 0 ? low : high))
            return false;
    }
    return true;
}

/*
 * Innermost dimensions that lie packed become one run of bytes; the others nest outside, the last one fastest, as struct
 * dmi_gather has it. Rows are never part of a run: a launch may keep some of them.
 */
static void collapse(const struct shape *shape, uint32_t elem, struct dmi_gather *g)
{
    uint64_t run = elem;
    uint32_t n = shape->n;
    while (n > 1 && (shape->count[n - 1] == 1 || (uint64_t)shape->stride[n - 1] == run)) {
        run *= (uint64_t)shape->count[n - 1];
        n--;
    }
    g->run_bytes = (uint32_t)run;
    g->count[0] = (uint32_t)shape->count[0];
    g->stride[0] = shape->stride[0];
    for (uint32_t i = 1; i < DMI_RING_DIMS; i++) {
        bool used = i + n > DMI_RING_DIMS;
        uint32_t dim = used ? i + n - DMI_RING_DIMS : 0;
        g->count[i] = used ? (uint32_t)shape->count[dim] : 1;
        g->stride[i] = used ? shape->stride[dim] : 0;
    }
}

static uint32_t widest_access(const struct dmi_gather *g)
{
    uint64_t bits = g->src | g->run_bytes;
    for (uint32_t i = 0; i < DMI_RING_DIMS; i++)
        if (g->count[i] > 1 || (!i && g->slot_bytes))
            bits |= (uint64_t)g->stride[i];
    if (g->rows_inner)
        bits |= (uint64_t)g->stride_outer;
    uint64_t align = bits & -bits; /* lowest bit set divides all of them */
    return align > 16 ? 16 : (uint32_t)align;
}

static int total_bytes(const struct shape *shape, uint32_t elem, uint64_t *n_bytes)
{
    uint64_t n = elem;
    for (uint32_t i = 0; i < shape->n; i++)
        if (__builtin_mul_overflow(n, (uint64_t)shape->count[i], &n))
            return VIEW_E_TOO_LARGE;
    *n_bytes = n;
    return n >= VIEW_MAX_BYTES ? VIEW_E_TOO_LARGE : 0;
}

/*
 * Two row dimensions become one. Where the second follows on the end of the first, rows lie along one dimension; else
 * @g says how they divide.
 */
static int join_rows(struct shape *shape, struct dmi_gather *g)
{
    int64_t outer = shape->count[0], inner = shape->count[1], rows, whole;
    if (shape->n_row_dims < 2)
        return 0;
    if (__builtin_mul_overflow(outer, inner, &rows) || rows > UINT32_MAX ||
        __builtin_mul_overflow(inner, shape->stride[1], &whole))
        return VIEW_E_TOO_LARGE;
    if (inner == 1) {
        shape->stride[1] = shape->stride[0];
    } else if (outer > 1 && shape->stride[0] != whole) {
        g->rows_inner = (uint32_t)inner;
        g->stride_outer = shape->stride[0];
    }
    shape->n--;
    shape->count[0] = rows;
    shape->stride[0] = shape->stride[1];
    for (uint32_t i = 1; i < shape->n; i++) {
        shape->count[i] = shape->count[i + 1];
        shape->stride[i] = shape->stride[i + 1];
    }
    return 0;
}

/* The address range that is read. */
static int place(const struct shape *shape, uint32_t elem, uint64_t address,
                 struct tensor_view *view)
{
    int64_t low, high;
    if (!extent(shape, elem, &low, &high))
        return VIEW_E_EXPR;
    view->gather.src = address;
    view->first = address + (uint64_t)low;
    view->n_touched = (uint64_t)high - (uint64_t)low;
    return view->first + view->n_touched < view->first ? VIEW_E_POINTER : 0;
}

/* Sizes of what is stored. */
static int measure(struct shape *shape, uint32_t elem, struct tensor_view *view)
{
    int r = total_bytes(shape, elem, &view->n_bytes);
    view->n_dims = shape->n - (shape->n_row_dims - 1);
    for (uint32_t i = 0; i < view->n_dims; i++)
        view->dims[i] = (uint32_t)shape->count[i + shape->n_row_dims - 1];
    if (shape->n_row_dims == 2)
        view->dims[0] *= (uint32_t)shape->count[0];
    return r;
}

/* Rows and elements of a tensor that has some, at an @address that is not null. */
static int finish(struct shape *shape, uint32_t elem, uint64_t address, struct tensor_view *view)
{
    int r = place(shape, elem, address, view);
    if (!r)
        r = join_rows(shape, &view->gather);
    if (r)
        return r;
    collapse(shape, elem, &view->gather);
    view->gather.access = widest_access(&view->gather);
    view->row_bytes = (uint32_t)(view->n_bytes / view->dims[0]);
    return 0;
}

/* ------------------------------------------------------------------------- slots of a paged cache */

/* Where the list lies, and how pages follow on each other. @view has its rows. */
static int view_slots(const struct spec_slots *slots, const struct expr_env *env,
                      struct shape *shape, struct tensor_view *view)
{
    struct dmi_gather *g = &view->gather;
    int64_t block = 0, block_stride = 0;
    shape->in_slots = true;
    g->slot_bytes = dmi_dtype_bytes(slots->dtype);
    view->n_list_bytes = (uint64_t)view->dims[0] * g->slot_bytes;
    if (env->param(env->param_ctx, slots->pointer, &g->slots, sizeof g->slots))
        return VIEW_E_PARAM;
    int r = slots->block ? eval(slots->block, env, &block) : 0;
    if (!r && slots->block)
        r = eval(slots->block_stride, env, &block_stride);
    if (r)
        return r;
    if (shape->stride[0] <= 0 || block < 0 || block > UINT32_MAX || block_stride < 0 ||
        (slots->block && (!block || !block_stride)))
        return VIEW_E_EXPR;
    g->rows_inner = (uint32_t)block;
    g->stride_outer = block_stride;
    return g->slots && !(g->slots % g->slot_bytes) ? 0 : VIEW_E_POINTER;
}

/* How many runs of @n bytes, one each @stride, lie in @room bytes. */
static uint64_t runs_in(uint64_t room, uint64_t n, uint64_t stride)
{
    return room < n ? 0 : (room - n) / stride + 1;
}

bool view_limit(struct tensor_view *view, uint64_t end)
{
    struct dmi_gather *g = &view->gather;
    if (!view->n_slot_bytes)
        view->n_slot_bytes = view->n_touched;
    uint64_t room = end > view->first ? end - view->first : 0, n_slot = view->n_slot_bytes;
    uint64_t stride = (uint64_t)g->stride[0], outer = (uint64_t)g->stride_outer, n, page;
    if (!g->rows_inner) {
        n = runs_in(room, n_slot, stride);
    } else if (__builtin_mul_overflow(g->rows_inner - 1, stride, &page) ||
               __builtin_add_overflow(page, n_slot, &page)) {
        n = 0;
    } else {
        n = runs_in(room, page, outer);
        n = n > UINT32_MAX / g->rows_inner ? UINT32_MAX : n * g->rows_inner;
    }
    g->n_slots = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
    view->n_touched = n ? room : n_slot;
    return n;
}

/* ------------------------------------------------------------------------- the whole */

/* The second tensor of a place for edits. */
static int view_plus(const struct expr_ref *plus, const struct expr_env *env, uint32_t elem,
                     struct tensor_view *view)
{
    if (env->param(env->param_ctx, *plus, &view->plus, sizeof view->plus))
        return VIEW_E_PARAM;
    return view->plus && !(view->plus % elem) ? 0 : VIEW_E_POINTER;
}

int view_of_site(const struct spec_site *site, const struct expr_env *env, struct tensor_view *view)
{
    struct shape shape = { 0 };
    uint32_t elem = dmi_dtype_bytes(site->about.dtype);
    memset(view, 0, sizeof *view);
    view->dtype = site->about.dtype;
    view->n_dims = site->n_dims - (site->n_row_dims - 1);

    int r = eval_shape(site, env, &shape);
    if (!r)
        r = measure(&shape, elem, view);
    if (r || !view->n_bytes)
        return r;

    uint64_t pointer = 0;
    int64_t offset = 0;
    if (env->param(env->param_ctx, site->pointer, &pointer, sizeof pointer))
        return VIEW_E_PARAM;
    if (site->offset && (r = eval(site->offset, env, &offset)))
        return r;
    if (site->dims[0].slots.dtype && (r = view_slots(&site->dims[0].slots, env, &shape, view)))
        return r;
    if (spec_is_place(site) && site->write.has_plus &&
        (r = view_plus(&site->write.plus, env, elem, view)))
        return r;
    return pointer ? finish(&shape, elem, pointer + (uint64_t)offset, view) : VIEW_E_POINTER;
}

static uint32_t element_bytes(const struct tensor_view *g)
{
    return dmi_dtype_bytes(g->dtype);
}

struct dmi_edit_shape view_shape(const struct tensor_view *g)
{
    uint32_t n = element_bytes(g) ? g->row_bytes / element_bytes(g) : 0;
    uint32_t heads = g->n_dims < 3 ? 0 : g->dims[1];
    return (struct dmi_edit_shape){ n, heads ? n / heads : n, heads };
}

int view_of_tap(const struct dmi_tap *tap, struct tensor_view *view)
{
    struct shape shape = { .n = tap->n_dims };
    memset(view, 0, sizeof *view);
    view->dtype = tap->dtype;
    view->of_requests = tap->flags & DMI_TAP_REQUESTS;
    for (uint32_t d = 0; d < tap->n_dims; d++)
        shape.n_row_dims += tap->row_dims >> d & 1;
    for (uint32_t d = 0, row = 0, other = shape.n_row_dims; d < tap->n_dims; d++) {
        uint32_t to = tap->row_dims >> d & 1 ? row++ : other++;
        if (tap->count[d] > UINT32_MAX)
            return VIEW_E_TOO_LARGE;
        shape.count[to] = (int64_t)tap->count[d];
        shape.stride[to] = tap->stride[d];
    }
    uint32_t elem = dmi_dtype_bytes(tap->dtype);
    int r = measure(&shape, elem, view);
    if (r || !view->n_bytes)
        return r;
    return tap->data ? finish(&shape, elem, (uint64_t)(uintptr_t)tap->data, view) : VIEW_E_POINTER;
}
