/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/vocabulary.h"

#include "analyze/gguf.h"
#include "analyze/mapped.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "core/utf8.h"
#include "storage/object.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define JSON_MOST        (64u << 20)
#define TOKEN_MOST_BYTES 4096u
#define ALL_MOST_BYTES   (256u << 20)
#define STEPS            8u
#define WORD_BYTES       16u /* what a step looks for, and what it puts there */

#define BLANK "\xe2\x96\x81" /* U+2581, sentencepiece's */

/* How a token becomes its bytes: step by step. */
enum step_kind { STEP_REPLACE, STEP_BYTE_LEVEL, STEP_BYTE_FALLBACK };

struct decoder_step {
    enum step_kind kind;
    char from[WORD_BYTES], to[WORD_BYTES]; /* STEP_REPLACE: a text that is not empty, and another */
};

struct decoder {
    struct decoder_step steps[STEPS];
    size_t n;
};

/* ------------------------------------------------------------------------- a token */

/*
 * The byte that a letter of a byte-level vocabulary stands for; -1: it is none of its letters. Printable bytes stand for themselves, the
 * others for U+0100 and on. Source: GPT-2's encoder.
 */
static int byte_of(uint32_t c)
{
    if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
        return (int)c;
    uint32_t i = c - 0x100; /* among the 33 + 34 + 1 others */
    if (c < 0x100 || i > 67)
        return -1;
    return (int)(i < 33 ? i : i < 67 ? 0x7f + i - 33 : 0xad);
}

/* A token with another letter in it was added as it is. */
static void byte_level(const struct text *token, struct text *to)
{
    for (size_t i = 0, len; i < token->n; i += len) {
        uint32_t c;
        len = utf8_next(token->data + i, token->n - i, &c);
        int byte = len ? byte_of(c) : -1;
        if (byte < 0) {
            to->n = 0;
            text_add(to, token->data, token->n);
            return;
        }
        text_add(to, &(char){ (char)byte }, 1);
    }
}

