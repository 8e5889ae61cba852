/* SPDX-License-Identifier: Apache-2.0 */
/* The taps that the spec names, by name, and what engines have tapped besides. */
#pragma once

#include "preload/function/functions.h"

#include <dmi/dmi.h>

#include <stdbool.h>
#include <stddef.h>

/* Builds the table of @spec's taps. Thread: the one that arms the session. Return: false without memory. */
bool taps_init(const struct spec *spec);

/**
 * taps_find() - the entry of the taps that are called @name, as functions_find() has one for kernels
 * Takes no lock. Thread: any that entered. Return: NULL: no site is such a tap; that is remembered, for taps_nearest().
 */
const struct func *taps_find(const char *name);

/**
 * taps_n_layers() - of how many layers the model is, as far as the tap and those before it tell
 * Where no tap says it, it is known once layers have begun again: from the second forward on. Thread: any.
 * Return: 0: not known.
 */
int32_t taps_n_layers(const struct dmi_tap *tap);

/**
 * taps_nearest() - why a tap that the spec names may never have come, as the end of a sentence
 * Names what was tapped and is in no site, the nearest first. Thread: any that entered.
 */
void taps_nearest(const char *name, char *buffer, size_t n_buffer);

/* After fork, in the child. */
void taps_reset(void);
