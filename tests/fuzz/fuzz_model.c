/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a model's config: JSON, or a GGUF's header. What is taken must be usable: heads, layers and frequencies are numbers that
 * attention may compute with; what is not must say why.
 */
#include "analyze/gguf.h"
#include "analyze/model.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void use_rope(const struct rope_params *p, uint32_t head_dim)
{
    static float frequencies[ROPE_MOST_DIMS / 2], row[ROPE_MOST_DIMS];
    require(p->n_dims >= 2 && p->n_dims % 2 == 0 && p->n_dims <= head_dim &&
            head_dim <= ROPE_MOST_DIMS);
    rope_frequencies(p, frequencies);
    rope_turn(p, frequencies, 1000, 1, head_dim, row);
    for (uint32_t i = 0; i < head_dim; i++)
        row[i] = 1;
}

static void use_model(const struct model *m)
{
    require(m->n_layers && m->n_layers <= MODEL_MOST_LAYERS && m->n_heads && m->n_kv_heads);
    for (int32_t i = -1; i <= (int32_t)m->n_layers; i++) {
        struct model_layer l = model_layer(m, i);
        require(l.window >= 0);
        if (l.rope && !m->no_rope[0])
            use_rope(l.rope, m->head_dim);
        for (uint32_t h = 0; l.sinks && h < m->n_heads; h++)
            require(!isinf(l.sinks[h]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err err = { 0 };
    struct model model = { 0 };
    json_t *config =
        gguf_is(data, n) ? gguf_header(&err, data, n) : json_loadb((const char *)data, n, 0, NULL);
    require(config || !gguf_is(data, n) || err.msg[0]);
    int r = config ? model_from_json(&err, config, &model) : -1;
    if (!r)
        use_model(&model);
    else
        require(!config || err.msg[0]);
    model_deinit(&model);
    json_decref(config);
    return 0;
}
