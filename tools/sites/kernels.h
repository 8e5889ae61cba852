/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-sites kernels: names and parameters of kernels, for those who write a HookSpec by hand. One thread. */
#pragma once

#include "core/err.h"

/* Prints to stdout what a recording, cubin, fatbin, program or library holds. Return: 0 or an error in @err. */
int kernels(struct err *err, const char *path);
