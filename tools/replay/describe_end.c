/* SPDX-License-Identifier: Apache-2.0 */
/* What was dropped, and the tallies at the end of a run. */
#include "tools/replay/describe.h"

#include "core/cleanup.h"
#include "read/account.h"
#include "read/value.h"

/* @o with the members of @more; takes both over. */
static json_t *merge(json_t *o, json_t *more)
{
    bool failed = !o || !more || json_object_update(o, more);
    json_decref(more);
    if (!failed)
        return o;
    json_decref(o);
    return NULL;
}

json_t *describe_drops(const struct replay_source *s, uint32_t site)
{
    struct account a;
    account_of(s->reader, site, &a);
    if (!a.known || !a.dropped.records)
        return NULL;
    json_t *o = describe_begin(s, ITEM_GAP);
    json_t *more = json_pack("{s:s, s:o, s:o, s:o, s:o}", "what", "dropped", "site",
                             value_text(reader_site(s->reader, site)->name), "site_id",
                             value_u64(site), "dropped", account_tally(&a.dropped), "by",
                             account_reasons(a.dropped_by, false, false));
    return merge(o, more);
}

static json_t *account_value(const struct replay_source *s)
{
    _cleanup_(accounts_deinit) struct accounts all = { 0 };
    if (accounts_build(s->reader, &s->sites, &all))
        return NULL;
    const struct account *a = &all.total;
    if (!a->known)
        return json_pack("{s:o}", "captured", account_tally(&a->found));
    return VALUE_OBJECT(
        { "expected", account_tally(&a->expected) }, { "captured", account_tally(&a->found) },
        { "dropped", account_tally(&a->dropped) },
        { "dropped_by", account_reasons(a->dropped_by, false, false) },
        { "released", account_tally(&a->released) }, { "lost", account_tally(&a->lost) },
        { "balances", json_boolean(a->balances) });
}

static json_t *left_out_value(const struct replay_source *s)
{
    const struct source_left_out *now = &s->left_out, *before = &s->left_out_before;
    uint64_t rejected = s->wanted->select.rejected ? 0 : before->n_rejected + now->n_rejected;
    uint64_t superseded =
        s->wanted->select.superseded ? 0 : before->n_superseded + now->n_superseded;
    return json_pack("{s:o, s:o, s:o}", "rejected", value_u64(rejected), "superseded",
                     value_u64(superseded), "of_nobody",
                     value_u64(before->n_nobody + now->n_nobody));
}

json_t *describe_end(const struct replay_source *s, bool complete)
{
    const struct dmi_tally replayed = { s->n_records, s->n_rows, s->n_bytes };
    json_t *more = VALUE_OBJECT(
        { "state", json_string(describe_state(s)) }, { "complete", json_boolean(complete) },
        { "replayed", account_tally(&replayed) }, { "not_decoded", value_u64(s->n_lost) },
        { "left_out", left_out_value(s) }, { "account", account_value(s) },
        { "edits", describe_edits(s) });
    return merge(describe_begin(s, ITEM_END), more);
}
