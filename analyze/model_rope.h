/* SPDX-License-Identifier: Apache-2.0 */
/* What a config says of rotary embeddings, and what is known of model types that it does not say. Pure: any thread. */
#pragma once

#include "analyze/model.h"

/* Fills rope, window_rope, has_norms, no_rope and no_scores of a model whose sizes and type are known. Return: as model_from_json(). */
int model_take_rope(struct err *err, const json_t *config, struct model *model);

/* Has a model of this type RoPE in its layers with a window alone? */
bool model_turns_windows_alone(const struct model *model);

/* Every so many layers one sees all keys, where a config of this type has a window and no list of layers; 0: none does. */
uint32_t model_full_every(const struct model *model);

/* A number of a config's object, or @otherwise. */
double model_number(const json_t *object, const char *key, double otherwise);
