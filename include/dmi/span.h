/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spans of a step as the application gave it: its array has a stride of its own, as its struct dmi_span may be older or
 * newer. For code that gets a struct dmi_step. Any thread.
 */
#ifndef DMI_SPAN_H
#define DMI_SPAN_H

#include <dmi/dmi.h>

#include <stddef.h>
#include <string.h>

/* What the oldest struct dmi_span had: every span of a step has these bytes. */
#define DMI_SPAN_LEAST offsetof(struct dmi_span, cached_ids)

/* The same of the oldest struct dmi_step. */
#define DMI_STEP_LEAST offsetof(struct dmi_step, part)

/* A copy of today's size; what an older struct lacks is 0. */
static inline struct dmi_step dmi_step_read(const struct dmi_step *step)
{
    struct dmi_step copy = { 0 };
    memcpy(&copy, step, step->size < sizeof copy ? step->size : sizeof copy);
    return copy;
}

/* Span number @i of the step: the first DMI_SPAN_LEAST bytes of it are there, the rest as dmi_span_read() has it. */
static inline const struct dmi_span *dmi_span_at(const struct dmi_step *step, uint32_t i)
{
    size_t stride = step->span_size ? step->span_size : sizeof(struct dmi_span);
    return (const struct dmi_span *)((const char *)step->spans + i * stride);
}

/* A copy of span number @i; what an older struct lacks is 0. */
static inline struct dmi_span dmi_span_read(const struct dmi_step *step, uint32_t i)
{
    size_t stride = step->span_size ? step->span_size : sizeof(struct dmi_span);
    struct dmi_span span = { 0 };
    memcpy(&span, dmi_span_at(step, i), stride < sizeof span ? stride : sizeof span);
    return span;
}

#endif
