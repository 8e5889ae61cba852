/* SPDX-License-Identifier: Apache-2.0 */
/* Which queries of an answer words for tokens mean. A program of one thread. */
#pragma once

#include <dmi/read.h>

#include <stdbool.h>

/* Notes which positions a layer has rows of in what is selected of a run, up to before @n_keys. */
void queries_note(struct dmi_read *run, int32_t layer, bool *wanted, int64_t n_keys);
