/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/rope.h"

#include <math.h>

/* Low frequencies, whose waves are longer than the first context, are divided by the factor; high ones stay. */
static double llama3(const struct rope_params *p, double frequency)
{
    double wave = 2 * M_PI / frequency;
    if (wave < p->original / p->high)
        return frequency;
    if (wave > p->original / p->low)
        return frequency / p->factor;
    double smooth = (p->original / wave - p->low) / (p->high - p->low);
    return (1 - smooth) * frequency / p->factor + smooth * frequency;
}

/* The dimension whose wave turns @turns times over the first context. */
static double yarn_dimension(const struct rope_params *p, double turns)
{
    return p->n_dims * log(p->original / (turns * 2 * M_PI)) / (2 * log(p->theta));
}

static double yarn(const struct rope_params *p, double frequency, uint32_t pair)
{
    double first = yarn_dimension(p, p->fast), last = yarn_dimension(p, p->slow);
    if (p->whole) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, p->n_dims - 1);
    double slow = (pair - first) / (last == first ? 0.001 : last - first);
    slow = fmin(fmax(slow, 0), 1);
    return frequency / p->factor * slow + frequency * (1 - slow);
}

void rope_frequencies(const struct rope_params *p, float *out)
{
    for (uint32_t i = 0; i < p->n_dims / 2; i++) {
        double f = 1 / (double)(float)pow(p->theta, (double)((float)(2 * i) / (float)p->n_dims));
        switch (p->scaling) {
        case ROPE_PLAIN: break;
        case ROPE_LINEAR: f /= p->factor; break;
        case ROPE_LLAMA3: f = llama3(p, f); break;
        case ROPE_YARN: f = yarn(p, f, i); break;
        }
        out[i] = (float)f;
    }
}

static void turn(float *x, float *y, float cosine, float sine)
{
    float a = *x, b = *y;
    *x = a * cosine - b * sine;
    *y = b * cosine + a * sine;
}

void rope_turn(const struct rope_params *p, const float *frequencies, int64_t position,
               size_t n_heads, size_t dim, float *row)
{
    size_t n = p->n_dims / 2;
    for (size_t i = 0; i < n; i++) {
        double angle = (double)((float)position * frequencies[i]);
        float cosine = (float)(cos(angle) * p->amplitude),
              sine = (float)(sin(angle) * p->amplitude);
        for (size_t h = 0; h < n_heads; h++) {
            float *head = row + h * dim;
            if (p->pairs)
                turn(&head[2 * i], &head[2 * i + 1], cosine, sine);
            else
                turn(&head[i], &head[i + n], cosine, sine);
        }
    }
}
