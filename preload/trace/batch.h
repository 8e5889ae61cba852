/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine says of a step's batch. Pure: any thread. */
#pragma once

#include <dmi/dmi.h>
#include <dmi/trace.h>

/* Rows, requests and their tokens by phase. */
void batch_describe(struct dmi_step_times *at, const struct dmi_step *said);
