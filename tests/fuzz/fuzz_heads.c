/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a list of heads, and as a passage of a prompt. What is taken must lie within bounds. */
#include "core/cleanup.h"
#include "tools/analyze/heads_file.h"
#include "tools/analyze/passage.h"
#include "tools/common/say.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* In the place of the tools' own, which prints. */
void complain(const char *fmt, ...)
{
    require(fmt[0]);
}

#define N_TOKENS 12

/* A chat of two turns. */
static void use_passage(const json_t *value)
{
    static const char tokens[] = "{\"model\": {\"vocab\": {\"<|im_start|>\": 0, \"<|im_end|>\": 1, "
                                 "\"user\": 2, \"a b\": 3, \" c\": 4, \"\\n\": 5}}}";
    static const int64_t ids[N_TOKENS] = { 0, 2, 5, 3, 4, 1, 0, 2, 5, 4, 7, 1 };
    struct vocabulary vocabulary = { 0 };
    struct prompt prompt = { 0 };
    struct dmi_analyze_span span = { 0 };
    json_t *file = json_loads(tokens, 0, NULL);
    require(!vocabulary_of_json(NULL, file, &vocabulary) &&
            !prompt_init(&prompt, N_TOKENS, ids, &vocabulary));
    if (!passage_find(value, "passage", &prompt, &span))
        require(span.first >= 0 && span.first <= span.end && span.end <= N_TOKENS);
    prompt_deinit(&prompt);
    vocabulary_deinit(&vocabulary);
    json_decref(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    struct dmi_analyze_head *heads = NULL;
    uint64_t n_heads = 0;
    _cleanup_(closep) int fd = memfd_create("heads", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (!heads_file_read(path, &heads, &n_heads)) {
        require(n_heads && n_heads <= HEADS_FILE_MOST);
        for (uint64_t i = 0; i < n_heads; i++)
            require(heads[i].layer >= 0 && heads[i].layer < HEADS_FILE_MOST &&
                    heads[i].head < HEADS_FILE_MOST);
    }
    free(heads);
    json_t *value = json_loadb((const char *)data, n, JSON_DECODE_ANY, NULL);
    use_passage(value);
    json_decref(value);
    return 0;
}
