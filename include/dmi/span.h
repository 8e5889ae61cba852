/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spans of a step as the application gave it: its array has a stride of its own, as its struct dmi_span may be older or
 * newer. For code that gets a struct dmi_step. Any thread.
 */
#ifndef DMI_SPAN_H
#define DMI_SPAN_H

#include <dmi/dmi.h>

#include <stddef.h>

/* Span number @i of the step; an older struct has only the first span_size bytes. */
static inline const struct dmi_span *dmi_span_at(const struct dmi_step *step, uint32_t i)
{
    size_t stride = step->span_size ? step->span_size : sizeof(struct dmi_span);
    return (const struct dmi_span *)((const char *)step->spans + i * stride);
}

#endif
