/* SPDX-License-Identifier: Apache-2.0 */
#define SERVE_NAME(x) draft_##x##_f32
#include "kernels.cuh"
