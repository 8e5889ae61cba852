/* SPDX-License-Identifier: Apache-2.0 */
/*
 * version.c - the one file that is compiled anew for each version of the driver
 */
#include "version.h"

const int driver_version = STANDIN_VERSION;
