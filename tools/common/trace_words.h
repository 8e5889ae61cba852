/* SPDX-License-Identifier: Apache-2.0 */
/* The judgement of a trace (storage/reader/trace_account.h), as dmi-trace check and dmi-dump verify print it. A program of one thread. */
#pragma once

#include "storage/reader/reader.h"
#include "storage/reader/trace_account.h"
#include "tools/common/report.h"

/* What is to be said of the run in a sentence. @n_damage: findings of its reader that are damage; @state: of the run. */
void trace_words_verdict(const struct trace_account *account, size_t n_damage,
                         enum reader_state state, char out[256]);

/* A line for each thing that contradicts the page. Text only. */
void trace_words_wrong(struct report *report, const struct trace_account *account);

/* The same as JSON: [{what, n, first}]. */
json_t *trace_words_wrong_rows(const struct trace_account *account);
