/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/gguf.h"

#include "core/bytes.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MAGIC       "GGUF"
#define MOST_KEYS   100000u
#define MOST_STRING 4096u /* that is kept */
#define MOST_DIMS   8u

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, TYPES };

static const uint8_t sizes[TYPES] = {
    [U8] = 1,  [I8] = 1,   [U16] = 2, [I16] = 2, [U32] = 4, [I32] = 4,
    [F32] = 4, [BOOL] = 1, [U64] = 8, [I64] = 8, [F64] = 8
};

/* What is left to read; once it does not suffice it is empty and @short is set. */
struct header_rest {
    struct bytes rest;
    bool is_short;
};

static const void *take(struct header_rest *c, uint64_t n)
{
    const void *at = bytes_take(&c->rest, n);
    if (!at) {
        c->is_short = true;
        c->rest.n = 0;
    }
    return at;
}

static uint64_t number(struct header_rest *c, size_t n_bytes)
{
    uint64_t v = 0;
    const void *at = take(c, n_bytes);
    if (at)
        memcpy(&v, at, n_bytes);
    return v;
}

static const char *string(struct header_rest *c, uint64_t *n)
{
    *n = number(c, 8);
    return take(c, *n);
}

static json_t *whole(int64_t v, uint32_t type)
{
    static const uint8_t shift[TYPES] = { [I8] = 56, [I16] = 48, [I32] = 32 };
    if (type == I8 || type == I16 || type == I32)
        v = (int64_t)((uint64_t)v << shift[type]) >> shift[type];
    return json_integer(v);
}

static json_t *real(uint64_t bits, uint32_t type)
{
    float f;
    double d;
    uint32_t low = (uint32_t)bits;
    memcpy(&f, &low, sizeof f);
    memcpy(&d, &bits, sizeof d);
    d = type == F32 ? (double)f : d;
    return isfinite(d) ? json_real(d) : json_null();
}

/* An array's elements are passed over. */
static void pass_array(struct header_rest *c)
{
    uint32_t type = (uint32_t)number(c, 4);
    uint64_t n = number(c, 8), length;
    if (type < TYPES && sizes[type] && n <= c->rest.n / sizes[type])
        take(c, n * sizes[type]);
    else if (type == STRING && n <= c->rest.n / 8)
        for (uint64_t i = 0; i < n && !c->is_short; i++)
            string(c, &length);
    else
        take(c, UINT64_MAX); /* arrays of arrays are in no model's header */
}

/* Return: NULL: nothing to keep. */
static json_t *value(struct header_rest *c)
{
    uint32_t type = (uint32_t)number(c, 4);
    uint64_t n;
    const char *text;
    switch (type) {
    case F32:
    case F64: return real(number(c, sizes[type]), type);
    case BOOL: return json_boolean(number(c, 1));
    case STRING:
        text = string(c, &n);
        return text && n <= MOST_STRING ? json_stringn(text, n) : NULL;
    case ARRAY: pass_array(c); return NULL;
    default:
        if (type < TYPES)
            return whole((int64_t)number(c, sizes[type]), type);
        take(c, UINT64_MAX);
        return NULL;
    }
}

static void take_keys(struct header_rest *c, uint64_t n, json_t *to)
{
    for (uint64_t i = 0; i < n && !c->is_short; i++) {
        uint64_t length;
        const char *key = string(c, &length);
        json_t *v = value(c);
        if (key && length <= MOST_STRING && v)
            json_object_setn_new(to, key, length, v); /* a key that is no UTF-8 is passed over */
        else
            json_decref(v);
    }
}

static void take_tensors(struct header_rest *c, uint64_t n, json_t *to)
{
    static const char factors[] = "rope_freqs.weight";
    for (uint64_t i = 0; i < n && !c->is_short; i++) {
        uint64_t length, n_dims;
        const char *name = string(c, &length);
        n_dims = number(c, 4);
        take(c, n_dims <= MOST_DIMS ? n_dims * 8 + 12 : UINT64_MAX);
        if (name && length == sizeof factors - 1 && !memcmp(name, factors, length))
            json_object_set_new(to, "dmi_rope_freqs", json_true());
    }
}

