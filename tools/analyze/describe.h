/* SPDX-License-Identifier: Apache-2.0 */
/* What an answer is about, and how its proof stands: what stands before each answer. A program of one thread. */
#pragma once

#include "tools/analyze/asked.h"
#include "tools/common/report.h"

/* Adds run, request, shape and proof of an answer that was computed. */
void describe_answer(struct report *report, struct asked *asked);
