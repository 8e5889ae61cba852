/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-analyze rerank: which document a query reads, by CoRe's score. A program of one thread. */
#pragma once

#include "tools/analyze/options.h"

/* Return: an exit status. */
int analyze_rerank(const struct analyze_options *options);
