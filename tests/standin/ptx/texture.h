/* SPDX-License-Identifier: Apache-2.0 */
/* tex: what a translated kernel calls for it. */
#ifndef STANDIN_PTX_TEXTURE_H
#define STANDIN_PTX_TEXTURE_H

#define RT_ENV_ONLY
#include "rt.h"

/**
 * texture_sample() - the four channels at a point of a texture, as bits; those that it lacks are 0
 * A handle that is none, or whose memory has gone, leaves the launch by a fault.
 */
void texture_sample(const struct rt_env *E, const struct thread_id *T, const struct rt_sample *s,
                    u32 out[4]);

#endif
