/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/passage.h"

#include "core/any.h"
#include "tools/common/say.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NO_TEXT "\xff" /* in no UTF-8, and so in no text of JSON */

/* ------------------------------------------------------------------------- the prompt */

int prompt_init(struct prompt *p, int64_t n, const int64_t *ids,
                const struct vocabulary *vocabulary)
{
    *p = (struct prompt){ .n = n, .ids = ids, .vocabulary = vocabulary };
    if (!ids || !vocabulary)
        return 0;
    p->ends = calloc((size_t)n + 1, sizeof *p->ends);
    for (int64_t i = 0; p->ends && i < n; i++) {
        size_t length;
        const char *bytes = vocabulary_bytes(vocabulary, ids[i], &length);
        text_add(&p->text, bytes ? bytes : NO_TEXT, bytes ? length : 1);
        p->ends[i] = p->text.n;
    }
    return p->ends && !p->text.failed ? 0 : -ENOMEM;
}

void prompt_deinit(struct prompt *p)
{
    text_deinit(&p->text);
    free(p->ends);
    *p = (struct prompt){ 0 };
}

static size_t start_of(const struct prompt *p, int64_t token)
{
    return token ? p->ends[token - 1] : 0;
}

/* The tokens that have bytes from @first to before @end in them. */
static struct dmi_analyze_span tokens_of(const struct prompt *p, size_t first, size_t end)
{
    struct dmi_analyze_span span = { 0 };
    while (span.first < p->n && p->ends[span.first] <= first)
        span.first++;
    span.end = span.first;
    while (span.end < p->n && start_of(p, span.end) < end)
        span.end++;
    return span;
}

/* ------------------------------------------------------------------------- what is looked for */

/* Finds number @k, from 0, of what @wanted means. Return: how many there are; @out is set if @k is one of them. */
typedef int64_t (*finder)(const struct prompt *p, const json_t *wanted, int64_t k,
                          struct dmi_analyze_span *out);

static bool ids_are(const struct prompt *p, const json_t *wanted, int64_t at)
{
    size_t n = json_array_size(wanted);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(wanted, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            p->ids[at + (int64_t)i] != json_integer_value(id))
            return false;
    }
    return n > 0;
}

static int64_t find_ids(const struct prompt *p, const json_t *wanted, int64_t k,
                        struct dmi_analyze_span *out)
{
    int64_t n = (int64_t)json_array_size(wanted), found = 0;
    for (int64_t at = 0; at + n <= p->n; at++)
        if (ids_are(p, wanted, at) && found++ == k)
            *out = (struct dmi_analyze_span){ at, at + n };
    return found;
}

static int64_t find_text(const struct prompt *p, const json_t *wanted, int64_t k,
                         struct dmi_analyze_span *out)
{
    const char *text = json_string_value(wanted), *end = p->text.data + p->text.n;
    size_t n = json_string_length(wanted);
    int64_t found = 0;
    for (const char *at = p->text.data; text && n && at; at = at ? at + 1 : NULL) {
        at = memmem(at, (size_t)(end - at), text, n);
        size_t first = at ? (size_t)(at - p->text.data) : 0;
        if (at && found++ == k)
            *out = tokens_of(p, first, first + n);
    }
    return found;
}

/* How templates of chats mark a turn: a token, the role, a text, what was said, a token. */
struct template
{
    const char *begin, *after, *end;
};

static const struct template templates[] = {
    { "<|im_start|>", "\n", "<|im_end|>" },         /* ChatML: Qwen, SmolLM2, Yi, Hermes */
    { "<|im_start|>", "<|im_sep|>", "<|im_end|>" }, /* Phi 4 */
    { "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>" }, /* Llama 3 */
    { "<start_of_turn>", "\n", "<end_of_turn>" },                     /* Gemma */
};

/* The turn that begins with a marker, if it is the role's and ends. */
static bool turn_at(const struct prompt *p, const struct template *t, const int64_t markers[2],
                    int64_t at, const char *role, struct dmi_analyze_span *out)
{
    size_t n_role = strlen(role), n_after = strlen(t->after), first = p->ends[at];
    const char *said = p->text.data + first;
    if (p->text.n - first < n_role + n_after || memcmp(said, role, n_role) != 0 ||
        memcmp(said + n_role, t->after, n_after) != 0)
        return false;
    int64_t end = at + 1;
    while (end < p->n && p->ids[end] != markers[1] && p->ids[end] != markers[0])
        end++;
    if (end == p->n || p->ids[end] == markers[0])
        return false;
    *out = tokens_of(p, first + n_role + n_after, start_of(p, end));
    return true;
}

