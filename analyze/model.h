/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a model's config says of its attention. Nothing is guessed: what the config does not say, or a model that is not known, is a
 * reason why rows cannot be rotated here. Not changed once it is read: any thread.
 * Source: config.json of Hugging Face's transformers 4 and 5.
 */
#pragma once

#include "analyze/rope.h"
#include "core/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define MODEL_MOST_LAYERS 4096

enum model_layer_kind {
    MODEL_FULL = 0, /* every query sees all keys before it */
    MODEL_WINDOW = 1,
    MODEL_UNTURNED = 2, /* beside the others: this layer has no RoPE */
};

struct model {
    char type[64];                                    /* model_type; "": not said */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim; /* 0: not said */
    struct rope_params rope,
        window_rope;   /* the second: of layers with a window, where it is another one */
    double multiplier; /* of scores; 0: 1 / sqrt(head_dim) */
    double cap;        /* scores become cap * tanh(score / cap); 0: they do not */
    int64_t
        window; /* keys that a query sees, itself included, in layers with a window; 0: there are none */
    uint8_t *kinds;        /* n_layers of enum model_layer_kind */
    bool order_is_unknown; /* whether RoPE turns pairs or halves */
    bool has_norms;        /* q and k are normed by head before they are rotated */
    double *sinks;         /* n_layers x n_heads: scores of no key's; NULL: none */
    char no_rope[200];     /* why rows cannot be rotated here; "": they can */
    char no_scores[200];   /* why scores cannot be computed from q and k at all; "": they can */
};

/* What holds for one layer. */
struct model_layer {
    const struct rope_params *rope; /* NULL: nothing is turned */
    int64_t window;                 /* 0: none */
    const double *sinks;            /* n_heads; NULL: none */
};

/* Reads a config, or what a GGUF's header says (gguf.h), as an object. Return: 0; -EINVAL (no config, numbers that cannot be), -ENOMEM, with a sentence in @err. */
int model_from_json(struct err *err, json_t *config, struct model *out);
/* The same of a file config.json, of the one in a folder, or of a GGUF. Return: as model_from_json(), -errno. */
int model_open(struct err *err, const char *path, struct model *out);
/* Accepts a zeroed struct. */
void model_deinit(struct model *model);

/* @model NULL: nothing is known. A layer beyond the config's has what its last one has. */
struct model_layer model_layer(const struct model *model, int32_t layer);
