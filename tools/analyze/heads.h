/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-analyze heads: what heads do, kind by kind. A program of one thread. */
#pragma once

#include "tools/analyze/options.h"

/* Return: an exit status. */
int analyze_heads(const struct analyze_options *options);
