/* SPDX-License-Identifier: Apache-2.0 */
/* Why a selection of names that the run has matched nothing. A program of one thread. */
#pragma once

#include "read/sites.h"
#include "read/tensors.h"

/* Says it on stderr. */
void missing_complain(const struct reader *reader, const struct sites *sites,
                      const struct selection *select);
