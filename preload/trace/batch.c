/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/batch.h"

#include <dmi/span.h>

#include <stdbool.h>

void batch_describe(struct dmi_step_times *at, const struct dmi_step *said)
{
    at->rows = said->n_rows;
    for (uint32_t i = 0; said->spans && i < said->n_spans; i++) {
        struct dmi_span s = dmi_span_read(said, i);
        bool decodes = s.phase == DMI_PHASE_DECODE || s.phase == DMI_PHASE_DRAFT;
        if (s.flags & DMI_SPAN_PADDING)
            continue;
        at->requests++;
        at->context += (uint64_t)s.first_position + s.n_tokens;
        *(decodes ? &at->decode : &at->prefill) += s.n_tokens;
    }
}