static int64_t find_turns(const struct prompt *p, const struct template *t, const char *role,
                          int64_t k, struct dmi_analyze_span *out)
{
    const int64_t markers[2] = { vocabulary_find(p->vocabulary, t->begin),
                                 vocabulary_find(p->vocabulary, t->end) };
    struct dmi_analyze_span span;
    int64_t found = 0;
    for (int64_t at = 0; markers[0] >= 0 && markers[1] >= 0 && at < p->n; at++)
        if (p->ids[at] == markers[0] && turn_at(p, t, markers, at, role, &span) && found++ == k)
            *out = span;
    return found;
}

/* By the first template of which there are turns. */
static int64_t find_role(const struct prompt *p, const json_t *wanted, int64_t k,
                         struct dmi_analyze_span *out)
{
    const char *role = json_string_value(wanted);
    int64_t found = 0;
    for (size_t i = 0; role && *role && !found && i < sizeof templates / sizeof *templates; i++)
        found = find_turns(p, &templates[i], role, k, out);
    return found;
}

static const struct passage_kind {
    const char *key;
    bool by_text;
    finder find;
    const char *none; /* what is said where there is none */
} kinds[] = {
    { "ids", false, find_ids, "its ids are not in the prompt" },
    { "text", true, find_text, "its text is not in the prompt" },
    { "role", true, find_role,
      "no turn of its role is in the prompt, as the templates of ChatML, Phi 4, Llama 3 and Gemma "
      "mark them" },
};

static const struct passage_kind *kind_of(const json_t *value)
{
    return FIRST(i, sizeof kinds / sizeof *kinds, json_object_get(value, kinds[i].key), &kinds[i],
                 NULL);
}

bool passage_is_looked_for(const json_t *value)
{
    return kind_of(value) != NULL;
}

/* ------------------------------------------------------------------------- a passage */

static bool take_range(const json_t *value, int64_t n_prompt, struct dmi_analyze_span *out)
{
    const json_t *first = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(end))
        return false;
    *out = (struct dmi_analyze_span){ json_integer_value(first), json_integer_value(end) };
    out->first += out->first < 0 ? n_prompt : 0;
    out->end += out->end < 0 ? n_prompt : 0;
    return out->first >= 0 && out->first <= out->end && out->end <= n_prompt;
}

static int refuse(const char *what, const char *why)
{
    complain("%s: %s", what, why);
    return -1;
}

/* "which" chooses one of several. */
static int look_for(const json_t *value, const struct passage_kind *kind, const char *what,
                    const struct prompt *p, struct dmi_analyze_span *out)
{
    const json_t *wanted = json_object_get(value, kind->key),
                 *which = json_object_get(value, "which");
    int64_t k = which ? json_integer_value(which) : 0;
    if (!p->ids)
        return refuse(what, "the run has no ids of the prompt's tokens (the site token_ids)");
    if (kind->by_text && !p->ends)
        return refuse(what, "a text or a role needs --tokenizer FILE");
    if (which && !json_is_integer(which))
        return refuse(what, "\"which\" is no whole number");
    int64_t n = kind->find(p, wanted, k, out);
    if (!n)
        return refuse(what, kind->none);
    if (k < 0)
        kind->find(p, wanted, k += n, out);
    if ((which || n == 1) && k >= 0 && k < n)
        return 0;
    complain("%s: it is in the prompt %lld times%s", what, (long long)n,
             which ? ", and \"which\" names none of these"
                   : ": \"which\" says which, 0 the first, -1 the last");
    return -1;
}

int passage_find(const json_t *value, const char *what, const struct prompt *p,
                 struct dmi_analyze_span *out)
{
    const struct passage_kind *kind = kind_of(value);
    if (kind)
        return look_for(value, kind, what, p, out);
    if (take_range(value, p->n, out))
        return 0;
    complain("%s: expected [FIRST, END) within the %lld tokens of the prompt, or {\"ids\": [...]}, "
             "{\"text\": \"...\"} or {\"role\": \"...\"}",
             what, (long long)p->n);
    return -1;
}
