/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/own_clock.h"

#include <stdbool.h>

#define APART_NS   1000000u /* pairs that lie nearer are one */
#define MOST_DRIFT 1000u    /* one part in so many: between the last pair and what runs after it */

static const struct own_pair *pair_at(const struct own_clock *c, uint64_t i)
{
    return &c->pairs[i % OWN_CLOCK_PAIRS];
}

static uint64_t oldest(const struct own_clock *c)
{
    return c->n > OWN_CLOCK_PAIRS ? c->n - OWN_CLOCK_PAIRS : 0;
}

int64_t own_clock_take(struct own_clock *c, const struct clock_pair *now)
{
    const struct own_pair p = { now->mono_ns, now->error_ns, (int64_t)(now->other - now->mono_ns) };
    const struct own_pair *before = c->n ? pair_at(c, c->n - 1) : NULL;
    if (before && p.mono_ns - before->mono_ns < APART_NS)
        return 0;
    int64_t by = before ? p.ahead_ns - before->ahead_ns : 0;
    bool set = by > OWN_CLOCK_SET_NS || by < -OWN_CLOCK_SET_NS;
    if (set)
        c->set = c->n;
    c->pairs[c->n++ % OWN_CLOCK_PAIRS] = p;
    return set ? by : 0;
}

/* How far CUPTI's clock was ahead of the monotonic one: something between the two. */
struct ahead {
    int64_t least, most;
    uint64_t error_ns;
};

static void add(struct ahead *a, const struct own_pair *p, uint64_t error_ns)
{
    a->least = p->ahead_ns < a->least ? p->ahead_ns : a->least;
    a->most = p->ahead_ns > a->most ? p->ahead_ns : a->most;
    a->error_ns = error_ns > a->error_ns ? error_ns : a->error_ns;
}

static bool is_after(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) >= 0;
}

/* Between pairs @i - 1 and @i; before all of them; after all of them. Return: whether what ended at CUPTI's @end may have ended there. */
static bool may_be_in(const struct own_clock *c, uint64_t i, uint64_t end, struct ahead *a)
{
    const struct own_pair *p = i > oldest(c) ? pair_at(c, i - 1) : NULL;
    const struct own_pair *q = i < c->n ? pair_at(c, i) : NULL;
    struct ahead here = { INT64_MAX, INT64_MIN, 0 };
    if (p)
        add(&here, p, p->error_ns);
    if (q)
        add(&here, q, q->error_ns);
    uint64_t earliest = end - (uint64_t)here.most, latest = end - (uint64_t)here.least;
    if ((p && !is_after(latest + here.error_ns, p->mono_ns)) ||
        (q && !is_after(q->mono_ns + here.error_ns, earliest)))
        return false;
    if (!p)
        here.error_ns += (q->mono_ns - earliest) / MOST_DRIFT;
    if (!q && is_after(latest, p->mono_ns))
        here.error_ns += (latest - p->mono_ns) / MOST_DRIFT;
    if (p)
        add(a, p, here.error_ns);
    if (q)
        add(a, q, here.error_ns);
    return true;
}

struct placed own_clock_place(const struct own_clock *c, uint64_t begin, uint64_t end)
{
    struct ahead a = { INT64_MAX, INT64_MIN, 0 };
    bool was_set = c->set && c->set >= oldest(c), found = false;
    for (uint64_t i = c->n; c->n; i--) {
        bool here = may_be_in(c, i, end, &a);
        if (i == oldest(c) || (found && !here && !was_set))
            break;
        found |= here;
    }
    if (a.least > a.most)
        return (struct placed){ begin, end, OWN_CLOCK_NEVER };
    uint64_t apart = (uint64_t)(a.most - a.least);
    uint64_t ahead = (uint64_t)(a.least + (int64_t)(apart / 2));
    return (struct placed){ begin - ahead, end - ahead,
                            apart - apart / 2 + a.error_ns + OWN_CLOCK_ERR_NS };
}
