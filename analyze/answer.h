/* SPDX-License-Identifier: Apache-2.0 */
/* What the handles of <dmi/analyze.h> hold. For one thread at a time, as the handles are. */
#pragma once

#include "analyze/model.h"
#include "analyze/plan.h"
#include "core/err.h"

struct dmi_analyze {
    struct plan plan;
    struct model own; /* of the run, where the caller gave none */
    struct err err;
};

struct dmi_analyze_model {
    struct model model;
};

/* Keeps the sentence for dmi_analyze_error(). Return: @code. */
int answer_fail(struct dmi_analyze *answer, int code, const char *what);