static int digit(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* "<0xE2>" is one byte. Return: whether it is such a one. */
static bool byte_fallback(const struct text *token, struct text *to)
{
    const char *s = token->data;
    bool is = token->n == 6 && !memcmp(s, "<0x", 3) && digit(s[3]) >= 0 && digit(s[4]) >= 0 &&
              s[5] == '>';
    if (is)
        text_add(to, &(char){ (char)(digit(s[3]) << 4 | digit(s[4])) }, 1);
    else
        text_add(to, s, token->n);
    return is;
}

static void replace(const struct text *token, const struct decoder_step *step, struct text *to)
{
    size_t n = strlen(step->from);
    for (size_t i = 0; i < token->n;) {
        bool here = token->n - i >= n && !memcmp(token->data + i, step->from, n);
        text_add(to, here ? step->to : token->data + i, here ? strlen(step->to) : 1);
        i += here ? n : 1;
    }
}

/* Return: enum dmi_vocabulary_kind of what is at @to. */
static uint32_t take_step(const struct decoder_step *step, const struct text *token,
                          struct text *to)
{
    switch (step->kind) {
    case STEP_BYTE_LEVEL: byte_level(token, to); break;
    case STEP_BYTE_FALLBACK:
        return byte_fallback(token, to) ? DMI_VOCABULARY_BYTE : DMI_VOCABULARY_TEXT;
    default: replace(token, step, to); break;
    }
    return DMI_VOCABULARY_TEXT;
}

/* ------------------------------------------------------------------------- the vocabulary */

/* A vocabulary while it is read. */
struct vocabulary_reading {
    struct err *err;
    struct vocabulary *to;
    struct decoder decoder;
    struct text one, two; /* a token between steps */
    const uint8_t *types; /* of a GGUF's tokens, 32 bits each */
    uint64_t n_types;
};

static void reading_deinit(struct vocabulary_reading *r)
{
    text_deinit(&r->one);
    text_deinit(&r->two);
}

/* Room for a token of this id. */
static int reserve(struct vocabulary *v, uint64_t id)
{
    uint64_t room = v->room ? v->room : 1024;
    while (room <= id)
        room *= 2;
    if (room > v->room) {
        struct dmi_vocabulary_piece *more = realloc(v->pieces, room * sizeof *more);
        if (!more)
            return -ENOMEM;
        memset(more + v->room, 0, (room - v->room) * sizeof *more);
        v->pieces = more;
        v->room = room;
    }
    v->n = id >= v->n ? id + 1 : v->n;
    return 0;
}

static int too_long(struct err *err, int64_t id)
{
    return err_set(err, -EINVAL, "its token %lld is longer than %u bytes, or all are than 256 MiB",
                   (long long)id, TOKEN_MOST_BYTES);
}

/* Decodes a token by the first @n_steps and keeps its bytes: a step may replace a byte by many. */
static int add_by(struct vocabulary_reading *r, int64_t id, const char *token, size_t n,
                  size_t n_steps)
{
    uint32_t kind = DMI_VOCABULARY_TEXT;
    struct vocabulary *v = r->to;
    struct text *from = &r->one, *to = &r->two;
    if (id < 0 || id >= VOCABULARY_MOST)
        return err_set(r->err, -EINVAL, "it has a token number %lld: ids are below %u",
                       (long long)id, VOCABULARY_MOST);
    if (n > TOKEN_MOST_BYTES || v->bytes.n > ALL_MOST_BYTES)
        return too_long(r->err, id);
    from->n = 0;
    text_add(from, token, n);
    for (size_t i = 0; i < n_steps && from->n <= TOKEN_MOST_BYTES; i++) {
        to->n = 0;
        if (take_step(&r->decoder.steps[i], from, to) == DMI_VOCABULARY_BYTE)
            kind = DMI_VOCABULARY_BYTE;
        struct text *taken = from;
        from = to;
        to = taken;
    }
    if (from->n > TOKEN_MOST_BYTES)
        return too_long(r->err, id);
    if (from->failed || to->failed || reserve(v, (uint64_t)id))
        return err_set(r->err, -ENOMEM, "no memory for its tokens");
    v->pieces[id] = (struct dmi_vocabulary_piece){ v->bytes.n, (uint32_t)from->n, kind };
    text_add(&v->bytes, from->n ? from->data : "", from->n);
    return v->bytes.failed ? err_set(r->err, -ENOMEM, "no memory for its tokens") : 0;
}

static int add(struct vocabulary_reading *r, int64_t id, const char *token, size_t n)
{
    return add_by(r, id, token, n, r->decoder.n);
}

void vocabulary_deinit(struct vocabulary *v)
{
    text_deinit(&v->bytes);
    free(v->pieces);
    *v = (struct vocabulary){ 0 };
}

const char *vocabulary_bytes(const struct vocabulary *v, int64_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || (uint64_t)id >= v->n || !v->pieces[id].kind)
        return NULL;
    *n = v->pieces[id].n;
    return v->bytes.data + v->pieces[id].first;
}

int64_t vocabulary_find(const struct vocabulary *v, const char *text)
{
    size_t n;
    int64_t found = -1;
    for (int64_t id = 0; id < (int64_t)v->n; id++) {
        const char *bytes = vocabulary_bytes(v, id, &n);
        if (!bytes || n != strlen(text) || memcmp(bytes, text, n) != 0)
            continue;
        if (v->pieces[id].kind == DMI_VOCABULARY_TEXT)
            return id;
        found = found < 0 ? id : found;
    }
    return found;
}

/* ------------------------------------------------------------------------- a tokenizer.json */

static int take_word(struct err *err, const json_t *value, const char *otherwise,
                     char out[WORD_BYTES])
{
    const char *word = value ? json_string_value(value) : otherwise;
    if (!word || json_string_length(value) != (value ? strlen(word) : 0) ||
        strlen(word) >= WORD_BYTES)
        return err_set(err, -EINVAL, "its decoder replaces what is no text below %u bytes",
                       WORD_BYTES);
    strcpy(out, word);
    return 0;
}

