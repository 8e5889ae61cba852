/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/judge/usual.h"

#define FOLLOWS 16  /* turns */
#define STEP    512 /* part of the time by which a slow turn moves it */
#define OCTAVE  8

void usual_learn(struct usual *u, const struct load *load, uint64_t time_ns, bool slow)
{
    uint64_t *at = &u->ns[load_phase(load)][load_bucket(load->rows)];
    if (!*at)
        *at = slow ? 0 : time_ns;
    else if (slow)
        *at += *at / STEP;
    else if (time_ns > *at)
        *at += (time_ns - *at) / FOLLOWS;
    else
        *at -= (*at - time_ns) / FOLLOWS;
}

uint64_t usual_ns(const struct usual *u, const struct load *load)
{
    const uint64_t *of = u->ns[load_phase(load)];
    unsigned at = load_bucket(load->rows);
    for (unsigned i = 0; i <= OCTAVE; i++) {
        if (at >= i && of[at - i])
            return of[at - i];
        if (at + i < LOAD_BUCKETS && of[at + i])
            return of[at + i];
    }
    return 0;
}

bool usual_hangs(const struct usual *u, const struct load *load, uint64_t open_ns)
{
    uint64_t usual = usual_ns(u, load);
    return usual && open_ns >= USUAL_HANGS_NS && open_ns / USUAL_HANGS_TIMES >= usual;
}
