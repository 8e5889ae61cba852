/* SPDX-License-Identifier: Apache-2.0 */
#include "read/account.h"

#include "read/value.h"

#include <errno.h>
#include <stdlib.h>

static bool add(uint64_t *to, uint64_t more)
{
    return __builtin_add_overflow(*to, more, to);
}

static bool add_tally(struct dmi_tally *to, const struct dmi_tally *more)
{
    bool wraps = add(&to->records, more->records);
    wraps |= add(&to->rows, more->rows);
    return add(&to->bytes, more->bytes) || wraps;
}

/* @lost = @expected - @found - @dropped. Return: false where that is less than nothing. */
static bool subtract(uint64_t expected, uint64_t found, uint64_t dropped, uint64_t *lost)
{
    uint64_t known;
    *lost = 0;
    if (__builtin_add_overflow(found, dropped, &known) || known > expected)
        return false;
    *lost = expected - known;
    return true;
}

/* Closed: nothing may be lost. Killed: a chunk may have been written and not yet counted. */
static void judge(struct account *a, enum reader_state state)
{
    static const struct dmi_tally none;
    const struct dmi_tally *e = &a->expected, *d = &a->dropped;
    struct dmi_tally have = a->found; /* captured: still there, or released */
    a->wraps |= add_tally(&have, &a->released);
    bool enough = !a->wraps && subtract(e->records, have.records, d->records, &a->lost.records);
    enough = enough && subtract(e->rows, have.rows, d->rows, &a->lost.rows);
    enough = enough && subtract(e->bytes, have.bytes, d->bytes, &a->lost.bytes);
    if (!enough)
        a->lost = none;
    if (state == READER_RUNNING) /* files and counters were not read at one moment */
        a->balances = !a->wraps;
    else if (state == READER_CLOSED)
        a->balances = enough && dmi_tally_is(&a->lost, &none) && dmi_tally_is(&a->counted, &have);
    else
        a->balances = enough && dmi_tally_within(&a->counted, &have);
}

struct dmi_tally account_captured(const struct account *a)
{
    struct dmi_tally all = a->found;
    add_tally(&all, &a->released);
    return all;
}

void account_of(const struct reader *reader, uint32_t site, struct account *out)
{
    struct reader_account a;
    *out = (struct account){ .known = reader_account(reader, site, &a), .found = a.found };
    if (!out->known)
        return;
    const struct dmi_site_counters *c = &reader_run(reader)->counters->sites[site];
    out->expected = a.expected;
    out->counted = a.counted;
    out->released = a.released;
    out->launches = a.launches;
    out->uncounted = c->uncounted;
    for (size_t d = 0; d < DMI_DROP_ROOM; d++) {
        out->wraps |= add_tally(&out->dropped, &c->dropped[d]);
        out->dropped_by[d] = c->dropped[d];
    }
    judge(out, reader_run(reader)->state);
}

static void merge(struct account *to, const struct account *from)
{
    to->wraps |= add_tally(&to->expected, &from->expected) | from->wraps;
    to->wraps |= add_tally(&to->counted, &from->counted);
    to->wraps |= add_tally(&to->dropped, &from->dropped);
    to->wraps |= add_tally(&to->found, &from->found);
    to->wraps |= add_tally(&to->released, &from->released);
    add_tally(&to->lost, &from->lost);
    for (size_t d = 0; d < DMI_DROP_ROOM; d++)
        to->wraps |= add_tally(&to->dropped_by[d], &from->dropped_by[d]);
    to->launches += from->launches;
    to->uncounted += from->uncounted;
    to->n_stored += from->n_stored;
    to->known = to->known && from->known;
    to->balances = to->balances && from->balances && !to->wraps;
}

int accounts_build(const struct reader *reader, const struct sites *sites, struct accounts *out)
{
    static const struct account nothing = { .known = true, .balances = true };
    *out = (struct accounts){ .n = sites->n, .total = nothing };
    out->sites = calloc(out->n + 1, sizeof *out->sites);
    if (!out->sites)
        return -ENOMEM;
    for (size_t s = 0; s < out->n; s++)
        out->sites[s] = nothing;
    for (size_t s = 0; s < out->n; s++) {
        struct account entry;
        account_of(reader, (uint32_t)s, &entry);
        merge(&out->sites[sites->first[s]], &entry);
    }
    for (size_t i = 0; i < reader_n_records(reader); i++) {
        const struct reader_record *rec = reader_record(reader, i);
        out->sites[sites->first[rec->at.site]].n_stored += rec->n_stored;
    }
    for (size_t s = 0; s < out->n; s++)
        if (sites->first[s] == s)
            merge(&out->total, &out->sites[s]);
    if (!reader_run(reader)->counters)
        out->total.known = out->total.balances = false;
    return 0;
}

void accounts_deinit(struct accounts *accounts)
{
    free(accounts->sites);
    *accounts = (struct accounts){ 0 };
}

json_t *account_tally(const struct dmi_tally *t)
{
    return json_pack("{s:o, s:o, s:o}", "records", value_u64(t->records), "rows",
                     value_u64(t->rows), "bytes", value_u64(t->bytes));
}

json_t *account_reasons(const struct dmi_tally by_reason[DMI_DROP_ROOM], bool rows, bool partly)
{
    json_t *o = json_object();
    for (uint32_t d = 0; d < DMI_DROP_ROOM; d++) {
        const struct dmi_tally *t = &by_reason[d];
        uint64_t n = rows ? t->rows : t->records;
        if (n || (partly && t->rows))
            json_object_set_new(o, dmi_drop_name(d), value_u64(n));
    }
    return o;
}
