/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An encoder thread of a capture context. Encoders take batches that the drain filled, encode them beside one another, and
 * append them one after the other in the drain's order: whoever has the next one appends it, and what is ready after it.
 */
#pragma once

#include "preload/context/context.h"

/* The thread's body; @arg: struct context. Ends after the drain has, once no batch is left to encode. */
void *encoder_main(void *arg);
