/* SPDX-License-Identifier: Apache-2.0 */
/* The new run's counters: what the old run's process expected, and what became of it. */
#include "tools/dump/recover.h"

#include "core/cleanup.h"
#include "core/sorted.h"

#include <stdlib.h>

/* *@out = @a - @b. Return: false where a number would be below 0; *@out has 0 there. */
static bool minus(const struct dmi_tally *a, const struct dmi_tally *b, struct dmi_tally *out)
{
    *out = (struct dmi_tally){ a->records > b->records ? a->records - b->records : 0,
                               a->rows > b->rows ? a->rows - b->rows : 0,
                               a->bytes > b->bytes ? a->bytes - b->bytes : 0 };
    return a->records >= b->records && a->rows >= b->rows && a->bytes >= b->bytes;
}

/* Return: false where a sum does not fit. */
static bool add(struct dmi_tally *to, const struct dmi_tally *b)
{
    bool over = __builtin_add_overflow(to->records, b->records, &to->records);
    over |= __builtin_add_overflow(to->rows, b->rows, &to->rows);
    over |= __builtin_add_overflow(to->bytes, b->bytes, &to->bytes);
    return !over;
}

/* What of the old counters can be believed for a site: expected >= what there is + dropped. */
static bool take_old(struct dmi_site_counters *to, const struct dmi_site_counters *old,
                     const struct dmi_tally *written, struct recover_lost *lost)
{
    struct dmi_tally captured = *written, known, all, at_kill, unread;
    bool good = add(&captured, &old->released);
    known = captured;
    for (int d = 0; d < DMI_DROP_ROOM; d++)
        good &= add(&known, &old->dropped[d]);
    good = good && minus(&old->expected, &known, &all);
    if (!good)
        return false;
    *to = *old;
    to->captured = captured;
    good = add(&to->dropped[DMI_DROP_LOST], &all);
    minus(&old->captured, &captured,
          &unread); /* fewer may be counted than were written: a kill between */
    if (!minus(&all, &unread, &at_kill))
        unread = all;
    return add(&lost->unread, &unread) && add(&lost->at_kill, &at_kill) && good;
}

static void count_site(struct recovery *x, uint32_t site)
{
    const struct dmi_counters *old = reader_run(x->reader)->counters;
    struct dmi_site_counters *to = &run_counters(x->run)->sites[site];
    if (old && site < old->n_sites && take_old(to, &old->sites[site], &x->written[site], &x->lost))
        return;
    *to = (struct dmi_site_counters){ .expected = x->written[site], .captured = x->written[site] };
    x->lost.unknown = true;
}

/* Chunks that damage was found in; 0 where there is no memory to count them. */
static uint64_t count_chunks(const struct reader *reader)
{
    size_t n = 0, n_all = reader_n_findings(reader);
    _cleanup_(freep) int64_t *chunks = calloc(n_all + 1, sizeof *chunks);
    for (size_t i = 0; chunks && i < n_all; i++) {
        const struct reader_finding *f = reader_finding(reader, i);
        if (f->damage && f->chunk >= 0)
            chunks[n++] = f->chunk;
    }
    if (n)
        qsort(chunks, n, sizeof *chunks, order_i64);
    uint64_t n_different = n != 0;
    for (size_t i = 1; i < n; i++)
        n_different += chunks[i] != chunks[i - 1];
    return n_different;
}

void recover_count(struct recovery *x)
{
    const struct reader_run *old = reader_run(x->reader);
    struct dmi_counters *to = run_counters(x->run);
    for (uint32_t i = 0; i < to->n_sites; i++)
        count_site(x, i);
    if (old->counters) {
        to->forwards = old->counters->forwards;
        to->launches_matched = old->counters->launches_matched;
        to->steps = old->counters->steps;
        to->steps_refused = old->counters->steps_refused;
        to->waits = old->counters->waits;
        to->waits_over = old->counters->waits_over;
        to->wait_ns = old->counters->wait_ns;
    }
    if (to->steps > x->n_steps)
        x->lost.n_steps = to->steps - x->n_steps;
    x->lost.n_chunks = count_chunks(x->reader);
}
