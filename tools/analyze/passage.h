/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a prompt as files name them: by positions, by token ids, by text, by a chat's role. A program of one thread. */
#pragma once

#include "analyze/vocabulary.h"
#include "storage/text.h"

#include <dmi/analyze_heads.h>

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* The tokens in which passages are looked for. */
struct prompt {
    int64_t n;
    const int64_t *ids;                  /* NULL: not known; IDS_NONE: of one token */
    const struct vocabulary *vocabulary; /* NULL: none was named */
    struct text text; /* of all tokens; a token without text is a byte that is in no text */
    size_t *ends;     /* of each token in it */
};

/**
 * prompt_init() - @n tokens, and their text where there is a vocabulary
 * @ids, @vocabulary: borrowed until prompt_deinit(); each may be NULL
 * Return: 0 or -ENOMEM. prompt_deinit() in any case.
 */
int prompt_init(struct prompt *prompt, int64_t n, const int64_t *ids,
                const struct vocabulary *vocabulary);
void prompt_deinit(struct prompt *prompt);

/* Is it given by ids, by text or by a role, for which a prompt's ids are needed? */
bool passage_is_looked_for(const json_t *value);

/**
 * passage_find() - the span that a value means
 * @value: [FIRST, END), where numbers below 0 count from the prompt's end; or an object with "ids": [...], "text": "..." or "role": "user"
 *         (what a chat's template has between that role's markers), and "which" of several it is: 0 the first, -1 the last
 * @what: names it
 * A span by text has all tokens that the text touches. What is wrong is said. Return: 0 or -1.
 */
int passage_find(const json_t *value, const char *what, const struct prompt *prompt,
                 struct dmi_analyze_span *out);
