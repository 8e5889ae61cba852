/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of a chunk that is a table: a head, entries of one size, strings. Pure; any thread. Source: docs/format.md 6.1.
 */
#pragma once

#include "storage/text.h"

#include <stdbool.h>
#include <stddef.h>

/**
 * table_meta() - the metadata of @entries, each of @entry_bytes, and of @strings
 * @meta: empty before. Return: false without memory, and @meta is empty.
 */
bool table_meta(const struct text *entries, size_t entry_bytes, const struct text *strings,
                struct text *meta);
