/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/model_rope.h"

#include "storage/object.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    PAIRS = 1,         /* neighbouring dimensions turn together */
    NORMED = 2,        /* q and k are normed before RoPE */
    LEARNED = 4,       /* positions are added to the embedding: nothing is turned */
    WINDOWS_ALONE = 8, /* RoPE in layers with a window alone */
    SINKS = 16,        /* a score of no key's, which is a weight */
};

double model_number(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

/* How transformers 5.19 computes the attention of these types: what their configs do not say. */
static const struct {
    const char *type;
    unsigned traits;
    uint32_t full_every; /* as model_full_every() */
} known[] = {
    { "llama", 0, 0 },
    { "mistral", 0, 0 },
    { "ministral", 0, 0 },
    { "mixtral", 0, 0 },
    { "qwen2", 0, 0 },
    { "qwen2_moe", 0, 0 },
    { "gemma", 0, 0 },
    { "gemma2", 0, 2 },
    { "gpt_neox", 0, 0 },
    { "phi", 0, 0 },
    { "phi3", 0, 0 },
    { "phimoe", 0, 0 },
    { "stablelm", 0, 0 },
    { "starcoder2", 0, 0 },
    { "olmo", 0, 0 },
    { "granite", 0, 0 },
    { "granitemoe", 0, 0 },
    { "smollm3", 0, 0 },
    { "nemotron", 0, 0 },
    { "persimmon", 0, 0 },
    { "arcee", 0, 0 },
    { "helium", PAIRS, 0 },
    { "cohere", PAIRS, 0 },
    { "cohere2", PAIRS | WINDOWS_ALONE, 4 },
    { "glm", PAIRS, 0 },
    { "glm4", PAIRS, 0 },
    { "gptj", PAIRS, 0 },
    { "codegen", PAIRS, 0 },
    { "ernie4_5", PAIRS, 0 },
    { "qwen3", NORMED, 0 },
    { "qwen3_moe", NORMED, 0 },
    { "gemma3", NORMED, 6 },
    { "gemma3_text", NORMED, 6 },
    { "olmo2", NORMED, 0 },
    { "olmo3", NORMED, 4 },
    { "olmoe", NORMED, 0 },
    { "gpt2", LEARNED, 0 },
    { "opt", LEARNED, 0 },
    { "biogpt", LEARNED, 0 },
    { "gpt_bigcode", LEARNED, 0 },
    { "gpt_oss", SINKS, 2 },
};

#define KNOWN (sizeof known / sizeof *known)

/* Index of the model's type; KNOWN: it is not known. */
static size_t find(const struct model *m)
{
    size_t i = 0;
    while (i < KNOWN && strcmp(known[i].type, m->type) != 0)
        i++;
    return i;
}

bool model_turns_windows_alone(const struct model *m)
{
    size_t i = find(m);
    return i < KNOWN && known[i].traits & WINDOWS_ALONE;
}

uint32_t model_full_every(const struct model *m)
{
    size_t i = find(m);
    return i < KNOWN ? known[i].full_every : 0;
}

/* ------------------------------------------------------------------------- scaling */

static int take_yarn(struct err *err, const json_t *s, struct rope_params *p)
{
    double factor = model_number(s, "attention_factor", 0), scale = model_number(s, "mscale", 0),
           all = model_number(s, "mscale_all_dim", 0),
           grown = p->factor > 1 ? 0.1 * log(p->factor) : 0;
    const json_t *truncate = json_object_get(s, "truncate");
    p->scaling = ROPE_YARN;
    p->fast = model_number(s, "beta_fast", 32);
    p->slow = model_number(s, "beta_slow", 1);
    p->amplitude = factor > 0             ? factor
                   : scale > 0 && all > 0 ? (scale * grown + 1) / (all * grown + 1)
                                          : grown + 1;
    p->whole = !json_is_false(truncate);
    return p->fast > 0 && p->slow > 0
               ? 0
               : err_set(err, -EINVAL,
                         "the model's config: yarn's beta_fast and beta_slow are above 0");
}

static int take_llama3(struct err *err, const json_t *s, struct rope_params *p)
{
    p->scaling = ROPE_LLAMA3;
    p->low = model_number(s, "low_freq_factor", 0);
    p->high = model_number(s, "high_freq_factor", 0);
    return p->low > 0 && p->high > p->low ? 0
                                          : err_set(err, -EINVAL,
                                                    "the model's config: RoPE of the type llama3 "
                                                    "needs low_freq_factor below high_freq_factor");
}

/* What is said of RoPE and not read here: why rows cannot be rotated. Sections of positions are alike where there is text alone. */
static void refuse_unread(json_t *s, struct model *m)
{
    static const char *const known_keys[] = { "rope_type",
                                              "type",
                                              "rope_theta",
                                              "partial_rotary_factor",
                                              "factor",
                                              "attention_factor",
                                              "mscale",
                                              "mscale_all_dim",
                                              "beta_fast",
                                              "beta_slow",
                                              "truncate",
                                              "low_freq_factor",
                                              "high_freq_factor",
                                              "original_max_position_embeddings",
                                              "finetuned",
                                              "mrope_section",
                                              "mrope_interleaved",
                                              "max_position_embeddings" };
    const char *key;
    json_t *v;
    json_object_foreach(s, key, v)
    {
        bool is_known = json_is_null(v);
        for (size_t i = 0; i < sizeof known_keys / sizeof *known_keys; i++)
            is_known = is_known || !strcmp(key, known_keys[i]);
        if (!is_known && !m->no_rope[0])
            snprintf(m->no_rope, sizeof m->no_rope, "RoPE's %.60s is not known", key);
    }
}

/* @s: rope_scaling of transformers 4, or rope_parameters of 5; NULL: no scaling */
static int take_scaling(struct err *err, json_t *s, const json_t *c, struct model *m,
                        struct rope_params *p)
{
    const json_t *word = json_object_get(s, "rope_type");
    const char *type = json_string_value(word ? word : json_object_get(s, "type"));
    p->amplitude = 1;
    refuse_unread(s, m);
    if (!type || !strcmp(type, "default"))
        return 0;
    p->original = model_number(s, "original_max_position_embeddings",
                               model_number(c, "original_max_position_embeddings",
                                            model_number(c, "max_position_embeddings", 0)));
    p->factor = model_number(
        s, "factor",
        p->original > 0 ? model_number(c, "max_position_embeddings", 0) / p->original : 0);
    bool linear = !strcmp(type, "linear"), llama3 = !strcmp(type, "llama3"),
         yarn = !strcmp(type, "yarn");
    if (!linear && !llama3 && !yarn) {
        snprintf(m->no_rope, sizeof m->no_rope, "RoPE of the type %.60s is not known", type);
        return 0;
    }
    if (!(p->factor > 0) || (!linear && !(p->original > 0)))
        return err_set(err, -EINVAL,
                       "the model's config: RoPE of the type %s lacks its factor or "
                       "original_max_position_embeddings",
                       type);
    p->scaling = ROPE_LINEAR;
    return llama3 ? take_llama3(err, s, p) : yarn ? take_yarn(err, s, p) : 0;
}

/* ------------------------------------------------------------------------- rope */

/* Dimensions of a head that are turned. */
static double turned(const json_t *c, const json_t *s, const struct model *m)
{
    double n = model_number(c, "rotary_dim", 0);
    double part =
        model_number(s, "partial_rotary_factor",
                     model_number(c, "partial_rotary_factor", model_number(c, "rotary_pct", 1)));
    return n > 0 ? n : floor(part * m->head_dim);
}

static int take_one(struct err *err, json_t *s, const json_t *c, double theta, unsigned traits,
                    struct model *m, struct rope_params *p)
{
    p->theta = model_number(s, "rope_theta", theta);
    double n = turned(c, s, m);
    if (!(p->theta > 0) || !(n >= 2) || n > m->head_dim || n > ROPE_MOST_DIMS)
        return err_set(
            err, -EINVAL,
            "the model's config: RoPE with the base %g turns %g of %u dimensions, which cannot be",
            p->theta, n, m->head_dim);
    p->n_dims = (uint32_t)n / 2 * 2;
    p->pairs = traits & PAIRS;
    p->known = true;
    return take_scaling(err, s, c, m, p);
}

/* The base; models that have the one of RoFormer do not always say it. */
static double base_of(const json_t *c)
{
    return model_number(c, "rope_theta", model_number(c, "rotary_emb_base", 10000));
}

static int take_ropes(struct err *err, const json_t *c, unsigned traits, struct model *m)
{
    json_t *s = json_object_get(c, "rope_parameters");
    if (!json_is_object(s))
        s = json_object_get(c, "rope_scaling");
    json_t *full = json_object_get(s, "full_attention"),
           *local = json_object_get(s, "sliding_attention");
    double near = model_number(c, "rope_local_base_freq", 0);
    int r = take_one(err, json_is_object(full) ? full : s, c, base_of(c), traits, m, &m->rope);
    if (!r && json_is_object(local))
        return take_one(err, local, c, base_of(c), traits, m, &m->window_rope);
    return !r && near > 0 ? take_one(err, NULL, c, near, traits, m, &m->window_rope) : r;
}

/* An adapter says what its engine turns, and a GGUF's header does not. */
static void take_order(const json_t *c, struct model *m)
{
    const char *order = json_string_value(json_object_get(c, "dmi_rope_order"));
    bool pairs = order && !strcmp(order, "pairs");
    if (!order)
        return;
    m->rope.pairs = m->window_rope.pairs = pairs;
    m->order_is_unknown = !pairs && strcmp(order, "halves") != 0;
}

int model_take_rope(struct err *err, const json_t *c, struct model *m)
{
    size_t i = find(m);
    if (object_flag(c, "alibi") || !strcmp(m->type, "bloom") || !strcmp(m->type, "mpt"))
        snprintf(m->no_scores, sizeof m->no_scores,
                 "its scores have a term that grows with the distance (ALiBi)");
    if (i == KNOWN) {
        snprintf(m->no_rope, sizeof m->no_rope, "the model type \"%s\" is not known", m->type);
        return 0;
    }
    m->has_norms =
        known[i].traits & NORMED || object_flag(c, "use_qk_norm") || object_flag(c, "qk_layernorm");
    if (known[i].traits & SINKS && !json_is_array(json_object_get(c, "dmi_sinks")))
        snprintf(m->no_scores, sizeof m->no_scores,
                 "its heads have sinks, which are weights: attach() notes them in a run, a config "
                 "has none");
    int r = known[i].traits & LEARNED ? 0 : take_ropes(err, c, known[i].traits, m);
    take_order(c, m);
    return r;
}
