/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One eager launch of a kernel that the spec names: eager_before() counts it, reserves places and launches the
 * actions that come before the kernel; the caller makes the driver's call; eager_after() launches those that come
 * after it, or takes everything back. Thread: the application's launching thread, entered.
 */
#pragma once

#include "preload/capture/admission.h"
#include "preload/eager/kernel.h"
#include "preload/function/functions.h"
#include "preload/nvtx/ranges.h"

/* What is to be done or undone once the driver has returned. */
struct eager_job {
    const struct func *func; /* with what the ranges add that it is launched in */
    struct ranges_pick ranges;
    bool captured;      /* the launch becomes a node of a graph */
    bool homeless;      /* neither the thread nor the stream says which context it runs in */
    CUcontext guest_in; /* which is not current to the thread, NULL: it is */
    bool in_pieces;     /* some of its items are copied in pieces */
    struct admission_launch
        launch; /* launch.context: it is used until eager_after(); NULL: nothing was counted */
    struct admission items[SPEC_MAX_MATCHES];
    struct operand operands[SPEC_MAX_MATCHES];
};

/* @func: what the spec says of the kernel, in whatever range, or of the tap, which is an action's launch alone; not func_unmatched. */
void eager_before(const struct eager_launch *launch, const struct func *func,
                  struct eager_job *job);
void eager_after(const struct eager_launch *launch, struct eager_job *job, CUresult result);

/*
 * Where a tap stands whose tensor comes later: what counts as a launch's occurrences, which this one takes. Whose rows are whose is held.
 * Thread: the application's, entered.
 */
struct dmi_moment {
    uint64_t process;        /* which of this one's and its parents' it was taken in */
    const struct func *func; /* of the tap's name */
    struct said said;
    uint32_t n;
    struct admission items[SPEC_MAX_MATCHES];
};

/* @moment: has process and func. Return: DMI_OK; DMI_STATUS_OFF: no site wants the tap; -ENODEV: it has no capture context. */
int eager_take_moment(const struct eager_launch *launch, struct dmi_moment *moment);
