/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/operand.h"

#include "core/atomic.h"
#include "preload/base/driver.h"
#include "preload/base/readable.h"
#include "preload/base/stream.h"
#include "preload/capture/intervals.h"
#include "preload/capture/params.h"
#include "preload/capture/regions.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PARAMS_SAID 12 /* of a kernel, with their sizes */

/* Why a launch's tensor cannot be read, as view_of_site() says it. */
struct failure {
    enum problem problem;
    enum dmi_drop drop;
    const char *text;
};

static const struct failure *failure_of(int view_error, bool has_layout)
{
    static const struct failure no_param = {
        PROBLEM_BAD_EXPR, DMI_DROP_BAD_EXPR,
        "the launch has no such parameter, or the parameter is smaller"
    };
    static const struct failure no_layout = {
        PROBLEM_NO_PARAMS, DMI_DROP_BAD_EXPR,
        "where the kernel's parameters lie is not known: needs a driver of CUDA 12.4 or newer, "
        "which says it, or "
        "an image that says it and was seen when it was loaded, or packed parameters and "
        "param[OFFSET]"
    };
    static const struct failure too_large = { PROBLEM_TOO_LARGE, DMI_DROP_TOO_LARGE,
                                              "2 GiB or more in one record" };
    static const struct failure pointer = { PROBLEM_BAD_POINTER, DMI_DROP_BAD_POINTER,
                                            "the pointer is null or wild" };
    static const struct failure expr = {
        PROBLEM_BAD_EXPR, DMI_DROP_BAD_EXPR,
        "an expression overflows, divides by zero or gives an impossible size"
    };
    switch (view_error) {
    case VIEW_E_PARAM: return has_layout ? &no_param : &no_layout;
    case VIEW_E_TOO_LARGE: return &too_large;
    case VIEW_E_POINTER: return &pointer;
    default: return &expr;
    }
}

/* Is it known where the launch's parameters lie? */
static bool has_layout(const struct expr_env *env)
{
    const struct params *params = env->param_ctx;
    return env->param != params_read || params->layout;
}

/* What a spec may ask for where it asked for another parameter. */
static void say_params(const struct expr_env *env, char *to, size_t n)
{
    const struct params *params = env->param_ctx;
    const struct params_layout *layout = env->param == params_read ? params->layout : NULL;
    *to = 0;
    if (!layout)
        return;
    size_t used = (size_t)snprintf(to, n, ": it has %u", layout->n);
    for (uint32_t i = 0; i < layout->n && i < PARAMS_SAID && used < n; i++)
        used += (size_t)snprintf(to + used, n - used, ", arg[%u] of %u", i, layout->at[i].size);
    if (layout->n && used < n)
        snprintf(to + used, n - used, " bytes%s", layout->n > PARAMS_SAID ? ", ..." : "");
}

void operand_of_site(uint32_t site, const struct expr_env *env, struct operand *operand)
{
    operand->site = site;
    operand->layer = 0;
    operand->drop = DROP_NONE;
    int r = view_of_site(session_site(site), env, &operand->view);
    if (!r)
        return;
    const struct failure *failure = failure_of(r, has_layout(env));
    char more[256] = "";
    if (r == VIEW_E_PARAM && !session_reported(site, failure->problem))
        say_params(env, more, sizeof more);
    session_problem(site, failure->problem, "occurrence %u: %s%s", (unsigned)env->occ,
                    failure->text, more);
    operand->drop = (int)failure->drop;
}

static uint64_t step_of(const struct dmi_tap *tap, uint32_t d)
{
    return (uint64_t)(tap->stride[d] < 0 ? -tap->stride[d] : tap->stride[d]);
}

/* May two elements lie in one place, as those of an expanded tensor do? Dimensions one around the other have room for all. */
static bool overlaps(const struct dmi_tap *tap)
{
    uint64_t extent = dmi_dtype_bytes(tap->dtype);
    for (uint32_t seen = 0;;) {
        uint32_t least = tap->n_dims;
        for (uint32_t d = 0; d < tap->n_dims; d++)
            if (!(seen >> d & 1) && tap->count[d] > 1 &&
                (least == tap->n_dims || step_of(tap, d) < step_of(tap, least)))
                least = d;
        if (least == tap->n_dims)
            return false;
        if (step_of(tap, least) < extent)
            return true;
        extent += (tap->count[least] - 1) * step_of(tap, least);
        seen |= 1u << least;
    }
}

/* Why edits cannot write what is tapped, NULL: they can. */
static const char *no_place(const struct dmi_tap *tap)
{
    if (!(tap->flags & DMI_TAP_WRITABLE))
        return "plain taps are no places, as nobody says that what is tapped is read again: "
               "DMI_TAP_WRITABLE says so";
    if (!spec_edits_dtype(tap->dtype))
        return "its type is none of f32, f16 and bf16";
    if (overlaps(tap))
        return "its elements lie over one another";
    return NULL;
}

