/* SPDX-License-Identifier: Apache-2.0 */
/* captured + dropped = expected: the counters against what lies in the segments. */
#include "storage/reader/reader_private.h"

#include <errno.h>
#include <stdlib.h>

bool reader_add(uint64_t *a, uint64_t b)
{
    if (!__builtin_add_overflow(*a, b, a))
        return true;
    *a = UINT64_MAX;
    return false;
}

bool reader_add_tally(struct dmi_tally *a, const struct dmi_tally *b)
{
    bool fits = reader_add(&a->records, b->records);
    fits &= reader_add(&a->rows, b->rows);
    return reader_add(&a->bytes, b->bytes) && fits;
}

static uint64_t rest(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

void reader_add_held(struct dmi_tally *sums, uint64_t n_sums, const struct reader_segment *s)
{
    size_t n;
    const struct dmi_footer_site *sites = reader_tallies(s, &n);
    for (size_t i = 0; i < n; i++) {
        const struct dmi_tally t = { sites[i].records, sites[i].rows, sites[i].bytes };
        if (sites[i].site < n_sums)
            reader_add_tally(&sums[sites[i].site], &t);
    }
}

int reader_sum(struct reader *r)
{
    free(r->found);
    r->found = calloc(r->said.n_sites + 1, sizeof *r->found);
    if (!r->found)
        return -ENOMEM;
    for (size_t i = 0; i < r->index.n_segments; i++)
        reader_add_held(r->found, r->said.n_sites, &r->index.segments[i]);
    return 0;
}

bool reader_account(const struct reader *r, uint32_t site, struct reader_account *a)
{
    *a = (struct reader_account){ .found = r->found[site] };
    if (!r->counters || site >= r->counters->n_sites)
        return false;
    const struct dmi_site_counters *c = &r->counters->sites[site];
    a->expected = c->expected;
    a->counted = c->captured;
    a->launches = c->launches;
    a->released = c->released;
    bool fits = true;
    for (int d = 0; d < DMI_DROP_ROOM; d++)
        fits &= reader_add_tally(&a->dropped, &c->dropped[d]);
    struct dmi_tally have = a->found, sum;
    fits &= reader_add_tally(&have, &a->released);
    sum = have;
    fits &= reader_add_tally(&sum, &a->dropped);
    a->lost =
        (struct dmi_tally){ rest(a->expected.records, sum.records),
                            rest(a->expected.rows, sum.rows), rest(a->expected.bytes, sum.bytes) };
    bool exact = fits && dmi_tally_is(&sum, &a->expected) && dmi_tally_is(&a->counted, &have);
    bool enough =
        fits && dmi_tally_within(&sum, &a->expected) && dmi_tally_within(&a->counted, &have);
    /* of a run that goes on, files and counters were not read at one moment */
    a->holds = r->run.state == READER_CLOSED    ? exact
               : r->run.state == READER_RUNNING ? fits
                                                : enough;
    return true;
}
