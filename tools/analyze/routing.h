/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-analyze routing: which experts a mixture of experts chose. A program of one thread. */
#pragma once

#include "tools/analyze/options.h"

/* Return: an exit status. */
int analyze_routing(const struct analyze_options *options);