/* Edits write nothing into what is no place for them. */
static void check_place(uint32_t site, const struct dmi_tap *tap, struct operand *operand)
{
    const char *why = spec_is_place(session_site(site)) ? no_place(tap) : NULL;
    if (!why)
        return;
    operand->drop = (int)DMI_DROP_UNSUPPORTED;
    session_problem(site, PROBLEM_UNSUPPORTED, "tapped in layer %d: edits write nothing here: %s",
                    (int)tap->layer, why);
}

void operand_of_tap(uint32_t site, const struct dmi_tap *tap, struct operand *operand)
{
    operand->site = site;
    operand->layer = tap->layer;
    operand->drop = DROP_NONE;
    int r = view_of_tap(tap, &operand->view);
    if (!r) {
        check_place(site, tap, operand);
        return;
    }
    const struct failure *failure = failure_of(r, true);
    session_problem(site, failure->problem, "tapped in layer %d: %s", (int)tap->layer,
                    r == VIEW_E_EXPR ? "its strides overflow" : failure->text);
    operand->drop = (int)failure->drop;
}

void operand_refused(uint32_t site, enum dmi_drop drop, struct operand *operand)
{
    *operand = (struct operand){ .site = site, .drop = (int)drop };
}

/* The allocation or mapping that @address lies in. The thread may be capturing: asking breaks nobody's capture. */
static CUresult ask(uint64_t address, CUdeviceptr *base, size_t *size)
{
    struct stream_relaxed relaxed = stream_relax();
    CUresult r = driver_table.cuMemGetAddressRange_v2(base, size, address);
    stream_unrelax(&relaxed);
    return r;
}

/* What is read; UINT64_MAX bytes: all that follows, as the tensor's end is not known yet. */
struct touched {
    uint64_t first, n; /* bytes */
};

/* Does @range still say all of @t? */
static bool says(const struct memory_range *range, const struct touched *t, uint64_t epoch)
{
    uint64_t end = range->base + range->size;
    return range->size && range->epoch == epoch && t->first >= range->base && t->first < end &&
           (range->closed || intervals_end(t->first, t->n) <= end);
}

/* The driver names one allocation, or one mapping of before the library looked. */
static CUresult ask_for(const struct touched *t, struct memory_range *range, bool *kept)
{
    uint64_t moment = regions_moment();
    CUdeviceptr base = 0;
    size_t size = 0;
    CUresult r = ask(t->first, &base, &size);
    *range = (struct memory_range){ .base = base, .size = size, .closed = true };
    if (r != CUDA_SUCCESS)
        *range = (struct memory_range){ 0 };
    *kept = r == CUDA_SUCCESS && size && regions_found(range, moment);
    return r;
}

/* Finds the memory that @t begins in. */
static CUresult look_up(const struct touched *t, int device, struct memory_range *range)
{
    uint64_t epoch = atomic_load_acquire(&session.memory_epoch); /* of session_memory_freed() */
    CUresult answer = CUDA_SUCCESS;
    bool kept = true;
    if (says(range, t, epoch))
        return CUDA_SUCCESS;
    if (!regions_find(t->first, t->n, device, range))
        answer = ask_for(t, range, &kept);
    range->epoch = kept ? epoch : 0;
    return answer;
}

/* Return: DROP_NONE, DMI_DROP_BAD_POINTER, DMI_DROP_COPY_FAILED. */
static int within_memory(const struct touched *t, int device, struct memory_range *range,
                         CUresult *answer)
{
    *answer = look_up(t, device, range);
    /* any other error says nothing of the memory */
    if (*answer != CUDA_SUCCESS && *answer != CUDA_ERROR_NOT_FOUND &&
        *answer != CUDA_ERROR_INVALID_VALUE)
        return DMI_DROP_COPY_FAILED;
    uint64_t at = t->first - range->base;
    return t->first >= range->base && at <= range->size && t->n <= range->size - at
               ? DROP_NONE
               : DMI_DROP_BAD_POINTER;
}

void operand_limit(struct operand *operand, int device, struct memory_ranges *ranges)
{
    struct tensor_view *g = &operand->view;
    const struct touched all = { g->first, UINT64_MAX };
    if (operand->drop == DROP_NONE && g->n_list_bytes &&
        look_up(&all, device, &ranges->tensor) == CUDA_SUCCESS)
        view_limit(g, ranges->tensor.base + ranges->tensor.size);
}

/* For which launch, and on which device, the memory is looked up. */
struct lookup {
    uint32_t occurrence;
    int device;
};

