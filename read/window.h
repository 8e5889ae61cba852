/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens of a request relative to where its generation begins: "prompt", "response" (or "generated"), and a part of either,
 * "response[0:16]", "prompt[-4:]", "response[-1]", as Python's slices: half-open, and numbers below 0 count from the end. Pure;
 * any thread.
 */
#ifndef READ_WINDOW_H
#define READ_WINDOW_H

#include "read/range.h"

#include <stddef.h>

/**
 * window_parse() - one word of --tokens
 * @kind: gets TOKENS_PROMPT or TOKENS_GENERATED
 * @window: gets the part of it: { 0, INT64_MAX } where all of it is meant
 * Return: false: it is none of these, or holds nothing whatever there is.
 */
bool window_parse(const char *text, size_t n, enum token_kind *kind, struct range *window);

/* The positions that @window means of @tokens; @end: after the request's last position. */
struct range window_of(const struct range *tokens, int64_t end, const struct range *window);

#endif
