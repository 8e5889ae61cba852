/* SPDX-License-Identifier: Apache-2.0 */
/* The requests that have edits, and the version that each has kept since its first step. Thread: any that entered. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct edit_version;

/* The version of the request, held; @now if it has none yet, which it keeps from here on, unless there are too many. */
struct edit_version *requests_version(const char *id, struct edit_version *now);

/* The request is forgotten. Return: its version, to be given back; NULL: it had none. */
struct edit_version *requests_forget(const char *id);

/* Its last step is that of @sequence, which has begun. */
void requests_last(const char *id, uint64_t sequence);

/* Calls @end for each of those whose step is over, and forgets that they were. */
void requests_end_last(bool (*is_over)(const void *arg, uint64_t sequence), const void *arg,
                       void (*end)(const char *id));

/* Have all requests this version, as far as they have any? */
bool requests_all_have(const struct edit_version *version);

/* Does some request have a version of @wants? For edits_reach_site(). */
bool requests_any(bool (*wants)(const struct edit_version *version, uint32_t site), uint32_t site);

/* Do the request's tags have the salt: is it in the value of the key `cache_salt`? */
bool requests_have_salt(const char *tags, uint64_t salt);

/* After fork, in the child. */
void requests_reset(void);
