/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the accounting balances: what lies in the segments and what was dropped, against what was expected. Sums
 * are over the entries of one site's name, and over all. Not locked: the owner's thread. Source: docs/format.md 9.
 */
#pragma once

#include "read/sites.h"
#include "storage/reader/reader.h"

#include <jansson.h>

struct account {
    struct dmi_tally expected, dropped;
    struct dmi_tally counted;  /* as written, by the process */
    struct dmi_tally found;    /* in the segments */
    struct dmi_tally released; /* captured, and deleted with their segment since */
    struct dmi_tally
        lost; /* expected, neither found nor dropped; 0 where it does not balance: it is unknown */
    struct dmi_tally dropped_by[DMI_DROP_ROOM];
    uint64_t launches;
    uint64_t
        uncounted; /* graph launches that may have launched its kernel: the driver does not say how often */
    double n_stored; /* bytes of @found in the files */
    bool known;      /* there are counters */
    bool balances;   /* false where !known; for a run that goes on always true */
    bool wraps;      /* a sum does not fit 64 bits: the counters are wrong */
};

struct accounts {
    struct account *sites; /* by site id; that of a name in its first entry */
    struct account total;
    size_t n;
};

/* What lies in the segments and what lay in released ones; sums that wrap are not said. */
struct dmi_tally account_captured(const struct account *account);

/* That of one site entry; n_stored is left out. */
void account_of(const struct reader *reader, uint32_t site, struct account *out);

/* {records, rows, bytes}. A new reference; NULL without memory. */
json_t *account_tally(const struct dmi_tally *tally);
/* What was dropped, by reason: rows, or records. @partly: also reasons for which rows of records were dropped, and no record. Likewise. */
json_t *account_reasons(const struct dmi_tally by_reason[DMI_DROP_ROOM], bool rows, bool partly);

/* Return: 0 or -ENOMEM. accounts_deinit() accepts a zeroed struct. */
int accounts_build(const struct reader *reader, const struct sites *sites, struct accounts *out);
void accounts_deinit(struct accounts *accounts);
