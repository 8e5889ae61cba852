/* SPDX-License-Identifier: Apache-2.0 */
/* PTX text: the parameters of a kernel stand in its head. Any thread. */
#pragma once

#include "preload/image/layout.h"
#include "core/bytes.h"

/**
 * ptx_read() - name the kernels of a text, which ends with @text or at its first zero byte
 * Return: 0. Kernels whose heads cannot be understood are left out.
 * Source: PTX ISA 9.0, "Kernel Function Parameter Attributes", "Parameter State Space", ".entry"
 */
int ptx_read(struct bytes text, const struct layout_sink *sink);
