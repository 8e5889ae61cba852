/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/model.h"

#include "analyze/gguf.h"
#include "analyze/mapped.h"
#include "analyze/model_rope.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "storage/object.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_HEADS  65536
#define CONFIG_MOST (16u << 20)

/* The same as a count: 0 where it is below, and no more than 2^30. */
static uint32_t count(const json_t *o, const char *key, uint32_t otherwise)
{
    double v = model_number(o, key, otherwise);
    return v >= 1 ? (uint32_t)fmin(v, 1 << 30) : 0;
}

/* A whole number of the config. Return: 0; -EINVAL where it is none, or too large. */
static int whole(struct err *err, const json_t *o, const char *key, uint32_t most, uint32_t *out)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > most)
        return err_set(err, -EINVAL, "the model's config: \"%s\" is no whole number from 1 to %u",
                       key, most);
    *out = (uint32_t)json_integer_value(v);
    return 0;
}

static int take_sizes(struct err *err, const json_t *c, struct model *m)
{
    uint32_t width = 0;
    if (whole(err, c, "num_hidden_layers", MODEL_MOST_LAYERS, &m->n_layers) ||
        whole(err, c, "n_layer", MODEL_MOST_LAYERS, &m->n_layers) ||
        whole(err, c, "num_attention_heads", MOST_HEADS, &m->n_heads) ||
        whole(err, c, "n_head", MOST_HEADS, &m->n_heads) ||
        whole(err, c, "num_key_value_heads", MOST_HEADS, &m->n_kv_heads) ||
        whole(err, c, "head_dim", ROPE_MOST_DIMS, &m->head_dim) ||
        whole(err, c, "hidden_size", 1u << 24, &width) || whole(err, c, "n_embd", 1u << 24, &width))
        return -EINVAL;
    if (!m->n_layers || !m->n_heads)
        return err_set(
            err, -EINVAL,
            "this is no model's config: it has no num_hidden_layers or no num_attention_heads");
    if (!m->n_kv_heads)
        m->n_kv_heads = m->n_heads;
    if (!m->head_dim)
        m->head_dim = width / m->n_heads;
    return 0;
}

static bool has_word(const char *key, const char *const *words)
{
    for (; *words; words++)
        if (strstr(key, *words))
            return true;
    return false;
}

/* By take_scores(). */
static bool is_read(const char *key)
{
    return !strcmp(key, "query_pre_attn_scalar") || !strcmp(key, "attention_multiplier") ||
           !strcmp(key, "attn_logit_softcapping");
}

/* Does a key that nothing here reads say that scores are scaled, capped or biased? Not where it is of q, k, v or z themselves: those are captured. */
static bool bears_on_scores(const char *key)
{
    static const char *const of_scores[] = { "attn", "attention",   "softmax",
                                             "logn", "log_scaling", NULL };
    static const char *const changed[] = { "scal", "multiplier", "temperature", "cap",
                                           "logn", "alibi",      NULL };
    static const char *const others[] = { "fp32",  "_out",   "_in_",    "value", "factor",
                                          "conf_", "router", "capture", NULL };
    return !is_read(key) && has_word(key, of_scores) && has_word(key, changed) &&
           !has_word(key, others);
}

/* Does it say that nothing is done? GPT-2's scale_attn_weights says that scores are divided by the root, as everywhere. */
static bool is_neutral(const char *key, const json_t *v)
{
    if (!strcmp(key, "scale_attn_weights"))
        return !json_is_false(v);
    double n = json_is_number(v) ? json_number_value(v) : 2;
    return json_is_null(v) || json_is_false(v) || n == 0 || n == 1;
}

static void refuse_unread(json_t *c, struct model *m)
{
    const char *key;
    json_t *v;
    json_object_foreach(c, key, v)
    {
        if (bears_on_scores(key) && !is_neutral(key, v) && !m->no_scores[0])
            snprintf(m->no_scores, sizeof m->no_scores,
                     "its config says %.60s, which is not read here", key);
    }
}

static void take_scores(const json_t *c, struct model *m)
{
    double scalar = model_number(c, "query_pre_attn_scalar", 0);
    m->multiplier = scalar > 0 ? 1 / sqrt(scalar) : model_number(c, "attention_multiplier", 0);
    m->cap = model_number(c, "attn_logit_softcapping", 0);
}

/* ------------------------------------------------------------------------- layers */

/* Whether a config that says a window and no list of layers has it in all of them. */
static bool has_window(const json_t *c)
{
    const json_t *use = json_object_get(c, "use_sliding_window");
    return !use || json_is_true(use);
}

static uint8_t kind_by_word(const char *word)
{
    return word && !strcmp(word, "sliding_attention") ? MODEL_WINDOW : MODEL_FULL;
}

/* What is neither full nor a window: chunks, linear attention. */
static void refuse_word(const char *word, struct model *m)
{
    if (word && strcmp(word, "sliding_attention") && strcmp(word, "full_attention"))
        snprintf(m->no_scores, sizeof m->no_scores, "its config has layers of the type %.60s",
                 word);
}

