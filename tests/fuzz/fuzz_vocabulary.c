/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a tokenizer.json, or as a GGUF with a vocabulary. What is taken has bytes within bounds for each id; what is not says why. */
#include "analyze/gguf.h"
#include "analyze/vocabulary.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void use(const struct vocabulary *v)
{
    size_t n;
    require(v->n && v->n <= VOCABULARY_MOST && v->n <= v->room);
    for (int64_t id = -1; id <= (int64_t)v->n; id++) {
        const char *bytes = vocabulary_bytes(v, id, &n);
        require(bytes || !n);
        require(!bytes ||
                (id >= 0 && id < (int64_t)v->n && bytes + n <= v->bytes.data + v->bytes.n));
        for (size_t i = 0; i < n; i++)
            require(bytes[i] == v->bytes.data[(size_t)(bytes - v->bytes.data) + i]);
    }
    require(vocabulary_find(v, "a") < (int64_t)v->n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err err = { 0 };
    struct vocabulary v = { 0 };
    int r;
    if (gguf_is(data, n)) {
        r = vocabulary_of_gguf(&err, data, n, &v);
    } else {
        json_t *file = json_loadb((const char *)data, n, JSON_ALLOW_NUL, NULL);
        r = file ? vocabulary_of_json(&err, file, &v) : err_set(&err, -1, "no JSON");
        json_decref(file);
    }
    require(!r == !err.msg[0]);
    if (!r)
        use(&v);
    vocabulary_deinit(&v);
    return 0;
}
