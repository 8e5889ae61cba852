/* SPDX-License-Identifier: Apache-2.0 */
/* A set of layers. Accepts a zeroed struct. A program of one thread. */
#pragma once

#include "storage/text.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct layers {
    int32_t *all; /* ascending and each once, after layers_sort() */
    size_t n, room;
};

/* Return: 0 or -ENOMEM. */
int layers_add(struct layers *layers, int32_t layer);
void layers_sort(struct layers *layers);
void layers_deinit(struct layers *layers);

/* An array of the layers; DMI_NO_LAYER, which is none, is left out. */
json_t *layers_value(const struct layers *layers);

/* "0-29", "0,3-5", "-" for DMI_NO_LAYER; a long one is cut. */
void layers_add_text(struct text *to, const struct layers *layers);
