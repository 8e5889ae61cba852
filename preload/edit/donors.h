/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Donors: requests of which an edit saves rows in the bank (context/bank.h), under a name, for edits that take them in other requests.
 * Rows go when their request ends, unless the edit keeps them. They leave the bank once no launch in flight uses them. Thread: any that
 * entered the session, but where it says more.
 */
#pragma once

#include "preload/edit/version.h"
#include "storage/text.h"

#include <stdbool.h>
#include <stdint.h>

struct donor;

/*
 * The request of the span is a donor of what its edit saves. @version: that the request has. Return: held; NULL without memory, or where
 * too many requests are donors.
 */
struct donor *donors_add(const char *name, bool keep, struct edit_version *version,
                         const struct dmi_span *span);

/**
 * donors_find() - whose rows a request takes: its own, else those of the one request that has some under the name
 * @version: that the request has. What it does in the donor must be what the donor's own does, or its rows are of other edits
 * Return: held; NULL: there is none, there are several, or they are of other edits.
 */
struct donor *donors_find(const char *name, struct edit_version *version,
                          const struct dmi_span *span);

/* As kernels know it. */
uint32_t donor_number(const struct donor *donor);

/* The id of its request. Borrowed while it is held. */
const char *donor_request(const struct donor *donor);

/* One user less; NULL is fine. */
void donor_release(struct donor *donor);

/* The request has ended. */
void donors_request_end(const char *id);

/* Does some request have rows under the name? */
bool donors_have(const char *name);

/* {"name": ..., "request": ..., "keep": ..., "ended": ...}, ..., at most @most. Return: how many more there are. */
uint32_t donors_list(struct text *text, uint32_t most);

/* Forgets all rows under the name. Return: of how many requests. */
uint32_t donors_drop(const char *name);

/* After fork, in the child. */
void donors_reset(void);
