/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An eager launch whose records are larger than the ring: their rows are copied in pieces, one after the other, each of
 * which waits for the drain, bounded, as the spec allows with `mode: complete`. Thread: the application's launching thread, entered.
 */
#pragma once

#include "preload/capture/admission.h"
#include "preload/eager/kernel.h"

#include <stdbool.h>

/* What of the launch is EXPECTED and to be copied so becomes PIECES. Return: whether anything is. */
bool pieces_set_aside(struct admission_launch *launch);

/* Copies the item, in state PIECES; it is LAUNCHED or DROPPED after that, or GIVEN_UP. */
void pieces_copy(const struct eager_launch *launch, struct admission_launch *admitted,
                 struct admission *item);