static int take_replace(struct err *err, const json_t *d, struct decoder_step *out)
{
    const json_t *pattern = json_object_get(json_object_get(d, "pattern"), "String");
    int r = pattern ? take_word(err, pattern, NULL, out->from)
                    : err_set(err, -EINVAL, "its decoder replaces by a pattern that is no text");
    if (!r)
        r = take_word(err, json_object_get(d, "content"), NULL, out->to);
    return r || out->from[0] ? r : err_set(err, -EINVAL, "its decoder replaces an empty text");
}

/* Also one that is passed over, as it changes whole texts alone. */
static int take_one(struct err *err, const json_t *d, struct decoder *out)
{
    const char *type = json_string_value(json_object_get(d, "type"));
    struct decoder_step step = { .kind = STEP_REPLACE, .to = " " };
    int r = 0;
    if (!type || out->n == STEPS)
        return err_set(err, -EINVAL, "its decoder has a step without a type, or more than %u",
                       STEPS);
    if (!strcmp(type, "Fuse") || !strcmp(type, "Strip"))
        return 0;
    if (!strcmp(type, "ByteLevel"))
        step.kind = STEP_BYTE_LEVEL;
    else if (!strcmp(type, "ByteFallback"))
        step.kind = STEP_BYTE_FALLBACK;
    else if (!strcmp(type, "Metaspace"))
        r = take_word(err, json_object_get(d, "replacement"), BLANK, step.from);
    else if (!strcmp(type, "Replace"))
        r = take_replace(err, d, &step);
    else
        r = err_set(err, -EINVAL,
                    "its decoder %.40s is none of ByteLevel, Metaspace, Replace, ByteFallback, "
                    "Fuse and Strip",
                    type);
    if (!r && step.kind == STEP_REPLACE && !step.from[0])
        r = err_set(err, -EINVAL, "its decoder replaces an empty text");
    out->steps[out->n++] = step;
    return r;
}

/* Marks of a word's begin or end, which no step that is read here takes away. Return: 0 or -EINVAL. */
static int refuse_marks(struct err *err, const json_t *model)
{
    static const char *const keys[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_string_length(json_object_get(model, keys[i])))
            return err_set(err, -EINVAL, "its model says %s, which is not read here", keys[i]);
    return 0;
}

/* No decoder: tokens are their text. */
static int take_decoder(struct err *err, const json_t *d, struct decoder *out)
{
    const char *type = json_string_value(json_object_get(d, "type"));
    const json_t *list = json_object_get(d, "decoders");
    if (!d || json_is_null(d))
        return 0;
    if (!type || strcmp(type, "Sequence") != 0)
        return take_one(err, d, out);
    int r = 0;
    for (size_t i = 0; !r && i < json_array_size(list); i++)
        r = take_one(err, json_array_get(list, i), out);
    return r;
}

static int not_a_token(struct err *err)
{
    return err_set(err, -EINVAL,
                   "its vocabulary has a token that is no text, or an id that is no number");
}

/* {"token": id, ...} */
static int take_object(struct vocabulary_reading *r, json_t *vocab)
{
    const char *token;
    json_t *id;
    int e = 0;
    json_object_foreach(vocab, token, id)
    {
        if (!e)
            e = json_is_integer(id) ? add(r, json_integer_value(id), token, strlen(token))
                                    : not_a_token(r->err);
    }
    return e;
}

/* [["token", score], ...]: of a unigram model */
static int take_list(struct vocabulary_reading *r, const json_t *vocab)
{
    int e = 0;
    for (size_t i = 0; !e && i < json_array_size(vocab); i++) {
        const json_t *token = json_array_get(json_array_get(vocab, i), 0);
        e = json_is_string(token)
                ? add(r, (int64_t)i, json_string_value(token), json_string_length(token))
                : not_a_token(r->err);
    }
    return e;
}

/* [{"id": id, "content": "token"}, ...], which stand before those of the model */
static int take_added(struct vocabulary_reading *r, const json_t *list)
{
    int e = 0;
    for (size_t i = 0; !e && i < json_array_size(list); i++) {
        const json_t *id = json_object_get(json_array_get(list, i), "id"),
                     *token = json_object_get(json_array_get(list, i), "content");
        e = json_is_integer(id) && json_is_string(token)
                ? add(r, json_integer_value(id), json_string_value(token),
                      json_string_length(token))
                : not_a_token(r->err);
    }
    return e;
}