/* Whether the tensor, or the list of its slots, lies in memory that may be read; @what names it. Return: as operand_check_memory(). */
static int check_range(const struct operand *operand, const struct lookup *asked, const char *what,
                       const struct touched *t, struct memory_range *range)
{
    CUresult answer;
    int drop = within_memory(t, asked->device, range, &answer);
    if (drop == DMI_DROP_BAD_POINTER && range->barred)
        session_problem(operand->site, PROBLEM_BAD_POINTER,
                        "occurrence %u: %s reaches into mapped memory that device %d may not read",
                        asked->occurrence, what, asked->device);
    else if (drop == DMI_DROP_BAD_POINTER)
        session_problem(operand->site, PROBLEM_BAD_POINTER,
                        "occurrence %u: %s lies outside a live device allocation",
                        asked->occurrence, what);
    if (drop == DMI_DROP_COPY_FAILED)
        session_problem(operand->site, PROBLEM_COPY_FAILED,
                        "occurrence %u: the driver does not say where memory lies: error %d",
                        asked->occurrence, (int)answer);
    return drop;
}

int operand_check_memory(const struct operand *operand, uint32_t occurrence, int device,
                         struct memory_ranges *ranges)
{
    const struct tensor_view *g = &operand->view;
    if (operand->drop != DROP_NONE || !g->n_bytes)
        return operand->drop;
    const struct lookup asked = { occurrence, device };
    const struct touched tensor = { g->first, g->n_touched };
    const struct touched list = { g->gather.slots, g->n_list_bytes };
    const struct touched plus = { g->plus + (g->first - g->gather.src), g->n_touched };
    int drop = check_range(operand, &asked, "the tensor", &tensor, &ranges->tensor);
    if (drop == DROP_NONE && g->plus)
        drop = check_range(operand, &asked, "the tensor of plus", &plus, &ranges->plus);
    if (drop == DROP_NONE && list.n && !g->n_slot_bytes) {
        session_problem(operand->site, PROBLEM_COPY_FAILED,
                        "occurrence %u: the driver did not say how much memory the slots are in",
                        occurrence);
        return DMI_DROP_COPY_FAILED;
    }
    if (drop == DROP_NONE && list.n)
        drop = check_range(operand, &asked, "the list of its slots", &list, &ranges->slots);
    if (drop != DROP_NONE || !ranges->tensor.shared ||
        session_site(operand->site)->shared_memory == SPEC_SHARED_ALLOW)
        return drop;
    session_problem(
        operand->site, PROBLEM_UNSUPPORTED,
        "the tensor lies in memory that is shared with another process or device, which "
        "may write it before it is copied. vLLM and SGLang share what their graphs use, unless "
        "they are started with --disable-custom-all-reduce (shared_memory: allow captures it "
        "all the same)");
    return DMI_DROP_UNSUPPORTED;
}

int operand_check_host(const struct operand *operand, uint32_t occurrence)
{
    const struct tensor_view *g = &operand->view;
    if (operand->drop != DROP_NONE || !g->n_bytes)
        return operand->drop;
    bool writes = session_site(operand->site)->action == SPEC_EDIT;
    const char *what = writes ? "written" : "read";
    int r = (writes ? writable_check : readable_check)(g->first, g->n_touched);
    if (!r)
        return DROP_NONE;
    if (r == -EFAULT) {
        session_problem(operand->site, PROBLEM_BAD_POINTER,
                        "occurrence %u: the tensor lies in memory that cannot be %s", occurrence,
                        what);
        return DMI_DROP_BAD_POINTER;
    }
    session_problem(operand->site, PROBLEM_COPY_FAILED,
                    "occurrence %u: the system does not say whether memory can be %s: %s",
                    occurrence, what, strerror(-r));
    return DMI_DROP_COPY_FAILED;
}

bool operand_same(const struct operand *a, const struct operand *b)
{
    return a->site == b->site && a->drop == b->drop && !memcmp(&a->view, &b->view, sizeof a->view);
}

bool operand_needs_occurrence(uint32_t site)
{
    return spec_uses_occurrence(session_site(site));
}

static int no_param(void *ctx, struct expr_ref ref, void *dst, size_t n)
{
    (void)ctx, (void)ref, (void)dst, (void)n;
    return -ENOENT;
}

bool operand_layer(uint32_t site, uint32_t occurrence, int32_t tapped, int32_t *layer)
{
    static const uint32_t none[3];
    const struct expr *expr = session_site(site)->layer;
    struct expr_env env = { .grid = none, .block = none, .occ = occurrence, .param = no_param };
    int64_t value;
    *layer = session_site(site)->about.tap ? tapped : RUN_NO_LAYER;
    if (!expr)
        return true;
    if (expr_eval(expr, &env, &value) || value < 0 || value > INT32_MAX) {
        session_problem(site, PROBLEM_BAD_EXPR, "occurrence %u: no layer number", occurrence);
        return false;
    }
    *layer = (int32_t)value;
    return true;
}
