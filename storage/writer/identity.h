/* SPDX-License-Identifier: Apache-2.0 */
/* What a run is called by: a UUID, and the machine's name. Any thread. Source: docs/format.md 1, 9. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A random UUID (RFC 4122, version 4). Return: 0 or -errno. */
int identity_uuid(uint8_t uuid[16]);

/* The machine's name with only characters that are safe in a file's name. */
void identity_host(char *out, size_t n);
