/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-replay --policy: runs, a rehearsal of each, and what came of it, on stdout. A program of one thread. */
#pragma once

#include "tools/replay/options.h"

/* Says on stderr what is wrong. Return: an exit status. */
int rehearse_report(const struct replay_options *options);
