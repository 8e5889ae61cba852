/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest's checksum of itself, in its own text. Source: docs/format.md 9. Pure: any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Computes the checksum of @n bytes of a manifest and writes it to its place in them, the first one. Return: false: there is none. */
bool checksum_write(char *text, size_t n);

/* Is what stands there the checksum of the manifest? The text is the same afterwards. */
bool checksum_holds(char *text, size_t n);
