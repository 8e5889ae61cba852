/* SPDX-License-Identifier: Apache-2.0 */
/* Why a selection matched nothing, and what was probably meant. A program of one thread. */
#ifndef TOOLS_DUMP_MISSING_H
#define TOOLS_DUMP_MISSING_H

#include "read/sites.h"
#include "read/tensors.h"
#include "storage/text.h"

/* Whether the run has the request that is selected, if any; says so on stderr where it has not. */
bool missing_has_request(const struct reader *reader, const struct selection *select);

/* Does @select ask for all that was captured? Then nothing is missing where there is nothing. */
bool missing_is_all(const struct selection *select);

/* A name, not terminated. */
struct name_bytes {
    const char *at;
    size_t n;
};
/* Adds "; nearest: a, b" of @n names; nothing where there is none. */
void missing_add_nearest(struct text *to, const char *wanted, const struct name_bytes *names,
                         size_t n);

/* Says it on stderr. */
void missing_complain(const struct reader *reader, const struct sites *sites,
                      const struct selection *select);

#endif
