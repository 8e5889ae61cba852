/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which experts a mixture of experts chose, by layer: load, its balance, how alike the choices of neighbouring tokens and of
 * requests are, how much weight the first choice has. One pass over the records. Memory grows with requests, not with
 * tokens. One thread at a time.
 */
#pragma once

#include "core/err.h"

#include <dmi/analyze_stats.h>

#include <stddef.h>
#include <stdint.h>

#define ROUTING_MOST_EXPERTS  65536
#define ROUTING_MOST_CHOICES  64
#define ROUTING_MOST_REQUESTS 256 /* that are compared with each other */

struct routing {
    struct dmi_routing_layer *layers; /* ascending; their loads are owned */
    size_t n_layers;
};

/**
 * routing_build() - read the choices of all tensors that are selected once
 * Return: 0; -ENODATA (no choices, or the number of experts is not known), -EINVAL (sites that are no choices, weights or
 * logits), -ENOMEM, -EIO, with a sentence in @err.
 */
int routing_build(struct err *err, struct dmi_read *run, const struct dmi_routing_options *query,
                  struct routing *out);
/* Accepts a zeroed struct. */
void routing_deinit(struct routing *routing);
