/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/made_turns.h"

#include <math.h>

#define CHUNK     512 /* rows of a step that computes prompts */
#define RHO       0.3 /* correlation of noise from turn to turn */
#define TAIL      0.002
#define TAIL_MEAN 0.15

static uint64_t next(struct made *m)
{
    /* splitmix64, public domain by its author (Vigna) */
    uint64_t z = m->seed += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

double made_number(struct made *m)
{
    return (double)(next(m) >> 11) * 0x1p-53;
}

static double gaussian(struct made *m)
{
    double radius = sqrt(-2 * log(1 - made_number(m)));
    return radius * cos(6.283185307179586 * made_number(m));
}

/* Requests that the engine would have at a time. */
static double demand(struct made *m)
{
    m->wander = 0.999 * m->wander + 0.0447 * gaussian(m);
    double share = m->way == MADE_WANDERS
                       ? 0.5 + 0.2 * m->wander
                       : (0.125 + 0.875 * (double)m->turn / (double)m->n) * (1 + 0.1 * m->wander);
    return MADE_MOST * (share < 0.05 ? 0.05 : share > 1 ? 1 : share);
}

static void admit(struct made *m)
{
    m->length = 0.998 * m->length + 0.0632 * gaussian(m); /* what people ask for changes */
    uint32_t prompt = (uint32_t)exp(6 + 0.4 * m->length + 0.8 * gaussian(m));
    struct made_request *r = &m->requests[m->n_requests++];
    *r = (struct made_request){ .prompt = prompt < 16     ? 16
                                          : prompt > 8000 ? 8000
                                                          : prompt,
                                .left = 1 + (uint32_t)(-400 * log(1 - made_number(m))),
                                .drafts = m->has_drafts && next(m) % 8 == 0 };
}

/* Each request decodes, or computes a part of its prompt as far as the step has room; those that have ended go. */
static void run_requests(struct made *m, struct load *load)
{
    uint32_t room = CHUNK;
    for (uint32_t i = 0; i < m->n_requests;) {
        struct made_request *r = &m->requests[i];
        if (r->context < r->prompt) {
            uint32_t chunk = r->prompt - r->context < room ? r->prompt - r->context : room;
            room -= chunk;
            r->context += chunk;
            load->prefill += chunk;
            load->context += chunk ? r->context : 0;
        } else if (!r->left) {
            *r = m->requests[--m->n_requests];
            continue;
        } else {
            load->decode += r->drafts ? 4 : 1;
            load->drafts += r->drafts ? 3 : 0;
            load->context += ++r->context;
            r->left--;
        }
        i++;
    }
}

static uint32_t padded(uint32_t rows)
{
    if (rows <= 2 || rows > CHUNK)
        return rows;
    return rows <= 4 ? 4 : rows <= 256 ? (rows + 7) / 8 * 8 : (rows + 15) / 16 * 16;
}

double made_turn(struct made *m, struct judge_turn *turn)
{
    *turn = (struct judge_turn){ .number = m->turn };
    if (m->n_requests < MADE_MOST && (m->n_requests < demand(m) || !m->n_requests))
        admit(m);
    while (!turn->load.prefill && !turn->load.decode) {
        run_requests(m, &turn->load);
        if (!m->n_requests)
            admit(m);
    }
    m->turn++;
    struct load *load = &turn->load;
    load->rows = padded((uint32_t)(load->prefill + load->decode));
    double reads = 2.0e6 + 12 * (double)load->context, computes = 0.4e6 + 8e3 * load->rows;
    double time = (reads > computes ? reads : computes) + 40e3 * ((load->rows + 127) / 128);
    time *= m->by > 0 ? m->by : 1;
    for (int s = 0; s < JUDGE_SERIES; s++) {
        m->noisy[s] = RHO * m->noisy[s] + sqrt(1 - RHO * RHO) * gaussian(m);
        double noisy = time * (s == JUDGE_BUSY ? 0.8 : 1) * (1 + m->noise * m->noisy[s]);
        if (made_number(m) < TAIL)
            noisy += noisy * TAIL_MEAN * -log(1 - made_number(m));
        turn->ns[s] = (int64_t)(noisy > 1 ? noisy : 1);
    }
    return time;
}