bool gguf_is(const void *data, size_t n)
{
    return n >= 4 && !memcmp(data, MAGIC, 4);
}

/* The cursor comes to the first key. Return: 0, or -EINVAL with a sentence in @err. */
static int begin(struct err *err, struct header_rest *c, uint64_t *n_keys, uint64_t *n_tensors)
{
    bool is = gguf_is(c->rest.at, c->rest.n);
    take(c, 4);
    uint64_t version = number(c, 4);
    *n_tensors = number(c, 8);
    *n_keys = number(c, 8);
    if (is && (version == 2 || version == 3) && *n_keys <= MOST_KEYS && *n_tensors <= MOST_KEYS)
        return 0;
    return err_set(err, -EINVAL, "this is no GGUF of version 2 or 3");
}

static int beyond(struct err *err)
{
    return err_set(err, -EINVAL, "the GGUF's header goes beyond the file");
}

json_t *gguf_header(struct err *err, const void *data, size_t n)
{
    struct header_rest c = { .rest = { data, n } };
    uint64_t n_keys, n_tensors;
    if (begin(err, &c, &n_keys, &n_tensors))
        return NULL;
    json_t *header = json_object();
    take_keys(&c, n_keys, header);
    take_tensors(&c, n_tensors, header);
    if (!c.is_short && header)
        return header;
    json_decref(header);
    beyond(err);
    return NULL;
}

/* Comes to the value of a key. Return: whether the header has it. */
static bool find_key(struct header_rest *c, uint64_t n_keys, const char *wanted)
{
    for (uint64_t i = 0; i < n_keys && !c->is_short; i++) {
        uint64_t length;
        const char *key = string(c, &length);
        if (key && length == strlen(wanted) && !memcmp(key, wanted, length))
            return true;
        json_decref(value(c));
    }
    return false;
}

int gguf_texts(struct err *err, const void *data, size_t n, const char *key,
               int (*take_text)(void *arg, uint64_t i, const char *text, size_t n), void *arg)
{
    struct header_rest c = { .rest = { data, n } };
    uint64_t n_keys, n_tensors, length;
    int r = begin(err, &c, &n_keys, &n_tensors);
    if (r)
        return r;
    bool found = find_key(&c, n_keys, key) && number(&c, 4) == ARRAY && number(&c, 4) == STRING;
    if (!found)
        return c.is_short ? beyond(err)
                          : err_set(err, -ENOENT, "the GGUF's header has no texts \"%s\"", key);
    uint64_t n_texts = number(&c, 8);
    for (uint64_t i = 0; i < n_texts && !r && !c.is_short; i++) {
        const char *text = string(&c, &length);
        r = text ? take_text(arg, i, text, length) : 0;
    }
    return c.is_short ? beyond(err) : r;
}

const void *gguf_integers(const void *data, size_t n, const char *key, uint64_t *n_out)
{
    struct err unused = { 0 };
    struct header_rest c = { .rest = { data, n } };
    uint64_t n_keys, n_tensors;
    bool found = !begin(&unused, &c, &n_keys, &n_tensors) && find_key(&c, n_keys, key) &&
                 number(&c, 4) == ARRAY;
    uint64_t type = found ? number(&c, 4) : 0;
    *n_out = type == I32 || type == U32 ? number(&c, 8) : 0;
    *n_out = *n_out <= c.rest.n / 4 ? *n_out : 0;
    return *n_out ? take(&c, 4 * *n_out) : NULL;
}

/* ------------------------------------------------------------------------- as a config */

/* Hugging Face's name of an architecture. */
static const struct {
    const char *architecture, *type;
} types[] = {
    { "llama", "llama" },
    { "qwen2", "qwen2" },
    { "qwen2moe", "qwen2_moe" },
    { "qwen3", "qwen3" },
    { "qwen3moe", "qwen3_moe" },
    { "gemma", "gemma" },
    { "gemma2", "gemma2" },
    { "gemma3", "gemma3_text" },
    { "phi2", "phi" },
    { "phi3", "phi3" },
    { "gptneox", "gpt_neox" },
    { "stablelm", "stablelm" },
    { "starcoder2", "starcoder2" },
    { "olmo2", "olmo2" },
};

