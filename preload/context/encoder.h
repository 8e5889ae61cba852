/* SPDX-License-Identifier: Apache-2.0 */
/* The encoder thread of a capture context: it appends what the drain hands over, and counts it. */
#ifndef PRELOAD_CONTEXT_ENCODER_H
#define PRELOAD_CONTEXT_ENCODER_H

#include "preload/context/context.h"

/* The thread's body; @arg: struct context. Ends after the drain has, once all is written. */
void *encoder_main(void *arg);

#endif
