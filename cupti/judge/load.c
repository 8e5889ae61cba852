/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/judge/load.h"

#define OCTAVE 8u

unsigned load_phase(const struct load *load)
{
    return (load->prefill ? LOAD_PREFILL : 0u) | (load->decode ? LOAD_DECODE : 0u) |
           (load->drafts ? LOAD_DRAFTS : 0u);
}

unsigned load_bucket(uint32_t rows)
{
    if (rows <= 2 * OCTAVE)
        return rows;
    /* rows - 1: a bucket ends with a multiple of a power of two, as padded rows do */
    unsigned shift = 31u - (unsigned)__builtin_clz(rows - 1) - 3;
    return shift * OCTAVE + ((rows - 1) >> shift) + 1;
}

static uint8_t band(uint64_t tokens)
{
    uint8_t i = 0;
    for (uint64_t end = 1; end <= tokens && end <= UINT64_MAX / 2; end += (end + 1) / 2)
        i++;
    return i;
}

struct load_kind load_kind(const struct load *load)
{
    uint64_t fresh = load->prefill + load->decode;
    return (struct load_kind){
        .phase = (uint8_t)load_phase(load),
        .bucket = (uint8_t)load_bucket(load->rows),
        .context = band(load->context),
        .fresh = band(fresh < load->prefill ? UINT64_MAX : fresh),
    };
}
