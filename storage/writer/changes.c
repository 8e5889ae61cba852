/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/changes.h"

#include "core/cleanup.h"
#include "storage/record.h"

#include <errno.h>
#include <string.h>

int changes_add(struct text *entries, uint64_t number, const struct run_change *change)
{
    static const char zeros[DMI_CHUNK_ALIGN];
    _cleanup_(text_deinit) struct text json = { 0 };
    size_t before = entries->n;
    text_printf(&json, "{\"what\": ");
    text_json(&json, change->what);
    text_printf(&json, "%s}", change->more ? change->more : "");
    const struct dmi_change_entry at = {
        .n_bytes = (uint32_t)chunk_pad(sizeof at + json.n),
        .json_bytes = (uint32_t)json.n,
        .number = number,
        .time_ns = change->time_ns,
        .launch = change->launch,
        .step = change->step,
    };
    text_add(entries, (const char *)&at, sizeof at);
    text_add(entries, json.n ? json.data : "", json.n);
    text_add(entries, zeros, at.n_bytes - sizeof at - json.n);
    if (!json.failed && !entries->failed)
        return 0;
    entries->n = before;
    entries->failed = 0;
    return -ENOMEM;
}

static struct dmi_change_entry entry_at(const void *entries, size_t at)
{
    struct dmi_change_entry e;
    memcpy(&e, (const uint8_t *)entries + at, sizeof e);
    return e;
}

static void forget_oldest(struct changes *c)
{
    size_t n = 0;
    while (c->latest.n - n > CHANGES_MAX_BYTES)
        n += entry_at(c->latest.data, n).n_bytes;
    if (n)
        memmove(c->latest.data, c->latest.data + n, c->latest.n - n);
    c->latest.n -= n;
}

void changes_note(struct changes *c, const struct chunk *chunk, uint32_t segment)
{
    struct dmi_change_entry e;
    for (size_t at = 0; at < chunk->header.n_meta; at += e.n_bytes) {
        e = entry_at(chunk->meta, at);
        bool first = c->segment != segment || !c->next;
        c->first = first || e.number < c->first ? e.number : c->first;
        c->segment = segment;
        if (e.number < c->next)
            continue;
        c->next = e.number + 1;
        size_t before = c->latest.n;
        text_add(&c->latest, (const char *)chunk->meta + at, e.n_bytes);
        if (c->latest.failed) /* then it is not repeated */
            c->latest.n = before, c->latest.failed = 0;
    }
    forget_oldest(c);
}

int changes_again(const struct changes *c, uint32_t segment, struct text *out)
{
    size_t n = 0;
    while (n < c->latest.n) {
        struct dmi_change_entry e = entry_at(c->latest.data, n);
        if (c->segment == segment && e.number >= c->first)
            break;
        n += e.n_bytes;
    }
    if (n)
        text_add(out, c->latest.data, n);
    return out->failed ? -ENOMEM : 0;
}

void changes_deinit(struct changes *c)
{
    text_deinit(&c->latest);
}
