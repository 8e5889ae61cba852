/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-analyze attention: the strongest pairs of query and key, and a head's map. A program of one thread. */
#pragma once

#include "tools/analyze/options.h"

/* Return: an exit status. */
int analyze_attention(const struct analyze_options *options);
