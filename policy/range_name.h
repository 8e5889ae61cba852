/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an NVTX range is called. Most texts are names as they stand. Layerwise tracing of engines (vLLM's V1 runner with
 * --enable-layerwise-nvtx-tracing, SGLang with --enable-layerwise-nvtx-marker) pushes what Python prints of a dict,
 * {'Module': 'model.layers.0.mlp', 'Inputs': [[8, 4096]], ...}: there the name is that of the module. Pure functions, any
 * thread; texts may hold anything.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RANGE_NAME_MAX 1024 /* bytes of a name, its NUL included; what is longer is cut */

/**
 * range_name_parse() - the name in the text of a range
 * @text: of @n bytes, no NUL among them is needed; @name: of RANGE_NAME_MAX bytes
 * Bytes below a space, which no name needs, become '?'. Return: its length.
 */
size_t range_name_parse(const char *text, size_t n, char *name);

/* The first number that stands by itself in @name, as 3 in "h.3.mlp" and "layer_3", and not in "gpt3". Return: -1, none. */
int32_t range_name_layer(const char *name);
