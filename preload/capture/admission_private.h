/* SPDX-License-Identifier: Apache-2.0 */
/* What admission.c and admission_reserve.c share; nobody else includes it. Thread: as admission.h. */
#ifndef PRELOAD_CAPTURE_ADMISSION_PRIVATE_H
#define PRELOAD_CAPTURE_ADMISSION_PRIVATE_H

#include "preload/capture/admission.h"

/* The copy of a RESERVED item is never launched: it is EXPECTED again, or GIVEN_UP. */
void admission_cancel_item(struct context *context, struct admission *item);

/* The launch's step has fewer requests now: the rows of an EXPECTED item are chosen anew, and what is left out is counted. */
void admission_pick_again(const struct admission_launch *launch, struct admission *item);

#endif
