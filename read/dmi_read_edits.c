/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI of <dmi/read.h>: what edits wrote. */
#include <dmi/read.h>

#include "read/handle.h"

#include <errno.h>
#include <string.h>

/* Return: NULL: there is no such one, or no memory, which is noted. */
static struct edited *edit_at(struct dmi_read *run, uint64_t request, uint64_t index)
{
    struct edited *edits = NULL;
    if (handle_edited(run))
        return NULL;
    bool nobody = request == DMI_READ_NOBODY;
    size_t n = nobody || request < run->view.requests.n
                   ? edited_of(&run->view.edited, nobody ? EDITED_NOBODY : request, &edits)
                   : 0;
    if (index < n)
        return &edits[index];
    handle_fail(run, -ENOENT, "no such edit");
    return NULL;
}

int dmi_read_edit(struct dmi_read *run, uint64_t request, uint64_t index, struct dmi_read_edit *out)
{
    struct edited *e = run->failed ? NULL : edit_at(run, request, index);
    if (!e)
        return run->failed ? -EBADF : run->err.code;
    struct dmi_read_edit ours = {
        .known = e->use != NULL,
        .name = e->name,
        .site = e->site,
        .layers = edited_layers(e),
        .text = edited_phrase(e),
        .uid = e->uid,
        .due = e->counted ? e->due : UINT64_MAX,
        .written = e->counted ? e->written : UINT64_MAX,
        .first = e->n_parts ? INT64_MAX : 0,
        .end = e->n_parts ? 0 : INT64_MAX,
    };
    for (size_t i = 0; i < e->n_parts; i++) {
        const struct range *r = &e->parts[i].positions;
        ours.first = r->first < ours.first ? r->first : ours.first;
        ours.end = r->end > ours.end ? r->end : ours.end;
    }
    return handle_hand_out(run, out, &ours, sizeof ours);
}

int dmi_read_edit_sum(struct dmi_read *run, uint64_t request, uint64_t index, int32_t layer,
                      int64_t position, float *sum, uint64_t n)
{
    const struct edited *e = run->failed ? NULL : edit_at(run, request, index);
    if (!e)
        return run->failed ? -EBADF : run->err.code;
    int r = edited_sum(e, layer, position, sum, n);
    if (r == -ENODATA)
        return handle_fail(run, r, "the run does not have the edit's text and numbers");
    return r >= 0 ? r
                  : handle_fail(run, r,
                                "the edit does not only add vectors that are as wide as a row");
}
