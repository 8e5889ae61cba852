/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor that the application points out: recorded at once, or noted for the graph that its stream is captured into. */
#ifndef PRELOAD_EAGER_TAP_H
#define PRELOAD_EAGER_TAP_H

#include <dmi/dmi.h>

/**
 * tap_here() - take a tap; what dmi_tap() of <dmi/dmi.h> does in an armed session
 * Thread: any that entered. Return: as there.
 */
int tap_here(const struct dmi_tap *tap);

#endif
