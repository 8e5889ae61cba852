/* SPDX-License-Identifier: Apache-2.0 */
/* A file without a name in TMPDIR, or /tmp: what does not fit into memory. It is gone with its descriptor. Any thread. */
#pragma once

/* Return: a descriptor, which is closed on exec; -errno. */
int unnamed_open(void);
