/* SPDX-License-Identifier: Apache-2.0 */
/*
 * times.h - how long operations take by a model, DMI_STANDIN_TIMES, instead of by the clock
 */
#ifndef STANDIN_TIMES_H
#define STANDIN_TIMES_H

#include "driver.h"

/** times_read() - read the model; a file that cannot be read, or a line that is wrong, ends the process with status 2 */
void times_read(const char *path);
/** times_given() - is there a model? */
bool times_given(void);
/** times_of() - nanoseconds that @op, which begins at @begin_ns, takes. Return: false: the model does not say. Any worker */
bool times_of(const struct op *op, uint64_t begin_ns, uint64_t *ns);
/** times_real() - a time of clock_ns() as CLOCK_REALTIME has it; what lies between two of them stays as it is */
uint64_t times_real(uint64_t ns);

#endif