/* A key of the architecture: "llama.block_count". Return: NULL: there is none. */
static json_t *key_of(const json_t *header, const char *architecture, const char *name)
{
    char key[160];
    snprintf(key, sizeof key, "%.60s.%s", architecture, name);
    return json_object_get(header, key);
}

static void copy(json_t *to, const char *as, const json_t *header, const char *architecture,
                 const char *name)
{
    json_t *v = key_of(header, architecture, name);
    if (v)
        json_object_set(to, as, v);
}

/* RoPE's scaling, where the header says one. */
static void add_scaling(json_t *to, const json_t *header, const char *a)
{
    const char *type = json_string_value(key_of(header, a, "rope.scaling.type"));
    json_t *s = json_object();
    if (type && strcmp(type, "none") != 0) {
        json_object_set_new(s, "rope_type", json_string(type));
        copy(s, "factor", header, a, "rope.scaling.factor");
        copy(s, "attention_factor", header, a, "rope.scaling.attn_factor");
        copy(s, "original_max_position_embeddings", header, a,
             "rope.scaling.original_context_length");
        json_object_set(to, "rope_scaling", s);
    } else if (json_is_true(json_object_get(header, "dmi_rope_freqs"))) {
        json_object_set_new(s, "rope_type", json_string("of the tensor rope_freqs"));
        json_object_set(to, "rope_scaling", s);
    }
    json_decref(s);
}

static void add_rope(json_t *to, const json_t *header, const char *a)
{
    const json_t *order = json_object_get(header, "dmi_rope_order");
    copy(to, "rope_theta", header, a, "rope.freq_base");
    copy(to, "rotary_dim", header, a, "rope.dimension_count");
    add_scaling(to, header, a);
    if (order)
        json_object_set(to, "dmi_rope_order", (json_t *)(uintptr_t)order);
    else if (!strcmp(a, "llama"))
        json_object_set_new(to, "dmi_rope_order",
                            json_string("not said")); /* its weights may be in either */
}

/* What else it says of attention's scores, which model.c refuses by name. */
static void add_unread(json_t *to, json_t *header, const char *a)
{
    char begin[80], as[160];
    const char *key;
    json_t *v;
    snprintf(begin, sizeof begin, "%.60s.attention.", a);
    size_t n = strlen(begin);
    json_object_foreach(header, key, v)
    {
        if (strncmp(key, begin, n) != 0 || !strcmp(key + n, "scale"))
            continue;
        snprintf(as, sizeof as, "attention_%.100s", key + n);
        json_object_set(to, as, v);
    }
}

json_t *gguf_config(struct err *err, json_t *header)
{
    const char *a = json_string_value(json_object_get(header, "general.architecture"));
    if (!a) {
        err_set(err, -EINVAL, "the GGUF's header names no architecture");
        return NULL;
    }
    json_t *to = json_object();
    json_object_set_new(to, "model_type", json_string(a));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].architecture, a))
            json_object_set_new(to, "model_type", json_string(types[i].type));
    copy(to, "num_hidden_layers", header, a, "block_count");
    copy(to, "num_attention_heads", header, a, "attention.head_count");
    copy(to, "num_key_value_heads", header, a, "attention.head_count_kv");
    copy(to, "head_dim", header, a, "attention.key_length");
    copy(to, "hidden_size", header, a, "embedding_length");
    copy(to, "max_position_embeddings", header, a, "context_length");
    copy(to, "sliding_window", header, a, "attention.sliding_window");
    copy(to, "attn_logit_softcapping", header, a, "attn_logit_softcapping");
    copy(to, "attention_multiplier", header, a, "attention.scale");
    add_rope(to, header, a);
    add_unread(to, header, a);
    return to;
}
