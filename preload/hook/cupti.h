/* SPDX-License-Identifier: Apache-2.0 */
/* What dlsym() answers for functions of CUPTI's before which the library stands. */
#pragma once

#include <stdbool.h>

/*
 * As dlsym_route(), for names that begin with "cupti": where the process has no libcupti, they find nothing. A function of another copy of CUPTI than the first
 * that was found is given as it is. Thread: any.
 */
bool cupti_route(void *handle, const char *name, void **answer);
