/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views as people read them, as JSON, and as Prometheus reads them. Nothing that a run says reaches the terminal as a
 * control. A program of one thread.
 */
#pragma once

#include "storage/text.h"
#include "tools/top/view.h"

#include <jansson.h>

/* Every line of what people see; lines end with a newline. */
void show_text(struct text *to, const struct top_runs *runs, const struct top_view *views,
               size_t n_views, const struct top_view *sum);

/* One object with all of it; NULL without memory. */
json_t *show_json(const struct top_runs *runs, const struct top_view *views, size_t n_views,
                  const struct top_view *sum);

/* The text exposition format 0.0.4. Source: https://prometheus.io/docs/instrumenting/exposition_formats/ */
void show_prometheus(struct text *to, const struct top_view *views, size_t n_views);
