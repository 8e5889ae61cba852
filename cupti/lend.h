/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other users of CUPTI in this process, as torch.profiler is one: CUPTI has one registration a process before CUDA 13.3. Who registers gets CUPTI lent: what it
 * has for the tracer comes back first, and nothing of the tracer's comes into the other user's buffers. When that user's last
 * kind is disabled, or it ends CUPTI, the collector takes CUPTI back a moment later. Calls of another user's go through, with CUPTI's own result and errno;
 * where the tracer does not run, nothing else happens. Thread: the other user's, where nothing else is said.
 */
#pragma once

#include "core/err.h"
#include "cupti/library.h"
#include "cupti/other_clock.h"

#include <stdbool.h>

/* By these calls it is seen: preload/hook/cupti.c stands before them. */
#define LEND_CALLS(X)                                                                              \
    X(cuptiActivityRegisterCallbacks)                                                              \
    X(cuptiActivityRegisterCallbacks_v2)                                                           \
    X(cuptiActivityEnable)                                                                         \
    X(cuptiActivityEnable_v2)                                                                      \
    X(cuptiActivityEnableAndDump)                                                                  \
    X(cuptiActivityEnableAndDump_v2)                                                               \
    X(cuptiActivityEnableContext)                                                                  \
    X(cuptiActivityDisable)                                                                        \
    X(cuptiActivityDisableContext)                                                                 \
    X(cuptiActivityRegisterTimestampCallback)                                                      \
    X(cuptiSubscribe)                                                                              \
    X(cuptiSubscribe_v2)                                                                           \
    X(cuptiUnsubscribe)                                                                            \
    X(cuptiFinalize)

/* Each calls @real, CUPTI's function, and returns its result. */
int lend_register(library_register *real, library_request *request, library_complete *complete);
int lend_clock(int (*real)(other_clock_read *clock), other_clock_read *clock);
int lend_finalize(int (*real)(void));

/* Another user is about to enable a kind, in one context, or (NULL) in all. lend_disabled() follows where CUPTI does not do so. */
void lend_enables(void *context, int kind);

/* It is about to disable one. Return: false: CUPTI is not to be called, as the kind is the tracer's. lend_disabled() follows. */
bool lend_disables(int kind);
void lend_disabled(void *context, int kind);

/* A subscriber was refused, or a call of its own, as there may be one user. Return: whether it is to be tried again, now that CUPTI is lent. */
bool lend_for_subscriber(void);

/* A subscriber has ended. */
void lend_subscriber_ended(void);

/* The clock that another user gave CUPTI, by which records have their times; NULL: none. Thread: any. */
other_clock_read *lend_other_clock(void);

/* Is there another user that came before the tracer? Then @err has a sentence. Thread: the one that starts the tracer. */
bool lend_came_first(struct err *err);

enum lend_news {
    LEND_NOTHING,
    LEND_LENT, /* it was lent since */
    LEND_BACK, /* it was taken back: records come again */
    LEND_OVER, /* it cannot be taken back: @err has a sentence */
};

/* What is new, one thing at a time; takes CUPTI back where that is due. Calls the other user's callbacks. Thread: the collector. */
enum lend_news lend_round(struct err *err);

/* After fork, in the child. */
void lend_reset(void);
