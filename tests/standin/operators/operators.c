/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operators.c - which own kernel stands in which other one's place
 */
#include "operators.h"

int operators_find(const char *mangled, struct operator* found)
{
    (void)mangled;
    (void)found;
    return -1;
}
