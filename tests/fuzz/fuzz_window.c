/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a word of --tokens: what it means of a request are positions of it, and of the part that it names. */
#include "read/window.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct range prompt = { 0, 5 }, response = { 5, INT64_MAX };
    enum token_kind kind = TOKENS_ALL;
    struct range window;
    if (!window_parse((const char *)data, n, &kind, &window))
        return 0;
    require(kind == TOKENS_PROMPT || kind == TOKENS_GENERATED);
    const struct range *tokens = kind == TOKENS_PROMPT ? &prompt : &response;
    for (int64_t end = 0; end < 12; end++) {
        struct range r = window_of(tokens, end, &window);
        int64_t last = end > tokens->first ? end : tokens->first;
        require(r.first >= tokens->first && r.first <= r.end && r.end <= tokens->end);
        require(r.end <= last);
    }
    return 0;
}