int vocabulary_of_json(struct err *err, const json_t *file, struct vocabulary *out)
{
    _cleanup_(reading_deinit) struct vocabulary_reading r = { .err = err, .to = out };
    json_t *vocab = json_object_get(json_object_get(file, "model"), "vocab");
    if (!json_is_object(vocab) && !json_is_array(vocab))
        return err_set(err, -EINVAL, "this is no tokenizer.json: it has no model.vocab");
    int e = refuse_marks(err, json_object_get(file, "model"));
    if (!e)
        e = take_decoder(err, json_object_get(file, "decoder"), &r.decoder);
    if (!e)
        e = json_is_object(vocab) ? take_object(&r, vocab) : take_list(&r, vocab);
    if (!e)
        e = take_added(&r, json_object_get(file, "added_tokens"));
    return e || out->n ? e : err_set(err, -EINVAL, "its vocabulary is empty");
}

/* ------------------------------------------------------------------------- a GGUF */

/* tokenizer.ggml.token_type; 0: not said */
enum token_type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, RAW_BYTE };

/* Special tokens and those of users stand for their text, and what looks like a byte is one if its type says so. */
static int take_text(void *arg, uint64_t i, const char *text, size_t n)
{
    struct vocabulary_reading *r = arg;
    size_t n_steps = r->decoder.n;
    uint32_t type = 0;
    if (i < r->n_types)
        memcpy(&type, r->types + sizeof type * i, sizeof type);
    if (type == UNKNOWN || type == CONTROL || type == USER_DEFINED)
        n_steps = 0;
    else if (type && type != RAW_BYTE && n_steps &&
             r->decoder.steps[n_steps - 1].kind == STEP_BYTE_FALLBACK)
        n_steps--;
    return add_by(r, (int64_t)i, text, n, n_steps);
}

int vocabulary_of_gguf(struct err *err, const void *data, size_t n, struct vocabulary *out)
{
    static const struct decoder byte_level_decoder = { { { .kind = STEP_BYTE_LEVEL } }, 1 };
    static const struct decoder sentencepiece = {
        { { STEP_REPLACE, BLANK, " " }, { .kind = STEP_BYTE_FALLBACK } }, 2
    };
    _cleanup_(reading_deinit) struct vocabulary_reading r = { .err = err, .to = out };
    json_t *header = gguf_header(err, data, n);
    const char *model = json_string_value(json_object_get(header, "tokenizer.ggml.model"));
    int e = 0;
    if (!header)
        e = -EINVAL;
    else if (model && !strcmp(model, "gpt2"))
        r.decoder = byte_level_decoder;
    else if (model && (!strcmp(model, "llama") || !strcmp(model, "t5")))
        r.decoder = sentencepiece;
    else
        e = err_set(err, -EINVAL, "its tokenizer.ggml.model, %.40s, is none of gpt2, llama and t5",
                    model ? model : "which it lacks");
    json_decref(header);
    r.types = gguf_integers(data, n, "tokenizer.ggml.token_type", &r.n_types);
    if (!e)
        e = gguf_texts(err, data, n, "tokenizer.ggml.tokens", take_text, &r);
    return e || out->n ? e : err_set(err, -EINVAL, "its vocabulary is empty");
}

/* ------------------------------------------------------------------------- a file */

static int read_json(struct err *err, const struct mapped *file, struct vocabulary *out)
{
    json_t *whole = object_load(err, file->data, file->n, JSON_MOST, JSON_ALLOW_NUL);
    int r = whole ? vocabulary_of_json(err, whole, out) : -EINVAL;
    json_decref(whole);
    return r;
}

int vocabulary_open(struct err *err, const char *path, struct vocabulary *out)
{
    _cleanup_(mapped_deinit) struct mapped file = { 0 };
    *out = (struct vocabulary){ 0 };
    TRY(mapped_open(err, path, "tokenizer.json", &file));
    int r = gguf_is(file.data, file.n) ? vocabulary_of_gguf(err, file.data, file.n, out)
                                       : read_json(err, &file, out);
    return r ? err_prefix(err, "%s", file.path) : 0;
}
