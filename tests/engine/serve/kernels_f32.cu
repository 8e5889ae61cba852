/* SPDX-License-Identifier: Apache-2.0 */
#define SERVE_NAME(x) x##_f32
#include "kernels.cuh"