/* Whether layer @i has a window. */
static bool is_windowed(const json_t *c, const struct model *m, uint32_t i)
{
    const json_t *types = json_object_get(c, "layer_types");
    uint32_t every = count(c, "sliding_window_pattern", model_full_every(m));
    if (json_is_array(types))
        return kind_by_word(json_string_value(json_array_get(types, i))) == MODEL_WINDOW;
    return m->window && has_window(c) && i >= count(c, "max_window_layers", 0) &&
           !(every && (i + 1) % every == 0);
}

static void take_kinds(const json_t *c, struct model *m)
{
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const json_t *turned = json_array_get(json_object_get(c, "no_rope_layers"), i);
        refuse_word(json_string_value(json_array_get(json_object_get(c, "layer_types"), i)), m);
        m->kinds[i] = is_windowed(c, m, i) ? MODEL_WINDOW : MODEL_FULL;
        /* 1: it has RoPE, whatever the list's name says */
        if ((json_is_integer(turned) && !json_integer_value(turned)) ||
            (model_turns_windows_alone(m) && m->kinds[i] == MODEL_FULL))
            m->kinds[i] |= MODEL_UNTURNED;
    }
}

/* Sinks are weights: attach() notes them beside the config. */
static int take_sinks(struct err *err, const json_t *c, struct model *m)
{
    const json_t *sinks = json_object_get(c, "dmi_sinks");
    if (!json_is_array(sinks))
        return 0;
    m->sinks = calloc((size_t)m->n_layers * m->n_heads, sizeof *m->sinks);
    if (!m->sinks)
        return err_set(err, -ENOMEM, "no memory for the sinks");
    for (uint32_t i = 0; i < m->n_layers; i++)
        for (uint32_t h = 0; h < m->n_heads; h++) {
            const json_t *v = json_array_get(json_array_get(sinks, i), h);
            if (!json_is_number(v))
                return err_set(err, -EINVAL,
                               "the model's config: \"dmi_sinks\" lacks layer %u, head %u", i, h);
            m->sinks[(size_t)i * m->n_heads + h] = json_number_value(v);
        }
    return 0;
}

static int take_config(struct err *err, json_t *config, struct model *m)
{
    json_t *c = json_object_get(config, "text_config");
    c = json_is_object(c) ? c : config;
    const char *type = json_string_value(json_object_get(c, "model_type"));
    snprintf(m->type, sizeof m->type, "%s", type ? type : "");
    TRY(take_sizes(err, c, m));
    if (!(m->kinds = calloc(m->n_layers, 1)))
        return err_set(err, -ENOMEM, "no memory for a config");
    take_scores(c, m);
    refuse_unread(c, m);
    double window = model_number(c, "sliding_window", 0);
    m->window = window >= 1 && window < 1e15 ? (int64_t)window : 0;
    take_kinds(c, m);
    int r = model_take_rope(err, c, m);
    return r ? r : take_sinks(err, c, m);
}

int model_from_json(struct err *err, json_t *config, struct model *out)
{
    json_t *made = NULL;
    *out = (struct model){ 0 };
    if (json_object_get(config, "general.architecture") && !(made = gguf_config(err, config)))
        return -EINVAL;
    int r = take_config(err, made ? made : config, out);
    json_decref(made);
    if (r)
        model_deinit(out);
    return r;
}

int model_open(struct err *err, const char *path, struct model *out)
{
    _cleanup_(mapped_deinit) struct mapped file = { 0 };
    *out = (struct model){ 0 };
    TRY(mapped_open(err, path, "config.json", &file));
    json_t *config = gguf_is(file.data, file.n)
                         ? gguf_header(err, file.data, file.n)
                         : object_load(err, file.data, file.n, CONFIG_MOST, 0);
    int r = config ? model_from_json(err, config, out) : -EINVAL;
    json_decref(config);
    return r ? err_prefix(err, "%s", file.path) : 0;
}

void model_deinit(struct model *m)
{
    free(m->kinds);
    free(m->sinks);
    *m = (struct model){ 0 };
}

struct model_layer model_layer(const struct model *m, int32_t layer)
{
    struct model_layer out = { 0 };
    if (!m || layer < 0)
        return out;
    uint32_t i = (uint32_t)layer < m->n_layers ? (uint32_t)layer : m->n_layers - 1;
    bool windowed = m->kinds[i] & MODEL_WINDOW;
    const struct rope_params *rope = windowed && m->window_rope.known ? &m->window_rope : &m->rope;
    out.rope = m->kinds[i] & MODEL_UNTURNED || !rope->known ? NULL : rope;
    out.window = windowed ? m->window : 0;
    out.sinks = m->sinks ? m->sinks + (size_t)i * m->n_heads : NULL;
    return out;
}
