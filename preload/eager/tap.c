/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/eager/tap.h"

#include "preload/base/driver.h"
#include "preload/base/stream.h"
#include "preload/eager/launch.h"
#include "preload/eager/taps.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME 128

static_assert(sizeof(struct dmi_tap) == 120, "callers are compiled with it");

static bool is_name(const char *name)
{
    static const char characters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t n = name ? strspn(name, characters) : 0;
    return n && n <= MAX_NAME && !name[n];
}

/* What is wrong with it, NULL: nothing that can be seen without a look at the device. */
static const char *fault(const struct dmi_tap *tap)
{
    uint32_t rows = tap->row_dims;
    if (!tap->n_dims || tap->n_dims > DMI_TAP_DIMS)
        return "it has no dimension, or more than 4";
    if (!rows || rows >> tap->n_dims || __builtin_popcount(rows) > 2)
        return "none of its dimensions is a row, more than two are, or one that it has not";
    if (!dmi_dtype_bytes(tap->dtype))
        return "its dtype is none";
    if (tap->layer < -1)
        return "its layer is below -1";
    if (tap->flags & ~(uint32_t)(DMI_TAP_WRITABLE | DMI_TAP_HOST | DMI_TAP_REQUESTS))
        return "it has flags that are not known";
    return NULL;
}

/* One that cannot be is a counted drop of its sites. */
static int refuse(const struct func *func, const struct dmi_tap *tap, const char *why)
{
    for (uint32_t i = 0; i < func->match.n_sites; i++) {
        uint32_t site = func->match.sites[i];
        session_problem(site, PROBLEM_BAD_EXPR, "a tap in layer %d is refused: %s", (int)tap->layer,
                        why);
        admission_refuse(site, DMI_DROP_BAD_EXPR);
    }
    return -EINVAL;
}

/* Where a word of `layers:` cannot be followed yet. */
static void report_unknown_layers(const struct func *func)
{
    for (uint32_t i = 0; i < func->match.n_sites; i++)
        if (spec_needs_n_layers(&session_site(func->match.sites[i])->layers) ||
            spec_needs_n_layers(&session_site(func->match.sites[i])->only))
            session_problem(func->match.sites[i], PROBLEM_NO_STEP,
                            "its taps do not say how many layers there are: layers that are "
                            "counted from the last are captured from the second forward on");
}

/*
 * Is it the calling thread that reads it? What the driver knows (device, pinned and managed memory) goes by way of the tap's stream, unless the
 * caller says that the CPU computed it. An error of a context that is broken says nothing: the device's way drops it by name.
 */
static bool is_on_host(const struct dmi_tap *tap)
{
    unsigned type;
    if (tap->flags & DMI_TAP_HOST || !driver_table.cuPointerGetAttribute)
        return true;
    if (!tap->data)
        return false;
    struct stream_relaxed relaxed = stream_relax();
    CUresult r = driver_table.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                    (CUdeviceptr)(uintptr_t)tap->data);
    stream_unrelax(&relaxed);
    return r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_NOT_INITIALIZED ||
           r == CUDA_ERROR_DEINITIALIZED;
}

/* Nobody can say which site it is of. */
static int refuse_unnamed(int status, const char *why)
{
    struct run *run = session_run();
    if (run)
        run_refuse_tap(run, why);
    return status;
}

/* Can it be read, and has it a name? *@func: NULL: it is in no site. Return: DMI_OK, or as dmi_tap(). */
static int find(const struct dmi_tap *given, const struct func **func)
{
    *func = NULL;
    if (!given || given->size < sizeof *given || given->version != DMI_TAP_VERSION)
        return refuse_unnamed(
            DMI_STATUS_BAD_VERSION,
            "there is no struct dmi_tap, or its size or version is not one that is known");
    if (!is_name(given->name))
        return refuse_unnamed(-EINVAL, "it has no name, or one with other characters than letters, "
                                       "digits, _ - . or over 128 of them");
    *func = taps_find(given->name);
    return *func && !session_run() ? DMI_STATUS_OFF : DMI_OK;
}

/* @moment: NULL: now. The tap can be, and is of @func. */
static int launch(const struct dmi_tap *tap, const struct func *func,
                  const struct dmi_moment *moment)
{
    struct eager_launch l = { .stream = { .handle = tap->stream },
                              .tap = tap,
                              .on_host = is_on_host(tap),
                              .moment = moment };
    struct eager_job job;
    eager_before(&l, func, &job);
    eager_after(&l, &job, CUDA_SUCCESS);
    return DMI_OK;
}

/* With the number of layers, as far as it is known. */
static struct dmi_tap with_layers(const struct dmi_tap *given, const struct func *func,
                                  int32_t n_layers)
{
    struct dmi_tap tap = *given;
    tap.n_layers = n_layers;
    if (!n_layers)
        report_unknown_layers(func);
    return tap;
}

static int tap_here(const struct dmi_tap *given)
{
    const struct func *func;
    int r = find(given, &func);
    int32_t n_layers = r == DMI_STATUS_BAD_VERSION || r < 0 ? 0 : taps_n_layers(given);
    if (r || !func)
        return r;
    const char *why = fault(given);
    if (why)
        return refuse(func, given, why);
    struct dmi_tap tap = with_layers(given, func, n_layers);
    return launch(&tap, func, NULL);
}

/* ------------------------------------------------------------------------- of an earlier moment */

/* Rises with each fork on the way to this process. Written where there is one thread. */
static uint64_t process;

int tap_at(const struct dmi_tap *given, const struct dmi_moment *moment)
{
    const struct func *func;
    if (!moment || moment->process != process)
        return tap_here(given);
    int r = find(given, &func);
    if (r || func != moment->func)
        return r ? r : -EINVAL;
    const char *why = fault(given);
    return why ? refuse(func, given, why) : launch(given, func, moment);
}

int tap_take_moment(const struct dmi_tap *given, struct dmi_moment **out)
{
    const struct func *func;
    *out = NULL;
    int r = find(given, &func);
    int32_t n_layers = r == DMI_STATUS_BAD_VERSION || r < 0 ? 0 : taps_n_layers(given);
    if (r || !func)
        return r ? r : DMI_STATUS_OFF;
    struct dmi_tap tap = with_layers(given, func, n_layers);
    struct eager_launch l = { .stream = { .handle = tap.stream },
                              .tap = &tap,
                              .on_host = is_on_host(&tap) };
    if (!l.on_host && stream_is_capturing(l.stream))
        return DMI_OK;
    struct dmi_moment *moment = calloc(1, sizeof *moment);
    if (!moment)
        return -ENOMEM;
    moment->process = process;
    moment->func = func;
    r = eager_take_moment(&l, moment);
    if (r == DMI_OK)
        *out = moment;
    else
        free(moment);
    return r == -ENODEV ? DMI_OK
                        : r; /* then nobody can tap it now, either: that is a drop of its own */
}

void tap_release_moment(struct dmi_moment *moment)
{
    /* a parent's step is of its spec, which may be another one here */
    if (moment && moment->process == process)
        step_release(moment->said.rows);
    free(moment);
}

void tap_reset(void)
{
    process++;
}
