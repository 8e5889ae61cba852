/* SPDX-License-Identifier: Apache-2.0 */
/* What copy.cu does, done by the calling thread: payload, descriptor and tensor lie in host memory. */
#pragma once

#include <dmi/ring.h>

/**
 * copy_host() - gather a tensor's rows into the payload ring and publish their record
 * @copy: addresses of host memory; rows in slots of a paged cache are not read, and .retired is not used
 * When it returns the rows are as they were in the call. Thread: the launching one. All that it reads is mapped.
 */
void copy_host(const struct dmi_copy *copy);
