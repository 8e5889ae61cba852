/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/export_mask.h"

#include "core/cleanup.h"
#include "core/words.h"
#include "read/missing.h"
#include "read/utf8.h"
#include "tools/common/say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_IDS 20000 /* that are kept */

int export_masks_match(struct err *err, struct export_masks *m, const struct requests *requests)
{
    for (size_t i = 0; i < requests->n && m->n_ids < MOST_IDS; i++, m->n_ids++) {
        utf8_add_valid(&m->ids, requests->all[i].id, requests->all[i].n_id);
        text_add(&m->ids, "", 1);
    }
    if (m->ids.failed)
        return err_set_errno(err, ENOMEM, "cannot match %s", m->masks.path);
    return masks_match(err, &m->masks, requests);
}

void export_masks_complain(const struct export_masks *m)
{
    const struct mask *first = NULL;
    uint64_t n = 0;
    for (size_t i = 0; i < m->masks.n; i++) {
        if (m->masks.all[i].met)
            continue;
        first = first ? first : &m->masks.all[i];
        n++;
    }
    if (!first)
        return;
    _cleanup_(text_deinit) struct text t = { 0 };
    _cleanup_(freep) struct name_bytes *names = calloc(m->n_ids + 1, sizeof *names);
    const char *at = m->ids.data;
    for (size_t i = 0; names && i < m->n_ids; at += names[i++].n + 1)
        names[i] = (struct name_bytes){ at, strlen(at) };
    missing_add_nearest(&t, first->id, first->n_id, names, names ? m->n_ids : 0);
    complain("%s has %" PRIu64 " %s that %s, the first on line %" PRIu64 ": '%s'%s", m->masks.path,
             n, word_for(n, "request", "requests"),
             word_for(n, "is not in what is exported", "are not in what is exported"), first->line,
             first->id, t.data ? t.data : "");
}

void export_masks_deinit(struct export_masks *m)
{
    masks_deinit(&m->masks);
    text_deinit(&m->ids);
    *m = (struct export_masks){ 0 };
}
