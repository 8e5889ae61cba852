/* SPDX-License-Identifier: Apache-2.0 */
/* What tools say of edits that wrote in a request, as <dmi/read.h> has them. docs/analysis.md has the JSON. A program of one thread. */
#pragma once

#include "tools/common/report.h"

#include <dmi/read.h>

#include <jansson.h>

/* The index of a request, as dmi_read_edit() takes it. @id NULL: rows of no request. */
uint64_t edit_words_request(struct dmi_read *run, const char *id, uint64_t n_id);

/* The request's edits, [{name, site, layers, first, end, text}]. Return: NULL: none wrote in it. */
json_t *edit_words_value(struct dmi_read *run, uint64_t request);
/* Edits of the requests that are selected, [{name, site, layers, requests}]: in how many each wrote. Return: NULL: none did. */
json_t *edit_words_of_run(struct dmi_read *run);

/* A line and the member "edits" of a request; nothing where none wrote in it. */
void edit_words_report(struct report *report, struct dmi_read *run, uint64_t request);
/* The same of all requests. */
void edit_words_report_run(struct report *report, struct dmi_read *run);

/* Adds to a sentence, of @n bytes at most, which edits wrote in the request; nothing where none did. */
void edit_words_add(char *sentence, size_t n, struct dmi_read *run, uint64_t request);
