/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor that the application points out: recorded at once, or noted for the graph that its stream is captured into. */
#pragma once

#include <dmi/dmi.h>

/* What dmi_tap_at(), of no moment dmi_tap(), and dmi_moment_take() do in an armed session, and dmi_moment_release() in any. Thread and return: as there. */
int tap_at(const struct dmi_tap *tap, const struct dmi_moment *moment);
int tap_take_moment(const struct dmi_tap *tap, struct dmi_moment **moment);
void tap_release_moment(struct dmi_moment *moment);

/* After fork, in the child: moments that the parent took are of no step here. */
void tap_reset(void);
