/* SPDX-License-Identifier: Apache-2.0 */
/* vprintf of device code: what a translated kernel calls for it. */
#ifndef STANDIN_PTX_PRINT_H
#define STANDIN_PTX_PRINT_H

#define RT_ENV_ONLY
#include "rt.h"

/**
 * print_formatted() - format for thread @T, and hand the text to ptx_print
 * @format, @args: generic addresses; a fault at either leaves the launch
 * Return: how many arguments were taken; -1 without a format; -2 if it cannot be formatted
 */
int print_formatted(const struct rt_env *E, const struct thread_id *T, u64 format, u64 args);

#endif
